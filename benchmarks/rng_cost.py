"""What do random numbers keyed by position cost, per microbatch of 8 samples, and a seed per update?

The items do nothing else: ``nothing`` is the loader without workers and without a ledger, ``sample_generator`` makes
each sample's generator and draws once, ``numpy.random.default_rng`` is numpy's own seeding by one integer, and
``seed_samples`` seeds the global generators and puts their states back. The time is that of the calling thread.
"""

from __future__ import annotations

import argparse
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

import resumable_data as rd
from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.rng import sample_generator, update_seed

if TYPE_CHECKING:
    from collections.abc import Callable

MICROBATCH = 8
NUM_CALLS = 500


class Items(torch.utils.data.Dataset[Any]):
    """Items that take one call each to read."""

    def __init__(self, read: Callable[[int], Any]) -> None:
        self._read = read

    def __len__(self) -> int:
        return 1_000_000

    def __getitem__(self, index: int) -> Any:
        return self._read(index)


def microbatches(read: Callable[[int], Any], **options: Any) -> Callable[[], float]:
    """Seconds per microbatch."""
    dataset = Items(read)
    loader = rd.ResumableLoader(
        dataset, global_batch=MICROBATCH, microbatch=MICROBATCH, collate_fn=lambda samples: samples, **options
    )
    stream = iter(loader)

    def run() -> float:
        start = time.thread_time()
        for _ in range(NUM_CALLS):
            next(stream)
            loader.commit()
        return (time.thread_time() - start) / NUM_CALLS

    return run


def calls(function: Callable[[], Any]) -> Callable[[], float]:
    """Seconds per call."""

    def run() -> float:
        start = time.thread_time()
        for _ in range(NUM_CALLS):
            function()
        return (time.thread_time() - start) / NUM_CALLS

    return run


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=25)
    add_output_argument(parser)
    arguments = parser.parse_args()
    per_microbatch = {
        "nothing": microbatches(lambda index: index),
        "sample_generator": microbatches(lambda _: sample_generator().random()),
        "numpy.random.default_rng": microbatches(lambda index: np.random.default_rng(index).random()),
        "seed_samples": microbatches(lambda index: index, seed_samples=True),
    }
    per_update = {
        "update_seed": calls(lambda: update_seed(0, 7, 3)),
        "torch.manual_seed": calls(lambda: torch.manual_seed(7)),
    }
    results = {
        "per microbatch of 8": summarise(interleave(per_microbatch, arguments.repeats), reference="nothing"),
        "per update": summarise(interleave(per_update, arguments.repeats)),
    }
    report("rng_cost", results, arguments)


if __name__ == "__main__":
    main()
