"""Simulated ranks that train with a tracked loader, and what plain lists say they were trained on."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch.utils.data

from resumable_data.tracking import DistributedSampler, TrackedLoader, track

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SEED = 5


class Numbers(torch.utils.data.Dataset[int]):
    """Sample i is i."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        return index


@dataclass(frozen=True)
class Setup:
    """The parts of a script that decide what a batch holds."""

    length: int
    num_replicas: int
    batch_size: int
    accumulation_steps: int = 1
    sampler_drops: bool = False
    loader_drops: bool = False
    num_workers: int = 0

    @property
    def rows_per_step(self) -> int:
        """Rows of one step of the optimizer that is not cut short."""
        return self.num_replicas * self.batch_size * self.accumulation_steps

    def loaders(self, state: Any = None, ledger: Path | None = None) -> list[TrackedLoader]:
        """One tracked loader per rank, commits made by hand."""
        dataset, made = Numbers(self.length), []
        for rank in range(self.num_replicas):
            sampler = DistributedSampler(dataset, self.num_replicas, rank, seed=SEED, drop_last=self.sampler_drops)
            dataloader = torch.utils.data.DataLoader(
                dataset,
                batch_size=self.batch_size,
                sampler=sampler,
                drop_last=self.loader_drops,
                num_workers=self.num_workers,
            )
            made.append(track(dataloader, accumulation_steps=self.accumulation_steps, ledger=ledger))
            if state is not None:
                made[-1].load_state_dict(state, allow={"global_batch"})
        return made

    def batches(self, epoch: int, offset: int) -> Iterator[list[tuple[int, bool]]]:
        """Batches of all ranks to the end of an epoch, as torch deals them: (sample, whether it is a repeat)."""
        order = list(DistributedSampler(range(self.length), 1, 0, seed=SEED)) if epoch == 0 else None
        if order is None:
            sampler: Any = torch.utils.data.DistributedSampler(Numbers(self.length), 1, 0, seed=SEED)
            sampler.set_epoch(epoch)
            order = list(sampler)
        rows = [(sample, False) for sample in order[offset:]]
        while len(rows) % self.num_replicas:
            if self.sampler_drops:
                rows.pop()
            else:
                rows.append((order[(len(rows) - (self.length - offset)) % self.length], True))
        size = self.batch_size * self.num_replicas
        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            if len(batch) == size or not self.loader_drops:
                yield batch


@dataclass
class Trained:
    """What was trained on, counted from the batches that were stepped."""

    samples: Counter[tuple[int, int]] = field(default_factory=Counter)
    delivered: int = 0
    padding: int = 0
    applied: int = 0
    skipped: int = 0

    def step(self, epoch_batches: list[tuple[int, list[tuple[int, bool]]]], *, applied: bool = True) -> None:
        """One step of the optimizer after these batches."""
        for epoch, batch in epoch_batches:
            self.samples.update((epoch, sample) for sample, is_repeat in batch if not is_repeat)
            self.padding += sum(is_repeat for _, is_repeat in batch)
        self.applied += applied
        self.skipped += not applied


def next_of_all(iterators: list[Iterator[Any]]) -> list[int] | None:
    """The samples that all ranks are handed next, rank 0's first sample first; None at the end on all of them."""
    batches = [next(iterator, None) for iterator in iterators]
    if batches[0] is None:
        assert batches == [None] * len(batches)
        return None
    columns = [batch.tolist() for batch in batches if batch is not None]
    assert len({len(column) for column in columns}) == 1
    return [sample for row in zip(*columns, strict=True) for sample in row]
