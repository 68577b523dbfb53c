"""Runs on torch's own DistributedSampler, replayed batch by batch, and continued on other rank sets."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DistributedSampler

from resumable_data import Cursor, Sequential, TorchShuffle, audit_ledger
from tests.examples import examples
from tests.simulated_ranks import Job, Numbers, flat

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.order import Order


class OldJob:
    """A loop over torch's DistributedSampler and DataLoader, one list of IDs for each batch of all ranks."""

    def __init__(self, **run: Any) -> None:
        self.run = run

    def batches(self, epoch: int) -> list[list[int]]:
        """IDs of each batch of an epoch, all ranks' together."""
        run, ranks = self.run, []
        for rank in range(run["num_replicas"]):
            sampler: DistributedSampler[int] = DistributedSampler(
                Numbers(run["length"]),  # type: ignore[arg-type]
                num_replicas=run["num_replicas"],
                rank=rank,
                shuffle=run["shuffle"],
                seed=run["seed"],
                drop_last=run["drop_last"],
            )
            sampler.set_epoch(epoch)
            ranks.append(list(BatchSampler(sampler, run["batch_size"], run["dataloader_drop_last"])))
        return [flat(together) for together in zip(*ranks, strict=True)]


def order_of(run: dict[str, Any]) -> Order:
    return TorchShuffle(run["length"], run["seed"]) if run["shuffle"] else Sequential(run["length"])


def expect_exact(run: dict[str, Any], *, epoch: int, batches_per_rank: int, accumulation_steps: int = 1) -> Cursor:
    """Take the run over, and hold the cursor against what torch's sampler gave out."""
    old, order, length = OldJob(**run), order_of(run), run["length"]
    cursor = Cursor.from_distributed_sampler(
        **run, epoch=epoch, batches_per_rank=batches_per_rank, accumulation_steps=accumulation_steps, global_batch=4
    )
    cursor.check()
    applied = samples = rows = 0
    for number in range(epoch + 1):
        batches = old.batches(number)
        windows = [batches[i : i + accumulation_steps] for i in range(0, len(batches), accumulation_steps)]
        if number == epoch and batches_per_rank < len(batches):
            windows = windows[: batches_per_rank // accumulation_steps]
        consumed = flat(flat(window) for window in windows)
        applied, rows, samples = applied + len(windows), rows + len(consumed), samples + len(set(consumed))
        # what the order calls the first offsets of this epoch is what was consumed
        first = order.ids(number, np.arange(len(set(consumed)), dtype=np.int64))
        assert set(first.tolist()) == set(consumed)
    is_over = batches_per_rank == len(old.batches(epoch))
    place = (epoch + 1, 0) if is_over else (epoch, len(set(consumed)))
    assert (cursor.epoch, cursor.offset) == place
    assert (cursor.applied, cursor.samples, cursor.padding) == (applied, samples, rows - samples)
    assert cursor.dropped == cursor.epoch * length + cursor.offset - samples
    return cursor


@pytest.mark.parametrize("shuffle", [True, False])
def test_every_place_of_small_runs(shuffle: bool) -> None:
    """After any number of batches, the cursor counts exactly what torch's sampler gave to all ranks together."""
    num_places = 0
    for length, num_replicas, batch_size in product((1, 5, 8, 13), (1, 3, 4, 6), (1, 2, 5)):
        for drop_last, dataloader_drop_last in product((False, True), repeat=2):
            run = {
                "length": length,
                "num_replicas": num_replicas,
                "batch_size": batch_size,
                "drop_last": drop_last,
                "dataloader_drop_last": dataloader_drop_last,
                "shuffle": shuffle,
                "seed": 5,
            }
            num_batches = len(OldJob(**run).batches(0))
            for batches_per_rank in range(num_batches + 1 if num_batches else 0):
                for epoch in (0, 2):
                    expect_exact(run, epoch=epoch, batches_per_rank=batches_per_rank)
                    num_places += 1
    assert num_places > 500


@examples(80, quick=30)
@given(data=st.data())
def test_any_run_with_accumulation(data: st.DataObject) -> None:
    """Full windows are consumed, a partial one is rolled back, and the short one at an epoch's end is consumed."""
    run = {
        "length": data.draw(st.integers(1, 60), label="length"),
        "num_replicas": data.draw(st.integers(1, 9), label="num_replicas"),
        "batch_size": data.draw(st.integers(1, 6), label="batch_size"),
        "drop_last": data.draw(st.booleans(), label="drop_last"),
        "dataloader_drop_last": data.draw(st.booleans(), label="dataloader_drop_last"),
        "shuffle": data.draw(st.booleans(), label="shuffle"),
        "seed": data.draw(st.integers(0, 9), label="seed"),
    }
    num_batches = len(OldJob(**run).batches(0))
    if num_batches == 0:
        return
    expect_exact(
        run,
        epoch=data.draw(st.integers(0, 3), label="epoch"),
        batches_per_rank=data.draw(st.integers(0, num_batches), label="batches_per_rank"),
        accumulation_steps=data.draw(st.integers(1, 5), label="accumulation_steps"),
    )


@pytest.mark.parametrize("chain", [(1,), (3, 5), (6, 2, 4)])
@pytest.mark.parametrize("drop_last", [False, True])
def test_the_rest_of_the_run_on_any_ranks(chain: tuple[int, ...], drop_last: bool, tmp_path: Path) -> None:
    """What the old run left of its epoch is read once, then whole epochs; the audit proves all since the take-over."""
    run = {"length": 47, "num_replicas": 4, "batch_size": 3, "drop_last": drop_last, "shuffle": True, "seed": 9}
    run["dataloader_drop_last"] = False
    cursor = expect_exact(run, epoch=1, batches_per_rank=2)
    seen = Counter(flat(OldJob(**run).batches(1)[:2]))
    state: Any = cursor
    for number, num_replicas in enumerate(chain):
        options = {"global_batch": 4, "microbatch": 2, "epochs": 3, "order": order_of(run), "ledger": tmp_path}
        with Job(47, num_replicas, **options) as job:
            job.load(state)
            seen.update(flat(job.train(None if number == len(chain) - 1 else 3)))
            state = job.save()
            assert job.loaders[0].cursor.taken_over == cursor.taken_over
            end = job.loaders[0].cursor
    assert seen == Counter(dict.fromkeys(range(47), 2))  # epoch 1, begun by the old run, and epoch 2
    assert (end.epoch, end.offset, end.samples) == (3, 0, cursor.samples + 47 - 24 + 47)

    report = audit_ledger(tmp_path)
    assert (report.verdict, [one.code for one in report.findings]) == ("unproven", ["RD112"])
    assert (report.omitted.low, report.omitted.high) == (0, None)
    report = audit_ledger(tmp_path, since_take_over=True)
    assert (report.verdict, [one.severity for one in report.findings]) == ("proven", ["note"])
    assert (report.replayed.high, report.omitted.high, report.samples) == (0, 0, end.samples)
    assert "since the run was taken over" in report.to_text()
