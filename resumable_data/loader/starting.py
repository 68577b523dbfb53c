"""Where a loader goes on: the cursor in a state, and how much of the run is left from there."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import RecipeMismatchError
from resumable_data.plan import BatchPlan
from resumable_data.sampler.state import read_state, start_cursor

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from resumable_data.cursor import Cursor, Recipe, RecipeChange
    from resumable_data.loader.content import Content
    from resumable_data.plan import RunSchedule
    from resumable_data.sampler import RankLayout
    from resumable_data.sampler.state import State


def find_start(
    state: State,
    recipe: Recipe,
    content: Content,
    *,
    allow: Collection[str],
    declared: Sequence[RecipeChange] = (),
) -> Cursor:
    """The cursor in a state; for arguments and errors see `start_cursor`. Says what became of `content`."""
    try:
        return start_cursor(state, recipe, allow=allow, declared=declared)
    except RecipeMismatchError as error:
        saved = read_state(state, fresh_start=True)
        change = saved and content.describe_change(saved.recipe)
        if not change:
            raise
        raise RecipeMismatchError(f"{error}\n{change}") from None


def microbatches_left(schedule: RunSchedule, cursor: Cursor, layout: RankLayout, *, num_behind: int) -> int | None:
    """Microbatches of every rank to the end of the run; None where it has none.

    Args:
        schedule: How the run's positions are cut.
        cursor: From where on.
        layout: The rank set.
        num_behind: Rows of the update at the cursor that were read before.
    """
    sizes = {"microbatch": layout.microbatch, "num_replicas": layout.num_replicas}
    left = schedule.microbatches_left(cursor.epoch, cursor.offset, **sizes)
    span = schedule.update_at(cursor.epoch, cursor.offset) if num_behind else None
    if left is None or span is None:
        return left
    whole = BatchPlan(global_batch=span.num_rows, **sizes)
    rest = msgspec.structs.replace(whole, phase=num_behind)
    return left - whole.accumulation_steps + rest.accumulation_steps
