"""Ranks whose tracked loaders do not fit together are told so before anything is read."""

from __future__ import annotations

import pytest
import torch.distributed as dist
import torch.utils.data

import resumable_data as rd
from resumable_data.errors import DisagreementError
from tests.distributed.ranks import run_ranks
from tests.unit.tracking.loops import Numbers


def first_batch(seeds: tuple[int, int], lengths: tuple[int, int]) -> str:
    """What the first batch says where each rank has its own seed and dataset; empty where it comes."""
    rank = dist.get_rank()
    dataset = Numbers(lengths[rank])
    sampler = rd.DistributedSampler(dataset, seed=seeds[rank])
    loader = rd.track(torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler))
    try:
        next(iter(loader))
    except DisagreementError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("seeds", "lengths", "parts"),
    [
        ((0, 0), (12, 12), []),
        ((0, 1), (12, 12), ["recipe.order.seed = 0  on process 0", "recipe.order.seed = 1  on process 1"]),
        ((3, 3), (12, 14), ["recipe.order.length = 12  on process 0", "recipe.order.length = 14  on process 1"]),
    ],
)
def test_other_seeds_on_two_ranks_are_found_at_the_first_batch(
    seeds: tuple[int, int], lengths: tuple[int, int], parts: list[str]
) -> None:
    """Two samplers with different seeds, or datasets, are named with their processes, on both ranks."""
    for message in run_ranks(first_batch, 2, seeds, lengths, timeout_s=60):
        assert bool(message) == bool(parts)
        assert all(part in message for part in parts)
