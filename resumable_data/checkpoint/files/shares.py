"""The contents of a checkpoint, checked by several processes: each reads its share of the bytes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.checkpoint.files.archives import ArchiveChecker, read_items
from resumable_data.checkpoint.files.findings import Findings
from resumable_data.checkpoint.files.metadata import METADATA_NAME, parse_metadata
from resumable_data.checkpoint.manifest import TensorKey, read_manifest
from resumable_data.findings import VIOLATION

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable_data.checkpoint.files.metadata import StorageItem


class Share(NamedTuple):
    """What was found in one share.

    Attributes:
        findings: A line for each thing that is damaged.
        num_unproven: Items that record no checksum, and for which the manifest has no digest.
    """

    findings: tuple[str, ...]
    num_unproven: int


def check_share(path: Path, index: int, count: int) -> Share:
    """Read share `index` of `count` of a DCP directory whose structure is sound, and compare checksums.

    Raises:
        CheckpointError: A file cannot be read.
    """
    metadata, manifest = parse_metadata((path / METADATA_NAME).read_bytes()), read_manifest(path)
    files = _cut(metadata.items, index, count)
    findings = Findings()
    contents = list(read_items(path, files, metadata, ArchiveChecker(findings, with_payload=True)))
    keys = {} if manifest is None else manifest.keys
    digested = {key for key, what in keys.items() if isinstance(what, TensorKey) and what.digest}
    unproven = [one for one in contents if not one.has_checksums and one.item.key not in digested]
    lines = [
        f"{one.code} {one.title}: {one.where}: expected {one.expected}, found {one.found}"
        for one in findings.sorted()
        if one.severity == VIOLATION
    ]
    return Share(tuple(lines), len(unproven))


def _cut(items: Sequence[StorageItem], index: int, count: int) -> Mapping[str, Sequence[StorageItem]]:
    """Items by file, in shares of about as many bytes."""
    total = sum(item.length for item in items)
    files: dict[str, list[StorageItem]] = {}
    behind = 0
    for item in sorted(items, key=lambda item: (item.file, item.start)):
        if behind * count // max(total, 1) == index:
            files.setdefault(item.file, []).append(item)
        behind += item.length
    return files
