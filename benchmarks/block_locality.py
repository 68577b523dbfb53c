"""How many bytes and shards does a rank touch per update with BlockShuffle, beside Shuffle, and how fast are its IDs?

Simulated: shards of equally many samples of equal size; reading a sample costs the whole read unit (a compression
frame, a row group, a readahead) that holds it, and consecutive units of one shard that are asked for together are one
request. Nothing is kept from one update to the next, except in the last figure: all ranks of a host that keeps the last
units it read, as a page cache would.
"""

from __future__ import annotations

import argparse
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.order import BlockShuffle, Int64Array, Order, Shuffle
from resumable_data.plan import BatchPlan

NUM_SAMPLES = 50_000_000
SAMPLES_PER_SHARD = 16_384
SAMPLE_BYTES = 8_192
NUM_UPDATES = 32
NUM_CACHED_SAMPLES = 1 << 19
START = NUM_SAMPLES // 3  # in the midst of blocks and windows
CACHED_START = START // 65_536 * 65_536  # windows begin here: none is read in part
NUM_IDS = 1 << 20
STRIDE = 64


@dataclass(frozen=True)
class Setting:
    """A rank set, an update, and the samples of one read unit."""

    num_replicas: int
    global_batch: int
    unit: int


SETTINGS = (Setting(8, 256, 256), Setting(8, 4096, 256), Setting(64, 4096, 256), Setting(64, 4096, 32))
ORDERS: dict[str, Callable[[int], Order]] = {
    "Shuffle": Shuffle,
    "BlockShuffle block=256 window=512": lambda n: BlockShuffle(n, block=256, window=512),
    "BlockShuffle block=256 window=4096": lambda n: BlockShuffle(n, block=256, window=4096),
    "BlockShuffle block=256 window=65536": lambda n: BlockShuffle(n, block=256, window=65_536),
    "BlockShuffle block=16384 window=65536": lambda n: BlockShuffle(n, block=SAMPLES_PER_SHARD, window=65_536),
}


def touched(ids: Int64Array, unit: int) -> dict[str, int]:
    """Distinct shards, requests and bytes to read samples at once, each unit once."""
    units = np.unique(ids // unit)
    shards = units * unit // SAMPLES_PER_SHARD
    apart = (np.diff(units) != 1) | (np.diff(shards) != 0)
    return {
        "shards": np.unique(shards).size,
        "requests": 1 + int(apart.sum()),
        "bytes": units.size * unit * SAMPLE_BYTES,
    }


def mean_of(counts: list[dict[str, int]]) -> dict[str, float]:
    """The mean of each count."""
    return {key: float(np.mean([count[key] for count in counts])) for key in counts[0]}


def units_read_by_cache(ids: Int64Array, unit: int, capacity: int) -> int:
    """Units read by a host that keeps the ``capacity`` units it used last."""
    kept: OrderedDict[int, None] = OrderedDict()
    misses = 0
    for number in (ids // unit).tolist():
        if number in kept:
            kept.move_to_end(number)
            continue
        misses += 1
        kept[number] = None
        if len(kept) > capacity:
            kept.popitem(last=False)
    return misses


def locality(order: Order, setting: Setting, cache_bytes: int) -> dict[str, Any]:
    """Means over updates: per rank, and of all ranks together; bytes read per byte used with a shared cache."""
    plan = BatchPlan(
        global_batch=setting.global_batch,
        microbatch=setting.global_batch // setting.num_replicas,
        num_replicas=setting.num_replicas,
    )
    per_rank, together = [], []
    offsets = START + np.arange(NUM_UPDATES * setting.global_batch, dtype=np.int64)
    for update in order.ids(0, offsets).reshape(NUM_UPDATES, setting.global_batch):
        per_rank += [touched(update[plan.share(rank)], setting.unit) for rank in range(setting.num_replicas)]
        together.append(touched(update, setting.unit))
    ranks, of_all = mean_of(per_rank), mean_of(together)
    used = setting.global_batch * SAMPLE_BYTES
    sequence = order.ids(0, CACHED_START + np.arange(NUM_CACHED_SAMPLES, dtype=np.int64))
    capacity = cache_bytes // (setting.unit * SAMPLE_BYTES)
    return {
        "per_rank_and_update": ranks,
        "bytes_read_per_byte_used_by_a_rank": ranks["bytes"] * setting.num_replicas / used,
        "all_ranks_per_update": of_all,
        "bytes_read_per_byte_used_by_all_ranks_together": of_all["bytes"] / used,
        "bytes_read_per_byte_used_with_a_shared_cache": (
            units_read_by_cache(sequence, setting.unit, capacity) * setting.unit / sequence.size
        ),
    }


def throughput(repeats: int, clock: Callable[[], float]) -> dict[str, Any]:
    """IDs per second of consecutive offsets, and of those of one rank of 64."""
    cases: dict[str, Callable[[], object]] = {}
    units = {}
    orders = {**ORDERS, "BlockShuffle block=256 window=64": lambda n: BlockShuffle(n, block=256, window=64)}
    for name, make in orders.items():
        order = make(10**9)
        for what, size, stride in (("consecutive", NUM_IDS, 1), (f"every {STRIDE}th", NUM_IDS // 8, STRIDE)):
            offsets = len(order) // 3 + stride * np.arange(size, dtype=np.int64)
            cases[f"{name}, {what}"] = _asking(order, offsets)
            units[f"{name}, {what}"] = size
    return summarise(interleave(cases, repeats, clock), reference="Shuffle, consecutive", units=units)


def _asking(order: Order, offsets: Int64Array) -> Callable[[], object]:
    return lambda: order.ids(0, offsets)


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--cache-gib", type=float, default=1.0, help="of the shared cache")
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="of the throughput")
    add_output_argument(parser)
    arguments = parser.parse_args()
    cache_bytes = int(arguments.cache_gib * 2**30)
    results = {
        "shape": {
            "num_samples": NUM_SAMPLES,
            "samples_per_shard": SAMPLES_PER_SHARD,
            "sample_bytes": SAMPLE_BYTES,
            "num_updates": NUM_UPDATES,
            "num_samples_read_with_cache": NUM_CACHED_SAMPLES,
            "cache_bytes": cache_bytes,
        },
        "locality": {
            f"{setting.num_replicas} ranks, global batch {setting.global_batch}, {setting.unit} samples per read": {
                name: locality(make(NUM_SAMPLES), setting, cache_bytes) for name, make in ORDERS.items()
            }
            for setting in SETTINGS
        },
        "clock": arguments.clock,
        "throughput": throughput(
            arguments.repeats, {"wall": time.perf_counter, "cpu": time.thread_time}[arguments.clock]
        ),
    }
    report("block_locality", results, arguments)


if __name__ == "__main__":
    main()
