"""Checkpoints that tests make, break and forge."""

from __future__ import annotations

import io
import pickle
import warnings
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp

import resumable_data as rd
from resumable_data.checkpoint.files.describe import describe_directory
from resumable_data.checkpoint.manifest import Manifest, Topology, write_manifest
from tests.files import overwrite

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from torch.distributed.checkpoint.metadata import Metadata

DATA_FILE = "__0_0.distcp"


@cache
def trained_loader(updates: int) -> rd.ResumableLoader:
    """A loader whose run has committed some updates; the same one, of one run, each time."""
    loader = rd.ResumableLoader(list(range(100)), global_batch=10, microbatch=10, epochs=1, seed=3)
    for microbatch in loader:
        assert microbatch.is_last
        loader.commit()
        if loader.cursor.updates == updates:
            break
    loader.check_agreement()
    return loader


def odd_state(updates: int = 3) -> dict[str, Any]:
    """Every kind of tensor and object whose form in the file is a case of its own."""
    torch.manual_seed(updates)
    return {
        "model": {"weight": torch.randn(4, 5), "bias": torch.randn(5), "half": torch.randn(3, 7).to(torch.bfloat16)},
        "transposed": torch.randn(4, 5).t(),
        "channels_last": torch.randn(2, 3, 4, 5).contiguous(memory_format=torch.channels_last),
        "float8": torch.randn(8).to(torch.float8_e4m3fn),
        "uint16": torch.arange(3).to(torch.uint16),
        "bool": torch.tensor([True, False, True]),
        "complex": torch.randn(3, dtype=torch.complex64),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3.0),
        "view": torch.arange(100)[10:20:2],
        "expanded": torch.ones(1).expand(5),
        "parameter": torch.nn.Parameter(torch.randn(2, 2)),
        "large": torch.randn(70, 100),  # an archive that is not read at once
        "step": updates,
        "rate": 0.25,
        "name": "run",
        "nothing": None,
        "list": [1, {"a": 2}, torch.arange(4)],
        "bytes": io.BytesIO(b"abc"),
        "loader": trained_loader(updates).state_dict(),
    }


def save(path: Path, state: dict[str, Any]) -> Path:
    """Save a state with DCP, in this process alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return path


def add_manifest(path: Path, updates: int = 3) -> Manifest:
    """Give a checkpoint the manifest that its files have now."""
    manifest = Manifest(
        package_version=rd.__version__,
        torch_version=str(torch.__version__),
        python_version="3.11",
        nonce="0123456789abcdef",
        created="2026-01-01T00:00:00Z",
        checksums="crc32",
        cursor=msgspec.Raw(trained_loader(updates).cursor.to_json()),
        topology=Topology(world_size=1, dp_size=1),
        update=updates,
        **describe_directory(path)._asdict(),
    )
    write_manifest(path, manifest)
    return manifest


@contextmanager
def edited_metadata(path: Path) -> Iterator[Metadata]:
    """The metadata of a checkpoint, as torch has it; what is changed in it is written back."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    yield metadata
    overwrite(path / ".metadata", pickle.dumps(metadata))


def flip(path: Path, offset: int, mask: int = 1) -> None:
    """Change bits of one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    overwrite(path, data)


def place_of(path: Path, key: str) -> Any:
    """Where a key's first item lies, as torch has it: `relative_path`, `offset` and `length`."""
    metadata = pickle.loads((path / ".metadata").read_bytes())
    return next(place for index, place in metadata.storage_data.items() if index.fqn == key)


def archive_of(path: Path, key: str) -> bytes:
    """The archive of a key's first item."""
    place = place_of(path, key)
    data: bytes = (path / str(place.relative_path)).read_bytes()
    return data[place.offset : place.offset + place.length]
