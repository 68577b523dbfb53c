"""Which checkpoints of one directory are kept. Old ones are deleted so that a crash leaves none half there."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path

import msgspec

from resumable_data.checkpoint.files.latest import find_latest, has_number, list_newest_first
from resumable_data.checkpoint.files.metadata import METADATA_NAME
from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.errors import ResumableDataError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.writer import sync_directory

SCHEMA_VERSION = 1
DELETED_NAME = f".{MANIFEST_NAME}-deleted"
"""What a manifest is renamed to when its checkpoint is given up, and the last file to go: says that the rest may."""

_logger = logging.getLogger(__name__)


class NotDeleted(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that could not be deleted, or not to the end, and why. The next time goes on with it."""

    path: str
    reason: str


class PruneReport(msgspec.Struct, frozen=True, kw_only=True):
    """What `prune_checkpoints` did.

    Attributes:
        root: Where it looked.
        newest: The name of the newest checkpoint that verifies; None where there is none, and nothing is deleted then.
        kept: Names of the checkpoints that are kept, the newest first.
        deleted: Names of those that were deleted, or would be; what was left of earlier deletions among them.
        not_deleted: Those that could not be.
        is_dry: Whether nothing was to be deleted.
    """

    root: str
    newest: str | None
    kept: tuple[str, ...] = ()
    deleted: tuple[str, ...] = ()
    not_deleted: tuple[NotDeleted, ...] = ()
    is_dry: bool = False
    schema_version: int = SCHEMA_VERSION


def prune_checkpoints(
    root: str | os.PathLike[str], *, keep: int, dry_run: bool = False, level: str = "directory"
) -> PruneReport:
    """Delete old checkpoints of a directory: all but the newest that verifies and the next ``keep - 1`` before it.

    Checkpoints are directories with a manifest and a number in their name, newest by the numbers. What is newer than
    the newest that verifies is left alone, and so is what has no manifest: another process may be saving it.

    Args:
        root: A directory of checkpoints of one run.
        keep: How many to keep, at least 1.
        dry_run: Delete nothing, and say what would be deleted.
        level: How far the newest is checked, see `verify_checkpoint`.

    Raises:
        UsageError: `keep` is not as described, or there is no such level.
        CheckpointError: `root` cannot be listed.
    """
    check_keep(keep)
    newest = find_latest(root, level, needs_manifest=True).name
    return _prune(Path(root), newest, keep, dry_run=dry_run)


def prune_after(path: Path, keep: int) -> None:
    """Delete what is too old now that the checkpoint at `path` is complete. Trouble is logged: the save was good."""
    try:
        not_deleted = _prune(path.parent, path.name, keep).not_deleted
    except (ResumableDataError, OSError) as error:
        _logger.warning("old checkpoints beside %s were not deleted: %s", shown(path), error)
        return
    for one in not_deleted:
        _logger.warning("the old checkpoint %s was not deleted: %s", one.path, one.reason)


def check_keep(keep: object, path: Path | None = None) -> None:
    """Make sure that `keep` says how many checkpoints to keep, and that the one at `path` can be told from older ones.

    Raises:
        UsageError: It does not.
    """
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise UsageError(f"keep must be an integer of at least 1, got {keep!r}. Nothing was deleted.")
    if path is not None and not has_number(path.name):
        raise UsageError(
            f"keep={keep} needs a number in the checkpoint's name, as in step-1000, found {shown(path.name)}: which "
            "ones are older would not be known. Nothing was saved or deleted."
        )


def _prune(root: Path, newest: str | None, keep: int, *, dry_run: bool = False) -> PruneReport:
    names = [name for name in list_newest_first(root) if not (root / name).is_symlink()]
    half_deleted = [name for name in names if _has(root, name, DELETED_NAME) and not _has(root, name, MANIFEST_NAME)]
    checkpoints = [name for name in names if _has(root, name, MANIFEST_NAME)]
    at = checkpoints.index(newest) if newest in checkpoints else len(checkpoints)
    deleted, failed = [], []
    for name in (*half_deleted, *checkpoints[at + keep :]):
        try:
            if not dry_run:
                _delete(root / name)
            deleted.append(name)
        except OSError as error:
            failed.append(NotDeleted(path=shown(root / name), reason=str(error.strerror)))
    return PruneReport(
        root=shown(root),
        newest=newest,
        kept=tuple(checkpoints[: at + keep]),
        deleted=tuple(deleted),
        not_deleted=tuple(failed),
        is_dry=dry_run,
    )


def _has(root: Path, name: str, file: str) -> bool:
    return os.path.lexists(root / name / file)


def _delete(path: Path) -> None:
    """Delete a checkpoint. Its commit mark goes first, so that nobody takes what a crash leaves for a checkpoint."""
    if os.path.lexists(path / MANIFEST_NAME):
        os.rename(path / MANIFEST_NAME, path / DELETED_NAME)
        sync_directory(path)
    names = sorted(os.listdir(path), key=lambda name: (name == DELETED_NAME, name != METADATA_NAME))
    for name in names:
        item = path / name
        if item.is_dir() and not item.is_symlink():
            shutil.rmtree(item)
        else:
            os.unlink(item)
    os.rmdir(path)
