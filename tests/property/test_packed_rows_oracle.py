"""The global sequence of packed rows, by epoch and by position, beside the oracle that packs token by token."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data import BestFit, Concat, Fill, NoPacking, PackedTokens, Sequential, Shuffle
from resumable_data.ledger.row_ids import row_ids
from resumable_data.packing import Carry, PackedHistory, PackedRun
from resumable_data.plan import PackedPlace
from tests.examples import examples
from tests.packed_jobs import make_oracle, make_packed
from tests.packed_run_oracle import cut_by_tokens, row_id
from tests.packing_oracle import rows_of

if TYPE_CHECKING:
    from tests.packed_run_oracle import Packing

LENGTHS = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=20),
    st.lists(st.integers(0, 60), min_size=1, max_size=8),
    st.lists(st.sampled_from([0, 4, 6, 8, 30]), min_size=1, max_size=20),
).filter(any)
POLICIES = st.one_of(
    st.builds(BestFit, st.booleans()),
    st.integers(1, 100).map(lambda percent: Fill(percent / 100)),
    st.just(Concat()),
    st.builds(NoPacking, st.booleans()),
)


@st.composite
def recipes(draw: st.DrawFn) -> dict[str, Any]:
    """Arguments of `make_packed` and `make_oracle`."""
    lengths, seed = draw(LENGTHS), draw(st.integers(0, 5))
    make_order = draw(st.sampled_from([Sequential, lambda length: Shuffle(length, seed=3)]))
    return {
        "lengths": lengths,
        "sequence_length": draw(st.integers(1, 16)),
        "window": draw(st.integers(1, 9)),
        "policy": draw(POLICIES),
        "order": make_order(len(lengths)),
        "seed": seed,
    }


def expect_places(packing: Packing, run: PackedRun | PackedHistory, epochs: int, first: int = 0) -> None:
    """Make sure that every place from a position on is the oracle's."""
    rows = packing.run(epochs)
    for position in range(first, len(rows) + 1):
        assert msgspec.structs.asdict(run.place(position)) == packing.place_after(rows[:position])


@examples(30, quick=12)
@given(recipe=recipes(), epoch=st.integers(0, 2))
def test_the_rows_of_an_epoch(recipe: dict[str, Any], epoch: int) -> None:
    """Windows of the order, each packed and shuffled by key, in one sequence; planned one by one from a carry too."""
    packed, packing = make_packed(**recipe), make_oracle(**recipe)
    rows = packing.epoch(epoch)
    assert [(row.window, row.row, row.pieces) for row in packed.rows(epoch)] == [
        (row.window, row.row, row.pieces) for row in rows
    ]
    assert packed.count_rows(epoch) == len(rows)
    for window in range(packed.num_windows):
        expected = [row.pieces for row in rows if row.window == window]
        for carry in (None, Carry(*packing.carry(epoch, window))):
            assert rows_of(packed.plan(epoch, window, carry).rows) == expected


@examples(30, quick=12)
@given(recipe=recipes(), epochs=st.integers(1, 3), data=st.data())
def test_the_rows_of_a_run_by_position(recipe: dict[str, Any], epochs: int, data: st.DataObject) -> None:
    """From any place on, known by position alone: rows, IDs, targets, places and updates are the oracle's."""
    packed, packing = make_packed(**recipe), make_oracle(**recipe)
    rows = packing.run(epochs)
    first = data.draw(st.integers(0, len(rows)))
    start = PackedPlace(**packing.place_after(rows[:first]))
    run = PackedRun(packed, start=start, position=first, epochs=epochs)
    expect_places(packing, run, epochs, first)
    assert run.stop(1 << 60) == len(rows)
    positions = np.array(data.draw(st.permutations(range(first, len(rows)))), np.int64)
    wanted = [rows[position] for position in positions.tolist()]
    assert rows_of(run.rows(positions)) == [row.pieces for row in wanted]
    assert row_ids(run.rows(positions)).tolist() == [row_id(row.pieces) for row in wanted]
    assert run.ids(0, positions).tolist() == [row_id(row.pieces) for row in wanted]
    assert run.targets(positions).tolist() == [row.num_targets for row in wanted]
    budget = data.draw(st.integers(1, 40))
    for begin, stop in cut_by_tokens(rows, first, budget):
        is_full = sum(row.num_tokens for row in rows[begin:stop]) >= budget
        assert run.next_after(begin, budget) == (stop if is_full else None)


@examples(30, quick=12)
@given(recipe=recipes(), cut=st.integers(0, 200))
def test_an_endless_run_forgets_what_is_behind(recipe: dict[str, Any], cut: int) -> None:
    """What is let go of changes nothing ahead; the same rows come after as without."""
    packed, packing = make_packed(**recipe), make_oracle(**recipe)
    rows = packing.run(3)
    run = PackedRun(packed)
    cut %= len(rows)
    for position in range(cut + 1):
        assert run.ids(0, np.array([position])).tolist() == [row_id(rows[position].pieces)]
        run.forget(position)
    ahead = np.arange(cut, len(rows))
    assert rows_of(run.rows(ahead)) == [row.pieces for row in rows[cut:]]
    assert msgspec.structs.asdict(run.place(cut)) == packing.place_after(rows[:cut])


@examples(30, quick=12)
@given(recipe=recipes(), data=st.data())
def test_the_history_for_audits(recipe: dict[str, Any], data: st.DataObject) -> None:
    """Rows from the beginning, in any order of asking: IDs, places, ends of epochs, starts of updates; no gap."""
    packed, packing = make_packed(**recipe), make_oracle(**recipe)
    epochs = 3
    rows = packing.run(epochs)
    ends = [len(packing.run(epoch + 1)) for epoch in range(epochs)]
    history = packed.history()
    for position in data.draw(st.lists(st.integers(0, len(rows)), max_size=8)):
        assert msgspec.structs.asdict(history.place(position)) == packing.place_after(rows[:position])
    positions = np.array(data.draw(st.lists(st.integers(0, len(rows) - 1))), np.int64)
    assert history.ids(0, positions).tolist() == [row_id(rows[position].pieces) for position in positions.tolist()]
    last = data.draw(st.integers(0, len(rows)))
    assert history.ends_up_to(last).tolist() == [end for end in ends if end <= last]
    for epoch, end in enumerate(ends):
        assert history.end_of(epoch + 1, at_most=last) == (end if end <= last else None)
    first, budget = data.draw(st.integers(0, len(rows) - 1)), data.draw(st.integers(1, 40))
    cuts = [stop for _, stop in cut_by_tokens(rows, first, budget)[:-1]]  # the history goes on without an end
    assert history.update_starts(first, budget, len(cuts)).tolist() == [first, *cuts]
    assert history.gaps == []


@settings(max_examples=20)
@given(recipe=recipes())
def test_rows_from_a_description(recipe: dict[str, Any]) -> None:
    """What a recipe holds and the documents give the same rows again."""
    packed = make_packed(**recipe)
    again = PackedTokens.from_description(packed.source, packed.describe())
    assert list(again.rows(1)) == list(packed.rows(1))


@pytest.mark.slow
@settings(max_examples=1000)
@given(recipe=recipes(), epochs=st.integers(1, 3), data=st.data())
def test_the_rows_of_a_run_by_position_for_long(recipe: dict[str, Any], epochs: int, data: st.DataObject) -> None:
    """As above, with more examples."""
    test_the_rows_of_a_run_by_position.hypothesis.inner_test(recipe, epochs, data)  # type: ignore[attr-defined]
