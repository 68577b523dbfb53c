"""Hugging Face Accelerate: the step is saved, and `skip_first_batches` goes on after it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader

from benchmarks.competitors._interface import Job, Numbers


class _Reader:
    def __init__(self, job: Job) -> None:
        from accelerate import Accelerator
        from accelerate.utils import DataLoaderConfiguration

        config = DataLoaderConfiguration(use_seedable_sampler=True, data_seed=job.seed)
        accelerator = Accelerator(cpu=True, dataloader_config=config)
        loader: Any = DataLoader(Numbers(job.length), job.batch_size, shuffle=True, num_workers=job.num_workers)
        self._loader = accelerator.prepare_data_loader(loader)
        self._loader.set_epoch(job.epoch)
        if job.steps_to_skip:
            self._loader = accelerator.skip_first_batches(self._loader, job.steps_to_skip)

    def steps(self) -> Iterator[Sequence[int]]:
        for batch in self._loader:
            yield batch.tolist()

    def state(self) -> None:
        return None


class SkipFirstBatches:
    name = "Accelerate skip_first_batches"
    package = "accelerate"
    how = "the number of samples is saved; seedable sampler, skip_first_batches of as many whole steps"
    has_files = False

    def prepare(self, folder: Path, length: int) -> None:
        import accelerate  # noqa: F401  # once, for all the ranks that this process forks

    def open(self, job: Job) -> _Reader:
        return _Reader(job)
