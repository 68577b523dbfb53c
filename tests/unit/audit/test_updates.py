"""The audit's own rules of who reads what, against the planner's."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.audit.updates import Course, Stretch, num_microbatches, shares
from resumable_data.cursor import Recipe
from resumable_data.ledger.records import Jump
from resumable_data.order import Sequential
from resumable_data.plan import TAILS, BatchPlan, Schedule
from resumable_data.plan.schedule import RANK_TAILS


def make_stretch(length: int, batch: int, tail: str, epochs: int | None, offset: int = 0) -> Stretch:
    recipe = Recipe(order=Sequential(length).describe(), global_batch=batch, tail=tail)
    return Stretch(recipe, 0, offset, 5, epochs)


def make_batches(schedule: Schedule, offset: int = 0) -> Stretch:
    ranks = schedule.num_replicas
    recipe = Recipe(order=Sequential(schedule.length).describe(), global_batch=3, tail=schedule.tail)
    batch = schedule.global_batch // ranks
    return Stretch(recipe, 0, offset, 5, schedule.epochs, num_replicas=ranks, microbatch=batch)


@given(
    length=st.integers(1, 40),
    batch=st.integers(1, 50),
    tail=st.sampled_from(TAILS),
    epochs=st.none() | st.integers(1, 4),
    data=st.data(),
)
def test_spans_are_those_of_the_schedule(
    length: int, batch: int, tail: str, epochs: int | None, data: st.DataObject
) -> None:
    """Every update's place, size and padding, for all tails, from any offset on, to the run's end."""
    batch = min(batch, length) if tail == "drop" else batch
    offset = data.draw(st.integers(0, length - 1))
    schedule = Schedule(length=length, global_batch=batch, tail=tail, epochs=epochs)
    check_spans(make_stretch(length, batch, tail, epochs, offset), schedule, offset)


@given(
    length=st.integers(1, 40),
    num_replicas=st.integers(1, 6),
    batch=st.integers(1, 8),
    tail=st.sampled_from(RANK_TAILS),
    epochs=st.none() | st.integers(1, 4),
    data=st.data(),
)
def test_spans_of_batches_are_those_of_the_schedule(
    length: int, num_replicas: int, batch: int, tail: str, epochs: int | None, data: st.DataObject
) -> None:
    """Every batch's place, size and padding, as a DistributedSampler and a DataLoader cut them."""
    length = max(length, num_replicas * batch) if "drop" in tail else length
    offset = data.draw(st.integers(0, length - 1))
    schedule = Schedule(
        length=length, global_batch=batch * num_replicas, tail=tail, epochs=epochs, num_replicas=num_replicas
    )
    check_spans(make_batches(schedule, offset), schedule, offset)


def check_spans(stretch: Stretch, schedule: Schedule, offset: int) -> None:
    update = np.arange(5, 45, dtype=np.int64)
    start, num_samples, padding = stretch.spans(update)
    place = schedule.settle(0, offset)
    for row in range(update.size):
        span = schedule.update_at(place.epoch, place.offset)
        if span is None:
            assert not num_samples[row:].any()
            assert not padding[row:].any()
            break
        assert (int(start[row]), int(num_samples[row]), int(padding[row])) == span[:3]
        place = schedule.after(span)
        assert stretch.place_after(row + 1)[:2] == (place.epoch, place.offset)


@given(
    num_rows=st.integers(1, 60),
    num_replicas=st.integers(1, 9),
    microbatch=st.integers(1, 9),
    padding=st.integers(0, 59),
)
def test_shares_are_those_of_the_plan(num_rows: int, num_replicas: int, microbatch: int, padding: int) -> None:
    """First row, number of rows and padding of each rank's microbatches."""
    padding = min(padding, num_rows - 1)
    plan = BatchPlan(global_batch=num_rows, microbatch=microbatch, num_replicas=num_replicas)
    recipe = Recipe(order=Sequential(num_rows - padding).describe(), global_batch=num_rows, tail="pad")
    spans = Stretch(recipe, 0, 0, 0).spans(np.zeros(1, np.int64))
    steps = num_microbatches(np.array([num_rows]), num_replicas=num_replicas, microbatch=microbatch)
    assert steps.tolist() == [plan.accumulation_steps]
    for rank in range(num_replicas):
        for index in range(plan.accumulation_steps):
            share = shares(spans, rank, np.array([index]), num_replicas=num_replicas, microbatch=microbatch)
            rows = plan.microbatch_rows(rank, index)
            assert share.num_rows.tolist() == [rows.size]
            assert share.padding.tolist() == [(rows >= num_rows - padding).sum()]
            if rows.size:
                assert share.start.tolist() == [rows[0]]


@pytest.mark.parametrize("offset", range(10))
def test_dropped_positions(offset: int) -> None:
    """With drop, the positions that no update takes are known, from any place on and in later epochs."""
    stretch = make_stretch(10, 4, "drop", None, offset)
    start, num_samples, _ = stretch.spans(np.arange(5, 15, dtype=np.int64))
    taken = {p for u, n in zip(start.tolist(), num_samples.tolist(), strict=True) for p in range(u, u + n)}
    positions = np.arange(offset, 30, dtype=np.int64)
    assert set(positions[stretch.is_sample(positions)].tolist()) == {p for p in taken if p < 30}


@pytest.mark.parametrize("tail", RANK_TAILS)
@pytest.mark.parametrize("offset", [0, 3, 17])
def test_positions_left_out_by_batches(tail: str, offset: int) -> None:
    """Positions that no batch takes are known, from any place on: the ends of epochs, and epochs left early."""
    schedule = Schedule(length=23, global_batch=6, tail=tail, num_replicas=3)
    course = Course.of(make_batches(schedule, offset), [Jump(6, 4 * 23), Jump(7, 6 * 23)])
    assert course.jumps == [Jump(6, 92), Jump(7, 138)]
    start, num_samples, _ = course.spans(np.arange(5, 25, dtype=np.int64))
    taken = {p for u, n in zip(start.tolist(), num_samples.tolist(), strict=True) for p in range(u, u + n)}
    assert start[1:3].tolist() == [92, 138]
    positions = np.arange(offset, 8 * 23, dtype=np.int64)
    assert set(positions[course.is_sample(positions)].tolist()) == {p for p in taken if p < 8 * 23}
    place = course.place_before(7)
    assert place[:2] == (4, 6)


@pytest.mark.parametrize("jump", [Jump(4, 92), Jump(7, 93), Jump(7, 0)])
def test_a_jump_that_no_loop_makes_is_passed_by(jump: Jump) -> None:
    """Before the first batch, into the middle of an epoch, or backwards: the course stays as it was."""
    stretch = make_batches(Schedule(length=23, global_batch=6, tail="pad_ranks", num_replicas=3), 3)
    assert Course.of(stretch, [jump]) == Course((stretch,))
