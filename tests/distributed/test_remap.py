"""remap() with process groups that are made anew: 4 ranks, then 2 of them, then 3."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from resumable_data import audit_ledger
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 41


def regroup(root: str, generation: int, rank: int, size: int) -> None:
    """Leave the process group, and join the next one if this process is of it."""
    dist.destroy_process_group()
    if rank < size:
        method = f"file://{root}/group-{generation}"
        dist.init_process_group("gloo", init_method=method, rank=rank, world_size=size, timeout=timedelta(seconds=60))


def train(loader: ResumableLoader, num_updates: int | None) -> list[tuple[int, int]]:
    read: list[tuple[int, int]] = []
    for done, update in enumerate(loader.updates(), start=1):
        for microbatch in update:
            read += zip(microbatch.positions.tolist(), microbatch.ids.tolist(), strict=True)
        update.commit()
        if done == num_updates:
            break
    return read


def elastic(root: str) -> tuple[list[tuple[int, int]], int]:
    """One process of a job that shrinks and grows without being launched again."""
    rank = dist.get_rank()
    dataset = torch.utils.data.TensorDataset(torch.arange(LENGTH))
    settings: dict[str, Any] = {"global_batch": 10, "microbatch": 2, "epochs": 2, "ledger": f"{root}/ledger"}
    loader = ResumableLoader(dataset, **settings)
    read = train(loader, 2)
    loader.check_agreement()
    regroup(root, 1, rank, 2)
    if rank < 2:
        loader.remap()
        read += train(loader, 2)
        next(iter(loader))  # and another update is begun when the next change comes
        loader.check_agreement()
        torch.save(loader.state_dict(), f"{root}/state-{rank}")
        dist.barrier()
        regroup(root, 2, rank, 3)
    elif rank == 2:
        dist.init_process_group(
            "gloo", init_method=f"file://{root}/group-2", rank=2, world_size=3, timeout=timedelta(seconds=60)
        )
        loader.load_state_dict(torch.load(f"{root}/state-0"))
    if rank < 3:
        loader.remap(rollback=True)
        read += train(loader, None)
        loader.check_agreement()
        loader.close()
    if dist.is_initialized():
        dist.destroy_process_group()
    dist.init_process_group(
        "gloo", init_method=f"file://{root}/group-3", rank=rank, world_size=4, timeout=timedelta(seconds=60)
    )
    return read, loader.cursor.samples


def test_a_job_that_shrinks_and_grows_in_process(tmp_path: Path) -> None:
    """Each position is read once, and the audit proves three attempts of 4, 2 and 3 ranks."""
    results = run_ranks(elastic, 4, str(tmp_path))
    read = sorted(pair for pairs, _ in results for pair in pairs)
    assert [position for position, _ in read] == list(range(2 * LENGTH))
    assert [samples for _, samples in results] == [82, 82, 82, 20]
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples) == ("proven", 2 * LENGTH), report.to_text()
    assert [(one.num_replicas, one.discarded.high) for one in report.attempts] == [(4, 0), (2, 4), (3, 0)]
