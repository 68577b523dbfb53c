"""A rehearsal as a function, for whoever has a process group already."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from resumable_data.checkpoint.collective import rank_and_size
from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.checkpoint.migration.migration_file import MigrationManifest, read_migration
from resumable_data.validation.rehearsal.job import Context, Job
from resumable_data.validation.rehearsal.options import Options
from resumable_data.validation.rehearsal.run import run_rehearsal
from resumable_data.validation.verdict import Verdict


def rehearse(
    build: Callable[[Context], Job],
    checkpoint: str | os.PathLike[str],
    *,
    control: str | os.PathLike[str] | None = None,
    repeats: Sequence[str | os.PathLike[str]] = (),
    record: str | os.PathLike[str] | None = None,
    declaration: Declaration | None = None,
    allow: Sequence[str] = (),
    migration: str | os.PathLike[str] | MigrationManifest | None = None,
    updates: int = 20,
    untouched: Sequence[str | os.PathLike[str]] = (),
    is_synthetic: bool = False,
    arguments: Sequence[str] = (),
    scratch: str | os.PathLike[str] | None = None,
) -> Verdict:
    """Try a move on the ranks that a run is to move to, with a job that is thrown away. Collective.

    Stages follow each other, and each stops the rest where it fails: the checkpoint's files; the job that `build` makes
    is loaded, held against the checkpoint, and evaluated; one update; a window of updates, compared with the control's;
    and whether the run's own files are as they were.

    Args:
        build: Makes the job's parts.
        checkpoint: The checkpoint.
        control: A trace of the same updates on the ranks that saved. Without one nothing is promoted.
        repeats: Further traces of the control, from which tolerances are derived.
        record: Leave the window's trace there, for a control or a repeat; nothing is compared then.
        declaration: What must survive: data continuity, the invariant, tolerances. That of the migration where there is
            one; else the order of the data, and the samples of an update.
        allow: What may differ by name, as for `load_checkpoint`; ``"global_batch"`` allows another one.
        migration: What ``resumable-data plan`` declared of the move, or the file of it: the job is loaded with it, and
            ranks and batch must be those of its destination. A window that is recorded may be on other ranks.
        updates: Updates of the window. It is made longer for a boundary of logging or evaluation close after it.
        untouched: More files and directories of the run, which must stay as they are, beside those of the directory
            that the checkpoint is in.
        is_synthetic: Whether the checkpoint was made for an exercise, see `Context.is_synthetic`.
        arguments: For ``build()``: `Context.arguments`.
        scratch: Where the rehearsal's folder is made, and deleted again. All processes must share it.

    Returns:
        The verdict, on all processes.

    Raises:
        UsageError: An argument is wrong.
        CheckpointError: There is nothing that could be a checkpoint; or the migration cannot be read.
        TraceError: The control or a repeat cannot be read.
    """
    if migration is not None and not isinstance(migration, MigrationManifest):
        migration = read_migration(migration)
    if declaration is None:
        declaration = Declaration() if migration is None else migration.declaration
    options = Options(
        checkpoint=Path(checkpoint),
        control=None if control is None else Path(control),
        repeats=tuple(map(Path, repeats)),
        record=None if record is None else Path(record),
        declaration=declaration,
        allow=tuple(allow),
        migration=migration,
        updates=updates,
        untouched=tuple(map(Path, untouched)),
        is_synthetic=is_synthetic,
        arguments=tuple(arguments),
        scratch=None if scratch is None else Path(scratch),
    )
    return run_rehearsal(build, options, _print_alone)


def _print_alone(verdict: Verdict) -> None:
    """Print the verdict on the first process, and end this one."""
    if rank_and_size()[0] == 0:
        sys.stderr.write(verdict.to_text() + "\n")
        sys.stderr.flush()
    os._exit(verdict.exit_code)
