"""Whether two checkpoints hold the same, by metadata, manifests and recorded checksums: no contents are read."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.checkpoint.files.against_manifest import list_keys
from resumable_data.checkpoint.files.crc_combine import crc32_combine
from resumable_data.checkpoint.files.dtypes import ITEM_BYTES
from resumable_data.checkpoint.files.findings import Findings
from resumable_data.checkpoint.files.verify import Scan, scan_directory
from resumable_data.checkpoint.manifest import TensorKey, Topology
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from resumable_data.checkpoint.files.archives import ItemContent
    from resumable_data.checkpoint.files.tensors import TensorLayout
    from resumable_data.checkpoint.manifest import BytesKey, Manifest
    from resumable_data.cursor import Cursor

SCHEMA_VERSION = 1
_WHERE_IT_GOES_ON = ("phase", "has_gradients")
_ORIGIN = ("rng", "allowances")


class KeyDifference(msgspec.Struct, frozen=True, kw_only=True):
    """A key of which the two checkpoints hold different things."""

    key: str
    a: str
    b: str


class CheckpointDiff(msgspec.Struct, frozen=True, kw_only=True):
    """How two checkpoints differ.

    Attributes:
        only_in_a: Keys that the second does not have.
        only_in_b: Keys that the first does not have.
        differ: Keys whose kind, dtype, shape, digest or checksum differ.
        same: Number of keys whose contents are the same by digest or checksum.
        not_compared: Keys of the same kind, dtype and shape whose contents could not be compared: cut in two
            ways across rows, stored in another order, or without checksums.
        cursors: What differs between the cursors.
        manifests: Fields of the manifests, where both have one, that differ and say where a run goes on: ``phase`` and
            ``has_gradients``.
        origins: Those that differ and say only how the checkpoint came about: ``rng`` and ``allowances``.
        topology_a: The ranks that saved the first; None without a manifest.
        topology_b: Those that saved the second.
    """

    only_in_a: tuple[str, ...]
    only_in_b: tuple[str, ...]
    differ: tuple[KeyDifference, ...]
    same: int
    not_compared: tuple[str, ...]
    cursors: tuple[KeyDifference, ...]
    manifests: tuple[KeyDifference, ...]
    origins: tuple[KeyDifference, ...]
    topology_a: Topology | None
    topology_b: Topology | None
    schema_version: int = SCHEMA_VERSION

    @property
    def is_same(self) -> bool:
        """Whether all keys, the cursors and the phases are known to be the same. Who saved them does not matter."""
        differences = (self.only_in_a, self.only_in_b, self.differ, self.not_compared, self.cursors, self.manifests)
        return not any(differences)


def diff_checkpoints(a: str | os.PathLike[str], b: str | os.PathLike[str]) -> CheckpointDiff:
    """Compare two DCP checkpoints, saved on any numbers of ranks.

    Contents are compared by the digests of the manifests where both have one. Else by CRC32: those of chunks that are
    whole rows, one after another, are combined to the CRC32 of the whole tensor, however many there are. Other chunks
    are compared one by one where both checkpoints cut and store the tensor in the same way.

    Raises:
        CheckpointError: One of them is no directory, or damaged, so that what it records means nothing.
    """
    first, second = _Side(Path(a)), _Side(Path(b))
    differ: list[KeyDifference] = []
    not_compared: list[str] = []
    same = 0
    for key in sorted(first.keys.keys() & second.keys.keys()):
        described = first.describe(key), second.describe(key)
        contents = first.contents_of(key, second), second.contents_of(key, first)
        if described[0] != described[1] or (None not in contents and contents[0] != contents[1]):
            texts = [
                f"{what}, {content}" if content else what for what, content in zip(described, contents, strict=True)
            ]
            differ.append(KeyDifference(key=shown(key), a=texts[0], b=texts[1]))
        elif None in contents:
            not_compared.append(shown(key))
        else:
            same += 1
    return CheckpointDiff(
        only_in_a=tuple(map(shown, sorted(first.keys.keys() - second.keys.keys()))),
        only_in_b=tuple(map(shown, sorted(second.keys.keys() - first.keys.keys()))),
        differ=tuple(differ),
        same=same,
        not_compared=tuple(not_compared),
        cursors=_diff_cursors(first.cursors, second.cursors),
        manifests=_diff_manifests(first.manifest, second.manifest, _WHERE_IT_GOES_ON),
        origins=_diff_manifests(first.manifest, second.manifest, _ORIGIN),
        topology_a=first.topology,
        topology_b=second.topology,
    )


class _Side:
    """One of the two checkpoints."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise CheckpointError(
                f"expected the directory of a checkpoint at {shown(path)}, found none. Nothing was compared; only what "
                "torch.distributed.checkpoint saved can be."
            )
        findings = Findings()
        scan: Scan = scan_directory(path, "directory", findings)
        violations = [one for one in findings.sorted() if one.severity == "violation"]
        if scan.metadata is None or violations:
            worst = (violations or findings.sorted())[0]
            raise CheckpointError(
                f"{shown(path)}: expected a whole checkpoint, found {worst.code} {worst.title} ({worst.where}). "
                "Nothing was compared: what it records means nothing. See `checkpoint verify`."
            )
        self.keys: dict[str, TensorKey | BytesKey] = dict(list_keys(scan.metadata))
        self.digests = {}
        if scan.manifest is not None and scan.manifest.checksums == "digest":
            self.digests = {key: one.digest for key, one in scan.manifest.keys.items() if isinstance(one, TensorKey)}
        self.manifest = scan.manifest
        self.cursors = dict(scan.cursors)
        self._contents: dict[str, list[ItemContent]] = {}
        for content in scan.contents:
            self._contents.setdefault(content.item.key, []).append(content)

    @property
    def topology(self) -> Topology | None:
        """The ranks that saved; None without a manifest."""
        return None if self.manifest is None else self.manifest.topology

    def describe(self, key: str) -> str:
        """What the key is."""
        one = self.keys[key]
        return f"{one.dtype} {list(one.shape)}" if isinstance(one, TensorKey) else "object"

    def contents_of(self, key: str, other: _Side) -> str | None:
        """What identifies the key's contents in both checkpoints alike; None where nothing does."""
        digest = self.digests.get(key)
        if digest and other.digests.get(key):
            return f"digest {digest}"
        one = self.keys[key]
        contents = self._contents.get(key, [])
        if not contents or not all(content.has_checksums for content in contents):
            return None
        if not isinstance(one, TensorKey):
            return f"CRC32 {contents[0].crc32:08x}"
        crc32 = _combined(one, contents)
        if crc32 is not None:
            return f"CRC32 {crc32:08x}"
        if self._cuts(key) != other._cuts(key):
            return None
        crcs = sorted((content.item.offsets or (), content.crc32) for content in contents)
        return "CRC32 of chunks " + " ".join(f"{crc32:08x}" for _, crc32 in crcs)

    def _cuts(self, key: str) -> dict[tuple[int, ...] | None, TensorLayout | None]:
        """Where a tensor is cut, and how each chunk lies in its record."""
        return {content.item.offsets: content.layout for content in self._contents.get(key, [])}


def _combined(tensor: TensorKey, contents: Sequence[ItemContent]) -> int | None:
    """The CRC32 of a whole tensor's elements in the order of their coordinates; None where the chunks do not tell."""
    at, value = 0, 0
    for content in sorted(contents, key=lambda content: content.item.offsets or ()):
        layout, offsets = content.layout, content.item.offsets
        if layout is None or offsets is None or not layout.is_row_major:
            return None
        if not layout.num_elements:
            continue
        # Whole rows of the tensor: the chunk is cut along the first dimension alone.
        if layout.shape[1:] != tensor.shape[1:] or any(offsets[1:]) or (offsets[0] if offsets else 0) != at:
            return None
        num_bytes = layout.num_elements * ITEM_BYTES[layout.dtype]
        if num_bytes != layout.record_bytes:
            return None
        value = crc32_combine(value, content.crc32, num_bytes)
        at += layout.shape[0] if layout.shape else 1
    return value


def _diff_cursors(a: dict[str, Cursor], b: dict[str, Cursor]) -> tuple[KeyDifference, ...]:
    differences = []
    for key in sorted(a.keys() | b.keys()):
        one, other = a.get(key), b.get(key)
        if one is None or other is None:
            continue  # the key itself is reported
        for field in one.__struct_fields__:
            values = getattr(one, field), getattr(other, field)
            if values[0] != values[1]:
                differences.append(KeyDifference(key=shown(f"{key}: {field}"), a=f"{values[0]}", b=f"{values[1]}"))
    return tuple(differences)


def _diff_manifests(a: Manifest | None, b: Manifest | None, fields: Sequence[str]) -> tuple[KeyDifference, ...]:
    if a is None or b is None:
        return ()
    values = {field: (_field(a, field), _field(b, field)) for field in fields}
    return tuple(KeyDifference(key=field, a=one, b=other) for field, (one, other) in values.items() if one != other)


def _field(manifest: Manifest, field: str) -> str:
    value = getattr(manifest, field)
    if field == "allowances":
        value = ", ".join(sorted(value))
    if field == "has_gradients":
        value = "yes" if value or not manifest.phase else "no"  # at an update's border there are none to have
    return shown(value) or "none"
