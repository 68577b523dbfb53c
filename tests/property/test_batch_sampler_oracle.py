"""The batch sampler against the oracle, over chains of restarts."""

from __future__ import annotations

from collections import Counter
from contextlib import suppress
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data import ResumableSampler, Shuffle
from resumable_data.errors import UsageError
from resumable_data.plan import TAILS
from tests.examples import examples
from tests.oracle import OracleCursor, loss_scale, split_update
from tests.simulated_ranks import expect_cursor, task_of


def has_empty_share(cursor: OracleCursor, *, num_replicas: int, microbatch: int) -> bool:
    """Whether any rank has no row in any microbatch from the cursor to the end of the run."""
    return any(
        not rank.rows
        for update in cursor.upcoming()
        for step in split_update(update.rows, num_replicas=num_replicas, microbatch=microbatch)
        for rank in step
    )


@examples(100, quick=40)
@given(
    length=st.integers(1, 40),
    global_batch=st.integers(1, 20),
    tail=st.sampled_from(TAILS),
    epochs=st.integers(1, 4),
    chain=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=5),
)
def test_any_chain_agrees_with_the_oracle_or_is_refused(
    length: int, global_batch: int, tail: str, epochs: int, chain: list[tuple[int, int, int]]
) -> None:
    """A layout is refused exactly where the oracle deals an empty hand; else all rows and counters are the oracle's."""
    if tail == "drop":
        global_batch = min(global_batch, length)
    order = Shuffle(length, seed=length)
    recipe: dict[str, Any] = {"global_batch": global_batch, "tail": tail, "epochs": epochs}
    cursor = OracleCursor(task_of(order, **recipe))
    state, seen = None, Counter[int]()
    for num_updates, num_replicas, microbatch in [*chain, (10**6, 1, 3)]:
        layout: dict[str, Any] = {"num_replicas": num_replicas, "microbatch": microbatch}
        if has_empty_share(OracleCursor(cursor.task), **layout) or has_empty_share(cursor, **layout):
            with pytest.raises(UsageError, match="would have no row in its last microbatch"):
                ResumableSampler(order, rank=0, **recipe, **layout).load_state_dict(state, allow={"fresh_start"})
            continue
        samplers = [ResumableSampler(order, rank=rank, **recipe, **layout) for rank in range(num_replicas)]
        for sampler in samplers:
            sampler.load_state_dict(state, allow={"fresh_start"})
        steps_left = sum(len(split_update(update.rows, **layout)) for update in cursor.upcoming())
        assert {len(sampler) for sampler in samplers} == {steps_left}
        streams = [iter(sampler) for sampler in samplers]
        for update, number in zip(cursor.upcoming(), count(), strict=False):
            if number == num_updates:
                break
            split = split_update(update.rows, **layout)
            for sampler in samplers:
                assert sampler.accumulation_steps == len(split)
                assert sampler.loss_scale == loss_scale(
                    len(update.rows), num_replicas=num_replicas, gradient_reduction="mean"
                )
            for step in split:
                assert [next(stream) for stream in streams] == [rank.data for rank in step]
            for sampler in samplers:
                sampler.commit()
            cursor.commit(update)
            seen.update(row.id for row in update.samples)
        with suppress(StopIteration):
            next(streams[0])  # fetched ahead and lost
        for sampler in samplers:
            expect_cursor(sampler.cursor, cursor)
        state = samplers[-1].state_dict()
    if tail != "drop":
        assert seen == Counter(dict.fromkeys(range(length), epochs))
