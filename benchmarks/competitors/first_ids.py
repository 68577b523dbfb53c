"""From a saved state to the IDs of one rank's first batch on another rank set, as each loader computes them.

No dataset is read, and the rank is simulated, so that any number of samples and ranks can be asked for. What a loader
does once per job and not per rank (MosaicML Streaming's arrangement, OLMo-core's index) is in the time: a restarted job
waits for it.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple

import numpy as np

from benchmarks.competitors._interface import RefusedError


@dataclass(frozen=True, kw_only=True)
class Move:
    """A run that goes on.

    Attributes:
        length: Samples.
        before: Ranks that saved.
        after: Ranks that go on; the last of them is looked at.
        batch_size: Samples of a rank in one step, before; the global batch is that of all ranks.
        percent: How much of the epoch is done.
    """

    length: int
    before: int
    after: int
    batch_size: int
    percent: int

    @property
    def name(self) -> str:
        return f"{self.length} samples, {self.before} to {self.after} ranks, {self.percent} %"

    @property
    def global_batch(self) -> int:
        return self.before * self.batch_size

    @property
    def steps_done(self) -> int:
        return self.length * self.percent // 100 // self.global_batch

    @property
    def samples_done(self) -> int:
        return self.steps_done * self.global_batch

    @property
    def batch_size_after(self) -> int:
        """A rank's share of the global batch; where that does not divide, as many as before."""
        return self.global_batch // self.after if self.global_batch % self.after == 0 else self.batch_size

    @property
    def steps_to_skip(self) -> int:
        """Steps of the new ranks that hold the samples done."""
        return self.samples_done // (self.batch_size_after * self.after)


class _Length:
    """A dataset of which a sampler wants to know the length alone."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length


def ours(move: Move) -> list[int]:
    from benchmarks.resume_cost import cursor_bytes, first_microbatch

    saved = cursor_bytes(move.length, move.global_batch, move.steps_done)
    rows = first_microbatch(saved, move.length, move.global_batch, move.after, move.batch_size)
    first: list[int] = rows.ids.tolist()
    return first


def _distributed_sampler(move: Move) -> Any:
    from torch.utils.data import DistributedSampler

    sampler: Any = DistributedSampler(_Length(move.length), move.after, move.after - 1, seed=7)  # type: ignore[arg-type]
    sampler.set_epoch(0)
    return sampler


def restarted(move: Move) -> list[int]:
    return list(islice(_distributed_sampler(move), move.batch_size_after))


def skipped(move: Move) -> list[int]:
    start = move.steps_to_skip * move.batch_size_after
    return list(islice(_distributed_sampler(move), start, start + move.batch_size_after))


def torchdata_stateful(move: Move) -> list[int]:
    from torchdata.stateful_dataloader.sampler import StatefulDistributedSampler

    sampler = StatefulDistributedSampler(_Length(move.length), move.after, move.after - 1, seed=7)
    sampler.load_state_dict({"yielded": move.steps_done * move.batch_size})
    return list(islice(sampler, move.batch_size_after))


def accelerate_skip(move: Move) -> list[int]:
    import torch
    from accelerate.data_loader import BatchSamplerShard, SeedableRandomSampler, SkipBatchSampler

    sampler: Any = SeedableRandomSampler(_Length(move.length), data_seed=7, generator=torch.Generator())
    batches: Any = torch.utils.data.BatchSampler(sampler, move.batch_size_after, drop_last=False)
    shard = BatchSamplerShard(batches, num_processes=move.after, process_index=move.after - 1)
    return list(next(iter(SkipBatchSampler(shard, skip_batches=move.steps_to_skip))))


def streaming_arrangement(move: Move) -> list[int]:
    from streaming.base.partition import get_partitions
    from streaming.base.shuffle import get_shuffle

    ranks_per_node = max(size for size in range(1, 9) if move.after % size == 0)
    nodes = move.after // ranks_per_node
    canonical = max(1, move.before // 8)
    shard_sizes = np.full(-(-move.length // 4096), 4096, np.int64)
    shard_sizes[-1] = move.length - 4096 * (len(shard_sizes) - 1)
    try:
        ids = get_partitions(
            "relaxed", move.length, canonical, nodes, ranks_per_node, 1, move.batch_size_after, move.samples_done
        )
    except ValueError as error:
        raise RefusedError(str(error)) from None
    shuffle = get_shuffle("py1e", shard_sizes, canonical, 7, 0, max(4_000_000 // canonical, 1 << 18))
    ids = np.where(ids != -1, shuffle[ids], -1)
    first: list[int] = ids[-1, -1, 0, 0].tolist()
    return first


def grain_elastic(move: Move) -> list[int]:
    import grain
    from grain.experimental import ElasticIterator

    dataset = grain.MapDataset.range(move.length).shuffle(seed=7)
    shard = grain.sharding.ShardOptions(shard_index=move.after - 1, shard_count=move.after)
    iterator: Any = iter(ElasticIterator(dataset, move.global_batch, shard))
    iterator.set_state({"global_next_index": move.samples_done})
    try:
        first: list[int] = next(iterator).tolist()
    except ValueError as error:
        raise RefusedError(str(error)) from None
    return first


def olmo_core_indices(move: Move) -> list[int]:
    """What its loader does between `load_state_dict` and the first batch, on files of indices."""
    from olmo_core.data.data_loader import NumpyFSLDataLoader

    if move.global_batch % move.after:
        raise RefusedError(f"a global batch of {move.global_batch} sequences is not divisible by {move.after} ranks")
    if move.length >= 1 << 32:
        raise RefusedError("it numbers samples with 32 bits")
    with tempfile.TemporaryDirectory() as folder:
        loader: Any = object.__new__(NumpyFSLDataLoader)
        loader.__dict__ |= {
            "dataset": _olmo_dataset(move.length),
            "seed": 7,
            "shuffle": True,
            "chunk_size": 1,
            "work_dir": folder,
            "_epoch": 1,
            "_global_batch_size": move.global_batch,
            "dp_world_size": move.after,
            "dp_rank": move.after - 1,
            "batches_processed": move.steps_done,
        }
        ids = loader._get_local_instance_indices(loader._build_global_indices())
    first: list[int] = ids[: move.global_batch // move.after].tolist()
    return first


def _olmo_dataset(length: int) -> Any:
    from olmo_core.data.numpy_dataset import NumpyFSLDatasetBase

    class Dataset(NumpyFSLDatasetBase):  # type: ignore[misc]  # not installed for everybody
        sequence_length = 1

        def __init__(self) -> None: ...
        def __len__(self) -> int:
            return length

        def __getitem__(self, index: int) -> Any:
            raise NotImplementedError

    return Dataset()


def litdata_chunks(move: Move) -> list[int]:
    """What its dataset does from the loaded state to the first samples, on chunks of 4,096 that lie nowhere."""
    from benchmarks.competitors.litdata_simulated import SimulatedDataset

    first = SimulatedDataset(move.length, move.before, 0, move.batch_size)
    saved = first.state_dict(move.steps_done * move.batch_size, 0, move.batch_size)
    dataset = SimulatedDataset(move.length, move.after, move.after - 1, move.batch_size_after)
    dataset.load_state_dict(saved)
    try:
        return list(islice(iter(dataset), move.batch_size_after))
    except ValueError as error:
        raise RefusedError(str(error)) from None


class Way(NamedTuple):
    """A way to the first IDs.

    Attributes:
        name: Of the loader, as in the registry.
        package: The distribution that has it; empty for torch and ours.
        largest: Samples up to which it is measured: memory and time grow with them. 0 for no limit.
        run: Gives the IDs.
    """

    name: str
    package: str
    largest: int
    run: Callable[[Move], list[int]]


WAYS = (
    Way("resumable_data", "", 0, ours),
    Way("DistributedSampler, epoch restarted", "", 10**8, restarted),
    Way("DistributedSampler, batches skipped", "", 10**8, skipped),
    Way("torchdata StatefulDistributedSampler", "torchdata", 10**8, torchdata_stateful),
    Way("Accelerate skip_first_batches", "accelerate", 10**7, accelerate_skip),
    Way("MosaicML Streaming", "mosaicml-streaming", 10**8, streaming_arrangement),
    Way("Grain ElasticIterator", "grain", 0, grain_elastic),
    Way("OLMo-core", "ai2-olmo-core", 10**8, olmo_core_indices),
    Way("LitData", "litdata", 10**6, litdata_chunks),
)
