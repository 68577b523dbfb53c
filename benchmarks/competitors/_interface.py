"""What a loader has to offer to be compared: one rank of a job, opened, read step by step, saved, opened again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch.utils.data

FEW = 1 << 16
"""Samples up to which files are small, so that ranks share them; more are laid some thousand to a file."""


class RefusedError(Exception):
    """The loader says that it cannot do what is asked; its own words are the text."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """One rank of one launch.

    Attributes:
        length: Samples of the dataset; sample k holds the number k.
        rank: This rank.
        num_replicas: All ranks.
        batch_size: Samples that a rank reads in one step.
        global_batch: Samples that all ranks together are meant to read in one step.
        num_workers: Worker processes of a rank.
        seed: Of the shuffle.
        epoch: The epoch that the training loop is at.
        steps_done: Steps of this epoch that the launch before took.
        states: What each rank of the launch before saved; empty in a first launch.
        folder: Of files that the dataset may need, the same for all ranks.
    """

    length: int
    rank: int
    num_replicas: int
    batch_size: int
    global_batch: int
    num_workers: int
    seed: int
    epoch: int
    steps_done: int
    states: Sequence[Any]
    folder: Path

    @property
    def steps_to_skip(self) -> int:
        """Whole steps of these ranks that hold the samples done, as a loop computes that counts samples."""
        return self.steps_done * self.global_batch // (self.batch_size * self.num_replicas)

    @property
    def own_state(self) -> Any:
        """What this rank goes on from where every rank saves its own: a rank that is new takes an old one's."""
        return self.states[self.rank % len(self.states)] if self.states else None


class Reader(Protocol):
    """A loader of one rank."""

    def steps(self) -> Iterator[Sequence[int]]:
        """The samples of each step of the epoch, from where it stands."""

    def state(self) -> Any:
        """What is saved after the last step that `steps` gave."""


class Competitor(Protocol):
    """A loader that is compared.

    Attributes:
        name: What tables call it.
        package: The distribution that has it; empty for torch and for ours.
        how: How it is used here, in a few words.
        has_files: Whether its dataset lies in files, which `prepare` writes.
    """

    name: str
    package: str
    how: str
    has_files: bool

    def prepare(self, folder: Path, length: int) -> None:
        """Write the files that its dataset needs. Once, on one process."""

    def open(self, job: Job) -> Reader:
        """One rank of a launch.

        Raises:
            RefusedError: It does not take what was saved.
        """


class Numbers(torch.utils.data.Dataset[int]):
    """Sample k is the number k."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        return index
