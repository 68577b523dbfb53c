"""What does the loader cost beside a plain DataLoader with the same dataset, batch and workers?

Two kinds of item: one that costs nothing, so that the difference per microbatch is the loader's own work, and one that
takes 50 microseconds of a core, about what a small image or a token row costs to read. The ledger, where it is on, lies
in a temporary directory. The training loop does nothing but commit. torchdata's StatefulDataLoader is measured where it
is installed, with its own distributed sampler.
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data

from benchmarks._apart import Cost, cost_of_batches, interleave_apart, median_difference, summarise_apart
from benchmarks._items import BusyItems
from benchmarks._measure import add_output_argument, report
from resumable_data import Ledger, ResumableLoader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ITEM_COST_S = 50e-6
NUM_SAMPLES = 1_000_000
MICROBATCH = 8
WARM_UP_BATCHES = 32
ROUNDS_WITHOUT_WORKERS = 5
"""For each repeat: a round takes a tenth of a second there, within which a shared core's speed may be half."""
LEDGERS = {"ours, ledger of digests": "digest", "ours, ledger of IDs": "full"}
"""Case to what its ledger stores. ``over_no_ledger_s`` is what it adds to a microbatch [processor s]."""


def plain_batches(dataset: Any, num_workers: int) -> Iterator[Any]:
    """Batches of torch's own loader, as a single rank of a DistributedSampler run reads them."""
    sampler: Any = torch.utils.data.DistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)
    yield from torch.utils.data.DataLoader(dataset, batch_size=MICROBATCH, sampler=sampler, num_workers=num_workers)


def stateful_batches(dataset: Any, num_workers: int) -> Iterator[Any]:
    """Batches of torchdata's loader, which can save where it is."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(dataset, num_replicas=1, rank=0, shuffle=False)
    yield from StatefulDataLoader(dataset, batch_size=MICROBATCH, sampler=sampler, num_workers=num_workers)


def our_batches(dataset: Any, num_workers: int, accumulation_steps: int, ids: str) -> Iterator[Any]:
    """Microbatches of ours, each update committed; with a ledger of `ids`, or without one where that is empty."""
    with tempfile.TemporaryDirectory() as folder:
        loader = ResumableLoader(
            dataset,
            global_batch=MICROBATCH * accumulation_steps,
            microbatch=MICROBATCH,
            num_workers=num_workers,
            ledger=Ledger(folder, ids=ids) if ids else None,
        )
        with loader:
            for microbatch in loader:
                yield microbatch
                if microbatch.is_last:
                    loader.commit()


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="fewer batches, with 0 and 2 workers alone")
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    results: dict[str, Any] = {}
    kinds = ((0.0, 500 if arguments.short else 1500), (ITEM_COST_S, 150 if arguments.short else 300))
    for cost_s, num_batches in kinds:
        for num_workers in (0, 2) if arguments.short else (0, 1, 2):
            dataset = BusyItems(NUM_SAMPLES, cost_s)
            cases = {"plain": partial(plain_batches, dataset, num_workers)}
            for name, ids in {"ours, no ledger": "", **LEDGERS}.items():
                cases[name] = partial(our_batches, dataset, num_workers, 1, ids)
            cases["ours, 4 accumulation steps"] = partial(our_batches, dataset, num_workers, 4, "digest")
            if find_spec("torchdata"):
                import_module("torchdata.stateful_dataloader")  # or each forked process would
                cases["StatefulDataLoader"] = partial(stateful_batches, dataset, num_workers)
            timed = {name: partial(_run, case, num_batches) for name, case in cases.items()}
            costs = interleave_apart(timed, arguments.repeats * (1 if num_workers else ROUNDS_WITHOUT_WORKERS))
            found = summarise_apart(costs, reference="plain")
            for name in LEDGERS:
                found[name]["over_no_ledger_s"] = median_difference(costs, name, "ours, no ledger")
            results[f"item {cost_s * 1e6:.0f} us, {num_workers} workers"] = found
    report("loader_overhead", results, arguments)


def _run(batches: Callable[[], Iterator[Any]], num_batches: int) -> Cost:
    return cost_of_batches(batches(), warm_up=WARM_UP_BATCHES, num_batches=num_batches)


if __name__ == "__main__":
    main()
