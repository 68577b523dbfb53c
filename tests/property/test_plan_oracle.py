"""BatchPlan, Schedule and RankRows against the oracle."""

from __future__ import annotations

from collections import Counter
from itertools import islice, product
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data import BatchPlan, Shuffle
from resumable_data.plan import TAILS, Schedule, loss_factor
from resumable_data.sampler import LossWeight, RankLayout, RankRows, TargetTokens
from tests.oracle import MASK, OracleCursor, Row, accumulation_parts, coverage_lanes, loss_scale, split_update
from tests.simulated_ranks import task_of

if TYPE_CHECKING:
    from resumable_data.sampler import MicrobatchRows
    from tests.oracle import OracleUpdate, RankMicrobatch


def expect_plan(global_batch: int, microbatch: int, num_replicas: int, phase: int) -> None:
    plan = BatchPlan(global_batch=global_batch, microbatch=microbatch, num_replicas=num_replicas, phase=phase)
    rows = tuple(Row(number, number) for number in range(global_batch))
    split = split_update(rows, num_replicas=num_replicas, microbatch=microbatch, phase=phase)
    parts = accumulation_parts(global_batch - phase, num_replicas, microbatch)
    assert plan.accumulation_steps == len(split)
    assert plan.rows_per_replica == sum(parts)
    assert plan.row_cuts.tolist() == [sum(parts[:i]) for i in range(len(parts) + 1)]
    stretches = [sorted(row.id for hand in step for row in hand.rows) for step in split]
    assert [list(range(*pair)) for pair in plan.stretches.tolist()] == stretches
    padded = []
    for rank in range(num_replicas):
        own = [[row.id for row in step[rank].rows] for step in split]
        assert [plan.microbatch_rows(rank, index).tolist() for index in range(len(split))] == own
        share = [row for rows_of_one in own for row in rows_of_one]
        assert plan.share(rank).tolist() == share
        assert plan.num_rows(rank) == len(share)
        padded.append(share + [-1] * (sum(parts) - len(share)))
    assert plan.shares().tolist() == padded
    assert [plan.filler_row(index) for index in range(len(split))] == [stretch[0] for stretch in stretches]
    assert plan.num_idle == sum(hand.num_filler for hand in split[-1])
    assert all(hand.num_filler == 0 for step in split[:-1] for hand in step)
    assert plan.is_even == all(len({len(hand.rows) for hand in step}) == 1 for step in split)
    assert plan.loss_scale() == loss_scale(global_batch, num_replicas=num_replicas, gradient_reduction="mean")


def test_plan_agrees_with_the_oracle_on_a_grid() -> None:
    """A plan splits every small update over every small rank set as dealing its rows one by one does."""
    for global_batch, microbatch, num_replicas in product(range(1, 14), range(1, 5), range(1, 7)):
        for phase in {0, 1, global_batch // 2, global_batch - 1} & set(range(global_batch)):
            expect_plan(global_batch, microbatch, num_replicas, phase)


@given(st.integers(1, 300), st.integers(1, 40), st.integers(1, 70), st.floats(0, 0.999))
def test_plan_agrees_with_the_oracle(global_batch: int, microbatch: int, num_replicas: int, done: float) -> None:
    """A plan splits any rest of any update over any rank set as dealing its rows one by one does."""
    expect_plan(global_batch, microbatch, num_replicas, int(done * global_batch))


@given(st.integers(1, 200), st.data())
def test_any_chain_of_rank_sets_inside_an_update_reads_each_row_once(global_batch: int, data: st.DataObject) -> None:
    """After any microbatch of any rank set another may take over: every row is read once, in prefix order."""
    phase, seen = 0, Counter[int]()
    while phase < global_batch:
        plan = BatchPlan(
            global_batch=global_batch,
            microbatch=data.draw(st.integers(1, 9)),
            num_replicas=data.draw(st.integers(1, 12)),
            phase=phase,
        )
        for index in range(data.draw(st.integers(1, plan.accumulation_steps))):
            for rank in range(plan.num_replicas):
                seen.update(plan.microbatch_rows(rank, index).tolist())
            phase = int(plan.stretches[index, 1])
            assert seen == Counter(range(phase))


def rank_rows(
    order: Shuffle, schedule: Schedule, layout: RankLayout, tokens: list[int] | None, normalize: str
) -> RankRows:
    weight = LossWeight(
        normalize=normalize,
        factor=loss_factor("mean", layout.num_replicas),
        targets=None if tokens is None else TargetTokens(tokens, length=len(order)),
    )
    return RankRows(order, schedule=schedule, layout=layout, weight=weight)


def expect_microbatch(found: MicrobatchRows, wanted: RankMicrobatch, update: OracleUpdate) -> None:
    assert found.ids.tolist() == [row.id for row in wanted.rows]
    assert found.positions().tolist() == wanted.positions
    assert found.num_padding == len(wanted.rows) - len(wanted.positions)
    assert found.num_filler == wanted.num_filler
    assert wanted.filler_id is None or found.filler_id == wanted.filler_id
    assert found.span.start == update.rows[0].position
    assert (found.span.num_samples, found.span.padding) == (len(update.samples), update.num_padding)
    assert found.lanes == coverage_lanes([row for row in wanted.rows if not row.is_padding])


def expect_run(
    length: int,
    global_batch: int,
    tail: str,
    epochs: int,
    *,
    microbatch: int,
    num_replicas: int,
    pad_microbatches: bool = False,
    tokens: list[int] | None = None,
    skip_updates: int = 0,
) -> None:
    """All microbatches of all ranks, from the place after `skip_updates` on, beside the oracle's."""
    order = Shuffle(length, seed=7)
    task = task_of(order, global_batch=global_batch, tail=tail, epochs=epochs)
    schedule = Schedule(length=length, global_batch=global_batch, tail=tail, epochs=epochs)
    cursor = OracleCursor(task)
    for update in islice(task.updates(), skip_updates):
        cursor.commit(update)
    place = {"update": cursor.updates, "epoch": cursor.epoch, "offset": cursor.offset}
    layouts = [
        RankLayout(rank=rank, num_replicas=num_replicas, microbatch=microbatch, pad_microbatches=pad_microbatches)
        for rank in range(num_replicas)
    ]
    normalize = "samples" if tokens is None else "tokens"
    streams = [rank_rows(order, schedule, layout, tokens, normalize).from_place(**place) for layout in layouts]
    num_updates, num_microbatches = 0, 0
    for number, update in enumerate(cursor.upcoming(), start=cursor.updates):
        total = len(update.rows) if tokens is None else sum(tokens[row.id] for row in update.rows)
        committed = 0 if tokens is None else sum(tokens[row.id] for row in update.samples)
        scale = loss_scale(max(1, total), num_replicas=num_replicas, gradient_reduction="mean")
        split = split_update(
            update.rows, num_replicas=num_replicas, microbatch=microbatch, pad_microbatches=pad_microbatches
        )
        for index, step in enumerate(split):
            for stream, wanted in zip(streams, step, strict=True):
                found = next(stream)
                assert (found.update, found.microbatch) == (number, index)
                assert found.is_last == (index == len(split) - 1)
                assert (found.tokens, found.loss_scale) == (committed, scale)
                expect_microbatch(found, wanted, update)
        num_updates, num_microbatches = num_updates + 1, num_microbatches + len(split)
    assert [next(stream, None) for stream in streams] == [None] * num_replicas
    assert schedule.updates_left(cursor.epoch, cursor.offset) == num_updates
    assert num_microbatches == schedule.microbatches_left(
        cursor.epoch, cursor.offset, microbatch=microbatch, num_replicas=num_replicas
    )


@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("num_replicas", [1, 2, 3, 5])
def test_rows_agree_with_the_oracle_on_a_grid(tail: str, num_replicas: int) -> None:
    """Every rank reads what the oracle deals it, for every small dataset, global batch, microbatch and tail."""
    for length, global_batch in product((1, 2, 3, 5, 7, 8), (1, 2, 3, 4, 7, 11)):
        if tail == "drop" and global_batch > length:
            continue
        for microbatch, epochs, pad in ((1, 1, False), (1, 3, True), (2, 3, False), (3, 2, True)):
            expect_run(
                length,
                global_batch,
                tail,
                epochs,
                microbatch=microbatch,
                num_replicas=num_replicas,
                pad_microbatches=pad,
            )


@given(
    length=st.integers(1, 90),
    global_batch=st.integers(1, 40),
    tail=st.sampled_from(TAILS),
    epochs=st.integers(1, 4),
    microbatch=st.integers(1, 9),
    num_replicas=st.integers(1, 9),
    pad_microbatches=st.booleans(),
    with_tokens=st.booleans(),
    skip_updates=st.integers(0, 30),
)
def test_rows_agree_with_the_oracle(
    length: int,
    global_batch: int,
    tail: str,
    epochs: int,
    microbatch: int,
    num_replicas: int,
    pad_microbatches: bool,
    with_tokens: bool,
    skip_updates: int,
) -> None:
    """Every rank reads what the oracle deals it, from any update on."""
    if tail == "drop":
        global_batch = min(global_batch, length)
    expect_run(
        length,
        global_batch,
        tail,
        epochs,
        microbatch=microbatch,
        num_replicas=num_replicas,
        pad_microbatches=pad_microbatches,
        tokens=[(3 * i) % 5 for i in range(length)] if with_tokens else None,
        skip_updates=skip_updates,
    )


@pytest.mark.slow
@pytest.mark.parametrize("tail", TAILS)
@pytest.mark.parametrize("num_replicas", range(1, 9))
def test_rows_agree_with_the_oracle_on_a_large_grid(tail: str, num_replicas: int) -> None:
    """As above, over all lengths to 12, global batches to 14, microbatches to 4 and three epochs."""
    for length, global_batch, microbatch in product(range(1, 13), range(1, 15), range(1, 5)):
        if tail == "drop" and global_batch > length:
            continue
        expect_run(
            length,
            global_batch,
            tail,
            3,
            microbatch=microbatch,
            num_replicas=num_replicas,
            pad_microbatches=(length + global_batch) % 2 == 0,
            tokens=list(range(length)) if microbatch == 2 else None,
            skip_updates=microbatch - 1,
        )


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 4, 6, 7, 10, 16])
@pytest.mark.parametrize("tail", ["carry", "short", "pad"])
def test_each_sample_is_read_once_per_epoch_on_every_world_size(tail: str, num_replicas: int) -> None:
    """Over all ranks each (epoch, ID) is read exactly once; padding comes on top only where it was asked for."""
    length, global_batch, epochs = 23, 8, 3
    seen, lanes = Counter[tuple[int, int]](), [0, 0]
    num_padding = 0
    for rank in range(num_replicas):
        rows = rank_rows(
            Shuffle(length),
            Schedule(length=length, global_batch=global_batch, tail=tail, epochs=epochs),
            RankLayout(rank=rank, num_replicas=num_replicas, microbatch=2),
            None,
            "samples",
        )
        for found in rows.from_place(update=0, epoch=0, offset=0):
            own = zip(found.positions().tolist(), found.ids.tolist(), strict=False)
            seen.update((position // length, sample_id) for position, sample_id in own)
            num_padding += found.num_padding
            lanes = [(a + b) & MASK for a, b in zip(lanes, found.lanes, strict=True)]
    assert seen == Counter((epoch, sample_id) for epoch in range(epochs) for sample_id in range(length))
    assert num_padding == (epochs if tail == "pad" else 0)
    task = task_of(Shuffle(length), global_batch=global_batch, tail=tail, epochs=epochs)
    assert tuple(lanes) == coverage_lanes([row for update in task.updates() for row in update.samples])


@given(st.integers(1, 60), st.integers(1, 40), st.sampled_from(TAILS), st.integers(1, 5), st.integers(0, 60))
def test_schedule_agrees_with_the_oracle(
    length: int, global_batch: int, tail: str, epochs: int, skip_updates: int
) -> None:
    """From the place after any update the schedule tells the next update, the place after it and how many are left."""
    if tail == "drop":
        global_batch = min(global_batch, length)
    task = task_of(Shuffle(length), global_batch=global_batch, tail=tail, epochs=epochs)
    schedule = Schedule(length=length, global_batch=global_batch, tail=tail, epochs=epochs)
    updates = list(task.updates())
    cursor = OracleCursor(task)
    for number, update in enumerate(updates[: skip_updates + 1]):
        span = schedule.update_at(cursor.epoch, cursor.offset)
        assert span is not None
        assert (span.start, span.num_samples, span.padding) == (
            update.rows[0].position,
            len(update.samples),
            update.num_padding,
        )
        assert span.num_rows == len(update.rows)
        assert schedule.after(span) == (update.next_epoch, update.next_offset, update.dropped)
        assert schedule.updates_left(cursor.epoch, cursor.offset) == len(updates) - number
        cursor.commit(update)
    if cursor.updates == len(updates):
        assert schedule.update_at(cursor.epoch, cursor.offset) is None
        assert schedule.updates_left(cursor.epoch, cursor.offset) == 0
        assert list(schedule.segments(cursor.epoch, cursor.offset)) == []
