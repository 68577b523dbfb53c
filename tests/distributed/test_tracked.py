"""Tracked loops on real ranks: saved on rank 0 alone or by DCP, killed, and resumed on other ranks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.nn.parallel import DistributedDataParallel

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.cursor import Cursor
from resumable_data.errors import DisagreementError
from resumable_data.tracking import DistributedSampler, TrackedLoader, track
from tests.distributed.ranks import RankError, run_ranks
from tests.unit.tracking.loops import Numbers

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, GLOBAL_BATCH, EPOCHS, CHECKPOINT_EVERY = 50, 12, 2, 3


def train(
    root: str, num_workers: int = 0, kill_at: int | None = None, stop_at: int | None = None, use_dcp: bool = False
) -> dict[str, Any]:
    """A usual script: DDP, an epoch loop, a checkpoint every few steps, resumed where there is one."""
    rank, size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    model = DistributedDataParallel(torch.nn.Linear(1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    dataset = Numbers(LENGTH)
    sampler = DistributedSampler(dataset, seed=3)
    loader = track(
        torch.utils.data.DataLoader(dataset, batch_size=GLOBAL_BATCH // size, sampler=sampler, num_workers=num_workers),
        optimizer=optimizer,
        ledger=f"{root}/ledger",
    )
    load(loader, root, use_dcp)
    for epoch in range(loader.cursor.epoch, EPOCHS):
        sampler.set_epoch(epoch)
        for batch in loader:
            if loader.cursor.updates == kill_at and rank == size - 1:
                os.kill(os.getpid(), signal.SIGKILL)
            model(batch[:, None].float()).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            if loader.cursor.updates % CHECKPOINT_EVERY == 0:
                save(loader, root, use_dcp)
            if loader.cursor.updates == stop_at:
                return {"cursor": loader.cursor.to_json()}
    loader.check_agreement()
    loader.close()
    return {"cursor": loader.cursor.to_json()}


def save(loader: TrackedLoader, root: str, use_dcp: bool) -> None:
    loader.check_agreement()
    if use_dcp:
        dcp.save({"loader": loader}, checkpoint_id=f"{root}/checkpoint-{loader.cursor.updates}")
    elif dist.get_rank() == 0:
        torch.save({"loader": loader.state_dict()}, f"{root}/new.pt")
        os.replace(f"{root}/new.pt", f"{root}/checkpoint.pt")


def load(loader: TrackedLoader, root: str, use_dcp: bool) -> None:
    saved = sorted(name for name in os.listdir(root) if name.startswith("checkpoint"))
    if use_dcp and saved:
        dcp.load({"loader": loader}, checkpoint_id=f"{root}/{saved[-1]}")
    elif saved:
        loader.load_state_dict(torch.load(f"{root}/{saved[-1]}", weights_only=True)["loader"])


@pytest.mark.parametrize("num_workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_case_40_saved_on_rank_0_alone_killed_and_resumed_on_other_ranks(tmp_path: Path, num_workers: int) -> None:
    """torch.save on rank 0 of 4, a rank killed two steps later, 3 ranks to the end: proven, and nothing hangs."""
    root = str(tmp_path)
    with pytest.raises(RankError, match=r"rank 3 \(-9\)"):
        run_ranks(train, 4, root, num_workers, 5)
    (cursor, *others) = [one["cursor"] for one in run_ranks(train, 3, root, num_workers)]
    assert others == [cursor] * 2
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.samples, report.updates, report.padding) == (100, 10, 2)
    assert report.discarded.low > 0
    assert [(one.num_replicas, one.first_update, one.stop_update) for one in report.attempts] == [(4, 0, 3), (3, 3, 10)]
    assert audit_cursor(Cursor.from_json(cursor)).verdict == "proven"


def test_through_dcp_on_4_then_3_then_2_ranks(tmp_path: Path) -> None:
    """The tracked loader itself goes into dcp.save and dcp.load; another number of ranks each time."""
    root = str(tmp_path)
    run_ranks(train, 4, root, 0, None, 3, True)
    run_ranks(train, 3, root, 0, None, 8, True)
    (cursor, _) = [one["cursor"] for one in run_ranks(train, 2, root, 0, None, None, True)]
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.samples, report.updates, report.discarded.low) == (100, 10, 24)
    assert audit_cursor(Cursor.from_json(cursor)).verdict == "proven"


def different_seeds(root: str) -> str:
    dataset = Numbers(LENGTH)
    sampler = DistributedSampler(dataset, seed=dist.get_rank())
    loader = track(torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler), ledger=f"{root}/ledger")
    with pytest.raises(DisagreementError) as error:
        next(iter(loader))
    return str(error.value)


def test_ranks_with_different_seeds_are_told_at_the_first_batch(tmp_path: Path) -> None:
    """Each rank would read its own order; both say which field differs, and nothing is delivered."""
    for message in run_ranks(different_seeds, 2, str(tmp_path)):
        assert "recipe.order.seed = 0  on process 0" in message
        assert "recipe.order.seed = 1  on process 1" in message
    assert not (tmp_path / "ledger").exists()
