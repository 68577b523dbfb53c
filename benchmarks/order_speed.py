"""How fast is Shuffle, beside the list that torch's DistributedSampler makes, and what does a huge one cost to start?

Single thread. Targets: 60 million IDs/s at 10^9 samples, 5 times faster per ID than ``torch.randperm(n).tolist()`` at
10^7 in the same run; at 10^12 samples a construction under 10 ms and 1 MB.
"""

from __future__ import annotations

import argparse
import statistics
import time
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.order import Shuffle

NUM_IDS = 1 << 22
NUM_TORCH_IDS = 10**7
CALL_SIZE = 1 << 18
CLOCKS = {"wall": time.perf_counter, "cpu": time.thread_time}


def throughput(repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """IDs per second of long questions, asked 2^18 offsets at a time, beside torch's list."""
    cases: dict[str, Callable[[], object]] = {
        "torch.randperm(1e7).tolist()": lambda: torch.randperm(NUM_TORCH_IDS).tolist()
    }
    units = {"torch.randperm(1e7).tolist()": NUM_TORCH_IDS}
    for n in (10**9, 2**32 + 1, 10**12, 65_536):
        order = Shuffle(n)
        start = n // 3 if n > NUM_IDS else 0
        values = (start + np.arange(NUM_IDS, dtype=np.int64)) % n
        for what in ("ids", "offsets"):
            cases[f"{what}, n = {n}"] = _asking(getattr(order, what), values)
            units[f"{what}, n = {n}"] = NUM_IDS
    seconds = interleave(cases, repeats, clock)
    return summarise(seconds, reference="torch.randperm(1e7).tolist()", units=units)


def _asking(question: Callable[[int, Any], Any], values: Any) -> Callable[[], object]:
    def ask() -> None:
        for start in range(0, values.size, CALL_SIZE):
            question(0, values[start : start + CALL_SIZE])

    return ask


def starting(n: int, repeats: int) -> dict[str, float]:
    """Seconds and traced peak bytes to make an order; seconds to its first 8 IDs of a new epoch."""
    offsets = np.arange(n // 2, n // 2 + 8, dtype=np.int64)
    construct_s, first_ids_s = [], []
    for seed in range(repeats):
        started = time.perf_counter()
        order = Shuffle(n, seed=seed)
        constructed = time.perf_counter()
        order.ids(0, offsets)
        construct_s.append(constructed - started)
        first_ids_s.append(time.perf_counter() - started)
    tracemalloc.start()
    Shuffle(n, seed=repeats).ids(0, offsets)
    peak_bytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return {
        "construct_s": statistics.median(construct_s),
        "construct_and_first_ids_s": statistics.median(first_ids_s),
        "peak_bytes": peak_bytes,
    }


def small_draws(n: int, num_ids: int, repeats: int) -> float:
    """Median seconds of one question about few IDs in an epoch already begun."""
    order, offsets = Shuffle(n), np.arange(n // 2, n // 2 + num_ids, dtype=np.int64)
    seconds = []
    for _ in range(repeats):
        started = time.perf_counter()
        for _ in range(50):
            order.ids(0, offsets)
        seconds.append((time.perf_counter() - started) / 50)
    return statistics.median(seconds)


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="of the throughput: wall, or the thread's own processor time, for a machine that is busy",
    )
    add_output_argument(parser)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rates = throughput(arguments.repeats, CLOCKS[arguments.clock])
    ids = rates["ids, n = 1000000000"]
    started = starting(10**12, 101)
    results = {
        "clock": arguments.clock,
        "throughput": rates,
        "start": {str(n): starting(n, 101) for n in (65_536, 65_537, 10**9)} | {str(10**12): started},
        "small_draw_s": {f"{k} IDs, n = {n}": small_draws(n, k, 51) for n in (65_536, 10**9) for k in (1, 8, 512)},
        "targets_met": {
            "60 M IDs/s at 1e9": ids["units_per_s"] >= 60e6,
            "5x faster per ID than randperm().tolist()": ids["ratio"] <= 1 / 5,
            "1e12 in 10 ms and 1 MB": started["construct_s"] < 0.010 and started["peak_bytes"] < 1e6,
        },
    }
    report("order_speed", results, arguments)


if __name__ == "__main__":
    main()
