"""What a rehearsal is asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from resumable_data.checkpoint.migration.coverage import granted_names
from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.checkpoint.migration.migration_file import MigrationManifest
from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown
from resumable_data.validation.limits import MIN_UPDATES, check_limits


@dataclass(frozen=True, kw_only=True)
class Options:
    """What a rehearsal is asked for.

    Attributes:
        checkpoint: The checkpoint.
        control: A trace of the updates after it on the ranks that saved.
        repeats: Further traces of the control.
        record: Where the window's trace is left, for a control or a repeat; nothing is compared then.
        declaration: What must survive; the migration's where there is one.
        allow: What may differ, as for `load_checkpoint`.
        migration: The move that was declared.
        updates: Updates of the window.
        untouched: More files and directories of the run, beside those around the checkpoint.
        is_synthetic: Whether the checkpoint was made for an exercise.
        arguments: For ``build()``.
        scratch: Where the rehearsal's folder is made; the system's place for such when None. All processes share it.
        level: How far the checkpoint's files are read in the first stage.
    """

    checkpoint: Path
    control: Path | None = None
    repeats: tuple[Path, ...] = ()
    record: Path | None = None
    declaration: Declaration = field(default_factory=Declaration)
    allow: tuple[str, ...] = ()
    migration: MigrationManifest | None = None
    updates: int = MIN_UPDATES
    untouched: tuple[Path, ...] = ()
    is_synthetic: bool = False
    arguments: tuple[str, ...] = ()
    scratch: Path | None = None
    level: str = "payload"

    def __post_init__(self) -> None:
        check_limits(self.declaration.tolerances)
        if self.updates < 1:
            raise UsageError(f"updates must be at least 1, got {self.updates}")
        if self.record is not None and self.control is not None:
            raise UsageError("record= makes a control, and control= is one to compare with; give one of the two")
        if self.record is not None and self.record.exists():
            raise UsageError(f"{shown(self.record)} is there already; give the trace another name")
        if self.repeats and self.control is None:
            raise UsageError("repeats are of a control; give that too")
        if self.migration is not None and self.declaration != self.migration.declaration:
            file, here = (msgspec.to_builtins(one) for one in (self.migration.declaration, self.declaration))
            apart = "; ".join(
                f"{name}: {file[name]} there, {here[name]} here" for name in file if file[name] != here[name]
            )
            raise UsageError(
                f"expected what the migration declares to survive, found something else: {apart}. A verdict on one is "
                "none on the other. Nothing was rehearsed; leave these out, or declare the move anew: "
                "`resumable-data plan`."
            )

    @property
    def waived(self) -> frozenset[str]:
        """Names of what may differ: by name, or since the migration declares it."""
        granted = () if self.migration is None else granted_names(self.migration.needed)
        return frozenset((*self.allow, *granted))
