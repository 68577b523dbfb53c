"""Cases that are measured in processes of their own."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from benchmarks._apart import Cost, cost_of_batches, interleave_apart, median_difference, run_apart, summarise_apart


def test_a_case_runs_in_its_own_process(capfd: pytest.CaptureFixture[str]) -> None:
    """A case's answer comes back, nothing that it changes does, and one that fails says why."""
    seen: list[int] = []

    def case() -> Cost:
        seen.append(os.getpid())
        return Cost(float(os.getpid()), 2.5, len(seen))

    first, second = run_apart(case), run_apart(case)
    assert (first.processor_s, first.more_memory_mib) == (2.5, 1)
    assert len({first.s, second.s, float(os.getpid())}) == 3
    assert seen == []

    def failing() -> Cost:
        raise ValueError("no such batch")

    with pytest.raises(RuntimeError, match="a case failed"):
        run_apart(failing)
    assert "no such batch" in capfd.readouterr().err


def test_batches_before_the_clock_are_taken_and_all_are_closed() -> None:
    """The first batches are taken untimed, then as many as are asked for, and what gives them is closed."""
    taken: list[int] = []

    def batches() -> Iterator[int]:
        try:
            for number in range(100):
                taken.append(number)
                yield number
        finally:
            taken.append(-1)

    cost = cost_of_batches(batches(), warm_up=3, num_batches=5)
    assert taken == [0, 1, 2, 3, 4, 5, 6, 7, -1]
    assert cost.s > 0


def test_the_summary_has_medians_and_ratios_of_the_same_round() -> None:
    """Rounds are taken in turns; the ratio is the median over rounds, memory and processor time are medians."""
    found = interleave_apart({"a": lambda: Cost(2, 1, 10), "b": lambda: Cost(1, 3, 20)}, 3)
    assert {name: len(rounds) for name, rounds in found.items()} == {"a": 3, "b": 3}
    costs = {"a": [Cost(2, 1, 9), Cost(4, 2, 7), Cost(8, 3, 8)], "b": [Cost(1, 5, 1), Cost(1, 5, 1), Cost(1, 5, 1)]}
    summary = summarise_apart(costs, reference="b", units={"a": 8, "b": 1})
    assert summary["a"]["median_s"] == 4
    assert summary["a"]["ratio"] == 0.5
    assert (summary["a"]["processor_s"], summary["a"]["more_memory_mib"]) == (2, 8)
    assert summary["b"]["units_per_s"] == 1
    assert median_difference(costs, "a", "b") == -3
