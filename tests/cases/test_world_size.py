"""Cases 1-4, 8 and 9: another number of ranks or workers. The numbers are those of the list of cases."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from resumable_data import BatchPlan, Sequential, Shuffle, audit_cursor
from tests.simulated_ranks import Job, flat

if TYPE_CHECKING:
    import torch

CHAINS = [(4, 2), (2, 4), (4, 3), (3, 5), (4, 2, 4)]


@pytest.mark.parametrize("chain", CHAINS, ids=str)
def test_case_01_another_world_size_goes_on_at_the_same_position(chain: tuple[int, ...]) -> None:
    """N=64, G=8, k=3: the next update is positions 24..31 on any W', and the epoch is read once."""
    state: dict[str, torch.Tensor] | None = None
    seen: list[int] = []
    for place, num_replicas in enumerate(chain):
        is_last = place == len(chain) - 1
        job = Job(64, num_replicas, order=Sequential(64), global_batch=8, microbatch=2, epochs=1)
        job.load(state, allow={"fresh_start"})
        ids = job.train(None if is_last else 3 if place == 0 else 2)
        if place == 1:
            assert ids[0] == list(range(24, 32))
        seen += flat(ids)
        state = job.save()
    assert seen == list(range(64))
    assert audit_cursor(job.loaders[0].cursor).verdict == "proven"


def test_case_02_16_to_10_replays_and_omits_nothing() -> None:
    """N=960, 128 samples committed at W=16, b=2, resumed on W=10: 0 replayed, 0 omitted."""
    first = Job(960, 16, global_batch=32, microbatch=2, epochs=1)
    seen = Counter(flat(first.train(4)))
    assert seen.total() == 128
    second = Job(960, 10, global_batch=32, microbatch=2, epochs=1)
    second.load(first.save())
    seen += Counter(flat(second.train()))
    assert seen == Counter(range(960))


def mean_of(values: Any, *, global_batch: int, microbatch: int, num_replicas: int, reduction: str) -> float:
    """What the accumulated gradient is where a sample's gradient is its value."""
    job = Job(len(values), num_replicas, global_batch=global_batch, microbatch=microbatch, gradient_reduction=reduction)
    steps = job.update()
    assert steps is not None
    total = 0.0
    for step in steps:
        for rank in step:
            own = float((values[rank.data] * rank.weights.double().numpy()).sum()) * rank.loss_scale
            total += own / (num_replicas if reduction == "mean" else 1)
    return total


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize(
    ("global_batch", "microbatch", "num_replicas", "stretches"),
    [
        (256, 2, 16, [32] * 8),
        (256, 2, 10, [20] * 12 + [16]),
        (12, 1, 5, [5, 5, 2]),
        (10, 1, 3, [3, 3, 3, 1]),
        (3, 1, 4, [3]),
    ],
)
def test_case_03_uneven_shares_have_the_gradient_of_the_global_batch(
    global_batch: int, microbatch: int, num_replicas: int, stretches: list[int], reduction: str
) -> None:
    """Stretches are those of the worked examples, and the accumulated gradient is the mean over the global batch."""
    plan = BatchPlan(global_batch=global_batch, microbatch=microbatch, num_replicas=num_replicas)
    assert np.diff(plan.stretches, axis=1)[:, 0].tolist() == stretches
    values = np.random.default_rng(0).normal(size=300)
    wanted = values[Shuffle(300).ids(0, np.arange(global_batch))].mean()
    found = mean_of(
        values, global_batch=global_batch, microbatch=microbatch, num_replicas=num_replicas, reduction=reduction
    )
    assert found == pytest.approx(wanted, rel=1e-12)


def test_case_03_busiest_rank() -> None:
    """G=512, W=10, b=8: the busiest rank has 52 rows."""
    assert BatchPlan(global_batch=512, microbatch=8, num_replicas=10).rows_per_replica == 52


@pytest.mark.parametrize("microbatch", range(1, 17))
def test_case_04_64_to_10_is_balanced(microbatch: int) -> None:
    """G=512, W 64 -> 10: no rank above ceil(G/W) rows, as many microbatches on each."""
    for num_replicas in (64, 10):
        job = Job(1024, num_replicas, global_batch=512, microbatch=microbatch)
        steps = job.update()
        assert steps is not None
        rows = [sum(len(step[rank].ids) for step in steps) for rank in range(num_replicas)]
        assert max(rows) == -(-512 // num_replicas)
        assert max(rows) - min(rows) <= 1
        assert max(len(rank.ids) for step in steps for rank in step) <= microbatch
        assert all(rank.count == len(steps) for step in steps for rank in step)


# torch advises against more workers than the machine has cores; what is tested here is that they change nothing
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("persistent", [False, True])
def test_case_08_workers_change_between_restarts(persistent: bool) -> None:
    """Workers 1 -> 2 -> 0 -> 4 in one epoch, prefetch 2: the same sequence."""
    state: dict[str, torch.Tensor] | None = None
    seen: list[list[int]] = []
    for num_workers in (1, 2, 0, 4):
        options: dict[str, Any] = {"num_workers": num_workers}
        if num_workers:
            options |= {"prefetch_factor": 2, "persistent_workers": persistent}
        with Job(40, 1, global_batch=5, microbatch=2, epochs=1, **options) as job:
            job.load(state, allow={"fresh_start"})
            seen += job.train(2)
            state = job.save()
    assert seen == Job(40, 1, global_batch=5, microbatch=2, epochs=1).train()


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
def test_case_09_one_sequence_for_all_world_sizes_and_workers() -> None:
    """The hash of the global sequence is equal for W in {1,2,3,7} x workers in {0,1,4}."""
    hashes = set()
    for num_replicas, num_workers in [(w, 0) for w in (1, 2, 3, 7)] + [(1, 1), (1, 4), (2, 1), (3, 1), (2, 4)]:
        with Job(30, num_replicas, global_batch=7, microbatch=2, epochs=2, num_workers=num_workers) as job:
            sequence = flat(job.train())
        hashes.add(hashlib.sha256(repr(sequence).encode()).hexdigest())
    assert len(hashes) == 1


def test_coverage_digests_compare_runs_of_different_world_sizes() -> None:
    """Runs of other world sizes, one of them moved twice, agree on their digest of 16 bytes."""
    digests = set()
    for chain in ((1,), (7,), (4, 3, 2)):
        state: dict[str, torch.Tensor] | None = None
        for place, num_replicas in enumerate(chain, start=1):
            job = Job(50, num_replicas, global_batch=6, microbatch=1, epochs=1)
            job.load(state, allow={"fresh_start"})
            job.train(None if place == len(chain) else 2)
            state = job.save()
        digests.add(job.loaders[0].cursor.coverage)
    assert len(digests) == 1
