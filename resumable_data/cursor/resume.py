"""The cursor a job starts at: refuse what would change the data of a saved one, record what was allowed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.cursor.codec import require_room
from resumable_data.cursor.cursor import Cursor, Migration
from resumable_data.cursor.recipe import ALLOWED_CHANGES, Recipe, check_allowed, compare_recipes, describe_changes
from resumable_data.errors import RecipeMismatchError

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from resumable_data.cursor.recipe import RecipeChange
    from resumable_data.order import Order
    from resumable_data.packing import PackedTokens
    from resumable_data.plan import RunSchedule


def new_cursor(
    order: Order | PackedTokens,
    *,
    global_batch: int,
    tail: str,
    normalize: str,
    fingerprint: str | None,
    batch_unit: str | msgspec.UnsetType = msgspec.UNSET,
) -> Cursor:
    """The cursor of a run that begins; for the arguments see `Recipe`.

    Raises:
        UsageError: An argument is outside its range.
        StateError: The recipe is too long for a checkpoint: better found now than at some save.
    """
    recipe = Recipe(
        order=order.describe(),
        global_batch=global_batch,
        tail=tail,
        normalize=normalize,
        fingerprint=fingerprint,
        batch_unit=batch_unit,
    )
    cursor = Cursor.begin(recipe)
    require_room(cursor)
    return cursor


def resume_cursor(
    saved: Cursor,
    recipe: Recipe,
    *,
    allow: Collection[str] = (),
    schedule: RunSchedule | None = None,
    declared: Sequence[RecipeChange] = (),
) -> Cursor:
    """The cursor that a job with `recipe` starts at, to go on from `saved`.

    Args:
        saved: The cursor from the checkpoint.
        recipe: What this job declares.
        allow: Names of recipe fields that may differ; the change is recorded in the cursor as a migration.
        schedule: How this job cuts the run's positions; by its recipe when None.
        declared: Changes of what is not in the recipe, recorded in the same migration.

    Raises:
        RecipeMismatchError: A field differs that is not allowed to.
        UsageError: `allow` names something that cannot be allowed.
        StateError: With one more migration a later state of the run would not fit its tensor.
    """
    allowed = check_allowed(allow)
    changes = compare_recipes(saved.recipe, recipe)
    if not changes and not declared:
        return saved
    refused = [change for change in changes if change.field not in allowed]
    if refused:
        names = {change.field for change in refused}
        raise RecipeMismatchError(
            f"this job's recipe is not the one that the saved cursor (position {saved.position}, "
            f"{saved.updates} updates) was counted under:\n{describe_changes(refused)}\n"
            f"Nothing was loaded. {_way_out(names)}"
        )
    migration = Migration(saved.updates, saved.position, (*changes, *declared))
    migrated = msgspec.structs.replace(saved, recipe=recipe, migrations=(*saved.migrations, migration))
    require_room(migrated)
    place = (schedule or migrated.schedule()).settle(saved.epoch, saved.offset)
    return msgspec.structs.replace(
        migrated, epoch=place.epoch, offset=place.offset, dropped=saved.dropped + place.dropped
    )


def _way_out(names: set[str]) -> str:
    if names <= ALLOWED_CHANGES:
        return (
            "To go on from the saved position with the new values, and have the change recorded, call "
            f"load_state_dict(state, allow={sorted(names)})."
        )
    fixed = sorted(names - ALLOWED_CHANGES)
    return (
        f"{', '.join(fixed)} cannot change within a run. Give the loader the saved values; or, to begin a new run at "
        "position 0, load the model alone and leave this state out."
    )
