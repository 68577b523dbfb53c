"""The manifest of a checkpoint against its files: whether all are of the save that wrote it. No contents are read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import xxhash

from resumable_data.checkpoint.files.opening import read_small
from resumable_data.checkpoint.manifest import MANIFEST_NAME, BytesKey, Manifest, TensorKey
from resumable_data.checkpoint.probe_file import MAX_PROBE_BYTES, PROBE_NAME
from resumable_data.checkpoint.run_manifest import MAX_RUN_MANIFEST_BYTES, RUN_MANIFEST_NAME
from resumable_data.errors import CheckpointError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from resumable_data.checkpoint.files.archives import ItemContent
    from resumable_data.checkpoint.files.findings import Findings
    from resumable_data.checkpoint.files.metadata import Metadata, StorageItem
    from resumable_data.cursor import Cursor


def check_metadata_bytes(manifest: Manifest, data: bytes, findings: Findings) -> None:
    """``.metadata`` is, byte for byte, what the manifest was written for."""
    found = f"{xxhash.xxh3_64_intdigest(data):016x}"
    if found != manifest.metadata_xxh3:
        findings.add("RD853", file=".metadata", expected=f"xxh3_64 {manifest.metadata_xxh3}", found=found)


def check_keys(manifest: Manifest, metadata: Metadata, findings: Findings) -> None:
    """Keys, shapes and dtypes are those of the manifest."""
    keys = list_keys(metadata)
    for key in sorted(manifest.keys.keys() | keys.keys()):
        expected, found = _described(manifest.keys.get(key)), _described(keys.get(key))
        if expected != found:
            findings.add("RD854", key=key, expected=expected, found=found)


def list_keys(metadata: Metadata) -> dict[str, TensorKey | BytesKey]:
    """What ``.metadata`` lists, as a manifest lists it, without digests."""
    keys: dict[str, TensorKey | BytesKey] = {key: BytesKey() for key in metadata.objects}
    for key, tensor in metadata.tensors.items():
        keys[key] = TensorKey(shape=tensor.shape, dtype=tensor.dtype)
    return keys


def _described(key: TensorKey | BytesKey | None) -> str:
    if key is None:
        return "nothing"
    return f"{key.dtype} of shape {list(key.shape)}" if isinstance(key, TensorKey) else "a pickled object"


def check_layout(manifest: Manifest, by_file: Mapping[str, Sequence[StorageItem]], findings: Findings) -> None:
    """The data files have the names, and the items the places, of the manifest."""
    listed = {file.name for file in manifest.files}
    for name in sorted(listed ^ by_file.keys()):
        expected, found = ("the file", "none") if name in listed else ("no file", "one")
        findings.add("RD855", file=name, expected=f"{expected}, as in {MANIFEST_NAME}", found=found)
    places = {(manifest.files[item.file].name, item.offset, item.length) for item in manifest.items}
    ours = {(item.file, item.start, item.length) for items in by_file.values() for item in items}
    for name, offset, length in sorted(places ^ ours):
        what = f"an item of {length} bytes"
        in_manifest = (name, offset, length) in places
        expected, found = (what, "none in .metadata") if in_manifest else ("none in the manifest", what)
        findings.add("RD855", file=name, offset=offset, expected=expected, found=found)


def check_sizes(manifest: Manifest, sizes: Mapping[str, int], findings: Findings) -> None:
    """The data files have the sizes of the manifest."""
    for file in manifest.files:
        found = sizes.get(file.name)
        if found is not None and found != file.size:
            findings.add("RD855", file=file.name, expected=f"{file.size:,} bytes", found=f"{found:,}")


def check_checksums(manifest: Manifest, contents: Iterable[ItemContent], findings: Findings) -> None:
    """The archives record the checksums that the manifest lists."""
    listed = {(manifest.files[item.file].name, item.offset): item.crc32 for item in manifest.items}
    for content in contents:
        item = content.item
        expected, found = listed.get((item.file, item.start)), content.crc32
        if expected is not None and expected != found:
            findings.add(
                "RD856",
                file=item.file,
                key=item.key,
                offset=item.start,
                expected=f"a payload of CRC32 {expected:08x}",
                found=f"{found:08x}",
            )


def check_cursor(manifest: Manifest, cursors: Mapping[str, Cursor], findings: Findings) -> None:
    """One of the cursors in the checkpoint is that of the manifest."""
    try:
        expected = manifest.decode_cursor()
    except StateError as error:
        findings.add("RD852", file=MANIFEST_NAME, expected="a cursor", found=str(error))
        return
    if expected is not None and cursors and expected not in cursors.values():
        key, found = next(iter(cursors.items()))
        findings.add(
            "RD862",
            file=MANIFEST_NAME,
            key=key,
            expected=f"update {expected.updates}, position {expected.position}, as in the manifest",
            found=f"update {found.updates}, position {found.position}, or other fields that differ",
        )


def check_beside(path: Path, manifest: Manifest, findings: Findings) -> None:
    """The run manifest and the probe's logits beside it are those that were written with it."""
    _check_file(path / RUN_MANIFEST_NAME, MAX_RUN_MANIFEST_BYTES, manifest.run_xxh3, "RD857", findings)
    _check_file(path / PROBE_NAME, MAX_PROBE_BYTES, manifest.probe_xxh3, "RD858", findings)


def _check_file(file: Path, max_bytes: int, expected: str | None, code: str, findings: Findings) -> None:
    if expected is None:
        return
    try:
        data = read_small(file, max_bytes)
    except CheckpointError as error:
        findings.add(code, file=file.name, expected=f"xxh3 {expected}", found=str(error))
        return
    found = "none" if data is None else f"xxh3 {xxhash.xxh3_64_intdigest(data):016x}"
    if found != f"xxh3 {expected}":
        findings.add(code, file=file.name, expected=f"xxh3 {expected}", found=found)
