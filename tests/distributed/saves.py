"""A small FSDP2 program to save, and saves that are held or fail where a test wants it."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import _FileSystemWriter
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from resumable_data.loader import ResumableLoader

DATA = torch.arange(240.0).reshape(60, 4) / 240


class Run:
    """A model, its optimizer, a plain value and a loader; of one process alone, or sharded over those of the group."""

    def __init__(self, ledger: Path | None = None) -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
        if dist.is_initialized():
            fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.loader = ResumableLoader(DATA, global_batch=6, microbatch=6, ledger=ledger)
        self.note = [1, 2]
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "note": self.note}

    def train(self, num_updates: int) -> None:
        """Go on by so many updates."""
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            for microbatch in update:
                loss = self.model(microbatch.data).square().sum(dim=1)
                ((loss * microbatch.weights).sum() * microbatch.loss_scale).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            update.commit()

    def weights(self) -> list[Any]:
        """This process's part of each parameter."""
        return [_own_part(value) for value in self.model.parameters()]

    def moments(self) -> list[Any]:
        """This process's part of each first moment."""
        return [_own_part(state["exp_avg"]) for state in self.optimizer.state.values()]


def _own_part(value: torch.Tensor) -> Any:
    return (value.to_local() if isinstance(value, DTensor) else value).tolist()


class Program:
    """A sharded model whose gradients are the number of the update: any number of processes computes the same bits."""

    def __init__(self, num_updates: int = 0) -> None:
        torch.manual_seed(7)
        self.model = nn.Linear(4, 3)
        if dist.is_initialized():
            fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.loader = ResumableLoader(range(60), global_batch=6, microbatch=6)
        self.note = [0]
        self.state: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer, "note": self.note}
        self.train(num_updates)

    def train(self, num_updates: int) -> None:
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            self.note[0] += 1
            for parameter in self.model.parameters():
                parameter.grad = torch.full_like(parameter, self.note[0])
            self.optimizer.step()
            update.commit()

    def values(self) -> list[Any]:
        """All that a checkpoint holds of it: whole weights, momenta, and what the cursor counts."""
        momenta = [state["momentum_buffer"] for state in self.optimizer.state.values()]
        return [*map(_whole, [*self.model.parameters(), *momenta]), self.loader.cursor.updates]


def _whole(value: torch.Tensor) -> Any:
    return (value.full_tensor() if isinstance(value, DTensor) else value).tolist()


@contextmanager
def before_writing(act: Callable[[], object]) -> Iterator[None]:
    """Do something right before each file of a checkpoint is written, in the thread that does."""
    write = _FileSystemWriter.write_data

    def held(self: Any, *args: Any) -> Any:
        act()
        return write(self, *args)

    with patch.object(_FileSystemWriter, "write_data", held):
        yield


@contextmanager
def held_writing() -> Iterator[Event]:
    """No file is written before the event that is given is set, or the context ends."""
    release = Event()
    with before_writing(release.wait):
        try:
            yield release
        finally:
            release.set()


Draws = dict[str, list[float]]


def draw(num: int) -> Draws:
    """The next numbers of each global generator; an odd number leaves half a pair of normal ones behind."""
    drawn = {
        "torch": torch.rand(num).tolist(),
        "numpy": [*np.random.standard_normal(num).tolist(), *np.random.rand(num).tolist()],
        "random": [*(random.gauss() for _ in range(num)), *(random.random() for _ in range(num))],
    }
    if torch.cuda.is_available():
        drawn["cuda"] = torch.rand(num, device="cuda").tolist()
    return drawn
