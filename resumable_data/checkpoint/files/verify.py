"""The check of a checkpoint: a DCP directory or a file of ``torch.save``."""

from __future__ import annotations

import math
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.checkpoint.files import against_manifest
from resumable_data.checkpoint.files.archives import ArchiveChecker, ItemContent, read_items
from resumable_data.checkpoint.files.contents import is_cursor_key, read_cursors
from resumable_data.checkpoint.files.digests import check_digests
from resumable_data.checkpoint.files.dtypes import ITEM_BYTES
from resumable_data.checkpoint.files.findings import Findings, judge_checkpoint
from resumable_data.checkpoint.files.metadata import (
    MAX_METADATA_BYTES,
    METADATA_NAME,
    Metadata,
    parse_metadata,
    without_collections,
)
from resumable_data.checkpoint.files.opening import list_names, read_small
from resumable_data.checkpoint.files.other_kinds import note_other_kind, note_safetensors
from resumable_data.checkpoint.files.pickled import ForbiddenGlobalError, PickleFormatError
from resumable_data.checkpoint.files.report import LEVELS, CheckpointReport
from resumable_data.checkpoint.files.single import verify_file
from resumable_data.checkpoint.files.structure import check_files, check_metadata
from resumable_data.checkpoint.files.sums import check_sums
from resumable_data.checkpoint.manifest import MANIFEST_NAME, Manifest, read_manifest
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable_data.checkpoint.files.metadata import StorageItem
    from resumable_data.cursor import Cursor

_RANK_METADATA = re.compile(r"__\d{1,9}\.metadata", re.ASCII)


class Scan(NamedTuple):
    """All that was learned of a DCP directory.

    Attributes:
        metadata: What ``.metadata`` says; None where it cannot be read.
        metadata_bytes: The file itself.
        manifest: The manifest; None where there is none that can be read.
        files: Data file to its items by place, of those that are whole.
        contents: Every archive that could be read; empty at level ``"structure"``.
        cursors: Flat key to cursor.
        checker: What it counted; None at level ``"structure"``.
    """

    metadata: Metadata | None
    metadata_bytes: bytes
    manifest: Manifest | None
    files: Mapping[str, Sequence[StorageItem]]
    contents: Sequence[ItemContent]
    cursors: Mapping[str, Cursor]
    checker: ArchiveChecker | None


def verify_checkpoint(
    path: str | os.PathLike[str], level: str = "payload", *, sha256: str | os.PathLike[str] | None = None
) -> CheckpointReport:
    """Check the files of a checkpoint, without torch, a GPU, or running anything that is pickled in them.

    Args:
        path: A directory that `torch.distributed.checkpoint` wrote, or a file of `torch.save`.
        level: ``"structure"``: ``.metadata`` and the sizes of files. ``"directory"``: also the directory of each
            archive, which takes a few reads each. ``"payload"``: also the checksums of all contents.
        sha256: A list of the SHA-256 of the directory's files, as ``sha256sum`` and `checkpoint show --sha256` make
            them, that these are compared with, whatever the level.

    Returns:
        The report. Damage of any kind is a finding in it.

    Raises:
        UsageError: There is no such level, or a list is given with a path that is no directory.
        CheckpointError: `path` is neither a directory nor a file that can be read, or the list is malformed.

    Example:
        >>> import tempfile
        >>> import resumable_data as rd
        >>> with tempfile.TemporaryDirectory() as empty:
        ...     rd.verify_checkpoint(empty).findings[0].title
        'no .metadata: the save never finished, or the file was deleted'
    """
    if level not in LEVELS:
        raise UsageError(f"level: expected one of {', '.join(LEVELS)}, found {level!r}. Nothing was checked.")
    path = Path(path)
    findings = Findings()
    sha256_files = None if sha256 is None else check_sums(path, sha256, findings)
    if not path.is_dir():
        return verify_file(path, level)
    if level != LEVELS[0]:
        return _verify_directory(path, level, findings, sha256_files)
    with without_collections():  # what there is to walk is gone again when this is over
        return _verify_directory(path, level, findings, sha256_files)


def _verify_directory(path: Path, level: str, findings: Findings, sha256_files: int | None) -> CheckpointReport:
    scan = scan_directory(path, level, findings)
    checker, metadata = scan.checker, scan.metadata
    return CheckpointReport(
        subject=_subject(scan, findings),
        path=shown(path),
        level=level,
        verdict=judge_checkpoint(findings.found),
        tensors=len(metadata.tensors) if metadata else 0,
        objects=len(metadata.objects) if metadata else 0,
        items=len(metadata.items) if metadata else 0,
        files=len({item.file for item in metadata.items}) if metadata else 0,
        tensor_bytes=_tensor_bytes(metadata) if metadata else 0,
        checksums=_checksums(scan),
        checked_bytes=checker.num_checked_bytes if checker else 0,
        crc_library=checker.crc_library if checker and level == "payload" else "",
        has_manifest=scan.manifest is not None,
        sha256_files=sha256_files,
        cursors={shown(key): cursor for key, cursor in scan.cursors.items()},
        findings=findings.sorted(),
        omitted=dict(findings.omitted),
    )


def _subject(scan: Scan, findings: Findings) -> str:
    if scan.metadata is None and findings.has("RD805", "RD806"):
        return "safetensors" if findings.has("RD805") else "other"
    return "dcp"


def read_checkpoint_cursors(path: str | os.PathLike[str]) -> dict[str, Cursor]:
    """The loaders' cursors in a checkpoint, by flat key; each is checked by its own checksum.

    Args:
        path: A directory that `torch.distributed.checkpoint` wrote, or a file of `torch.save`.

    Raises:
        CheckpointError: It holds none that can be read.
    """
    path = Path(path)
    if path.is_dir():
        cursors = dict(scan_directory(path, LEVELS[0], Findings()).cursors)
    else:
        cursors = verify_file(path, LEVELS[0]).cursors
    if not cursors:
        reason = verify_checkpoint(path, "directory").reason or "a checkpoint whose state has no such tensor"
        raise CheckpointError(
            f"expected the cursor of a loader in {shown(path)}, found none that can be read: {reason}. Nothing was "
            "audited. Put loader.state_dict() into what is saved, or name another checkpoint."
        )
    return cursors


def scan_directory(path: Path, level: str, findings: Findings) -> Scan:
    """Look at a DCP directory as far as `level` says, and note what is wrong."""
    manifest = _read_manifest(path, findings)
    with without_collections():  # there is little garbage, and much to walk
        data, metadata = _read_metadata(path, findings)
        if metadata is None:
            return Scan(None, data, manifest, {}, (), {}, None)
        check_metadata(metadata, findings)
        files = check_files(path, metadata, findings)
        if manifest is not None:
            _check_structure(path, manifest, data, metadata, findings)
        else:
            note_safetensors({*list_names(path), *(item.file for item in metadata.items)}, findings)
    if level == LEVELS[0]:
        return Scan(metadata, data, manifest, files, (), _cursors_alone(path, files, metadata), None)
    checker = ArchiveChecker(findings, with_payload=level == LEVELS[2])
    contents = list(read_items(path, files, metadata, checker))
    cursors = read_cursors(path, contents, findings)
    count = checker.num_unrecorded if level == LEVELS[2] else 0
    if count and manifest is not None:
        count -= check_digests(path, manifest, metadata, contents, findings)
    if count:
        findings.add("RD842", expected="CRC32s in all archives", found=f"none in {count}", count=count)
    if manifest is not None:
        against_manifest.check_checksums(manifest, contents, findings)
        against_manifest.check_cursor(manifest, cursors, findings)
    return Scan(metadata, data, manifest, files, contents, cursors, checker)


def _read_manifest(path: Path, findings: Findings) -> Manifest | None:
    try:
        manifest = read_manifest(path)
    except CheckpointError as error:
        findings.add("RD852", file=MANIFEST_NAME, expected="a manifest", found=str(error))
        return None
    if manifest is None:
        findings.add("RD851", expected=MANIFEST_NAME, found="none")
    return manifest


def _read_metadata(path: Path, findings: Findings) -> tuple[bytes, Metadata | None]:
    try:
        data = read_small(path / METADATA_NAME, MAX_METADATA_BYTES)
        if data is not None:
            return data, parse_metadata(data)
    except ForbiddenGlobalError as error:
        findings.add("RD803", file=METADATA_NAME, expected="classes of DCP", found=str(error))
    except (CheckpointError, PickleFormatError) as error:
        findings.add("RD802", file=METADATA_NAME, expected="the metadata of a checkpoint", found=str(error))
    else:
        names = list_names(path)
        ranks = sum(bool(_RANK_METADATA.fullmatch(name)) for name in names)
        if note_other_kind(names, findings):
            pass
        elif ranks:
            findings.add("RD804", expected=METADATA_NAME, found=f"{ranks} files of single ranks")
        else:
            found = f"{sum(name.endswith('.distcp') for name in names)} data files"
            if f"{METADATA_NAME}.tmp" in names:
                found += f" and {METADATA_NAME}.tmp"
            findings.add("RD801", file=METADATA_NAME, expected=METADATA_NAME, found=found)
    return b"", None


def _check_structure(path: Path, manifest: Manifest, data: bytes, metadata: Metadata, findings: Findings) -> None:
    by_file: dict[str, list[StorageItem]] = {}
    for item in metadata.items:
        by_file.setdefault(item.file, []).append(item)
    sizes = {}
    for name in by_file:
        if os.sep not in name and "\0" not in name and (path / name).is_file():
            sizes[name] = (path / name).stat().st_size
    against_manifest.check_metadata_bytes(manifest, data, findings)
    against_manifest.check_beside(path, manifest, findings)
    against_manifest.check_keys(manifest, metadata, findings)
    against_manifest.check_layout(manifest, by_file, findings)
    against_manifest.check_sizes(manifest, sizes, findings)


def _cursors_alone(path: Path, files: Mapping[str, Sequence[StorageItem]], metadata: Metadata) -> dict[str, Cursor]:
    """The cursors, of which nothing else is wanted: what is wrong with them is for a higher level to say."""
    only = {name: [item for item in items if is_cursor_key(item.key)] for name, items in files.items()}
    unheard = Findings()
    checker = ArchiveChecker(unheard, with_payload=False)
    wanted = {name: items for name, items in only.items() if items}
    return read_cursors(path, read_items(path, wanted, metadata, checker), unheard)


def _tensor_bytes(metadata: Metadata) -> int:
    return sum(math.prod(tensor.shape) * ITEM_BYTES[tensor.dtype] for tensor in metadata.tensors.values())


def _checksums(scan: Scan) -> str:
    if scan.checker is None or not scan.contents:
        return "not read"
    if not scan.checker.num_unrecorded:
        return "recorded"
    return "partly" if scan.checker.num_unrecorded < len(scan.contents) else "not recorded"
