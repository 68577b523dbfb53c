"""The migration manifest: a move of a run from one checkpoint to one program, declared before it is made."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import xxhash

from resumable_data.checkpoint.files.opening import read_small
from resumable_data.checkpoint.manifest import write_whole
from resumable_data.checkpoint.migration.changes import find_changes, find_unknown
from resumable_data.checkpoint.migration.contradictions import check_declared
from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.checkpoint.migration.effects import Effects, Side, find_effects, side_of
from resumable_data.checkpoint.migration.records import RISKS, Risk, RunChange, worst_risk
from resumable_data.checkpoint.migration.source import read_source
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from resumable_data.checkpoint.run_manifest import RunManifest

MIGRATION_VERSION = 1
MAX_MIGRATION_BYTES = 1 << 20
INTERVAL_UPDATES = 1000
NOT_NEEDED = "needs no declaration"

Count = Annotated[int, msgspec.Meta(ge=0)]


class DeclaredChange(RunChange, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A change, and why it is allowed.

    Attributes:
        why: In a person's words; empty where nobody said.
    """

    why: str = ""


class MigrationManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A move that was declared; `to_json` and `to_text` show it.

    Attributes:
        version: `MIGRATION_VERSION`.
        run_id: The run; empty where the checkpoint has no cursor.
        nonce: The number of the save; empty where the checkpoint has no manifest.
        update: Index of the next update; None without a cursor.
        source: The program that saved.
        destination: The program that is to go on.
        declaration: What must survive.
        changes: What will change, and why it is allowed.
        unknown: What cannot be compared, since the checkpoint does not tell it.
        risk: The worst class of all changes; None without any.
        risks: All classes, the least first.
        effects: What the move does to whatever counts.
    """

    version: int = MIGRATION_VERSION
    run_id: str
    nonce: str
    update: Count | None
    source: Side
    destination: Side
    declaration: Declaration
    changes: tuple[DeclaredChange, ...]
    unknown: tuple[str, ...]
    risk: Risk | None
    risks: tuple[Risk, ...]
    effects: Effects

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """The checkpoint that it is of, see `Source.identity`."""
        return self.nonce, self.run_id, self.update

    @property
    def needed(self) -> tuple[DeclaredChange, ...]:
        """The changes that a load refuses without it."""
        return tuple(change for change in self.changes if change.needs_migration)

    def to_json(self) -> bytes:
        """Canonical JSON."""
        return msgspec.json.encode(self, order="deterministic")

    def to_text(self) -> str:
        """The move for people."""
        from resumable_data.checkpoint.migration.migration_text import format_migration

        return format_migration(self)

    @property
    def xxh3(self) -> str:
        """xxh3_64 of `to_json`, which is what is recorded of it."""
        return f"{xxhash.xxh3_64_intdigest(self.to_json()):016x}"

    def write(self, path: str | os.PathLike[str]) -> None:
        """Write it as canonical JSON, whole or not at all.

        Raises:
            UsageError: There is such a file, or it cannot be written.
        """
        path = Path(path)
        if path.exists():
            raise UsageError(f"{shown(path)} is there already and was left as it is; name another file")
        try:
            write_whole(path.parent, path.name, self.to_json())
        except OSError as error:
            raise UsageError(f"{shown(path)} cannot be written ({error.strerror}). Name another file.") from None


def plan_migration(
    path: str | os.PathLike[str],
    now: RunManifest,
    *,
    declaration: Declaration | None = None,
    why: str = "",
    interval_updates: int = INTERVAL_UPDATES,
) -> MigrationManifest:
    """Declare the move of a run from a checkpoint to a program. Needs no torch, and changes nothing.

    Args:
        path: The checkpoint.
        now: What the program is made of: `capture_run` of a live one, or what `Destination.apply` tells of one to come.
        declaration: What must survive; by default the order of the data, and the samples of an update.
        why: Why the changes are allowed that need a declaration.
        interval_updates: An interval in updates, say between evaluations, to show what becomes of it.

    Raises:
        MigrationError: The changes contradict what must survive, or cannot be made within a run.
        CheckpointError: The checkpoint cannot be read.
    """
    source = read_source(Path(path))
    declaration = declaration or Declaration()
    changes = find_changes(source.run, now)
    check_declared(declaration, changes, source.run, now)
    nonce, run_id, update = source.identity
    return MigrationManifest(
        run_id=run_id,
        nonce=nonce,
        update=update,
        source=side_of(source.run),
        destination=side_of(now),
        declaration=declaration,
        changes=tuple(_declared(change, why) for change in changes),
        unknown=find_unknown(source.run, now),
        risk=worst_risk(changes),
        risks=tuple(risk for risk in RISKS if any(change.risk == risk for change in changes)),
        effects=find_effects(source.run, now, interval_updates),
    )


def _declared(change: RunChange, why: str) -> DeclaredChange:
    fields = msgspec.structs.asdict(change)
    return DeclaredChange(**fields, why=why if change.needs_migration else NOT_NEEDED)


class _Versioned(msgspec.Struct):
    version: int


def read_migration(path: str | os.PathLike[str]) -> MigrationManifest:
    """What `MigrationManifest.write` wrote.

    Raises:
        CheckpointError: There is none, or it is none of this version.
    """
    path = Path(path)
    data = read_small(path, MAX_MIGRATION_BYTES)
    if data is None:
        raise _bad(path, "no such file")
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version != MIGRATION_VERSION:
            raise _bad(path, f"version {version}")
        return msgspec.json.decode(data, type=MigrationManifest)
    except (msgspec.DecodeError, UnicodeError, RecursionError, UsageError) as error:
        raise _bad(path, f"something else ({error})") from None


def _bad(path: Path, found: str) -> CheckpointError:
    return CheckpointError(
        f"{shown(path)}: expected a migration of version {MIGRATION_VERSION}, found {shown(found)}. What was declared "
        "is not known, so nothing was loaded. Make one with `resumable-data plan CHECKPOINT ... -o FILE`."
    )
