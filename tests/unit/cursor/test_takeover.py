"""A run on torch's DistributedSampler, and one that counted samples, in the numbers of a cursor."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from resumable_data import Cursor, Sequential, Shuffle, TorchShuffle
from resumable_data.cursor import CoverageSpan, TakeOver, decode_cursor, encode_cursor
from resumable_data.errors import CorruptStateError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

SAMPLER: dict[str, Any] = {
    "length": 100,
    "seed": 3,
    "epoch": 2,
    "batches_per_rank": 4,
    "batch_size": 5,
    "num_replicas": 3,
    "global_batch": 15,
}


def take_over(**changes: Any) -> Cursor:
    return Cursor.from_distributed_sampler(**{**SAMPLER, **changes})


def counts(cursor: Cursor) -> tuple[int, ...]:
    return cursor.epoch, cursor.offset, cursor.applied, cursor.samples, cursor.padding, cursor.dropped


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        # 34 rows a rank and 7 batches an epoch, 2 rows of padding in each
        ({}, (2, 60, 18, 260, 4, 0)),
        ({"batches_per_rank": 0}, (2, 0, 14, 200, 4, 0)),
        ({"batches_per_rank": 7}, (3, 0, 21, 300, 6, 0)),
        # 33 rows a rank: one sample of each epoch is cut off
        ({"drop_last": True}, (2, 60, 18, 258, 0, 2)),
        ({"drop_last": True, "batches_per_rank": 7}, (3, 0, 21, 297, 0, 3)),
        # 6 batches of 15: ten samples of each epoch are never read
        ({"dataloader_drop_last": True}, (2, 60, 16, 240, 0, 20)),
        ({"dataloader_drop_last": True, "batches_per_rank": 6}, (3, 0, 18, 270, 0, 30)),
        # windows of 3 batches: 3 updates an epoch, the last one of a single batch; the fourth batch is rolled back
        ({"accumulation_steps": 3}, (2, 45, 7, 245, 4, 0)),
        ({"accumulation_steps": 3, "batches_per_rank": 7}, (3, 0, 9, 300, 6, 0)),
        ({"accumulation_steps": 5}, (2, 0, 4, 200, 4, 0)),
        ({"first_epoch": 1}, (2, 60, 11, 160, 2, 100)),
        ({"updates": 5}, (2, 60, 5, 260, 4, 0)),
        # a new global batch for which the rest of the epoch is too short
        ({"tail": "drop", "global_batch": 50}, (3, 0, 18, 260, 4, 40)),
    ],
)
def test_a_samplers_run_in_numbers(changes: dict[str, Any], expected: tuple[int, ...]) -> None:
    """Place and counts are those that an old run with these arguments had at its last update."""
    cursor = take_over(**changes)
    assert counts(cursor) == expected
    cursor.check()


def test_skipped_updates_are_counted_apart() -> None:
    """What the old run's loss scaler skipped is in the updates and not applied."""
    cursor = take_over(skipped=2)
    assert (cursor.applied, cursor.skipped, cursor.updates) == (16, 2, 18)


def test_the_recipe_is_that_of_torchs_order() -> None:
    """The cursor goes with TorchShuffle of the same seed, or Sequential, and with no other order."""
    assert take_over().recipe.order == TorchShuffle(100, seed=3).describe()
    assert take_over(shuffle=False).recipe.order == Sequential(100).describe()
    recipe = take_over(tail="pad", fingerprint="v1").recipe
    assert (recipe.global_batch, recipe.tail, recipe.normalize, recipe.fingerprint) == (15, "pad", "samples", "v1")


def test_nothing_of_the_old_run_is_claimed_to_be_recorded() -> None:
    """No run, no attempt, no digest; and the declared numbers are kept for the audit, through the state too."""
    cursor = take_over()
    assert (cursor.run_id, cursor.attempt, cursor.coverage, cursor.tokens) == ("", 0, (), 0)
    wanted = TakeOver(source="distributed_sampler", epoch=2, offset=60, applied=18, samples=260, padding=4)
    assert cursor.taken_over == wanted
    assert decode_cursor(encode_cursor(cursor)) == cursor


def test_the_field_is_absent_where_nothing_was_taken_over() -> None:
    """Cursors of other runs are byte for byte what they were."""
    assert b"taken_over" not in Cursor(recipe=take_over().recipe).to_json()
    assert b"taken_over" in take_over().to_json()


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"length": 0}, "length must be an integer of at least 1"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"num_replicas": 2.0}, "num_replicas must be"),
        ({"accumulation_steps": 0}, "accumulation_steps must be"),
        ({"global_batch": 0}, "global_batch must be"),
        ({"epoch": -1}, "epoch must be an integer of at least 0, got -1"),
        ({"batches_per_rank": True}, "batches_per_rank must be an integer of at least 0, got True"),
        ({"batches_per_rank": 8}, r"at most 7, the batches that each rank gets in one epoch .* got 8\. With a wrong"),
        ({"batches_per_rank": 7, "dataloader_drop_last": True}, "at most 6"),
        ({"first_epoch": 3}, "first_epoch must be at most epoch=2"),
        ({"drop_last": 1}, "drop_last must be True or False, got 1"),
        ({"dataloader_drop_last": "no"}, "dataloader_drop_last must be True or False"),
        ({"length": 2, "drop_last": True}, "make no batch at all"),
        ({"batch_size": 40, "dataloader_drop_last": True}, "make no batch at all"),
        ({"skipped": 19}, "skipped must be at most the 18 updates"),
        ({"updates": -1}, "updates must be an integer of at least 0"),
        ({"tail": "wrap"}, "tail must be one of"),
        ({"seed": -1}, "seed"),
    ],
)
def test_numbers_of_no_run_are_refused(changes: dict[str, Any], says: str) -> None:
    """An argument out of range is named, with what was expected."""
    with pytest.raises(UsageError, match=says):
        take_over(**changes)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"consumed_samples": 0}, (0, 0, 0, 0, 0, 0)),
        ({"consumed_samples": 120}, (1, 20, 12, 120, 0, 0)),
        ({"consumed_samples": 300}, (3, 0, 30, 300, 0, 0)),
        ({"consumed_samples": 200, "samples_per_epoch": 90}, (2, 20, 20, 200, 0, 20)),
        ({"consumed_samples": 180, "samples_per_epoch": 90}, (2, 0, 18, 180, 0, 20)),
        ({"consumed_samples": 125, "updates": 3}, (1, 25, 3, 125, 0, 0)),
        ({"consumed_samples": 95, "updates": 10, "tail": "drop"}, (1, 0, 10, 95, 0, 5)),
    ],
)
def test_a_count_of_samples_in_numbers(arguments: dict[str, Any], expected: tuple[int, ...]) -> None:
    """The count says where the order is gone on with; what each epoch left out is dropped."""
    order = Shuffle(100, seed=1)
    cursor = Cursor.from_consumed_samples(order, global_batch=10, **arguments)
    assert counts(cursor) == expected
    assert cursor.recipe.order == order.describe()
    cursor.check()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"consumed_samples": -1}, "consumed_samples must be an integer of at least 0"),
        ({"consumed_samples": 1.0}, "consumed_samples must be"),
        ({"consumed_samples": 125}, "no whole number of updates of global_batch=10.*Give updates="),
        ({"consumed_samples": 10, "samples_per_epoch": 0}, "samples_per_epoch must be"),
        ({"consumed_samples": 10, "samples_per_epoch": 101}, "samples_per_epoch must be at most 100"),
        ({"consumed_samples": 10, "skipped": 2}, "skipped must be at most the 1 updates"),
    ],
)
def test_a_count_of_no_run_is_refused(arguments: dict[str, Any], says: str) -> None:
    """An argument out of range is named, with what was expected."""
    with pytest.raises(UsageError, match=says):
        Cursor.from_consumed_samples(Shuffle(100), global_batch=10, **arguments)


def test_what_is_no_order_is_refused() -> None:
    """A length in the place of an order is found before a cursor is made of it."""
    with pytest.raises(UsageError, match="an order must be an object"):
        Cursor.from_consumed_samples(100, consumed_samples=0, global_batch=10)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "edit",
    [
        lambda c: msgspec.structs.replace(c, applied=17),
        lambda c: msgspec.structs.replace(c, padding=3),
        lambda c: msgspec.structs.replace(c, taken_over=msgspec.structs.replace(c.taken_over, samples=259)),
        lambda c: msgspec.structs.replace(c, taken_over=msgspec.structs.replace(c.taken_over, offset=160, samples=360)),
        lambda c: msgspec.structs.replace(c, taken_over=msgspec.structs.replace(c.taken_over, skipped=-1)),
        lambda c: msgspec.structs.replace(c, coverage=(CoverageSpan(0, 260, (1, 2)),)),
    ],
)
def test_a_take_over_that_cannot_have_led_here_is_refused(edit: Callable[[Cursor], Cursor]) -> None:
    """Counts below those at the take-over, or a digest of what came before it, contradict each other."""
    with pytest.raises(CorruptStateError, match="expected a cursor with"):
        Cursor.from_json(edit(take_over()).to_json())
