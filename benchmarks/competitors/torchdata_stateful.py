"""torchdata's StatefulDataLoader over its StatefulDistributedSampler: each rank saves a state of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.competitors._interface import Job, Numbers, RefusedError


class _Reader:
    def __init__(self, job: Job) -> None:
        from torchdata.stateful_dataloader import StatefulDataLoader
        from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

        sampler = StatefulDistributedSampler(Numbers(job.length), job.num_replicas, job.rank, seed=job.seed)
        sampler.set_epoch(job.epoch)
        self._loader: Any = StatefulDataLoader(
            Numbers(job.length), job.batch_size, sampler=sampler, num_workers=job.num_workers
        )
        if job.own_state is not None:
            self._loader.load_state_dict(job.own_state)

    def steps(self) -> Iterator[Sequence[int]]:
        try:
            for batch in self._loader:
                yield batch.tolist()
        except AssertionError as error:
            raise RefusedError(str(error) or "an assertion, without a message") from None

    def state(self) -> Any:
        return self._loader.state_dict()


class StatefulLoader:
    name = "torchdata StatefulDataLoader"
    package = "torchdata"
    how = "rank r loads the state that rank r saved, a new rank that of r modulo the old number"
    has_files = False

    def prepare(self, folder: Path, length: int) -> None: ...

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
