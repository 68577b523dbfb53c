"""The manifest: written whole and durably, read strictly."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.checkpoint import manifest as module
from resumable_data.checkpoint.manifest import (
    MANIFEST_NAME,
    BytesKey,
    FileEntry,
    ItemEntry,
    Manifest,
    TensorKey,
    Topology,
    read_manifest,
    write_manifest,
)
from resumable_data.errors import CheckpointError
from resumable_data.ledger.records import Mesh
from tests.checkpoints import trained_loader
from tests.files import overwrite


def make_manifest(**changes: Any) -> Manifest:
    fields: dict[str, Any] = {
        "package_version": "0.1.0",
        "torch_version": "2.13.0",
        "python_version": "3.11.7",
        "nonce": "0123456789abcdef",
        "created": "2026-01-01T00:00:00Z",
        "checksums": "digest",
        "metadata_xxh3": "f" * 16,
        "keys": {"w": TensorKey(shape=(2, 3), dtype="float32", digest="0" * 16), "step": BytesKey()},
        "files": (FileEntry("__0_0.distcp", 10),),
        "items": (ItemEntry(0, 0, 10, 2**32 - 1),),
        "cursor": msgspec.Raw(trained_loader(3).cursor.to_json()),
        "topology": Topology(world_size=4, dp_size=2, mesh=Mesh((("dp", 2), ("tp", 2)), ("dp",))),
        "update": 3,
        "rng": "reseed",
        "allowances": ("global_batch",),
    }
    return Manifest(**{**fields, **changes})


def test_manifest_comes_back(tmp_path: Path) -> None:
    """What was written is read, the cursor included, and nothing else is left in the directory."""
    manifest = make_manifest()
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert manifest.decode_cursor() == trained_loader(3).cursor
    assert os.listdir(tmp_path) == [MANIFEST_NAME]
    write_manifest(tmp_path, make_manifest(cursor=msgspec.Raw(b"null")))
    replaced = read_manifest(tmp_path)
    assert replaced is not None
    assert replaced.decode_cursor() is None


def test_no_manifest_is_none(tmp_path: Path) -> None:
    """A checkpoint without one is told from a damaged one."""
    assert read_manifest(tmp_path) is None
    (tmp_path / MANIFEST_NAME).mkdir()
    with pytest.raises(CheckpointError, match="directory"):
        read_manifest(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": 2}, "version 2"),
        ({"nonce": "x"}, "nonce"),
        ({"checksums": "md5"}, "checksums"),
        ({"surprise": 1}, "surprise"),
        ({"keys": {"w": {"kind": "tensor", "shape": [-1], "dtype": "float32"}}}, "shape"),
        ({"keys": {"w": {"kind": "sparse"}}}, "sparse"),
        ({"items": [[1, 0, 10, 0]]}, "another file"),
        ({"items": [[0, 0, 10, 2**32]]}, "items"),
        ({"files": [["name"]]}, "files"),
        ({"files": None}, "files"),
    ],
)
def test_wrong_manifest_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Another version, an unknown field, and values outside their ranges are errors that name them."""
    write_manifest(tmp_path, make_manifest())
    fields = json.loads((tmp_path / MANIFEST_NAME).read_bytes())
    overwrite(tmp_path / MANIFEST_NAME, json.dumps({**fields, **changes}).encode())
    with pytest.raises(CheckpointError, match=message):
        read_manifest(tmp_path)


@given(st.binary(max_size=200) | st.just(b"[" * 100_000) | st.just(b'{"version":1,"keys":' * 10_000))
def test_any_bytes_are_our_error(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Bytes that are no manifest are the error of a damaged one, however deep they are nested."""
    path = tmp_path_factory.getbasetemp()
    overwrite(path / MANIFEST_NAME, data)
    with pytest.raises(CheckpointError):
        read_manifest(path)


def test_size_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that is too large is neither written nor read."""
    write_manifest(tmp_path, make_manifest())
    monkeypatch.setattr(module, "MAX_MANIFEST_BYTES", 100)
    with pytest.raises(CheckpointError, match="at most 100"):
        read_manifest(tmp_path)
    with pytest.raises(CheckpointError, match="100 are allowed"):
        write_manifest(tmp_path, make_manifest())


@pytest.mark.parametrize("call", ["fsync", "rename"])
def test_failed_write_leaves_the_old_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Where a disk fails, the directory is as it was: the old manifest, and no temporary file."""
    write_manifest(tmp_path, make_manifest())

    def fail(*_: object) -> None:
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, call, fail)
    with pytest.raises(OSError, match="no space"):
        write_manifest(tmp_path, make_manifest(update=4))
    assert os.listdir(tmp_path) == [MANIFEST_NAME]
    assert read_manifest(tmp_path) == make_manifest()


def test_documentation_lists_all_fields() -> None:
    """The table in docs/checkpoint.md has every field of the manifest, in its order, and no other."""
    page = (Path(__file__).parents[3] / "docs" / "checkpoint.md").read_text()
    table = page.partition("## The manifest")[2].partition("\n## ")[0]
    names = [name for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE) for name in re.findall(r"`(\w+)`", row)]
    assert names == list(Manifest.__struct_fields__)
    for name in (*TensorKey.__struct_fields__, *Topology.__struct_fields__):
        assert f'"{name}"' in table or f"`{name}`" in table
