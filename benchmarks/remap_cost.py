"""What does it cost to go on with another number of ranks, beside every loader that can be run?

Measured is the time from a saved state to the IDs of one rank's first batch on the new ranks, in a process of its own
for each case: seconds, processor seconds, and the most memory it held beyond what its imports took. Datasets of 10^6 to
10^12 samples, 8 to 10^6 ranks, at 1 % and 99 % of the epoch, to a number of ranks that divides the global batch and to
one that does not. Each loader's time is compared with ours of the same case.

"planning" is the rows of all ranks of one update, as a simulation of 10^6 ranks needs them.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import product
from statistics import median
from typing import Any

from benchmarks._measure import add_only_argument, add_output_argument, interleave, report
from benchmarks._store import NOT_INSTALLED
from benchmarks.competitors._interface import RefusedError
from benchmarks.competitors.first_ids import WAYS, Move, Way
from resumable_data.order import Shuffle
from resumable_data.plan import BatchPlan

BATCH_SIZE = 4
TIMEOUT_S = 300
RANKS = ((8, 4), (8, 6), (64, 10), (10**6, 10**5), (10**6, 7 * 10**5))
FULL = tuple(product((10**6, 10**7, 10**8, 10**10, 10**12), RANKS, (1, 99)))
SHORT = ((10**7, (64, 10), 99), (10**12, (10**6, 7 * 10**5), 99))


def moves(grid: tuple[tuple[int, tuple[int, int], int], ...]) -> list[Move]:
    """All of the grid with an update or more before and after."""
    every = [
        Move(length=length, before=before, after=after, batch_size=BATCH_SIZE, percent=percent)
        for length, (before, after), percent in grid
    ]
    return [move for move in every if 100 * move.global_batch <= move.length]


def measure(way: Way, move: Move) -> dict[str, Any]:
    """Run a case in this process, twice: the first time imports what is needed."""
    warm_up = Move(length=100_000, before=8, after=4, batch_size=BATCH_SIZE, percent=50)
    try:
        way.run(warm_up)
    except ImportError as error:
        return {"outcome": NOT_INSTALLED, "why": str(error)}
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    processor, start = time.process_time(), time.perf_counter()
    try:
        ids = way.run(move)
    except RefusedError as error:
        return {"outcome": "refused", "why": str(error)}
    except (MemoryError, ValueError, OverflowError, RuntimeError) as error:
        return {"outcome": "failed", "why": f"{type(error).__name__}: {error}"[:500]}
    seconds = time.perf_counter() - start
    assert len(ids) > 0
    return {
        "outcome": "read",
        "s": seconds,
        "processor_s": time.process_time() - processor,
        "more_memory_mib": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - memory) / 1024,
    }


def measure_apart(way: Way, move: Move) -> dict[str, Any]:
    """`measure` in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.remap_cost", "--one", way.name, json.dumps(vars(move))]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=TIMEOUT_S)
    except subprocess.TimeoutExpired:
        return {"outcome": "failed", "why": f"no answer in {TIMEOUT_S} s"}
    if done.returncode:
        return {"outcome": "failed", "why": done.stderr[-500:]}
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def compare(move: Move, repeats: int, ways: tuple[Way, ...]) -> dict[str, Any]:
    """All loaders in turns, so that a slow minute meets all; the median of each, and how many times ours it is."""
    answers: dict[str, list[dict[str, Any]]] = {}
    for _ in range(repeats):
        for way in ways:
            known = answers.setdefault(way.name, [])
            if not known or known[0]["outcome"] == "read":
                known.append(measure_apart(way, move))
    found = {}
    for name, runs in answers.items():
        if runs[0]["outcome"] != "read":
            found[name] = runs[0]
            continue
        keys = ("s", "processor_s", "more_memory_mib")
        found[name] = {"outcome": "read", **{key: median(run[key] for run in runs) for key in keys}}
        pairs = zip(runs, answers["resumable_data"], strict=False)
        found[name]["times_ours"] = median(run["s"] / mine["s"] for run, mine in pairs)
    return found


def planning() -> dict[str, Any]:
    """All ranks' rows of one update, and their samples among 10^12."""
    order, found = Shuffle(10**12, seed=7), {}
    for num_replicas in (10**4, 10**6):
        plan = BatchPlan(global_batch=4 * num_replicas + 1, microbatch=2, num_replicas=num_replicas)
        cases: dict[str, Callable[[], object]] = {"rows": plan.shares, "samples": partial(_samples, plan, order)}
        times = interleave(cases, 5)
        found[f"{num_replicas} ranks"] = {f"{name}_median_s": median(seconds) for name, seconds in times.items()}
    return found


def _samples(plan: BatchPlan, order: Shuffle) -> object:
    return order.ids(0, plan.shares().clip(0).ravel())


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--short", action="store_true", help="a few of the cases")
    add_only_argument(parser)
    parser.add_argument("--case", default="", help="moves whose name contains it")
    parser.add_argument("--one", nargs=2, metavar=("LOADER", "MOVE"), help=argparse.SUPPRESS)
    add_output_argument(parser)
    arguments = parser.parse_args()
    if arguments.one:
        way = {one.name: one for one in WAYS}[arguments.one[0]]
        print(json.dumps(measure(way, Move(**json.loads(arguments.one[1])))))
        return
    results: dict[str, Any] = {"moves": {}}
    if not arguments.only:
        results["planning"] = planning()
    chosen = tuple(way for way in WAYS if way.run.__name__ == "ours" or arguments.only in way.name)
    grid = moves(SHORT if arguments.short else FULL)
    for move in (one for one in grid if arguments.case in one.name):
        ways = tuple(way for way in chosen if not way.largest or move.length <= way.largest)
        if not any(arguments.only in way.name for way in ways):
            continue
        found = compare(move, arguments.repeats, ways)
        results["moves"][move.name] = {name: one for name, one in found.items() if arguments.only in name}
    report("remap_cost", results, arguments)


if __name__ == "__main__":
    main()
