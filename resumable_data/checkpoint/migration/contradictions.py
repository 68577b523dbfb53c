"""Whether the changes of a move contradict what was declared to survive it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.checkpoint.migration.changes import covering_names
from resumable_data.checkpoint.migration.effects import num_omitted
from resumable_data.errors import MigrationError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.checkpoint.migration.declaration import Declaration
    from resumable_data.checkpoint.migration.records import RunChange
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.cursor.recipe import Recipe


def check_declared(
    declaration: Declaration, changes: Sequence[RunChange], saved: RunManifest, now: RunManifest
) -> None:
    """Make sure that a declared move can be made, and keeps what must survive it.

    Raises:
        MigrationError: It cannot, or does not.
    """
    fixed = [change for change in changes if change.needs_migration and not covering_names(change)]
    if fixed:
        raise MigrationError(
            f"{', '.join(change.field for change in fixed)} cannot change within a run: {fixed[0].effect}. Give the "
            "program the saved values; or begin a new run, with the model alone."
        )
    before, after = saved.decode_cursor(), now.decode_cursor()
    if before is not None and after is not None:
        _check_invariant(declaration, before.recipe, after.recipe)
    omitted = num_omitted(before, after)
    if not declaration.continuity.holds(0, omitted):
        raise MigrationError(
            f"expected at most {declaration.continuity.omitted} samples omitted, as was declared; found {omitted}, "
            f"which tail={after.recipe.tail if after else ''!r} drops at the end of the epoch at hand. Keep the tail "
            f"until the epoch is over, or declare continuity bounded:0,{omitted}."
        )


def _check_invariant(declaration: Declaration, before: Recipe, after: Recipe) -> None:
    invariant = declaration.invariant
    sides = [(recipe.global_batch, recipe.batch_unit or "samples") for recipe in (before, after)]
    if invariant == "schedule" or sides[0] == sides[1]:
        return
    tokens = [_tokens(recipe) for recipe in (before, after)]
    if invariant == "tokens" and tokens[0] is not None and tokens[0] == tokens[1]:
        return
    shown = " and ".join(f"{count} {unit}" for count, unit in sides)
    reason = " (how many tokens a sample has is not known)" if invariant == "tokens" and None in tokens else ""
    raise MigrationError(
        f"expected as many {invariant} in an update before and after the move, as was declared; found {shown}{reason}. "
        "Schedules and evaluations that count updates would come at other samples. Keep the global batch; or declare "
        'that only the position in the schedule stays, invariant "schedule".'
    )


def _tokens(recipe: Recipe) -> int | None:
    """The budget of tokens of an update, where it is known."""
    if recipe.batch_unit:
        return recipe.global_batch
    return recipe.global_batch * int(recipe.order["row_length"]) if recipe.is_packed else None
