"""From a saved state to the first batch of data on another number of ranks: loaders, not samplers alone.

A run of 8 ranks reads 1 % of an epoch and saves; a rank of 6 goes on, in a process of its own for each case. The time
is from the dataset to the first batch: loader made, state loaded, batch read. Items cost nothing, so that a loader that
skips by reading is at its best. ``times_ours`` is of processor time, which other work on the machine changes less.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import islice
from statistics import median
from typing import Any

import resumable_data as rd
from benchmarks._measure import add_output_argument, report
from benchmarks._store import NOT_INSTALLED
from benchmarks.competitors._interface import Numbers

BEFORE, AFTER, BATCH_SIZE, PERCENT = 8, 6, 6, 1
GLOBAL_BATCH = BEFORE * BATCH_SIZE
FULL, SHORT = (10**6, 10**7, 10**8), (10**6, 10**7)
REFERENCE = "resumable_data"
First = Callable[[], object]


def steps_done(length: int) -> int:
    """Steps of the first run."""
    return length * PERCENT // 100 // GLOBAL_BATCH


def _ours(length: int, rank: int, num_replicas: int) -> rd.ResumableLoader:
    return rd.ResumableLoader(
        Numbers(length),
        order=rd.Shuffle(length, seed=7),
        global_batch=GLOBAL_BATCH,
        microbatch=GLOBAL_BATCH // num_replicas,
        rank=rank,
        num_replicas=num_replicas,
    )


def ours(length: int) -> First:
    with _ours(length, 0, BEFORE) as loader:
        for _ in islice(loader, steps_done(length)):
            loader.commit()
        state = loader.state_dict()

    def first() -> object:
        following = _ours(length, AFTER - 1, AFTER)
        following.load_state_dict(state)
        return next(iter(following))

    return first


def distributed_sampler(length: int, *, is_skipping: bool) -> First:
    from torch.utils.data import DataLoader, DistributedSampler

    def first() -> object:
        dataset = Numbers(length)
        sampler: Any = DistributedSampler(dataset, AFTER, AFTER - 1, seed=7)
        loader: Any = DataLoader(dataset, GLOBAL_BATCH // AFTER, sampler=sampler)
        return next(islice(loader, steps_done(length) if is_skipping else 0, None))

    return first


def stateful(length: int) -> First:
    """The state of another rank set, as far as it is taken: what it does to the data is another question."""
    from torchdata.stateful_dataloader import StatefulDataLoader
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    def open_loader(rank: int, num_replicas: int) -> Any:
        dataset = Numbers(length)
        sampler = StatefulDistributedSampler(dataset, num_replicas, rank, seed=7)
        return StatefulDataLoader(dataset, GLOBAL_BATCH // num_replicas, sampler=sampler)

    loader = open_loader(AFTER - 1, BEFORE)
    for _ in islice(loader, steps_done(length)):
        pass
    state = loader.state_dict()

    def first() -> object:
        following = open_loader(AFTER - 1, AFTER)
        following.load_state_dict(state)
        return next(iter(following))

    return first


LOADERS: dict[str, Callable[[int], First]] = {
    REFERENCE: ours,
    "DistributedSampler, epoch restarted": partial(distributed_sampler, is_skipping=False),
    "DistributedSampler, batches skipped": partial(distributed_sampler, is_skipping=True),
    "torchdata StatefulDataLoader": stateful,
}


def measure(name: str, length: int) -> dict[str, Any]:
    """One case in this process, after a small one that imports what is needed."""
    try:
        LOADERS[name](10_000)()
    except ImportError as error:
        return {"outcome": NOT_INSTALLED, "why": str(error)}
    first = LOADERS[name](length)
    processor, start = time.process_time(), time.perf_counter()
    first()
    return {"s": time.perf_counter() - start, "processor_s": time.process_time() - processor}


def measure_apart(name: str, length: int) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.first_batch", "--one", name, str(length)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(length: int, repeats: int) -> dict[str, Any]:
    """All loaders in turns; the median of each, and how many times ours it is."""
    runs: dict[str, list[dict[str, Any]]] = {name: [] for name in LOADERS}
    for _ in range(repeats):
        for name, known in runs.items():
            known.append(measure_apart(name, length))
    found: dict[str, Any] = {}
    for name, known in runs.items():
        if "outcome" in known[0]:
            found[name] = known[0]
            continue
        pairs = zip(known, runs[REFERENCE], strict=True)
        found[name] = {key: median(run[key] for run in known) for key in known[0]}
        found[name]["times_ours"] = median(run["processor_s"] / mine["processor_s"] for run, mine in pairs)
    return found


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="without the largest")
    parser.add_argument("--one", nargs=2, metavar=("LOADER", "SAMPLES"), help=argparse.SUPPRESS)
    add_output_argument(parser)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one[0], int(arguments.one[1]))))
        return
    lengths = SHORT if arguments.short else FULL
    report("first_batch", {f"{length} samples": compare(length, arguments.repeats) for length in lengths}, arguments)


if __name__ == "__main__":
    main()
