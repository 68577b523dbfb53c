"""Windows of the document order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from resumable_data import BestFit, Concat, Sequential, Shuffle
from resumable_data.errors import UsageError
from resumable_data.packing import Carry, PackedRows, Policy, WindowPlan
from tests.packing_oracle import rows_of

LENGTHS = np.arange(100, dtype=np.int64) * 7 % 23


def plan_of(policy: Policy = BestFit(), **changes: Any) -> WindowPlan:  # noqa: B008 - it is frozen
    arguments: dict[str, Any] = {"row_length": 40, "window": 30, "seed": 3}
    return WindowPlan(Shuffle(100), LENGTHS.take, policy, **(arguments | changes))


def planned(plan: WindowPlan, epoch: int = 0, window: int = 0) -> list[list[tuple[int, int, int]]]:
    return rows_of(plan.plan(epoch, window).rows)


def test_rows_depend_on_seed_epoch_and_window_alone() -> None:
    """The same in any order of calls; another seed arranges the same rows otherwise."""
    plan = plan_of()
    backwards = [planned(plan, 2, window) for window in reversed(range(4))][::-1]
    assert backwards == [planned(plan_of(), 2, window) for window in range(4)]
    assert planned(plan, 1) != planned(plan, 0)
    other = planned(plan_of(seed=4))
    assert other != planned(plan)
    assert sorted(other) == sorted(planned(plan))
    alike = WindowPlan(Sequential(100), np.full(100, 40).take, BestFit(), row_length=40, window=50)
    places = [[row[0][0] % 50 for row in planned(alike, *where)] for where in ((0, 0), (0, 1), (1, 0))]
    assert len({tuple(arrangement) for arrangement in places}) == 3


def test_windows_cover_an_epoch() -> None:
    """ceil(N / window) of them, the last one shorter."""
    plan = plan_of()
    assert (plan.num_windows, plan.num_documents) == (4, 100)
    seen = [document for window in range(4) for row in planned(plan, 5, window) for document, _, _ in row]
    assert sorted(seen) == np.flatnonzero(LENGTHS).tolist()
    assert plan_of(window=100).num_windows == plan_of(window=101).num_windows == 1


def test_everything_that_rows_depend_on_is_described() -> None:
    """The policy under keys of its own."""
    assert plan_of().describe() == {
        "policy_kind": "best-fit",
        "policy_version": 1,
        "policy_truncate": 0,
        "version": 1,
        "row_length": 40,
        "window": 30,
        "seed": 3,
    }


def test_windows_without_a_full_row_carry_over() -> None:
    """Concat fills a row from as many windows as it takes, empty documents and all."""
    lengths = np.array([3, 0, 2, 0, 0, 4, 1])
    plan = WindowPlan(Sequential(7), lengths.take, Concat(), row_length=8, window=2)
    assert [plan.carry_into(0, window) for window in range(5)] == [(0, 0), (0, 0), (0, 0), (5, 3), (7, 0)]
    assert planned(plan) == []
    assert rows_of(plan.plan(0, 2, Carry(0, 0)).rows) == [[(0, 0, 3), (2, 0, 2), (5, 0, 3)]]
    assert rows_of(plan.plan(0, 3, Carry(5, 3)).rows) == [[(5, 3, 4), (6, 0, 1)]]


@pytest.mark.parametrize(
    ("policy", "window", "carry", "message"),
    [
        (Concat(), 1, None, "carry must be given for every window of Concat but the first"),
        (Concat(), 1, Carry(31, 0), "carry.document must be an int from 0 to 30"),
        (Concat(), 1, Carry(30, 1), "number of tokens carried into a window must be an int from 1 to 39; found -1"),
        (Concat(), 1, Carry(0, 0), "number of tokens carried into a window must be an int from 1 to 39"),
        (Concat(), 1, Carry(29, -1), "carry.offset must be an int from 0"),
        (Concat(), 1, Carry(27, 23), "consumed must be an int from 0"),
        (BestFit(), 1, Carry(29, 0), "carry.document must be an int from 30 to 30"),
        (BestFit(), 1, Carry(30, 1), "carry.offset must be an int from 0 to 0"),
        (BestFit(), 4, None, "window must be an int from 0 to 3"),
        (BestFit(), -1, None, "window must be an int from 0 to 3"),
    ],
)
def test_what_names_no_window_is_refused(policy: Policy, window: int, carry: Carry | None, message: str) -> None:
    """Each with what was expected and what was found."""
    with pytest.raises(UsageError, match=message):
        plan_of(policy).plan(0, window, carry)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"window": 0}, "window must be an int from 1"),
        ({"window": 2**22 + 1}, "window must be an int from 1"),
        ({"row_length": 0}, "row_length must be"),
        ({"seed": -1}, "seed must be"),
    ],
)
def test_arguments_out_of_range_are_refused(changes: dict[str, Any], message: str) -> None:
    """When the plan is made, not when it is used."""
    with pytest.raises(UsageError, match=message):
        plan_of(**changes)


@pytest.mark.parametrize("lengths", [np.zeros(30), np.zeros(29, dtype=np.int64), np.zeros((30, 1), dtype=np.int64)])
def test_lengths_of_another_shape_or_type_are_refused(lengths: Any) -> None:
    """A float or a missing length is never taken for one."""
    plan = WindowPlan(Sequential(30), lambda documents: lengths, BestFit(), row_length=8)
    with pytest.raises(UsageError, match="lengths must give an integer array of shape"):
        plan.plan(0, 0)


def test_lengths_of_any_integer_type_are_taken() -> None:
    """Sources store them in 32 bits."""
    plan = WindowPlan(Shuffle(100), LENGTHS.astype(np.uint16).take, BestFit(), row_length=40, window=30, seed=3)
    assert planned(plan) == planned(plan_of())


class Forgetful:
    """A policy that loses the last token of a window."""

    def pack(self, lengths: Any, row_length: int, /) -> PackedRows:
        rows = Concat().pack(lengths, row_length)
        stop = rows.stop.copy()
        stop[-1] -= 1
        return replace(rows, stop=stop)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "forgetful", "version": 1}


def test_a_policy_of_ones_own_is_held_to_the_contract() -> None:
    """Lost tokens are found in the window that lost them."""
    assert isinstance(Forgetful(), Policy)
    with pytest.raises(UsageError, match="truncated tokens in"):
        plan_of(Forgetful()).plan(0, 0)
