"""The drop-in sampler against torch's own."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch.utils.data

from resumable_data.errors import UsageError
from resumable_data.tracking import DistributedSampler


def pair(
    length: int, num_replicas: int, rank: int, **options: Any
) -> tuple[torch.utils.data.DistributedSampler[int], DistributedSampler]:
    """Torch's sampler and ours, with the same arguments."""
    dataset: Any = range(length)
    torchs: Any = torch.utils.data.DistributedSampler(dataset, num_replicas, rank, **options)
    return torchs, DistributedSampler(dataset, num_replicas, rank, **options)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_indices_are_those_of_torch(shuffle: bool, drop_last: bool) -> None:
    """Every rank of up to 9 has torch's indices and length in several epochs."""
    lengths = (*range(1, 20), 31, 32, 33, 63, 64)
    for length, num_replicas in itertools.product(lengths, range(1, 10)):
        for rank in {0, num_replicas // 2, num_replicas - 1}:
            torchs, ours = pair(length, num_replicas, rank, shuffle=shuffle, seed=length, drop_last=drop_last)
            for epoch in (0, 7):
                torchs.set_epoch(epoch)
                ours.set_epoch(epoch)
                assert (list(ours), len(ours)) == (list(torchs), len(torchs))


def test_frameworks_take_it_for_torchs() -> None:
    """It is a subclass of torch's sampler, with torch's attributes."""
    torchs, ours = pair(10, 3, 1, shuffle=True, seed=4, drop_last=True)
    assert isinstance(ours, torch.utils.data.DistributedSampler)
    for name in ("num_replicas", "rank", "epoch", "drop_last", "shuffle", "seed", "num_samples", "total_size"):
        assert getattr(ours, name) == getattr(torchs, name)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "offset", "num_replicas"), [(23, 8, 3), (23, 22, 4), (10, 10, 2), (7, 3, 9)])
def test_the_rest_of_an_epoch_is_spread_over_any_ranks(
    length: int, offset: int, num_replicas: int, drop_last: bool
) -> None:
    """From an offset on, the ranks share the rest of the order, padded or cut to a multiple of the ranks."""
    whole = list(DistributedSampler(range(length), 1, 0, seed=2))
    ranks = [
        DistributedSampler(range(length), num_replicas, rank, seed=2, drop_last=drop_last)
        for rank in range(num_replicas)
    ]
    for sampler in ranks:
        sampler.start_at(0, offset)
    rest, num_rows = whole[offset:], num_replicas * len(ranks[0])
    filled = (rest + whole * num_replicas)[:num_rows]
    assert num_rows == (len(rest) // num_replicas if drop_last else -(-len(rest) // num_replicas)) * num_replicas
    assert [list(sampler) for sampler in ranks] == [filled[rank::num_replicas] for rank in range(num_replicas)]


def test_it_has_no_state_and_says_why() -> None:
    """Saving a sampler's place would save what was fetched ahead; the message names what to do."""
    _, sampler = pair(10, 1, 0)
    with pytest.raises(UsageError, match=r"fetch ahead.*track\("):
        sampler.state_dict()
    with pytest.raises(UsageError, match=r"track\("):
        sampler.load_state_dict({})


def test_what_torch_would_take_and_cannot_be_counted_is_refused() -> None:
    """An empty dataset has no order, and a negative seed none that can be named."""
    with pytest.raises(UsageError, match="at least 1"):
        DistributedSampler([], 1, 0)
    with pytest.raises(UsageError, match="seed"):
        DistributedSampler(range(4), 1, 0, seed=-1)
