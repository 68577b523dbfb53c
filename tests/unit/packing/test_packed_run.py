"""`PackedRun`, `PackedHistory` and `find_gap` at their edges; what they give is held against the oracle elsewhere."""

from __future__ import annotations

import pickle
from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from resumable_data import BestFit, Concat, Sequential
from resumable_data.errors import RecipeMismatchError, UsageError
from resumable_data.ledger.row_ids import ROW_ID_BITS, row_ids
from resumable_data.packing import PackedHistory, PackedRun
from resumable_data.packing.coverage import find_gap
from resumable_data.packing.run import _planner
from resumable_data.packing.run_window import RunWindow
from resumable_data.plan import PackedPlace
from tests.packed_jobs import LENGTHS, POLICIES, make_oracle, make_packed
from tests.packed_run_oracle import row_id
from tests.packing_oracle import rows_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data.order import Int64Array
    from resumable_data.packing import PackedRows, Policy


def positions(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_positions_that_are_not_there() -> None:
    """Before the start, after the end, and let go of: an error that says which are there."""
    rows = len(make_oracle().run(1))
    run = PackedRun(make_packed(), epochs=1)
    for wrong in (-1, rows, 2**60):
        with pytest.raises(UsageError, match="expected a position in"):
            run.ids(0, positions(wrong))
    run.forget(rows)
    with pytest.raises(UsageError, match="expected a position in"):
        run.rows(positions(0))
    later = PackedRun(
        make_packed(), start=PackedPlace(**make_oracle().place_after(make_oracle().run(1)[:9])), position=9
    )
    with pytest.raises(UsageError, match="expected a position in"):
        later.ids(0, positions(3))


def test_no_positions_are_no_rows() -> None:
    """An empty request plans nothing."""
    run = PackedRun(make_packed())
    assert len(run.rows(positions())) == 0
    assert run.ids(0, positions()).size == run.targets(positions()).size == 0
    assert PackedHistory(make_packed()).ids(0, positions()).size == 0


def test_a_place_beyond_its_window() -> None:
    """Other documents than the run read, in which a window has fewer rows, are refused."""
    run = PackedRun(make_packed(), start=PackedPlace(row=99), position=99)
    with pytest.raises(RecipeMismatchError, match="expected window 0 of epoch 0 to have at least 99 rows"):
        run.ids(0, positions(99))


@pytest.mark.parametrize("make", [PackedRun, PackedHistory])
def test_there_is_no_way_back_from_an_id(make: Callable[[Any], Any]) -> None:
    """An ID is a hash."""
    with pytest.raises(UsageError, match="no inverse order"):
        make(make_packed()).offsets(0, positions(1))


def test_a_run_pickles_by_its_start() -> None:
    """Its rows are planned again in the other process, from the place that it was given."""
    packing = make_oracle()
    start = PackedPlace(**packing.place_after(packing.run(1)[:9]))
    run = PackedRun(make_packed(), start=start, position=9, epochs=1)
    expected = run.ids(0, positions(9, 12, 15)).tolist()
    again = pickle.loads(pickle.dumps(run))
    assert again.ids(0, positions(9, 12, 15)).tolist() == expected
    history = pickle.loads(pickle.dumps(PackedHistory(make_packed())))
    assert history.ids(0, positions(9, 12, 15)).tolist() == expected


def test_what_is_kept_does_not_grow() -> None:
    """A run that forgets holds a window or two, however far it comes."""
    run = PackedRun(make_packed())
    for position in range(0, 3_000, 10):
        run.ids(0, np.arange(position, position + 10))
        run.forget(position)
        assert len(run._windows) <= 5


def test_a_window_whose_planning_failed_is_planned_again() -> None:
    """What a source raises while a window is planned ahead comes when it is needed, and not again once it is mended."""
    packed = make_packed(LENGTHS * 4)
    lengths, is_broken = packed.source.lengths, False

    def asked(documents: Int64Array) -> Int64Array:
        if is_broken:
            raise OSError("the disk is gone")
        return lengths(documents)

    packed = make_packed(LENGTHS * 4)
    packed.source.lengths = packed._plan._length_of = asked  # type: ignore[method-assign]
    run = PackedRun(packed)
    first = run.stop(1)
    _planner().submit(int).result()
    is_broken = True
    second = run.stop(first + 1)
    for _ in range(2):
        with pytest.raises(OSError, match="the disk is gone"):
            run.stop(second + 1)
    is_broken = False
    assert run.stop(second + 1) > second
    rows = make_oracle(LENGTHS * 4).run(1)
    assert run.ids(0, np.arange(len(rows))).tolist() == [row_id(row.pieces) for row in rows]


# IDs


def test_row_ids_tell_rows_apart() -> None:
    """Another document, start, stop, order of pieces, or border between pieces is another ID, of 61 bits."""
    rows = [
        [(0, 0, 5)],
        [(1, 0, 5)],
        [(0, 1, 5)],
        [(0, 0, 6)],
        [(0, 0, 2), (0, 2, 5)],
        [(0, 0, 5), (1, 0, 3)],
        [(1, 0, 3), (0, 0, 5)],
        [(0, 0, 3), (1, 0, 5)],
        [(2**62, 2**61, 2**62)],
    ]
    ids = [row_id(row) for row in rows]
    assert len(set(ids)) == len(rows)
    assert row_ids(as_rows(rows)).tolist() == ids
    assert all(0 <= one < 1 << ROW_ID_BITS for one in ids)
    assert row_ids(as_rows([])).size == 0


def as_rows(rows: list[list[tuple[int, int, int]]]) -> PackedRows:
    empty = BestFit().pack(positions(), 8)
    columns = np.array([piece for row in rows for piece in row], np.int64).reshape(-1, 3)
    edges = np.cumsum([0, *map(len, rows)])
    return replace(
        empty, document=columns[:, 0].copy(), start=columns[:, 1].copy(), stop=columns[:, 2].copy(), edges=edges
    )


def test_row_ids_do_not_meet() -> None:
    """Among a hundred thousand rows that differ little."""
    rows = as_rows([[(document, 0, stop)] for document in range(400) for stop in range(1, 251)])
    assert np.unique(row_ids(rows)).size == 100_000


# Gaps


def window_of(policy: Policy, number: int = 0) -> tuple[Any, Any]:
    """Rows and what `find_gap` needs of one of their windows, to be changed."""
    packed = make_packed(policy=policy, order=Sequential(20))
    carry = make_oracle(policy=policy, order=Sequential(20)).carry(0, number)
    place = PackedPlace(window=number, carry_document=carry[0], carry_offset=carry[1])
    window = RunWindow(packed, place)
    return packed, SimpleNamespace(place=window.place, next=window.next, rows=window.rows)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_no_window_of_ours_has_a_gap(policy: Policy) -> None:
    """First, middle and last."""
    for number in range(4):
        assert find_gap(*window_of(policy, number)) == ""


def spoil(rows: PackedRows, name: str, piece: int, value: int) -> PackedRows:
    column = getattr(rows, name).copy()
    column[piece] += value
    return replace(rows, **{name: column})


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("number", [0, 1, 3])
def test_every_spoiled_piece_is_a_gap(policy: Policy, number: int) -> None:
    """A token more or less at either end of any piece, or another document, is found and named."""
    packed, window = window_of(policy, number)
    honest = window.rows
    assert rows_of(honest)
    for piece in range(honest.num_pieces):
        for name, value in (("start", 1), ("start", -1), ("stop", 1), ("stop", -1), ("document", 1), ("document", 50)):
            window.rows = spoil(honest, name, piece, value)
            assert find_gap(packed, window), (piece, name, value)
    for row in range(len(honest)):
        window.rows = honest.take(np.delete(np.arange(len(honest)), row))
        assert find_gap(packed, window), row
        window.rows = honest.take(np.append(np.arange(len(honest)), row))
        assert find_gap(packed, window), row


def test_truncation_must_be_told() -> None:
    """Tokens left out and not counted, or counted and not left out, are a gap."""
    packed, window = window_of(BestFit(truncate=True), 1)
    honest = window.rows
    assert (honest.num_truncated_documents, honest.num_truncated_tokens) == (3, 31)
    for documents, tokens in ((3, 30), (3, 32), (2, 31), (4, 31), (0, 0)):
        window.rows = replace(honest, num_truncated_documents=documents, num_truncated_tokens=tokens)
        assert find_gap(packed, window)


def test_a_wrong_carry_is_a_gap() -> None:
    """With `Concat`: where the next window is said to begin, this one ends."""
    packed, window = window_of(Concat(), 1)
    honest = window.next
    for name, value in (("carry_offset", 1), ("carry_document", 1), ("carry_document", -1)):
        window.next = msgspec.structs.replace(honest, **{name: getattr(honest, name) + value})
        assert find_gap(packed, window), name
    window.next = honest
    assert find_gap(packed, window) == ""
    assert honest.window == 2
