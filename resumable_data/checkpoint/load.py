"""Loading: files are checked, what is in them is held against the program in both directions, and then it is read."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from resumable_data.checkpoint.collective import together
from resumable_data.checkpoint.differences import ALLOWANCES, Difference
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.checkpoint.migration.records import RunChange
from resumable_data.checkpoint.moving import judge_move
from resumable_data.checkpoint.program import Program
from resumable_data.checkpoint.running import wait_for_running
from resumable_data.checkpoint.sound import LEVEL, require_sound
from resumable_data.checkpoint.taking_over import TakingOver
from resumable_data.cursor.recipe import ALLOWED_CHANGES
from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sampler.state import FRESH_START

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.migration_file import MigrationManifest
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.loader import ResumableLoader

_logger = logging.getLogger(__name__)


class Loaded(msgspec.Struct, frozen=True, kw_only=True):
    """What `load_checkpoint` did.

    Attributes:
        path: The checkpoint.
        has_manifest: Whether it had one, and was compared with it.
        level: How far its files were checked, see `verify_checkpoint`.
        differences: What differed from the program, and was allowed.
        overridden: Settings of optimizers and schedulers that the program had set otherwise: the checkpoint's are in
            force.
        allowances: Those that were needed, for the next `save_checkpoint`.
        values: The plain values of the state, as loaded, by name.
        discarded: Rows of the update at the cursor that the run which saved was given, and whose gradients were not
            loaded: they are read again.
        random_states: What was done with random states: ``"restored"``, or that they were seeded anew, and why; empty
            where none were loaded.
        changes: What differs between the program that saved and this one, all of it free to change or declared.
        unknown: What could not be compared of both, since the checkpoint does not tell it.
    """

    path: str
    has_manifest: bool
    level: str
    differences: tuple[Difference, ...]
    overridden: tuple[Difference, ...] = ()
    allowances: tuple[str, ...]
    values: dict[str, Any]
    discarded: int = 0
    random_states: str = ""
    changes: tuple[RunChange, ...] = ()
    unknown: tuple[str, ...] = ()


def load_checkpoint(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    loader: ResumableLoader | None = None,
    allow: Collection[str] = (),
    level: str = LEVEL,
    migration: str | os.PathLike[str] | MigrationManifest | None = None,
    run: RunManifest | None = None,
) -> Loaded:
    """Load what `save_checkpoint` saved, on any number of processes, or say why not. Collective.

    The first process checks the files, see `verify_checkpoint`. The program is held against the one that saved: ranks,
    microbatch and workers may change, the rest must be declared. Then each key of the checkpoint must be in the program
    and the reverse, with the same shape and type. Then models, optimizers, all other parts, the loader and last the
    random generators take over their state. A save that still runs beside training is waited for.

    Args:
        path: The checkpoint.
        state: As for `save_checkpoint`.
        loader: As for `save_checkpoint`.
        allow: What may differ, by name: ``"only_in_checkpoint"``, ``"only_in_program"``, ``"dtype"`` (values are cast),
            ``"no_manifest"`` (a checkpoint that somebody else saved), ``"no_checksums"`` (files without any),
            ``"step_counters"`` (of optimizers, schedulers and cursor), ``"mesh"`` (degrees of axes that are not
            data-parallel), ``"precision"``, ``"schedule"`` (class or unit), and what the loader's `load_state_dict`
            takes.
        level: How far files are checked: ``"structure"``, ``"directory"``, or ``"payload"``, all contents, of which
            each process reads its share.
        migration: What was declared of the move with ``resumable-data plan``, or the file of it; it stands for its
            values only.
        run: What the program is made of, as `capture_run` tells; captured where None.

    Raises:
        CheckpointError: The files are damaged, of several saves, or without a manifest; or they and the program differ.
            The program is as it was.
        StateError: There are `RandomStates`, of other ranks, and that is to be refused. The program is as it was.
        SealError: Processes that saved did not agree, or files of two saves are mixed. What was read by then is in the
            program: do not go on from it.
        MigrationError: Something changed that must be declared, and was not, or was declared otherwise. The program is
            as it was.
        DisagreementError: Processes differ in what changes or was declared. The program is as it was.
        RecipeMismatchError: The loader's cursor was counted in another order; the program is as it was, where there
            is a manifest.
        UsageError: `allow` names what cannot be allowed.
    """
    path = Path(path)
    names = {allow} if isinstance(allow, str) else set(allow)
    unknown = sorted(names - ALLOWANCES - ALLOWED_CHANGES - {FRESH_START})
    if unknown:
        raise UsageError(f"allow= takes {sorted(ALLOWANCES | ALLOWED_CHANGES)}, got {unknown}")
    wait_for_running()
    waived = require_sound(path, level, names)
    manifest = together(lambda: read_manifest(path))
    program = together(lambda: Program(state, loader))
    move = judge_move(path, state, loader, names=names, migration=migration, run=run)
    taking_over = TakingOver(path, program, loader, manifest, names | move.granted, move.declared)
    try:
        taking_over.compare()
        taking_over.read()
        values = taking_over.restore()
    finally:
        program.forget()
    if loader is not None:
        loader.carried = move.carried
    _tell(path, taking_over)
    return Loaded(
        path=str(path),
        has_manifest=manifest is not None,
        level=level,
        differences=tuple(taking_over.differences),
        overridden=tuple(taking_over.overridden),
        allowances=tuple(sorted(waived | move.used | (taking_over.needed - (move.granted - names)))),
        values=values,
        discarded=taking_over.discarded,
        random_states=taking_over.random_states,
        changes=move.changes,
        unknown=move.unknown,
    )


def _tell(path: Path, taking_over: TakingOver) -> None:
    """Log what nobody asked for and a person should know."""
    if taking_over.discarded:
        _logger.warning(
            "%s was saved inside an update, after %d of its rows, and their gradients were not loaded: the run goes on "
            "at the update's start and reads these rows again. With InFlightGradients in the state it goes on after "
            "them.",
            shown(path),
            taking_over.discarded,
        )
    for one in taking_over.overridden:
        _logger.warning(
            "%s: %s is %s as in the checkpoint; the program had set %s. Set it again after the load where the program "
            "is meant to win.",
            shown(path),
            one.key,
            one.saved,
            one.now,
        )
