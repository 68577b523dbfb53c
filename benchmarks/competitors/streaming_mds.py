"""MosaicML Streaming: samples in MDS shards, a state of a few integers that rank 0 saves for all."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.competitors._interface import FEW, Job, RefusedError


class _Reader:
    def __init__(self, job: Job) -> None:
        from streaming import StreamingDataLoader, StreamingDataset

        dataset = StreamingDataset(
            local=str(job.folder / "mds"), shuffle=True, shuffle_seed=job.seed, batch_size=job.batch_size
        )
        self._loader: Any = StreamingDataLoader(dataset, job.batch_size, num_workers=job.num_workers)
        if job.states:
            self._loader.load_state_dict(job.states[0])

    def steps(self) -> Iterator[Sequence[int]]:
        try:
            for batch in self._loader:
                yield batch["id"].tolist()
        except ValueError as error:
            raise RefusedError(str(error)) from None

    def state(self) -> Any:
        return self._loader.state_dict()


class Streaming:
    name = "MosaicML Streaming"
    package = "mosaicml-streaming"
    how = "StreamingDataLoader.state_dict() of rank 0, shuffled, batch size of a rank as given"
    has_files = True

    def prepare(self, folder: Path, length: int) -> None:
        from streaming import MDSWriter

        limit = 1 << 12 if length <= FEW else 1 << 16
        with MDSWriter(out=str(folder / "mds"), columns={"id": "int"}, size_limit=limit) as writer:
            for number in range(length):
                writer.write({"id": number})

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
