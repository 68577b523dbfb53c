"""Cursor.crossed: what happens every so many samples happens as often, and at the same places, on any path."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.cursor import Cursor, Recipe
from resumable_data.errors import UsageError
from resumable_data.order import Sequential

START = Cursor.begin(Recipe(order=Sequential(10**6).describe(), global_batch=8))


def at(samples: int) -> Cursor:
    return msgspec.structs.replace(START, samples=samples, tokens=3 * samples, applied=samples // 8, offset=samples)


@given(steps=st.lists(st.integers(0, 40), max_size=30), every=st.integers(1, 60))
def test_each_multiple_is_crossed_by_one_step(steps: list[int], every: int) -> None:
    """By the step that reaches it, however the samples are cut into steps."""
    before, position = START, 0
    for step in steps:
        position += step
        now = at(position)
        reached = any(number % every == 0 for number in range(position - step + 1, position + 1))
        assert now.crossed(before, every_samples=every) == reached
        assert now.crossed(before, every_tokens=3 * every) == reached
        before = now


def test_updates_count_where_skipped_too() -> None:
    """An update that a scaler skipped is one."""
    skipped = msgspec.structs.replace(START, skipped=2, samples=16, offset=16)
    assert skipped.crossed(START, every_updates=2)
    assert not skipped.crossed(START, every_updates=3)


@pytest.mark.parametrize(
    "arguments", [{}, {"every_samples": 1, "every_tokens": 1}, {"every_samples": 0}, {"every_updates": True}]
)
def test_wrong_arguments(arguments: dict[str, int]) -> None:
    """One of the three, at least 1."""
    with pytest.raises(UsageError):
        at(8).crossed(START, **arguments)
    with pytest.raises(UsageError, match="earlier cursor"):
        START.crossed(at(8), every_samples=1)
