"""ids_at: positions of the run to sample IDs."""

from __future__ import annotations

import numpy as np
import pytest

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array, Order, Sequential, Shuffle, ids_at


class Counting:
    """An order that remembers what it was asked."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.questions: list[tuple[int, list[int]]] = []

    def __len__(self) -> int:
        return len(self.order)

    def ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        self.questions.append((epoch, offsets.tolist()))
        return self.order.ids(epoch, offsets)

    def offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        return self.order.offsets(epoch, ids)

    def describe(self) -> dict[str, int | str]:
        return self.order.describe()


def one_by_one(order: Order, positions: Int64Array) -> list[int]:
    n = len(order)
    return [int(order.ids(p // n, np.array([p % n]))[0]) for p in positions.tolist()]


@pytest.mark.parametrize("n", [1, 2, 7, 100])
def test_ids_are_those_of_each_position(n: int) -> None:
    """Sorted, reversed, shuffled, repeated, within one epoch or over many."""
    order = Shuffle(n, seed=1)
    ascending = np.arange(3, 3 + 5 * n, dtype=np.int64)
    mixed = np.random.default_rng(0).integers(0, 6 * n, 200, dtype=np.int64)
    for positions in (ascending, ascending[::-1], ascending[::3], mixed, np.sort(mixed), mixed[:1], mixed[:0]):
        ids = ids_at(order, positions)
        assert ids.dtype == np.int64
        assert ids.tolist() == one_by_one(order, positions)


def test_the_order_is_asked_once_per_epoch() -> None:
    """However many positions there are and however they are arranged."""
    positions = np.arange(10, 40, dtype=np.int64)
    for arrangement in (positions, np.random.default_rng(0).permutation(positions)):
        order = Counting(Shuffle(16))
        ids_at(order, arrangement)
        assert [epoch for epoch, _ in order.questions] == [0, 1, 2]
    within = Counting(Shuffle(16))
    ids_at(within, np.array([33, 31 + 16, 32], dtype=np.int64))
    assert within.questions == [(2, [1, 15, 0])]


def test_positions_far_beyond_2_53_are_exact() -> None:
    """No float comes near a position."""
    n = 2**40 + 1
    positions = np.arange(2**62, 2**62 + 5, dtype=np.int64)
    assert ids_at(Sequential(n), positions).tolist() == [(2**62 + i) % n for i in range(5)]
    last = np.array([2**63 - 1], dtype=np.int64)
    assert ids_at(Sequential(n), last).tolist() == [(2**63 - 1) % n]
    assert ids_at(Sequential(2**62), np.array([0, 2**63 - 1])).tolist() == [0, 2**62 - 1]


def test_the_answer_is_new() -> None:
    """It shares no memory with the question."""
    positions = np.arange(5, dtype=np.int64)
    assert not np.shares_memory(ids_at(Sequential(10), positions), positions)


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ([1, 2], "positions must be an int64 array"),
        (np.array([1.0]), "found float64"),
        (np.array([[1]]), "shape"),
        (np.array([3, -1]), "positions must be at least 0; found -1"),
    ],
)
def test_wrong_positions_are_refused(positions: Int64Array, message: str) -> None:
    """Other types and negative positions are refused."""
    with pytest.raises(UsageError, match=message):
        ids_at(Sequential(5), positions)
