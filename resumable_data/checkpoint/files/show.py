"""What a checkpoint holds, from its metadata and manifest: of the data files only cursors are read."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from resumable_data.checkpoint.files.dtypes import ITEM_BYTES
from resumable_data.checkpoint.files.findings import Findings
from resumable_data.checkpoint.files.report import format_bytes
from resumable_data.checkpoint.files.verify import scan_directory
from resumable_data.checkpoint.manifest import Manifest
from resumable_data.cursor import Cursor
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    import os

    from resumable_data.checkpoint.files.metadata import Metadata

SCHEMA_VERSION = 1
_SHOWN_KEYS = 200


class KeySummary(msgspec.Struct, frozen=True, kw_only=True):
    """A key of the state: `dtype` and `shape` are empty for a Python object, `digest` where none was taken."""

    key: str
    dtype: str = ""
    shape: tuple[int, ...] = ()
    num_bytes: int = 0
    chunks: int = 1
    digest: str = ""


class PrefixSummary(msgspec.Struct, frozen=True, kw_only=True):
    """All keys that begin with one name."""

    prefix: str
    keys: int
    num_bytes: int


class ManifestSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What the manifest says beside keys and files; fields as in `Manifest`."""

    package_version: str
    torch_version: str
    python_version: str
    nonce: str
    created: str
    checksums: str
    world_size: int
    dp_size: int
    mesh: tuple[tuple[str, int], ...]
    update: int | None
    phase: int
    has_gradients: bool
    rng: str
    allowances: tuple[str, ...]


class CheckpointSummary(msgspec.Struct, frozen=True, kw_only=True):
    """What a checkpoint holds. `to_json` and `to_text` show it.

    Attributes:
        path: The checkpoint.
        keys: All keys, in order.
        prefixes: The first names of keys, with totals.
        files: Data file to the number of its items.
        cursors: Flat key to cursor.
        manifest: What the manifest says; None without one.
    """

    path: str
    keys: tuple[KeySummary, ...]
    prefixes: tuple[PrefixSummary, ...]
    files: dict[str, int]
    cursors: dict[str, Cursor]
    manifest: ManifestSummary | None
    schema_version: int = SCHEMA_VERSION

    def to_json(self) -> bytes:
        """The summary as JSON."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The summary for people, with at most 200 keys."""
        total = sum(one.num_bytes for one in self.keys)
        lines = [f"{self.path}: {len(self.keys)} keys, {format_bytes(total)} in {len(self.files)} files", ""]
        rows = [_Row(one.prefix, f"{one.keys} keys", format_bytes(one.num_bytes)) for one in self.prefixes]
        lines += _table(rows)
        lines += ["", *_table([_key_row(one) for one in self.keys[:_SHOWN_KEYS]])]
        if len(self.keys) > _SHOWN_KEYS:
            lines.append(f"  and {len(self.keys) - _SHOWN_KEYS} more; --json gives all")
        for key, cursor in sorted(self.cursors.items()):
            lines += ["", f"  cursor {key}", f"    {_cursor_line(cursor)}"]
        lines += ["", *_manifest_lines(self.manifest)]
        return "\n".join(lines)


class _Row(NamedTuple):
    name: str
    what: str
    size: str


def summarize_checkpoint(path: str | os.PathLike[str]) -> CheckpointSummary:
    """What a DCP checkpoint holds. Whether it is whole, `verify_checkpoint` says.

    Raises:
        CheckpointError: It has no metadata that can be read.
    """
    path = Path(path)
    findings = Findings()
    if not path.is_dir():
        raise CheckpointError(f"expected the directory of a checkpoint at {shown(path)}, found none.")
    scan = scan_directory(path, "structure", findings)
    if scan.metadata is None:
        worst = findings.sorted()[0]
        raise CheckpointError(f"{shown(path)}: {worst.code} {worst.title} (found {worst.found}). {worst.remedy}")
    keys = tuple(_summarize_keys(scan.metadata, scan.manifest))
    return CheckpointSummary(
        path=shown(path),
        keys=keys,
        prefixes=_prefixes(keys),
        files=dict(sorted(Counter(shown(item.file) for item in scan.metadata.items).items())),
        cursors={shown(key): cursor for key, cursor in scan.cursors.items()},
        manifest=None if scan.manifest is None else _summarize_manifest(scan.manifest),
    )


def _summarize_keys(metadata: Metadata, manifest: Manifest | None) -> list[KeySummary]:
    digests = (
        {} if manifest is None else {key: getattr(one, "digest", None) or "" for key, one in manifest.keys.items()}
    )
    keys = [
        KeySummary(
            key=shown(key),
            dtype=tensor.dtype,
            shape=tensor.shape,
            num_bytes=math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype],
            chunks=len(tensor.chunks),
            digest=digests.get(key, ""),
        )
        for key, tensor in metadata.tensors.items()
    ]
    keys += [
        KeySummary(key=shown(item.key), num_bytes=item.length)
        for item in metadata.items
        if item.key in metadata.objects
    ]
    return sorted(keys, key=lambda one: one.key)


def _prefixes(keys: tuple[KeySummary, ...]) -> tuple[PrefixSummary, ...]:
    counts, sizes = Counter[str](), Counter[str]()
    for one in keys:
        prefix = one.key.partition(".")[0]
        counts[prefix] += 1
        sizes[prefix] += one.num_bytes
    return tuple(
        PrefixSummary(prefix=prefix, keys=number, num_bytes=sizes[prefix]) for prefix, number in sorted(counts.items())
    )


def _summarize_manifest(manifest: Manifest) -> ManifestSummary:
    return ManifestSummary(
        package_version=shown(manifest.package_version),
        torch_version=shown(manifest.torch_version),
        python_version=shown(manifest.python_version),
        nonce=manifest.nonce,
        created=shown(manifest.created),
        checksums=manifest.checksums,
        world_size=manifest.topology.world_size,
        dp_size=manifest.topology.dp_size,
        mesh=tuple((shown(name), size) for name, size in manifest.topology.mesh.axes),
        update=manifest.update,
        phase=manifest.phase,
        has_gradients=manifest.has_gradients,
        rng=shown(manifest.rng),
        allowances=tuple(map(shown, manifest.allowances)),
    )


def describe_phase(phase: int, has_gradients: bool) -> str:
    """What a checkpoint saved inside an update says of it."""
    if has_gradients:
        return f"{phase} rows were given, and their gradients are in it; a load goes on after them"
    return f"{phase} rows were given, without their gradients; a load goes on at the update's start"


def _key_row(one: KeySummary) -> _Row:
    if not one.dtype:
        return _Row(one.key, "object", format_bytes(one.num_bytes))
    chunks = f", {one.chunks} chunks" if one.chunks != 1 else ""
    return _Row(one.key, f"{one.dtype} {list(one.shape)}{chunks}", format_bytes(one.num_bytes))


def _table(rows: list[_Row]) -> list[str]:
    names, whats = max((len(row.name) for row in rows), default=0), max((len(row.what) for row in rows), default=0)
    return [f"  {row.name:<{names}}  {row.what:<{whats}}  {row.size}" for row in rows]


def _cursor_line(cursor: Cursor) -> str:
    return (
        f"run {shown(cursor.run_id) or '(none)'}, update {cursor.updates}, position {cursor.position}, "
        f"epoch {cursor.epoch}, offset {cursor.offset}, {cursor.samples} samples"
    )


def _manifest_lines(manifest: ManifestSummary | None) -> list[str]:
    if manifest is None:
        return ["  no manifest"]
    mesh = " x ".join(f"{name} {size}" for name, size in manifest.mesh)
    lines = [
        f"  manifest: save {manifest.nonce} of {manifest.created}, checksums: {manifest.checksums}",
        f"    {manifest.world_size} ranks, {manifest.dp_size} data-parallel{', mesh ' + mesh if mesh else ''}",
        f"    resumable_data {manifest.package_version}, torch {manifest.torch_version}, "
        f"Python {manifest.python_version}",
    ]
    if manifest.update is not None:
        lines.append(f"    update {manifest.update}")
    if manifest.phase:
        lines.append(f"    saved inside the update: {describe_phase(manifest.phase, manifest.has_gradients)}")
    if manifest.rng:
        lines.append(f"    random states: {manifest.rng}")
    if manifest.allowances:
        lines.append(f"    allowed at the load before: {', '.join(manifest.allowances)}")
    return lines
