"""A shadowed rank is killed in mid-epoch, with workers that read ahead; the job goes on with fewer ranks."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, DistributedSampler

from resumable_data.audit import Bounds
from resumable_data.shadowing import audit_shadow, shadow
from tests.distributed.ranks import launch_ranks, run_ranks
from tests.unit.shadowing.jobs import Numbers, SkipBatches

LENGTH, BATCH_SIZE, SAVE_EVERY = 120, 2, 5


def launch(path: str, skip: int, kill_at: tuple[int, int] | None) -> int:
    """One launch of a script that saves on rank 0 and resumes by leaving out batches; how many it was handed."""
    sampler: DistributedSampler[torch.Tensor] = DistributedSampler(Numbers(LENGTH), seed=0)
    workers: dict[str, Any] = {"num_workers": 1, "prefetch_factor": 4}
    loader: Any = DataLoader(Numbers(LENGTH), batch_size=BATCH_SIZE, sampler=sampler, **workers)
    if skip:
        skipping: Any = SkipBatches(loader.batch_sampler, skip)
        loader = DataLoader(Numbers(LENGTH), batch_sampler=skipping, **workers)
    loader = shadow(loader, path)
    number = 0
    for number, batch in enumerate(loader, 1):
        if (dist.get_rank(), number) == kill_at:
            os.kill(os.getpid(), signal.SIGKILL)
        dist.all_reduce(batch.float().sum())  # as backward does; where one rank is dead the others cannot go on
        if number % SAVE_EVERY == 0 and dist.get_rank() == 0:
            loader.mark_saved()
    return number


@pytest.mark.slow
def test_killed_on_3_and_finished_on_2(tmp_path: Path) -> None:
    """What a kill leaves is readable, lost work is told from replays, and ranks find each other without asking."""
    path = str(tmp_path / "shadow")
    outcomes = launch_ranks(launch, 3, path, 0, (1, 17))
    assert outcomes[1].exitcode == -signal.SIGKILL
    # saved after 15 batches of 3 ranks, 90 samples; 22 batches of 2 ranks are 88
    assert run_ranks(launch, 2, path, 22, None) == [8, 8]
    report = audit_shadow(path)
    assert [(one.num_replicas, one.ranks) for one in report.attempts] == [(3, "0-2"), (2, "0-1")]
    assert (report.replayed, report.omitted) == (Bounds(2, 2), Bounds(0, 0)), report.to_text()
    assert 3 * BATCH_SIZE <= report.discarded <= 2 * 3 * BATCH_SIZE
    assert [finding.code for finding in report.findings] == ["RD721"]
    files = list(Path(path).iterdir())
    assert len(files) == 5
    os.truncate(files[0], files[0].stat().st_size - 3)
    assert "RD730" in [finding.code for finding in audit_shadow(path).findings]
