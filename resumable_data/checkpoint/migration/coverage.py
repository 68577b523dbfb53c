"""Whether what changes at a load was declared: by a migration, value by value, or by name in code."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from resumable_data.checkpoint.migration.changes import DTYPE, MESH, PRECISION, SCHEDULE, covering_names, recipe_field
from resumable_data.checkpoint.migration.contradictions import check_declared
from resumable_data.checkpoint.migration.destination import mesh_flags
from resumable_data.cursor.recipe import RecipeChange
from resumable_data.errors import MigrationError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.checkpoint.migration.migration_file import MigrationManifest
    from resumable_data.checkpoint.migration.records import RunChange
    from resumable_data.checkpoint.migration.source import Source
    from resumable_data.checkpoint.run_manifest import RunManifest


def require_covered(
    path: Path,
    changes: Sequence[RunChange],
    now: RunManifest,
    *,
    covered: Collection[RunChange] = (),
    names: Collection[str] = (),
) -> None:
    """Make sure that each change that needs a declaration has one.

    Args:
        path: The checkpoint.
        changes: All of them.
        now: Of the program.
        covered: Those that a migration declares.
        names: What code allows, see `covering_names`.

    Raises:
        MigrationError: One has none; tells what it would do, and both ways to declare it.
    """
    needed = [change for change in changes if change.needs_migration and covering_names(change)]
    refused = [one for one in needed if one not in covered and not set(covering_names(one)) & set(names)]
    if not refused:
        return
    lines = "\n".join(
        f"  {shown(one.field)}: {one.saved!r} in the checkpoint, {one.now!r} in the program ({one.risk})\n"
        f"    {one.effect}"
        for one in refused
    )
    allowed = sorted({covering_names(one)[0] for one in refused})
    raise MigrationError(
        f"{shown(path)}: expected the program that saved, or a move that was declared; found what nobody "
        f"declared:\n{lines}\nNothing was loaded. To go on with them, declare them in code, "
        f"allow={allowed}; or look at the move and declare exactly these values, then load with "
        f"migration='migration.json':\n"
        f"  {plan_command(path, needed, changes, now)}"
    )


def plan_command(path: Path, needed: Sequence[RunChange], changes: Sequence[RunChange], now: RunManifest) -> str:
    """The command that declares a move."""
    flags = ["resumable-data", "plan", str(path)]
    if any(one.field.startswith(f"{MESH}.") for one in needed):
        flags += mesh_flags(now)
    elif any(one.field == "dp" for one in changes):
        flags += ["--num-replicas", str(now.dp_size)]
    if now.batch is not None and any(one.field == "microbatch" for one in changes):
        flags += ["--microbatch", str(now.batch.microbatch)]
    for one in needed:
        flags += _flags(one)
    if any(one.field in ("global_batch", "batch_unit") for one in needed):
        flags += ["--invariant", "schedule"]
    return shlex.join([*flags, "-o", "migration.json"])


def _flags(change: RunChange) -> list[str]:
    first, _, rest = change.field.partition(".")
    value = "" if change.now is None else str(change.now)
    if field := recipe_field(change):
        return [f"--{field.replace('_', '-')}", value or ("samples" if field == "batch_unit" else "")]
    if first == PRECISION:
        return ["--precision", f"{rest}={value}"]
    if first == SCHEDULE:
        return ["--scheduler", f"{rest.removesuffix('.kind')}={value}"]
    return ["--schedule-unit", value] if change.field == "schedule_unit" else []


def find_covered(
    migration: MigrationManifest, path: Path, source: Source, changes: Sequence[RunChange], now: RunManifest
) -> list[RunChange]:
    """The changes that a migration declares.

    Raises:
        MigrationError: It is of another checkpoint or of other values, or contradicts itself.
    """
    if migration.identity != source.identity:
        names = ("save", "run", "update")
        pairs = zip(names, migration.identity, source.identity, strict=True)
        wrong = ", ".join(f"{name} {found!r} in place of {right!r}" for name, found, right in pairs if found != right)
        raise MigrationError(
            f"expected a migration of {shown(path)}, found one of another checkpoint: {wrong}. What it declares was "
            "looked at there, and not here. Nothing was loaded; make one of this checkpoint: `resumable-data plan`."
        )
    check_declared(migration.declaration, changes, source.run, now)
    actual = {change.values for change in changes if change.needs_migration}
    absent = [change for change in migration.needed if change.values not in actual]
    if absent:
        found = {change.field: change.now for change in changes}
        lines = "; ".join(
            f"{one.field} {one.saved!r} to {one.now!r}, and the program has {found.get(one.field, one.saved)!r}"
            for one in absent
        )
        raise MigrationError(
            f"expected the program that the migration declares, found another: {lines}. The run would not go on as was "
            "declared. Nothing was loaded; start the declared program, or declare this one."
        )
    declared = {change.values for change in migration.needed}
    return [change for change in changes if change.values in declared]


def granted_names(covered: Sequence[RunChange]) -> set[str]:
    """The names of ``allow=`` that a migration stands for: those of the loader, and that types may be cast."""
    fields = {field for change in covered if (field := recipe_field(change))}
    has_types = any(DTYPE in covering_names(change) for change in covered)
    return fields | ({DTYPE} if has_types else set())


def for_cursor(changes: Sequence[RunChange]) -> tuple[RecipeChange, ...]:
    """What the cursor records beside the changes of its recipe."""
    return tuple(
        RecipeChange(one.field, one.saved, one.now) for one in changes if one.needs_migration and not recipe_field(one)
    )
