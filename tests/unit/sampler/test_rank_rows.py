"""One rank's microbatches; who reads what is compared with the oracle in tests/property."""

from __future__ import annotations

from itertools import islice
from typing import Any

import numpy as np
import pytest

from resumable_data import BatchPlan, Shuffle
from resumable_data.errors import TopologyError, UsageError
from resumable_data.order import ids_at
from resumable_data.plan import Schedule
from resumable_data.sampler import LossWeight, RankLayout, RankRows

PLAIN = LossWeight(normalize="samples", factor=1.0)


def test_blocks_do_not_show() -> None:
    """Long runs of microbatches are what the plan says, across the blocks that are computed ahead."""
    order, schedule = Shuffle(100_000, seed=1), Schedule(length=100_000, global_batch=37, epochs=2)
    layout = RankLayout(rank=2, num_replicas=3, microbatch=5)
    plan = BatchPlan(global_batch=37, microbatch=5, num_replicas=3)
    stream = RankRows(order, schedule=schedule, layout=layout, weight=PLAIN).from_place(update=0, epoch=0, offset=0)
    for number, found in enumerate(islice(stream, 16_000)):
        update, index = divmod(number, plan.accumulation_steps)
        positions = 37 * update + plan.microbatch_rows(2, index)
        assert (found.update, found.microbatch) == (update, index)
        assert np.array_equal(found.positions(), positions)
        assert np.array_equal(found.ids, ids_at(order, positions))


def test_far_out_positions_are_exact() -> None:
    """At 10^12 samples and past 2^53 positions, rows are exact."""
    order, length = Shuffle(10**12, seed=1), 10**12
    layout = RankLayout(rank=999_999, num_replicas=10**6, microbatch=2)
    rows = RankRows(order, schedule=Schedule(length=length, global_batch=3 * 10**6), layout=layout, weight=PLAIN)
    first, second, third = islice(rows.from_place(update=5, epoch=2**20, offset=length - 10**6), 3)
    start = 2**20 * length + length - 10**6
    assert first.positions().tolist() == [start + 999_999, start + 1_999_999]
    assert second.positions().tolist() == [start + 2_999_999]
    assert third.positions().tolist()[0] == start + 3 * 10**6 + 999_999
    assert first.ids.tolist() == ids_at(order, first.positions()).tolist()


def test_ids_cannot_be_written() -> None:
    """What is handed out is a view into what comes next, so nobody can write to it."""
    rows = RankRows(
        Shuffle(8),
        schedule=Schedule(length=8, global_batch=4),
        layout=RankLayout(rank=0, num_replicas=1, microbatch=2),
        weight=PLAIN,
    )
    found = next(rows.from_place(update=0, epoch=0, offset=0))
    with pytest.raises(ValueError, match="read-only"):
        found.ids[0] = 1


@pytest.mark.parametrize("rank", [-1, 2, 1.0, True, None])
def test_ranks_outside_the_set_are_refused(rank: Any) -> None:
    """A rank of -1 is not the last one."""
    with pytest.raises(TopologyError, match=r"rank must be an integer in \[0, 2\)"):
        RankLayout(rank=rank, num_replicas=2, microbatch=1)


@pytest.mark.parametrize("name", ["num_replicas", "microbatch"])
def test_counts_must_be_positive(name: str) -> None:
    """No ranks and no rows are refused by name."""
    arguments = {"rank": 0, "num_replicas": 1, "microbatch": 1, name: 0}
    with pytest.raises(UsageError, match=f"{name} must be an integer of at least 1"):
        RankLayout(**arguments)  # type: ignore[arg-type]
