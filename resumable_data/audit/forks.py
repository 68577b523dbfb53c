"""Two launches at once: files of an older attempt that grew, or were rewritten, after a newer one was claimed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.audit.findings import finding
from resumable_data.ledger.frames import measure
from resumable_data.ledger.layout import rank_name

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit.history import Attempt, History
    from resumable_data.findings import Finding
    from resumable_data.ledger.records import OlderFile


def check_forks(history: History) -> list[Finding]:
    """Hold the files of each attempt against what the claims after it say about them.

    The newest claim wins: what an older attempt wrote afterwards is a branch that nobody goes on with.
    """
    findings = []
    listed: set[tuple[int, int, int]] = set()
    for number, attempt in sorted(history.attempts.items()):
        for file in attempt.claim.older:
            place = (file.attempt, file.rank, file.peer)
            older = history.attempts.get(file.attempt)
            # the first claim after an attempt is the one that fenced it
            if older is not None and file.attempt < number and place not in listed:
                listed.add(place)
                findings += _check_file(file, older, number, is_needed=file.attempt in history.chain)
    return findings


def _check_file(file: OlderFile, older: Attempt, newer: int, *, is_needed: bool) -> list[Finding]:
    name = rank_name(file.rank, file.peer)
    where = f"attempt {file.attempt}, {name}"
    path = _path_of(file, older)
    expected = f"{file.num_bytes} bytes, as when attempt {newer} was claimed"
    if path is None:
        # a rank's own file is missed where it is read; that a peer had one, nothing else tells
        missing = finding("RD105", where, expected=expected, found="no file", attempt=file.attempt)
        return [missing] if file.peer and is_needed else []
    num_bytes, checksum = measure(path, file.num_bytes)
    if num_bytes < file.num_bytes:
        return [finding("RD115", where, expected=expected, found=f"{num_bytes} bytes", attempt=file.attempt)]
    if checksum != file.checksum:
        found = f"last bytes {checksum:016x} there in place of {file.checksum:016x}"
        return [finding("RD116", where, expected=expected, found=found, attempt=file.attempt)]
    if num_bytes > file.num_bytes:
        found = f"{num_bytes - file.num_bytes} bytes more"
        return [finding("RD117", where, expected=expected, found=found, attempt=file.attempt)]
    return []


def _path_of(file: OlderFile, older: Attempt) -> Path | None:
    path = older.files.path / rank_name(file.rank, file.peer)
    return path if path == older.files.ranks.get(file.rank) or path in older.files.peers else None
