"""Whether the files of a checkpoint are sound, before anything of it is loaded: its contents read by all processes."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from resumable_data.checkpoint.collective import gather_bytes, on_first, rank_and_size, together
from resumable_data.checkpoint.differences import NO_CHECKSUMS, NO_MANIFEST
from resumable_data.checkpoint.files.report import LEVELS
from resumable_data.checkpoint.files.shares import check_share
from resumable_data.checkpoint.files.verify import verify_checkpoint
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown

LEVEL = "payload"


def require_sound(path: Path, level: str, allowed: Collection[str]) -> set[str]:
    """Make sure that nothing is wrong with a checkpoint's files. Collective.

    Args:
        path: The checkpoint.
        level: How far they are checked, see `verify_checkpoint`.
        allowed: Names of what may be absent.

    Returns:
        Those that were.

    Raises:
        CheckpointError: They are damaged, or what would tell is absent.
        UsageError: There is no such level.
    """
    if level not in LEVELS:
        raise UsageError(f"level: expected one of {', '.join(LEVELS)}, found {level!r}. Nothing was loaded.")
    without_payload = min(level, LEVELS[1], key=LEVELS.index)
    has_manifest = on_first(lambda: _require_structure(path, without_payload, NO_MANIFEST in allowed)) == b"manifest"
    absent = set() if has_manifest else {NO_MANIFEST}
    if level == LEVELS[2] and _require_contents(path, NO_CHECKSUMS in allowed):
        absent.add(NO_CHECKSUMS)
    return absent


def _require_structure(path: Path, level: str, may_lack_manifest: bool) -> bytes:
    if not path.is_dir():
        found = "a file" if path.exists() else "nothing"
        raise CheckpointError(
            f"expected the directory of a checkpoint at {shown(path)}, found {found}. Nothing was loaded; name the "
            "directory that save_checkpoint() was given."
        )
    report = verify_checkpoint(path, level)
    if report.verdict == "damaged" or report.subject != "dcp":
        raise CheckpointError(f"{shown(path)} was not loaded; the program is as it was.\n{report.to_text()}")
    if not may_lack_manifest and not report.has_manifest:
        raise CheckpointError(
            f"expected a manifest in {shown(path)}, found none: the save was not finished, or was not made by "
            "save_checkpoint(). Whether its files are all of one save cannot be known. Nothing was loaded; load an "
            f'earlier checkpoint, or go on without that knowledge with allow={{"{NO_MANIFEST}"}}.'
        )
    return b"manifest" if report.has_manifest else b""


def _require_contents(path: Path, may_lack_checksums: bool) -> bool:
    """Read the contents, each process its share; whether some have no checksum that would tell."""
    rank, size = rank_and_size()
    share = together(lambda: check_share(path, rank, size))
    lines = [line for part in gather_bytes("\n".join(share.findings).encode()) for line in part.decode().splitlines()]
    if lines:
        more = f"\n  and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        raise CheckpointError(
            f"{shown(path)} was not loaded; the program is as it was. Contents are damaged:\n"
            + "\n".join(f"  {line}" for line in lines[:_SHOWN])
            + f"{more}\nLoad an earlier checkpoint, or restore the files from a copy."
        )
    count = sum(int(part) for part in gather_bytes(str(share.num_unproven).encode()))
    if count and not may_lack_checksums:
        raise CheckpointError(
            f"{shown(path)}: expected checksums of all contents, found none of {count} items; they were saved with "
            "torch.serialization.set_crc32_options(False). Whether they are what was saved cannot be known. Nothing "
            f'was loaded; go on without that knowledge with allow={{"{NO_CHECKSUMS}"}}, or save with checksums.'
        )
    return bool(count)


_SHOWN = 8
