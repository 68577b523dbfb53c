"""What a manifest says of the files of a checkpoint, read from a directory that was just saved."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import xxhash

from resumable_data.checkpoint.files.against_manifest import list_keys
from resumable_data.checkpoint.files.findings import DAMAGED, Findings, judge_checkpoint
from resumable_data.checkpoint.files.verify import scan_directory
from resumable_data.checkpoint.manifest import BytesKey, FileEntry, ItemEntry, TensorKey
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from pathlib import Path


class Described(NamedTuple):
    """The fields of a `Manifest` that its files alone determine; `keys` has no digests yet."""

    metadata_xxh3: str
    keys: dict[str, TensorKey | BytesKey]
    files: tuple[FileEntry, ...]
    items: tuple[ItemEntry, ...]


def describe_directory(path: Path) -> Described:
    """Describe a DCP directory for its manifest, from its metadata and the directories of its archives.

    Raises:
        CheckpointError: It is damaged already, so that a manifest must not vouch for it.
    """
    findings = Findings()
    scan = scan_directory(path, "directory", findings)
    if scan.metadata is None or judge_checkpoint(findings.found) == DAMAGED:
        worst = findings.sorted()[0]
        raise CheckpointError(
            f"{shown(path)}: expected a checkpoint that is whole, found {worst.code} {worst.title} ({worst.where}: "
            f"{worst.found}). It gets no manifest, so that nobody takes it for whole. Save again into a new directory."
        )
    names = sorted(scan.files)
    crcs = {(content.item.file, content.item.start): content.crc32 for content in scan.contents}
    index = {name: at for at, name in enumerate(names)}
    items = [
        ItemEntry(index[name], item.start, item.length, crcs.get((name, item.start), 0))
        for name in names
        for item in scan.files[name]
    ]
    return Described(
        metadata_xxh3=f"{xxhash.xxh3_64_intdigest(scan.metadata_bytes):016x}",
        keys=list_keys(scan.metadata),
        files=tuple(FileEntry(name, (path / name).stat().st_size) for name in names),
        items=tuple(items),
    )
