"""LitData: samples in chunks, read by a StreamingDataLoader, each rank with a state of its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.competitors._interface import FEW, Job, RefusedError


class _Reader:
    def __init__(self, job: Job) -> None:
        from litdata import StreamingDataLoader, StreamingDataset

        # it drops the last samples of several ranks anyway; said aloud, one rank takes what several saved
        dataset = StreamingDataset(str(job.folder / "litdata"), shuffle=True, seed=job.seed, drop_last=True)
        self._loader: Any = StreamingDataLoader(dataset, batch_size=job.batch_size, num_workers=job.num_workers)
        try:
            if job.own_state is not None:
                self._loader.load_state_dict(job.own_state)
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def steps(self) -> Iterator[Sequence[int]]:
        try:
            for batch in self._loader:
                yield batch.tolist()
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def state(self) -> Any:
        return self._loader.state_dict()


class LitData:
    name = "LitData"
    package = "litdata"
    how = "rank r loads the state that rank r saved, a new rank that of r modulo the old number"
    has_files = True

    def prepare(self, folder: Path, length: int) -> None:
        from litdata.streaming.cache import Cache

        cache = Cache(str(folder / "litdata"), chunk_size=16 if length <= FEW else 4096)
        for number in range(length):
            cache[number] = number
        cache.done()
        cache.merge()

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
