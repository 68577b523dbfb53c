"""OLMo-core's loader of token files with a fixed sequence length, whose state counts batches and tokens."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.competitors._interface import FEW, Job, RefusedError

SEQUENCE_LENGTH = 4


class _Reader:
    def __init__(self, job: Job) -> None:
        from olmo_core.data import (
            DataCollator,
            NumpyDataLoaderBase,
            NumpyFSLDatasetConfig,
            TokenizerConfig,
        )
        from olmo_core.exceptions import OLMoConfigurationError

        dataset = NumpyFSLDatasetConfig(
            paths=[str(job.folder / "tokens.npy")],
            sequence_length=SEQUENCE_LENGTH,
            tokenizer=TokenizerConfig(
                vocab_size=1 << 16 if job.length <= FEW else 1 << 31, eos_token_id=0, pad_token_id=0
            ),
            work_dir=str(job.folder / "olmo"),
        ).build()
        dataset.prepare()
        try:
            self._loader: Any = NumpyDataLoaderBase.wrap_numpy_dataset(
                dataset,
                global_batch_size=job.global_batch * SEQUENCE_LENGTH,
                collator=DataCollator(pad_token_id=0),
                work_dir=str(job.folder / "olmo"),
                seed=job.seed,
                dp_world_size=job.num_replicas,
                dp_rank=job.rank,
                fs_local_rank=job.rank,
                num_workers=job.num_workers,
            )
            if job.states:
                self._loader.load_state_dict(job.states[0])
            self._loader.reshuffle(epoch=job.epoch + 1)
        except (OLMoConfigurationError, RuntimeError) as error:
            raise RefusedError(str(error)) from None

    def steps(self) -> Iterator[Sequence[int]]:
        for batch in self._loader:
            yield [int(row[0]) for row in batch["input_ids"]]
        self._loader.reset()  # as its trainer does

    def state(self) -> Any:
        return self._loader.state_dict()


class OlmoCore:
    name = "OLMo-core"
    package = "ai2-olmo-core"
    how = "NumpyFSLDataLoader, global batch kept, state of rank 0"
    has_files = True

    def prepare(self, folder: Path, length: int) -> None:
        import olmo_core.data  # noqa: F401  # once, for all the ranks that this process forks

        dtype = np.uint16 if length <= FEW else np.uint32  # as it reads a vocabulary of that size
        tokens = np.repeat(np.arange(length, dtype=dtype), SEQUENCE_LENGTH)
        tokens.tofile(folder / "tokens.npy")

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
