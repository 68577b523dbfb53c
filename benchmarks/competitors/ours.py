"""ResumableLoader."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

import resumable_data as rd
from benchmarks.competitors._interface import Job, Numbers, RefusedError
from resumable_data.errors import StateError


class _Reader:
    def __init__(self, job: Job) -> None:
        self._loader = rd.ResumableLoader(
            Numbers(job.length),
            order=rd.Shuffle(job.length, seed=job.seed),
            global_batch=job.global_batch,
            microbatch=job.batch_size,
            num_workers=job.num_workers,
            epochs=job.epoch + 1,
            rank=job.rank,
            num_replicas=job.num_replicas,
        )
        try:
            if job.states:
                self._loader.load_state_dict(job.states[0])
        except StateError as error:
            raise RefusedError(str(error)) from None

    def steps(self) -> Iterator[Sequence[int]]:
        for _, microbatches in groupby(self._loader, key=lambda microbatch: microbatch.update):
            ids: list[int] = []
            for microbatch in microbatches:
                ids += microbatch.ids.tolist()
                if microbatch.is_last:
                    self._loader.commit()
                    yield ids

    def state(self) -> Any:
        return self._loader.state_dict()


class Ours:
    name = "resumable_data"
    package = ""
    how = "global batch kept, state of rank 0"
    has_files = False

    def prepare(self, folder: Path, length: int) -> None: ...

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
