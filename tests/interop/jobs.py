"""What the tests with other packages share: data, a launcher's environment, and what a composition ends in."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.distributed as dist
import torch.utils.data

import resumable_data as rd

if TYPE_CHECKING:
    from collections.abc import Callable

LENGTH = 32
MICROBATCH = 2


class Numbers(torch.utils.data.Dataset[int]):
    """Sample i is i."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


def pretend_launched(**variables: str) -> None:
    """Give a rank of a test the environment that torchrun would have given it."""
    rank, size = str(dist.get_rank()), str(dist.get_world_size())
    os.environ.update(RANK=rank, LOCAL_RANK=rank, WORLD_SIZE=size, LOCAL_WORLD_SIZE=size, GROUP_RANK="0")
    # the process group is there already, so nobody connects to these
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", TORCHELASTIC_RUN_ID="test", **variables)


def make_sampler(rank: int | None = None, num_replicas: int | None = None) -> rd.ResumableSampler:
    return rd.ResumableSampler(
        rd.Sequential(LENGTH),
        global_batch=MICROBATCH * (num_replicas or dist.get_world_size()),
        microbatch=MICROBATCH,
        epochs=1,
        rank=rank,
        num_replicas=num_replicas,
    )


def over_distributed_sampler(**options: Any) -> torch.utils.data.DataLoader[int]:
    sampler = rd.DistributedSampler(Numbers())
    return torch.utils.data.DataLoader(Numbers(), batch_size=MICROBATCH, sampler=sampler, **options)


def over_resumable_sampler(**options: Any) -> torch.utils.data.DataLoader[int]:
    return torch.utils.data.DataLoader(Numbers(), batch_sampler=make_sampler(), **options)


def batches(dataloader: Any) -> list[list[int]]:
    return [batch.tolist() for batch in dataloader]


def error_of(function: Callable[[], object]) -> str:
    """The class and the message of what `function` raises.

    Raises:
        AssertionError: It returned.
    """
    try:
        result = function()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    raise AssertionError(f"nothing was refused; it returned {result!r}")
