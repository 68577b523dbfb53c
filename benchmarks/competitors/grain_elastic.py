"""Grain's ElasticIterator, whose state is the index of the next sample."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.competitors._interface import Job, RefusedError


class _Reader:
    def __init__(self, job: Job) -> None:
        import grain
        from grain.experimental import ElasticIterator

        dataset = grain.MapDataset.range(job.length).shuffle(seed=job.seed).repeat()
        shard = grain.sharding.ShardOptions(shard_index=job.rank, shard_count=job.num_replicas)
        self._iterator: Any = iter(ElasticIterator(dataset, job.global_batch, shard))
        self._left = job.length // job.global_batch - job.steps_done
        if job.states:
            self._iterator.set_state(job.states[0])

    def steps(self) -> Iterator[Sequence[int]]:
        for _ in range(self._left):
            try:
                batch = next(self._iterator)
            except ValueError as error:
                raise RefusedError(str(error)) from None
            yield batch.tolist()

    def state(self) -> Any:
        return self._iterator.get_state()


class Elastic:
    name = "Grain ElasticIterator"
    package = "grain"
    how = "MapDataset.range(N).shuffle(seed), global batch kept, state of rank 0"
    has_files = False

    def prepare(self, folder: Path, length: int) -> None: ...

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
