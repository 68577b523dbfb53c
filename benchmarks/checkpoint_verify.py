"""How fast are a checkpoint's files checked?

``structure`` and ``directory`` of a checkpoint of 100,000 items: the metadata alone, and also every item's archive. Its
archives are copies of one. Beside them `pickle.loads` of its metadata, which runs whatever code that names; ``ratio``
is the time over its. ``payload`` of a checkpoint that is one large tensor, and the checksum of its file with each
CRC32 library that is installed, beside reading the file in blocks of 1 MiB without looking at it: ``ratio`` is the time
over that of reading. Files are in the page cache; all times are those of the calling thread.
"""

from __future__ import annotations

import argparse
import os
import pickle
import tempfile
import time
import warnings
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

import resumable_data as rd
from benchmarks._measure import add_output_argument, interleave, report, summarise
from resumable_data.checkpoint.files import payload
from resumable_data.checkpoint.files.opening import open_file

if TYPE_CHECKING:
    from collections.abc import Callable

NUM_TENSORS, NUM_RANKS = 1000, 100
CHUNK = (4, 16)


def save(path: Path, state: dict[str, Any]) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def make_many_items(folder: Path) -> Path:
    """A checkpoint of NUM_TENSORS tensors in NUM_RANKS chunks each, a file per rank."""
    one = save(folder / "one", {"tensor": torch.ones(CHUNK)})
    archive = (one / "__0_0.distcp").read_bytes()
    path = folder / "many"
    path.mkdir()
    tensors: dict[str, Any] = {}
    stored: dict[MetadataIndex, _StorageInfo] = {}
    for number in range(NUM_TENSORS):
        key = f"model.layers.{number}.weight"
        chunks = []
        for rank in range(NUM_RANKS):
            offsets = torch.Size([rank * CHUNK[0], 0])
            chunks.append(ChunkStorageMetadata(offsets, torch.Size(CHUNK)))
            place = _StorageInfo(f"__{rank}_0.distcp", number * len(archive), len(archive))
            stored[MetadataIndex(key, offsets, rank)] = place
        shape = torch.Size([CHUNK[0] * NUM_RANKS, CHUNK[1]])
        tensors[key] = TensorStorageMetadata(TensorProperties(torch.float32), shape, chunks)
    for rank in range(NUM_RANKS):
        (path / f"__{rank}_0.distcp").write_bytes(archive * NUM_TENSORS)
    places = {key: tuple(key.split(".")) for key in tensors}
    (path / ".metadata").write_bytes(pickle.dumps(Metadata(tensors, places, stored, StorageMeta(), "1.0.0")))
    return path


def check(path: Path, level: str) -> Callable[[], None]:
    def run() -> None:
        assert rd.verify_checkpoint(path, level).verdict == "sound"

    return run


def measured(function: Callable[[], object]) -> Callable[[], float]:
    """Seconds of the calling thread."""

    def run() -> float:
        began = time.thread_time()
        function()
        return time.thread_time() - began

    return run


def checksum(path: Path, crc32: payload.Crc32) -> None:
    with open_file(path) as file:
        payload.range_crc32(file, 0, file.size, crc32)


def read(path: Path) -> None:
    buffer = bytearray(2**20)
    with open(path, "rb", buffering=0) as file:
        while file.readinto(buffer):
            pass


def main() -> None:
    """Run the benchmark and write JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--megabytes", type=int, default=512, help="size of the large tensor")
    add_output_argument(parser)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        many = make_many_items(Path(folder))
        metadata = (many / ".metadata").read_bytes()
        levels = {level: measured(check(many, level)) for level in ("structure", "directory")}
        levels["pickle.loads"] = measured(lambda: pickle.loads(metadata))
        numel = arguments.megabytes * 10**6 // 4
        large = save(
            Path(folder) / "large", {"tensor": torch.randint(-(2**31), 2**31 - 1, (numel,), dtype=torch.int32)}
        )
        file = large / "__0_0.distcp"
        cases: dict[str, Callable[[], float]] = {
            "reading the file": measured(lambda: read(file)),
            f"payload ({payload.fast_crc32()[0]})": measured(check(large, "payload")),
        }
        for library, crc32 in payload.crc32_libraries():
            cases[f"checksum of the file, {library}"] = measured(partial(checksum, file, crc32))
        size = os.path.getsize(file)
        results = {
            f"{NUM_TENSORS * NUM_RANKS} items": summarise(
                interleave(levels, arguments.repeats), reference="pickle.loads"
            ),
            f"{arguments.megabytes} MB": summarise(
                interleave(cases, arguments.repeats), reference="reading the file", units=dict.fromkeys(cases, size)
            ),
        }
    report("checkpoint_verify", results, arguments)


if __name__ == "__main__":
    main()
