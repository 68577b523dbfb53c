"""The check of a single file of ``torch.save``: one archive, which holds what one process saved."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.checkpoint.files.archives import MAX_PICKLE_BYTES, PICKLE_NAME, ArchiveChecker
from resumable_data.checkpoint.files.contents import is_cursor_key, read_cursor
from resumable_data.checkpoint.files.findings import Findings, judge_checkpoint
from resumable_data.checkpoint.files.opening import open_file
from resumable_data.checkpoint.files.pickled import PickleFormatError
from resumable_data.checkpoint.files.pickles import parse_pickle
from resumable_data.checkpoint.files.report import LEVELS, CheckpointReport
from resumable_data.checkpoint.files.tensors import TensorLayout, is_plain_global, walk_tensors
from resumable_data.checkpoint.files.zips import Archive, Window
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.cursor import Cursor

_LEGACY = bytes.fromhex("80028a0a6cfc9c46f9206aa850192e")
"""How a file begins that is a row of pickles: ``torch.save(_use_new_zipfile_serialization=False)``."""


def verify_file(path: Path, level: str) -> CheckpointReport:
    """Check one file of `torch.save`; the directory of its archive is read at every level.

    Raises:
        CheckpointError: There is none, or it cannot be read.
    """
    findings = Findings()
    checker = ArchiveChecker(findings, with_payload=level == LEVELS[2])
    tensors: dict[str, TensorLayout] = {}
    try:
        with open_file(path) as file:
            window = Window(file, 0, file.size)
            if window.read(0, min(len(_LEGACY), file.size)) == _LEGACY:
                found = "the format of torch before 1.6, which has no checksums"
                findings.add("RD836", file=path.name, expected="a zip archive", found=found)
                archive = None
            else:
                archive = checker.read(window, file=path.name)
            if archive is not None:
                tensors = _read_tensors(window, archive, path.name, findings)
    except FileNotFoundError:
        raise CheckpointError(
            f"expected a checkpoint at {shown(path)}, found nothing. Nothing was checked; give the directory that was "
            "saved to, or a file of torch.save."
        ) from None
    if level == LEVELS[2] and checker.num_unrecorded:
        findings.add("RD842", file=path.name, expected="CRC32s", found="none")
    host_bytes = sum(record.size for record in archive.records) if archive else 0
    if archive:
        found = f"{len(tensors)} tensors; {host_bytes:,} bytes of memory to load it"
        findings.add("RD871", file=path.name, expected="a checkpoint of all ranks", found=found)
    return CheckpointReport(
        subject="torch.save",
        path=shown(path),
        level=level,
        verdict=judge_checkpoint(findings.found),
        tensors=len(tensors),
        items=1,
        files=1,
        tensor_bytes=sum(record.size for record in archive.records if record.name.startswith("data/"))
        if archive
        else 0,
        host_bytes=host_bytes,
        checksums="not read" if archive is None else "not recorded" if checker.num_unrecorded else "recorded",
        checked_bytes=checker.num_checked_bytes,
        crc_library=checker.crc_library if level == LEVELS[2] else "",
        cursors=_cursors(path, archive, tensors, findings) if archive else {},
        findings=findings.sorted(),
        omitted=dict(findings.omitted),
    )


def _read_tensors(window: Window, archive: Archive, name: str, findings: Findings) -> dict[str, TensorLayout]:
    """The plain tensors of the file by their places in the state, having checked that their records hold them."""
    record = archive.find(PICKLE_NAME)
    tensors: dict[str, TensorLayout] = {}
    try:
        if record is None or record.size > MAX_PICKLE_BYTES:
            raise PickleFormatError(f"no {PICKLE_NAME} of at most {MAX_PICKLE_BYTES:,} bytes")
        value, names = parse_pickle(window.read(record.start - window.start, record.size))
        tensors = dict(walk_tensors(value))
    except PickleFormatError as error:
        findings.add("RD832", file=name, expected="a pickle", found=str(error))
        return {}
    unknown = [str(one) for one in names if not is_plain_global(*one)]
    if unknown:
        findings.add("RD835", file=name, expected="data", found=", ".join(unknown[:5]), count=len(unknown))
    sizes = {record.name: record.size for record in archive.records}
    for key, layout in tensors.items():
        size = sizes.get(layout.record, 0)
        if size != layout.record_bytes or layout.stop_bytes > size:
            needed = max(layout.record_bytes, layout.stop_bytes)
            findings.add(
                "RD834", file=name, key=key, expected=f"{needed:,} bytes in {layout.record}", found=f"{size:,}"
            )
    return tensors


def _cursors(path: Path, archive: Archive, tensors: dict[str, TensorLayout], findings: Findings) -> dict[str, Cursor]:
    found = {}
    for key, layout in tensors.items():
        cursor = read_cursor(path, key, archive.find(layout.record), layout, findings) if is_cursor_key(key) else None
        if cursor is not None:
            found[shown(key)] = cursor
    return found
