"""What a saved cursor may be loaded into."""

from __future__ import annotations

from itertools import cycle
from typing import Any

import msgspec
import pytest

from resumable_data import Cursor, Recipe, Sequential, Shuffle
from resumable_data.cursor import (
    CoverageSpan,
    Migration,
    RecipeChange,
    compare_recipes,
    decode_cursor,
    describe_changes,
    encode_cursor,
    resume_cursor,
)
from resumable_data.errors import RecipeMismatchError, StateError, UsageError

RECIPE = Recipe(order=Shuffle(10, seed=1).describe(), global_batch=4, fingerprint="v1")
SAVED = Cursor(recipe=RECIPE, run_id="0" * 16, applied=2, samples=8, offset=8)


def changed(**fields: Any) -> Recipe:
    return msgspec.structs.replace(RECIPE, **fields)


def test_the_same_recipe_gives_the_same_cursor() -> None:
    """Where nothing differs, nothing changes, whatever is allowed and in whatever order the order describes itself."""
    reordered = changed(order=dict(reversed(RECIPE.order.items())))
    assert resume_cursor(SAVED, reordered, allow={"tail"}) is SAVED


@pytest.mark.parametrize(
    ("recipe", "field", "old", "new"),
    [
        (changed(order=Shuffle(12, seed=1).describe()), "order.length", "10", "12"),
        (changed(order=Shuffle(10, seed=2).describe()), "order.seed", "1", "2"),
        (changed(order=Shuffle(10, seed=1, name="b").describe()), "order.name", "''", "'b'"),
        (changed(order={**RECIPE.order, "version": 2}), "order.version", "1", "2"),
        (changed(order=Sequential(10).describe()), "order.kind", "'shuffle'", "'sequential'"),
        (changed(global_batch=6), "global_batch", "4", "6"),
        (changed(tail="drop"), "tail", "'carry'", "'drop'"),
        (changed(normalize="tokens"), "normalize", "'samples'", "'tokens'"),
        (changed(fingerprint="v2"), "fingerprint", "'v1'", "'v2'"),
        (changed(fingerprint=None), "fingerprint", "'v1'", "None"),
    ],
)
def test_each_changed_field_is_refused_with_both_values(recipe: Recipe, field: str, old: str, new: str) -> None:
    """The message names field, both values, what it does to the data, and how to go on."""
    with pytest.raises(RecipeMismatchError) as caught:
        resume_cursor(SAVED, recipe)
    message = str(caught.value)
    (line,) = [line.split() for line in message.splitlines() if line.split()[0] == field]
    assert line[1:3] == [old, new]
    assert len(line) > 5, "the effect on the data is missing"
    assert "position 8" in message
    remedy = "cannot change within a run" if field.startswith("order") else f"allow=['{field}']"
    assert remedy in message


def test_all_changed_fields_are_named_at_once() -> None:
    """Nobody has to find the differences one restart at a time."""
    recipe = changed(global_batch=6, tail="pad", order=Shuffle(11, seed=3).describe())
    with pytest.raises(RecipeMismatchError) as caught:
        resume_cursor(SAVED, recipe, allow={"tail"})
    for name in ("order.length", "order.seed", "global_batch"):
        assert name in str(caught.value)
    assert "'pad'" not in str(caught.value), "an allowed change is not among those refused"


def test_an_allowed_change_keeps_the_position_and_is_recorded() -> None:
    """The next sample stays the same to the position; the change is written down."""
    moved = resume_cursor(SAVED, changed(global_batch=6, fingerprint="v2"), allow={"global_batch", "fingerprint"})
    assert moved.position == SAVED.position == 8
    assert moved.migrations == (
        Migration(2, 8, (RecipeChange("global_batch", 4, 6), RecipeChange("fingerprint", "v1", "v2"))),
    )
    assert moved.updates == SAVED.updates
    back = resume_cursor(moved, changed(fingerprint="v2"), allow={"global_batch"})
    assert [migration.changes[0].now for migration in back.migrations] == [6, 4]


def test_a_change_to_drop_counts_the_rest_of_the_epoch_at_once() -> None:
    """A rest that the new tail skips is skipped and counted when the change is made."""
    moved = resume_cursor(SAVED, changed(tail="drop"), allow={"tail"})
    assert (moved.epoch, moved.offset, moved.dropped, moved.samples) == (1, 0, 2, 8)
    moved.check()


@pytest.mark.parametrize("name", ["order.seed", "order", "world_size", "fresh"])
def test_what_cannot_be_allowed_is_refused_by_name(name: str) -> None:
    """A misspelt allowance does not pass as one that was not needed."""
    with pytest.raises(UsageError, match=name):
        resume_cursor(SAVED, RECIPE, allow={name})


def test_a_missing_field_differs_from_none() -> None:
    """A field that one order has and the other lacks is a difference."""
    with_name = changed(order={**RECIPE.order, "more": 1})
    (change,) = compare_recipes(RECIPE, with_name)
    assert (change.field, change.saved, change.now) == ("order.more", None, 1)
    assert "order.more" in describe_changes([change])


def migrated_until_refused(saved: Cursor, others: list[Recipe]) -> tuple[Cursor, StateError]:
    """The last cursor of a run that changes its recipe before every update, and what the next change raises."""
    for recipe in cycle(others):
        one_more = msgspec.structs.replace(saved, applied=saved.applied + 1)
        try:
            saved = resume_cursor(one_more, recipe, allow={"global_batch", "fingerprint"})
        except StateError as error:
            return saved, error
    raise AssertionError("there is always another recipe")


IMAGENET = Recipe(order=Shuffle(1_281_167, seed=1).describe(), global_batch=1024, fingerprint="a" * 64)


@pytest.mark.parametrize(
    ("field", "value", "num_migrations"), [("global_batch", 2048, 60), ("fingerprint", "b" * 64, 16)]
)
def test_a_change_without_room_is_refused_where_it_is_declared(field: str, value: Any, num_migrations: int) -> None:
    """As many changes as documented fit; one too many is refused by the sizes, with the ways to go on."""
    saved = Cursor(recipe=IMAGENET, run_id="0" * 16, applied=12_345, samples=12_811_670, epoch=10)
    others = [msgspec.structs.replace(IMAGENET, **{field: value}), IMAGENET]
    last, error = migrated_until_refused(saved, others)
    assert len(last.migrations) == num_migrations
    message = (
        f"expected a cursor that takes at most 4072 bytes.* found one that may grow to .* {num_migrations + 1} migr"
    )
    with pytest.raises(StateError, match=rf"{message}.*Nothing was loaded.*saved recipe.*from_consumed_samples"):
        raise error


def test_what_was_migrated_fits_however_far_the_run_comes() -> None:
    """The last change that is accepted leaves room for counters of 63 bits and eight spans, whatever they are now."""
    last, _ = migrated_until_refused(SAVED, [changed(global_batch=6), RECIPE])
    most = 2**63 - 1
    counters = ("attempt", "applied", "skipped", "samples", "tokens", "epoch", "padding", "dropped", "batches")
    for num_spans in (0, 8):
        spans = tuple(CoverageSpan(most - 8 + i, most - 8 + i, (2**64 - 1, 2**64 - 1)) for i in range(num_spans))
        grown = msgspec.structs.replace(last, coverage=spans, **dict.fromkeys(counters, most))
        assert len(encode_cursor(grown)) == 4096
    beyond = msgspec.structs.replace(SAVED, applied=most * 10**30)
    last, _ = migrated_until_refused(beyond, [changed(global_batch=6), RECIPE])
    assert decode_cursor(encode_cursor(last)) == last
