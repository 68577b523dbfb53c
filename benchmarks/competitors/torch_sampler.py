"""torch's DistributedSampler and DataLoader, which save nothing: an epoch starts again, or is skipped through."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.competitors._interface import Job, Numbers


class _Reader:
    def __init__(self, job: Job, steps_skipped: int) -> None:
        sampler: Any = DistributedSampler(Numbers(job.length), job.num_replicas, job.rank, seed=job.seed)
        sampler.set_epoch(job.epoch)
        self._skipped = steps_skipped
        self._loader: Any = DataLoader(
            Numbers(job.length), job.batch_size, sampler=sampler, num_workers=job.num_workers
        )

    def steps(self) -> Iterator[Sequence[int]]:
        for batch in islice(self._loader, self._skipped, None):
            yield batch.tolist()

    def state(self) -> None:
        return None


class Restarted:
    name = "DistributedSampler, epoch restarted"
    package = ""
    how = "nothing is saved; the epoch begins again"
    has_files = False

    def prepare(self, folder: Path, length: int) -> None: ...

    def open(self, job: Job) -> _Reader:
        return _Reader(job, 0)


class Skipped:
    name = "DistributedSampler, batches skipped"
    package = ""
    how = "the number of samples is saved; as many whole steps are read and thrown away"
    has_files = False

    def prepare(self, folder: Path, length: int) -> None: ...

    def open(self, job: Job) -> _Reader:
        return _Reader(job, job.steps_to_skip)
