"""How long does the training loop wait at the border of two epochs?

The wait for a batch that begins an epoch, beside the wait for any other, with two workers and items that take 50
microseconds to read: of this package's loader, whose workers go on through the border, and of torch's DataLoader, as a
loop over epochs uses it, with and without persistent workers.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

import resumable_data as rd
from benchmarks._items import BusyItems
from benchmarks._measure import add_output_argument, report

if TYPE_CHECKING:
    from collections.abc import Iterator

NUM_SAMPLES, BATCH_SIZE, NUM_WORKERS, ITEM_COST_S = 4000, 8, 2, 50e-6


def our_batches(num_epochs: int) -> Iterator[Any]:
    """One iteration over all epochs, each update committed."""
    dataset = BusyItems(NUM_SAMPLES, ITEM_COST_S)
    loader = rd.ResumableLoader(
        dataset, global_batch=BATCH_SIZE, microbatch=BATCH_SIZE, epochs=num_epochs, num_workers=NUM_WORKERS
    )
    with loader:
        for microbatch in loader:
            yield microbatch
            loader.commit()


def torch_batches(num_epochs: int, *, persistent: bool) -> Iterator[Any]:
    """The usual loop over epochs."""
    dataset = BusyItems(NUM_SAMPLES, ITEM_COST_S)
    sampler: Any = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=BATCH_SIZE, sampler=sampler, num_workers=NUM_WORKERS, persistent_workers=persistent
    )
    for epoch in range(num_epochs):
        sampler.set_epoch(epoch)
        yield from loader


def waits(batches: Iterator[Any]) -> dict[str, float]:
    """Milliseconds of waiting for batches, those that begin an epoch apart; the first half epoch is left out."""
    per_epoch = NUM_SAMPLES // BATCH_SIZE
    at_border: list[float] = []
    elsewhere: list[float] = []
    asked = time.perf_counter()
    for number, _ in enumerate(batches):
        waited_ms = 1e3 * (time.perf_counter() - asked)
        if number > per_epoch // 2:
            (elsewhere if number % per_epoch else at_border).append(waited_ms)
        asked = time.perf_counter()
    return {
        "border_median_ms": statistics.median(at_border),
        "border_max_ms": max(at_border),
        "other_median_ms": statistics.median(elsewhere),
        "border_over_other": statistics.median(at_border) / statistics.median(elsewhere),
    }


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results = {
        "resumable_data": waits(our_batches(arguments.epochs)),
        "torch": waits(torch_batches(arguments.epochs, persistent=False)),
        "torch, persistent workers": waits(torch_batches(arguments.epochs, persistent=True)),
    }
    report("epoch_border", results, arguments)


if __name__ == "__main__":
    main()
