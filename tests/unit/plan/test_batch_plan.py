"""One update over a rank set."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resumable_data import BatchPlan
from resumable_data.errors import UsageError
from resumable_data.plan import loss_factor


def sizes(plan: BatchPlan) -> list[int]:
    return [int(size) for size in np.diff(plan.stretches, axis=1)[:, 0]]


@pytest.mark.parametrize(
    ("global_batch", "num_replicas", "microbatch", "expected"),
    [
        (256, 10, 2, [20] * 12 + [16]),
        (10, 3, 1, [3, 3, 3, 1]),
        (12, 5, 1, [5, 5, 2]),
        (8, 4, 2, [8]),
        (1, 7, 3, [1]),
        # 6 rows in two microbatches of 3, not 4 and 2
        (12, 2, 4, [6, 6]),
        (14, 2, 4, [8, 6]),
    ],
)
def test_worked_examples(global_batch: int, num_replicas: int, microbatch: int, expected: list[int]) -> None:
    """Stretches have the sizes that the documentation works out by hand."""
    assert sizes(BatchPlan(global_batch=global_batch, microbatch=microbatch, num_replicas=num_replicas)) == expected


def test_busiest_rank() -> None:
    """512 on 10 ranks with microbatch 8 takes 7 steps and 52 rows on the busiest rank."""
    plan = BatchPlan(global_batch=512, microbatch=8, num_replicas=10)
    assert (plan.accumulation_steps, plan.rows_per_replica) == (7, 52)
    assert {plan.num_rows(rank) for rank in range(10)} == {51, 52}


def test_with_a_fixed_rank_set_it_is_torchs_distributed_sampler() -> None:
    """One rank's share is every num_replicas-th row, as torch's DistributedSampler deals them."""
    from torch.utils.data import DistributedSampler

    plan = BatchPlan(global_batch=24, microbatch=3, num_replicas=4)
    for rank in range(4):
        theirs: Any = DistributedSampler(range(24), num_replicas=4, rank=rank, shuffle=False)  # type: ignore[arg-type]
        assert plan.share(rank).tolist() == list(theirs)


def test_a_phase_leaves_the_rest() -> None:
    """Rows before the phase are nobody's, and the scale still counts the whole update."""
    plan = BatchPlan(global_batch=10, microbatch=1, num_replicas=3, phase=6)
    assert plan.shares().tolist() == [[6, 9], [7, -1], [8, -1]]
    assert plan.stretches.tolist() == [[6, 9], [9, 10]]
    assert plan.loss_scale() == 3 / 10
    assert (plan.rows_left, plan.num_idle, plan.filler_row(1)) == (4, 2, 9)


def test_a_million_ranks_cost_no_loop_over_ranks() -> None:
    """A rank's rows are right at sizes that no loop over ranks could reach."""
    plan = BatchPlan(global_batch=10**15 + 1, microbatch=1000, num_replicas=10**6)
    assert plan.accumulation_steps == 1_000_001
    assert plan.microbatch_rows(999_999, 0)[[0, -1]].tolist() == [999_999, 999_999 + 999 * 10**6]
    assert plan.num_rows(0) == plan.num_rows(1) + 1 == 10**9 + 1
    assert plan.microbatch_rows(0, 1_000_000).tolist()[-1] == 10**15


def test_loss_scale() -> None:
    """The factor is ranks per row for averaged gradients and one per row for summed ones."""
    plan = BatchPlan(global_batch=12, microbatch=1, num_replicas=5)
    assert plan.loss_scale() == 5 / 12
    assert plan.loss_scale(reduction_size=20) == 20 / 12
    assert plan.loss_scale(gradient_reduction="sum", reduction_size=20) == 1 / 12
    assert loss_factor("mean", 3) == 3.0
    with pytest.raises(UsageError, match=r"gradient_reduction must be one of \('mean', 'sum'\), got 'avg'"):
        plan.loss_scale(gradient_reduction="avg")
    with pytest.raises(UsageError, match="reduction_size must be an integer of at least 1, got 0"):
        plan.loss_scale(reduction_size=0)


@pytest.mark.parametrize("name", ["global_batch", "microbatch", "num_replicas"])
@pytest.mark.parametrize("value", [0, -1, 1.0, True, None, "2"])
def test_counts_must_be_positive_integers(name: str, value: Any) -> None:
    """Anything but an integer of at least 1 is refused by name."""
    arguments = {"global_batch": 4, "microbatch": 1, "num_replicas": 2, name: value}
    with pytest.raises(UsageError, match=f"{name} must be an integer of at least 1, got"):
        BatchPlan(**arguments)


@pytest.mark.parametrize("phase", [-1, 4, 5, 1.5, True])
def test_a_phase_outside_the_update_is_refused(phase: Any) -> None:
    """A finished update has nothing left to plan."""
    with pytest.raises(UsageError, match=r"phase must be an integer in \[0, 4\).*commit it"):
        BatchPlan(global_batch=4, microbatch=1, num_replicas=2, phase=phase)


def test_ranks_and_microbatches_outside_the_plan_are_refused() -> None:
    """A rank of -1 is not the last rank."""
    plan = BatchPlan(global_batch=4, microbatch=1, num_replicas=2)
    for rank in (-1, 2):
        for ask in (plan.share, plan.num_rows, lambda rank: plan.microbatch_rows(rank, 0)):
            with pytest.raises(UsageError, match=rf"rank must be in \[0, 2\), got {rank}"):
                ask(rank)
    for index in (-1, 2):
        with pytest.raises(UsageError, match=r"index must be in \[0, 2\)"):
            plan.microbatch_rows(0, index)


def test_a_plan_is_a_value() -> None:
    """Equal arguments make equal plans, which cannot be changed."""
    plan = BatchPlan(global_batch=4, microbatch=1, num_replicas=2)
    assert plan == BatchPlan(global_batch=4, microbatch=1, num_replicas=2)
    with pytest.raises(AttributeError, match="immutable"):
        plan.microbatch = 2  # type: ignore[misc]
