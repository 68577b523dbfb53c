"""When `make bench-check` fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from benchmarks._verdicts import failing, losses

COMMITTED = {"order": 2.0, "audit": 0.5}


def measured(*answers: dict[str, float]) -> tuple[Callable[[Sequence[str]], dict[str, float]], list[list[str]]]:
    """A measurement that gives these answers one after another; and what it was asked."""
    asked: list[list[str]] = []

    def measure(names: Sequence[str]) -> dict[str, float]:
        asked.append(list(names))
        return {name: answers[len(asked) - 1][name] for name in names}

    return measure, asked


def test_what_is_as_fast_or_faster_passes_at_once() -> None:
    """Nothing is measured twice without a reason."""
    measure, asked = measured({"order": 2.1, "audit": 0.1})
    assert failing(COMMITTED, measure) == {}
    assert asked == [["order", "audit"]]


@pytest.mark.parametrize(("ratio", "is_failing"), [(2.66, False), (2.68, True)])
def test_a_loss_of_more_than_a_quarter_of_the_speed_fails(ratio: float, is_failing: bool) -> None:
    """A quarter of the speed is a third more time."""
    measure, _ = measured({"order": ratio, "audit": 0.5}, {"order": ratio})
    assert (failing(COMMITTED, measure) != {}) == is_failing


def test_a_slow_minute_is_measured_again() -> None:
    """Only the suspects are repeated, and one good measurement clears them."""
    measure, asked = measured({"order": 9.0, "audit": 0.5}, {"order": 2.0})
    assert failing(COMMITTED, measure) == {}
    assert asked == [["order", "audit"], ["order"]]


def test_what_fails_twice_is_told_by_its_smaller_loss() -> None:
    """Half the speed, then a tenth of it: half is certain."""
    measure, _ = measured({"order": 4.0, "audit": 0.5}, {"order": 20.0})
    assert failing(COMMITTED, measure) == {"order": 0.5}


def test_a_case_without_a_committed_figure_is_an_error() -> None:
    """A case that was added or renamed would be guarded by nothing."""
    with pytest.raises(KeyError, match="packing"):
        losses(COMMITTED, {**COMMITTED, "packing": 1.0})


def test_losses_are_shares_of_the_speed() -> None:
    """Twice the time is half the speed; half the time is a gain."""
    assert losses(COMMITTED, {"order": 4.0, "audit": 0.25}) == {"order": 0.5, "audit": -1.0}
