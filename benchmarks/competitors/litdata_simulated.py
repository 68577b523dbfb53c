"""LitData's dataset of one rank without files: all its own but the cache, which has intervals of chunks alone."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from litdata.streaming.dataset import StreamingDataset
from litdata.streaming.item_loader import Interval
from litdata.streaming.resolver import Dir
from litdata.streaming.sampler import ChunkedIndex
from litdata.utilities.env import _DistributedEnv

CHUNK = 4096


class SimulatedDataset(StreamingDataset):  # type: ignore[misc]  # not installed for everybody
    """One rank's; each sample is its own number. Ranks beyond 8 are on nodes of 8."""

    def __init__(self, length: int, num_replicas: int, rank: int, batch_size: int) -> None:
        self._chunks = _chunks(length)
        self.__dict__ |= {
            "input_dir": Dir(path="nowhere"),
            "cache_dir": Dir(),
            "item_loader": None,
            "shuffle": True,
            "drop_last": num_replicas > 1,  # as it decides itself
            "seed": 7,
            "_item_shuffle_window": 256,  # its default
            "subsampled_files": [],
            "region_of_interest": [],
            "distributed_env": _DistributedEnv(num_replicas, rank, max(1, num_replicas // 8)),
            "posix_fast": None,
            "window_direct_io": False,
            "num_canonical_nodes": None,
            "num_workers": 1,
            "shuffler": None,
            "batch_size": batch_size,
            "current_epoch": 1,
            "_state_dict": None,
            "_force_override_state_dict": False,
            "_elastic_item_lists": None,
            "_elastic_drop_first": None,
        }

    def _create_cache(self, worker_env: object) -> Any:
        return self._chunks

    def __getitem__(self, index: ChunkedIndex) -> int:
        return int(index.index)


def _chunks(length: int) -> Any:
    """As much of a cache as is asked for where no sample is."""
    starts = range(0, length, CHUNK)
    intervals = [Interval(start, start, end, end) for start in starts for end in [min(start + CHUNK, length)]]
    config = SimpleNamespace(_chunks=[{"chunk_bytes": 1 << 26}] * len(intervals))
    ignored = ("set_keep_node_shard", "acquire_shared_locks", "enable_mmap_for_chunks")
    reader = SimpleNamespace(_config=config, **dict.fromkeys(ignored, lambda _: None))
    return SimpleNamespace(_reader=reader, get_chunk_intervals=lambda: intervals)
