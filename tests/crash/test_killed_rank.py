"""A rank is killed in mid-update, with workers that read ahead; the job goes on with fewer ranks."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.cursor import Cursor
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import launch_ranks, run_ranks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, GLOBAL_BATCH, EPOCHS = 97, 10, 2


def launch(root: str, kill_at: tuple[int, int, int] | None, save_every: int, num_workers: int) -> bytes:
    """One launch of the job; `kill_at` is the (rank, update, microbatch) of a SIGKILL."""
    options: dict[str, Any] = {"prefetch_factor": 4} if num_workers else {}
    loader = ResumableLoader(
        torch.utils.data.TensorDataset(torch.arange(LENGTH)),
        global_batch=GLOBAL_BATCH,
        microbatch=1,
        epochs=EPOCHS,
        ledger=f"{root}/ledger",
        num_workers=num_workers,
        **options,
    )
    if os.path.exists(f"{root}/latest"):
        with open(f"{root}/latest") as file:
            dcp.load({"loader": loader}, checkpoint_id=file.read())
    for item in loader:
        gradient = torch.tensor(float(len(item.ids)))
        if (dist.get_rank(), item.update, item.index) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(gradient)  # as backward does; where one rank is dead the others cannot go on
        if item.is_last:
            loader.commit()
            if loader.cursor.updates % save_every == 0:
                save(root, loader)
    loader.check_agreement()
    loader.close()
    return loader.cursor.to_json()


def save(root: str, loader: ResumableLoader) -> None:
    loader.check_agreement()
    path = f"{root}/step-{loader.cursor.updates}"
    dcp.save({"loader": loader}, checkpoint_id=path)
    if dist.get_rank() == 0:
        with open(f"{root}/latest.new", "w") as file:
            file.write(path)
        os.replace(f"{root}/latest.new", f"{root}/latest")
    dist.barrier()


def check_killed(num_ranks: int, victim: int, *args: Any) -> None:
    outcomes = launch_ranks(launch, num_ranks, *args)
    assert outcomes[victim].exitcode == -signal.SIGKILL
    assert all(outcome.error for outcome in outcomes)


def test_killed_on_4_then_on_3_and_finished_on_2(tmp_path: Path) -> None:
    """Whatever was prefetched or delivered and not committed is read again: 0 replayed, 0 omitted over the run."""
    root, num_workers = str(tmp_path), 1
    check_killed(4, 2, root, (2, 7, 1), 3, num_workers)
    check_killed(3, 0, root, (0, 13, 2), 4, num_workers)
    cursors = run_ranks(launch, 2, root, None, 5, num_workers)
    assert len(set(cursors)) == 1
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.samples, report.replayed.high, report.omitted.high) == (LENGTH * EPOCHS, 0, 0)
    # killed in update 7 after the save at 6, and in update 13 after the save at 12: what was delivered since is gone
    assert [(one.parent, one.first_update, one.stop_update) for one in report.attempts] == [
        (0, 0, 6),
        (1, 6, 12),
        (2, 12, 20),
    ]
    assert all(GLOBAL_BATCH <= one.discarded.low <= 2 * GLOBAL_BATCH for one in report.attempts[:2])
    cursor = Cursor.from_json(cursors[0])
    assert audit_cursor(cursor).verdict == "proven"


def test_killed_before_the_first_save(tmp_path: Path) -> None:
    """A job killed before it saved anything starts again at position 0, as a new attempt of the same run."""
    root = str(tmp_path)
    check_killed(3, 1, root, (1, 1, 0), 5, 0)
    run_ranks(launch, 2, root, None, 5, 0)
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples) == ("proven", LENGTH * EPOCHS), report.to_text()
    assert [(one.survives, one.stop_update) for one in report.attempts] == [(False, 1), (True, 20)]
