"""Even layouts near an uneven one."""

from __future__ import annotations

import time

import pytest

from resumable_data.plan import BatchPlan
from resumable_data.plan.alternatives import MAX_NUM_REPLICAS, NUM_NEAREST, nearest_divisors


def plan(global_batch: int, microbatch: int, num_replicas: int) -> BatchPlan:
    return BatchPlan(global_batch=global_batch, microbatch=microbatch, num_replicas=num_replicas)


def test_worked_example() -> None:
    """256 on 10 ranks: the batches 240 and 260 divide, and rank counts that do are the powers of two nearby."""
    found = plan(256, 2, 10).alternatives()
    assert found.global_batches == (240, 260)
    assert found.num_replicas == (2, 4, 8, 16, 32, 64)
    assert found.num_replicas_equal == (2, 4, 8, 16, 32, 64)


@pytest.mark.parametrize("number", [*range(1, 61), 97, 210, 360])
def test_nearest_divisors_are_all_there_is_nearby(number: int) -> None:
    """The divisors given are the nearest on each side, ascending, with the plan's own where it divides."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    for near in range(1, number + 5):
        below = [d for d in divisors if d < near][-NUM_NEAREST:]
        above = [d for d in divisors if d > near][:NUM_NEAREST]
        itself = [near] if near in divisors else []
        assert nearest_divisors(number, near) == (*below, *itself, *above)


def test_every_alternative_is_even() -> None:
    """Each rank count and each global batch that is offered does give full microbatches, or equal rows."""
    for global_batch, microbatch, ranks in [(256, 2, 10), (512, 8, 10), (1000, 3, 7), (96, 4, 5), (7, 2, 3)]:
        found = plan(global_batch, microbatch, ranks).alternatives()
        full = [plan(global_batch, microbatch, count) for count in found.num_replicas]
        full += [plan(batch, microbatch, ranks) for batch in found.global_batches]
        for even in full:
            assert even.is_even
            assert even.rows_per_replica == even.accumulation_steps * microbatch
        assert all(plan(global_batch, microbatch, count).is_even for count in found.num_replicas_equal)


def test_microbatch_that_does_not_divide_leaves_no_full_layout() -> None:
    """Where the microbatch does not divide the global batch, no rank count can fill every microbatch."""
    assert plan(10, 4, 3).alternatives().num_replicas == ()


def test_batch_smaller_than_one_round_is_not_offered_as_zero() -> None:
    """Below one microbatch on each rank there is no smaller global batch that divides."""
    assert plan(8, 2, 16).alternatives().global_batches == (32,)


@pytest.mark.parametrize("ranks", [10, 500_000, 10**6, 2**30])
@pytest.mark.parametrize("global_batch", [10**9, 2**61 - 1, 2**62])
def test_huge_batches_are_answered_at_once(global_batch: int, ranks: int) -> None:
    """The search is bounded: neither a prime batch nor one with thousands of divisors makes it long."""
    start = time.perf_counter()
    found = plan(global_batch, 1, ranks).alternatives()
    assert time.perf_counter() - start < 2
    assert len(found.num_replicas) <= 2 * NUM_NEAREST + 1
    assert all(count <= max(MAX_NUM_REPLICAS, ranks) for count in found.num_replicas)
