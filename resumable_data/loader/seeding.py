"""Seeding of the process's own random generators, sample by sample, for datasets that draw from these."""

from __future__ import annotations

import random
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.utils.data
import xxhash

from resumable_data.loader.fetch import FetchDataset
from resumable_data.rng import current_position, sample_key, sample_stream

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.loader.fetch import Fetched
    from resumable_data.rng import Request


class SeededFetchDataset(FetchDataset):
    """A `FetchDataset` that seeds `random`, `numpy.random` and torch's CPU generator before each sample.

    ``__getitems__`` is not used: numbers that it draws for several rows from one generator would depend on which rows
    are read together, and so on the number of ranks.

    In the training process the generators' own states are put back after each microbatch.

    Args:
        dataset: Map-style.
        collate_fn: Makes a batch of a list of samples.
        seed: The loader's seed.
        substitutes: See `FetchDataset`.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any], *, seed: int = 0, substitutes: bool = False
    ) -> None:
        super().__init__(_SeededSamples(dataset, seed), collate_fn, seed=seed, substitutes=substitutes)

    def __getitem__(self, request: Request) -> Fetched:
        """Read and collate the samples of one microbatch."""
        if torch.utils.data.get_worker_info() is not None:  # nobody else draws in a worker
            return super().__getitem__(request)
        with _states_kept():
            return super().__getitem__(request)


class _SeededSamples:
    """The samples of a dataset, each read with generators seeded by its position."""

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._stream = sample_stream("rng.seed_samples", seed)

    def __getitem__(self, sample_id: int) -> Any:
        number = xxhash.xxh3_128_intdigest(sample_key(self._stream, current_position()))
        random.seed(number)
        np.random.seed(number & 0xFFFF_FFFF)  # more than one word would take it eight times as long
        # torch.manual_seed would touch the GPUs' generators, and takes 0.5 ms before CUDA is initialised
        torch.default_generator.manual_seed(number >> 64)
        return self._dataset[sample_id]


@contextmanager
def _states_kept() -> Iterator[None]:
    """Puts the states of the three generators back."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])
