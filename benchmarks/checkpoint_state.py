"""What does a loader put into a checkpoint, and what does that cost, as ranks and workers grow?

A run is read for some steps of an epoch on one rank of W, which is simulated. ``bytes`` is what a checkpoint holds of
all W ranks: ours saves one state of tensors for the job, torchdata's StatefulDataLoader one object for each rank, here
as pickle writes it. ``save_s`` is the state made, ``load_s`` a state loaded, with the next batch read after it, since
one loader does its work at the load and the other at the first batch. Starting the workers is in both of them.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Callable
from statistics import median
from typing import Any, NamedTuple, Protocol

import torch
import torch.utils.data

import resumable_data as rd
from benchmarks._measure import add_output_argument, report
from benchmarks._store import NOT_INSTALLED
from benchmarks.competitors._interface import Numbers

LENGTH, BATCH_SIZE, NUM_STEPS = 10_000_000, 8, 20
REFERENCE = "ours"


class Case(NamedTuple):
    """One rank of a run."""

    num_replicas: int
    num_workers: int

    @property
    def name(self) -> str:
        return f"{self.num_replicas} ranks, {self.num_workers} workers"


RANKS = tuple(Case(num_replicas, 0) for num_replicas in (8, 64, 1024, 16384))
WORKERS = tuple(Case(8, num_workers) for num_workers in (1, 2, 4, 8))


class Saving(Protocol):
    """What saves and loads where a loop is."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state: Any) -> None: ...


def ours(case: Case) -> tuple[Saving, Callable[[], Any], Callable[[], None]]:
    """A loader; what reads and commits one more batch of it; what ends it."""
    loader = rd.ResumableLoader(
        Numbers(LENGTH),
        order=rd.Shuffle(LENGTH, seed=7),
        global_batch=BATCH_SIZE * case.num_replicas,
        microbatch=BATCH_SIZE,
        num_workers=case.num_workers,
        rank=case.num_replicas - 1,
        num_replicas=case.num_replicas,
    )
    opened: list[Any] = []

    def step() -> Any:
        if not opened:
            opened.append(iter(loader))
        microbatch = next(opened[0])
        loader.commit()
        return microbatch

    return loader, step, loader.close


def stateful(case: Case) -> tuple[Saving, Callable[[], Any], Callable[[], None]]:
    """The same of torchdata's."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(Numbers(LENGTH), case.num_replicas, case.num_replicas - 1, seed=7)
    loader: Any = StatefulDataLoader(Numbers(LENGTH), BATCH_SIZE, sampler=sampler, num_workers=case.num_workers)
    opened: list[Any] = []

    def step() -> Any:
        if not opened:
            opened.append(iter(loader))
        return next(opened[0])

    return loader, step, opened.clear


LOADERS = {REFERENCE: ours, "torchdata StatefulDataLoader": stateful}


def measure(name: str, case: Case) -> dict[str, float]:
    """Save after some steps, and go on in another loader."""
    first, step, close = LOADERS[name](case)
    for _ in range(NUM_STEPS):
        step()
    start = time.perf_counter()
    state = first.state_dict()
    save_s = time.perf_counter() - start
    num_bytes = num_bytes_of(state, case.num_replicas)
    close()
    del first  # and with it its workers, once step and close are others
    second, step, close = LOADERS[name](case)
    start = time.perf_counter()
    second.load_state_dict(state)
    step()
    load_s = time.perf_counter() - start
    close()
    return {"bytes": num_bytes, "save_s": save_s, "load_s": load_s}


def num_bytes_of(state: Any, num_replicas: int) -> int:
    """Of all ranks: tensors are the same on all ranks, or shards of one; any other object is each rank's own."""
    if all(isinstance(value, torch.Tensor) for value in state.values()):
        return sum(value.nbytes for value in state.values())
    return len(pickle.dumps(state)) * num_replicas


def compare(case: Case, repeats: int) -> dict[str, Any]:
    """Medians of rounds in which the loaders take turns, and how many times ours each is."""
    rounds: dict[str, list[dict[str, float]]] = {name: [] for name in LOADERS}
    found: dict[str, Any] = {}
    for _ in range(repeats):
        for name, measured in rounds.items():
            try:
                measured.append(measure(name, case))
            except ImportError as error:
                found[name] = {"outcome": NOT_INSTALLED, "why": str(error)}
    for name, measured in rounds.items():
        if measured:
            found[name] = {key: median(one[key] for one in measured) for key in measured[0]}
            pairs = list(zip(measured, rounds[REFERENCE], strict=True))
            for key in ("bytes", "save_s", "load_s"):
                found[name][f"times_ours_{key.removesuffix('_s')}"] = median(a[key] / b[key] for a, b in pairs)
    return found


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--short", action="store_true", help="3 repeats, of fewer cases")
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    cases = (RANKS[0], RANKS[2], WORKERS[1]) if arguments.short else RANKS + WORKERS
    repeats = 3 if arguments.short else arguments.repeats
    report("checkpoint_state", {case.name: compare(case, repeats) for case in cases}, arguments)


if __name__ == "__main__":
    main()
