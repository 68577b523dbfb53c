"""The newest checkpoint that verifies, among those in one directory."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import msgspec

from resumable_data.checkpoint.files.opening import list_names
from resumable_data.checkpoint.files.report import LEVELS
from resumable_data.checkpoint.files.verify import verify_checkpoint
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown

SCHEMA_VERSION = 1
_NUMBER = re.compile(r"\d{1,18}", re.ASCII)
_MAX_ENTRIES = 100_000


class PassedOver(msgspec.Struct, frozen=True, kw_only=True):
    """A newer entry that was not taken, and why."""

    path: str
    verdict: str
    reason: str


class LatestReport(msgspec.Struct, frozen=True, kw_only=True):
    """What the search found.

    Attributes:
        root: Where it looked.
        level: How far each was looked at.
        path: The newest checkpoint whose verdict is ``"sound"``; None where there is none.
        name: Its name in the directory, as it is.
        passed_over: Newer ones, the newest first.
    """

    root: str
    level: str
    path: str | None
    name: str | None
    passed_over: tuple[PassedOver, ...]
    schema_version: int = SCHEMA_VERSION


class _Entry(NamedTuple):
    numbers: tuple[int, ...]
    name: str


def latest_checkpoint(
    root: str | os.PathLike[str], level: str = "directory", *, needs_manifest: bool = True
) -> Path | None:
    """The newest checkpoint in a directory that `load_checkpoint` would take; None where there is none.

    Args:
        root: A directory of checkpoints; one that does not exist has none.
        level: As for `verify_checkpoint`.
        needs_manifest: Pass over those that are not known to be finished: a crash in the middle of a save leaves one.

    Raises:
        UsageError: There is no such level.
        CheckpointError: `root` cannot be listed.
    """
    if not os.path.lexists(root):
        return None
    found = find_latest(root, level, needs_manifest=needs_manifest).name
    return None if found is None else Path(root) / found


def find_latest(root: str | os.PathLike[str], level: str = "payload", *, needs_manifest: bool = False) -> LatestReport:
    """The newest checkpoint in a directory that verifies, newest by the numbers in its name: 1000 comes after 900.

    Names without a number are no checkpoints of a series, and neither are hidden and temporary ones.

    Args:
        root: A directory of checkpoints.
        level: As for `verify_checkpoint`.
        needs_manifest: Pass over those without one.

    Raises:
        UsageError: There is no such level.
        CheckpointError: `root` cannot be listed.
    """
    if level not in LEVELS:
        raise UsageError(f"level: expected one of {', '.join(LEVELS)}, found {level!r}. Nothing was checked.")
    root = Path(root)
    passed_over: list[PassedOver] = []
    found = name = None
    for entry in list_newest_first(root):
        path = root / entry
        try:
            report = verify_checkpoint(path, level)
        except CheckpointError as error:
            passed_over.append(PassedOver(path=shown(path), verdict="unreadable", reason=str(error)))
            continue
        lacks_manifest = needs_manifest and not report.has_manifest
        if report.exit_code == 0 and not lacks_manifest:
            found, name = shown(path), entry
            break
        reason = report.reason if report.exit_code else "no manifest: the save is not known to have been finished"
        passed_over.append(PassedOver(path=shown(path), verdict=report.verdict, reason=reason))
    return LatestReport(root=shown(root), level=level, path=found, name=name, passed_over=tuple(passed_over))


def has_number(name: str) -> bool:
    """Whether a name is that of a checkpoint in a series."""
    return bool(_NUMBER.search(name)) and not name.startswith(".") and not name.endswith(".tmp")


def list_newest_first(root: Path) -> list[str]:
    """The names in a directory that are those of a series, newest first by their numbers.

    Raises:
        CheckpointError: It cannot be listed, or is no directory of checkpoints.
    """
    names = list_names(root)
    entries = [_Entry(tuple(map(int, _NUMBER.findall(name))), name) for name in names if has_number(name)]
    # A DCP directory is full of such names itself: somebody gave a checkpoint in place of the directory of all.
    if ".metadata" in names or len(entries) > _MAX_ENTRIES:
        raise CheckpointError(
            f"expected a directory of checkpoints at {shown(root)}, found a checkpoint or {len(entries):,} entries. "
            "Nothing was checked; give the directory above it."
        )
    return [entry.name for entry in sorted(entries, reverse=True)]
