"""Jobs that are shadowed, killed and started again, simulated in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.utils.data import DataLoader, DistributedSampler

from resumable_data.shadowing import recorder, shadow

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resumable_data.shadowing import Shadow


class Numbers(torch.utils.data.Dataset[torch.Tensor]):
    """Sample k is k."""

    def __init__(self, length: int) -> None:
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor(index)


def restart() -> None:
    """As if this process had ended and another one had started."""
    for one in recorder._RECORDERS.values():
        one._close()
    recorder._RECORDERS.clear()


class SkipBatches:
    """How scripts resume: the sampler's first batches are left out."""

    def __init__(self, batch_sampler: Any, num_batches: int) -> None:
        self.batch_sampler = batch_sampler
        self.sampler = batch_sampler.sampler
        self.num_batches = num_batches

    def __iter__(self) -> Any:
        return iter(list(self.batch_sampler)[self.num_batches :])

    def __len__(self) -> int:
        return len(self.batch_sampler) - self.num_batches


class Job:
    """One launch of a job with torch's DistributedSampler on several ranks.

    Args:
        path: What is shadowed to.
        num_replicas: Ranks.
        skip: Batches that each rank leaves out in its first epoch.
        epoch: The first epoch.
    """

    def __init__(
        self, path: Path, num_replicas: int, *, length: int = 960, batch_size: int = 2, skip: int = 0, epoch: int = 0
    ) -> None:
        restart()
        self.epoch = epoch
        self.ranks: list[Shadow] = []
        self.samplers: list[DistributedSampler[torch.Tensor]] = []
        for rank in range(num_replicas):
            sampler: DistributedSampler[torch.Tensor] = DistributedSampler(Numbers(length), num_replicas, rank, seed=0)
            sampler.set_epoch(epoch)
            self.samplers.append(sampler)
            loader: DataLoader[torch.Tensor] = DataLoader(Numbers(length), batch_size=batch_size, sampler=sampler)
            if skip:
                skipping: Any = SkipBatches(loader.batch_sampler, skip)
                loader = DataLoader(Numbers(length), batch_sampler=skipping)
            self.ranks.append(shadow(loader, path, rank=rank, num_replicas=num_replicas))
        self.iterators = [iter(rank) for rank in self.ranks]

    def train(self, num_batches: int | None = None) -> list[int]:
        """So many batches on each rank, or the rest of the epoch; returns what was read."""
        read: list[int] = []
        for iterator in self.iterators:
            for number, batch in enumerate(iterator, 1):
                read += batch.tolist()
                if number == num_batches:
                    break
        return read

    def next_epoch(self) -> None:
        self.epoch += 1
        for sampler in self.samplers:
            sampler.set_epoch(self.epoch)
        self.iterators = [iter(rank) for rank in self.ranks]

    def save(self) -> None:
        """Mark a checkpoint, on rank 0 as scripts do."""
        self.ranks[0].mark_saved()


def shadowed_values(path: Path, values: Sequence[Sequence[Any]]) -> None:
    """One launch of one rank that hands out these batches and ends."""
    restart()
    for _ in shadow(list(values), path):
        pass
