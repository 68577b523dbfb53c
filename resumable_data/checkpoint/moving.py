"""The move that a load is: what differs from the program that saved, whether that was declared, and its record."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import xxhash

from resumable_data.checkpoint.capture import capture_run
from resumable_data.checkpoint.collective import gather_bytes, on_first, together
from resumable_data.checkpoint.manifest import Topology, read_manifest
from resumable_data.checkpoint.migration.carried import Carried
from resumable_data.checkpoint.migration.changes import covering_names, find_changes, find_unknown
from resumable_data.checkpoint.migration.coverage import find_covered, for_cursor, granted_names, require_covered
from resumable_data.checkpoint.migration.migration_file import MigrationManifest, read_migration
from resumable_data.checkpoint.migration.records import Transition
from resumable_data.checkpoint.migration.source import Source, read_source
from resumable_data.checkpoint.run_manifest import read_run_manifest
from resumable_data.errors import DisagreementError
from resumable_data.ledger.frames import shown
from resumable_data.loader.agreement import shown_processes

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.records import RunChange
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.cursor import RecipeChange
    from resumable_data.loader import ResumableLoader

_logger = logging.getLogger(__name__)

Migration = str | os.PathLike[str] | MigrationManifest


@dataclass(frozen=True, kw_only=True)
class Move:
    """A move that may be made.

    Attributes:
        changes: What differs between the program that saved and this one.
        unknown: What could not be compared.
        granted: Names of ``allow=`` that a migration stands for.
        used: Names of ``allow=`` that were needed.
        declared: What the cursor records beside changes of its recipe.
        carried: What the loader carries on.
    """

    changes: tuple[RunChange, ...]
    unknown: tuple[str, ...]
    granted: frozenset[str]
    used: frozenset[str]
    declared: tuple[RecipeChange, ...]
    carried: Carried


def judge_move(
    path: Path,
    state: Mapping[str, Any],
    loader: ResumableLoader | None,
    *,
    names: set[str],
    migration: Migration | None,
    run: RunManifest | None,
) -> Move:
    """Hold the program against the one that saved, and make sure that what changes was declared. Collective.

    Nothing of the program changes.

    Args:
        path: The checkpoint.
        state: The program's parts by name.
        loader: Its loader.
        names: What code allows.
        migration: What was declared before, or the file of it.
        run: What the program is made of; captured where None.

    Raises:
        MigrationError: It was not declared, or otherwise.
        CheckpointError: The migration cannot be read.
        DisagreementError: Processes differ in what changes, or in what was declared.
    """
    source = _read_source(path)
    now = together(lambda: run or capture_run(state, loader))
    declared = together(lambda: _read(migration))
    changes, unknown = find_changes(source.run, now), find_unknown(source.run, now)
    _require_same(path, changes, declared, names)
    covered = together(lambda: find_covered(declared, path, source, changes, now) if declared else [])
    together(lambda: require_covered(path, changes, now, covered=covered, names=names))
    used = {name for one in changes if one not in covered for name in covering_names(one) if name in names}
    _tell(path, unknown)
    transition = Transition(
        update=source.identity[2],
        saved=_topology(source.run),
        now=_topology(now),
        changes=changes,
        unknown=unknown,
        migration_xxh3=declared.xxh3 if declared else None,
        allowances=tuple(sorted(used)),
    )
    is_new = bool(changes or unknown or declared)
    return Move(
        changes=changes,
        unknown=unknown,
        granted=frozenset(granted_names(covered)),
        used=frozenset(used),
        declared=for_cursor(changes),
        carried=Carried(
            transitions=(*source.run.transitions, *([transition] if is_new else [])),
            schedule_unit=now.schedule_unit or source.run.schedule_unit,
        ),
    )


def _read_source(path: Path) -> Source:
    """The run manifest is read by each process; what takes a look at all metadata is made by the first."""
    run = together(lambda: read_run_manifest(path))
    if run is not None:
        manifest = together(lambda: read_manifest(path))
        return Source(run=run, nonce="" if manifest is None else manifest.nonce, is_adopted=False)
    return msgspec.json.decode(on_first(lambda: msgspec.json.encode(read_source(path))), type=Source)


def _read(migration: Migration | None) -> MigrationManifest | None:
    return migration if migration is None or isinstance(migration, MigrationManifest) else read_migration(migration)


def _topology(run: RunManifest) -> Topology:
    return Topology(world_size=run.world_size, dp_size=run.dp_size, mesh=run.mesh)


def _require_same(
    path: Path, changes: tuple[RunChange, ...], migration: MigrationManifest | None, names: set[str]
) -> None:
    """Make sure that all processes make the same move: one that refuses alone would leave the others waiting."""
    own = {
        "changes": " ".join(f"{one.field} {one.saved!r} to {one.now!r}," for one in changes) or "none",
        "migration": migration.xxh3 if migration else "none",
        "allow": sorted(names),
    }
    encoded = msgspec.json.encode(own)
    if len(set(gather_bytes(xxhash.xxh3_64_digest(encoded)))) == 1:
        return
    by_value: dict[bytes, list[int]] = {}
    for process, text in enumerate(gather_bytes(encoded)):
        by_value.setdefault(text, []).append(process)
    lines = "\n".join(f"  {text.decode():.500} on {shown_processes(where)}" for text, where in by_value.items())
    raise DisagreementError(
        f"{shown(path)}: expected all processes to make the same move, found {len(by_value)} different ones:\n{lines}\n"
        "The run would go on in several ways at once. Nothing was loaded; give all processes the same program, the "
        "same migration and the same allow=."
    )


def _tell(path: Path, unknown: tuple[str, ...]) -> None:
    if unknown:
        _logger.warning(
            "%s does not tell %s of the program that saved it, so whether that changed is not known.",
            shown(path),
            ", ".join(unknown),
        )
