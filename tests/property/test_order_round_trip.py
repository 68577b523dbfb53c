"""Orders over all lengths, seeds, names, epochs and questions."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.order import Order, Sequential, Shuffle, ids_at, order_from_description
from tests.texts import texts

LENGTHS = st.one_of(
    st.integers(1, 100),
    st.integers(1, 2**62),
    st.builds(lambda k, d: max(1, min(2**62, 2**k + d)), st.integers(0, 62), st.integers(-2, 2)),
)
NAMES = texts(max_size=60)
ORDERS = st.one_of(
    st.builds(Sequential, LENGTHS), st.builds(Shuffle, LENGTHS, seed=st.integers(0, 2**63 - 1), name=NAMES)
)


@given(order=ORDERS, epoch=st.integers(0, 2**63 - 1), data=st.data())
def test_ids_and_offsets_undo_each_other(order: Order, epoch: int, data: st.DataObject) -> None:
    """For any values in any arrangement, repeats included, both ways round."""
    n = len(order)
    drawn = data.draw(st.lists(st.integers(0, n - 1), max_size=40))
    values = np.array(drawn, dtype=np.int64)
    ids = order.ids(epoch, values)
    assert ids.dtype == np.int64
    assert ids.shape == values.shape
    assert np.array_equal(order.offsets(epoch, ids), values)
    assert np.array_equal(order.ids(epoch, order.offsets(epoch, values)), values)
    assert len(set(ids.tolist())) == len(set(drawn))
    assert all(0 <= value < n for value in ids.tolist())


@given(order=ORDERS, epoch=st.integers(0, 2**63 - 1), data=st.data())
def test_the_parts_of_a_question_have_the_parts_of_the_answer(order: Order, epoch: int, data: st.DataObject) -> None:
    """A question cut anywhere, and asked of a rebuilt order, has the same answer."""
    n = len(order)
    start = data.draw(st.integers(0, n - 1))
    offsets = np.arange(start, min(n, start + 60), dtype=np.int64)
    cut = data.draw(st.integers(0, offsets.size))
    rebuilt = order_from_description(order.describe())
    parts = [rebuilt.ids(epoch, offsets[:cut]), rebuilt.ids(epoch, offsets[cut:])]
    assert np.array_equal(np.concatenate(parts), order.ids(epoch, offsets))


@given(n=st.integers(1, 50), seed=st.integers(0, 9), positions=st.lists(st.integers(0, 300), max_size=60))
def test_ids_at_is_one_position_at_a_time(n: int, seed: int, positions: list[int]) -> None:
    """Over any epochs, in any arrangement."""
    order = Shuffle(n, seed=seed)
    expected = [int(order.ids(p // n, np.array([p % n], dtype=np.int64))[0]) for p in positions]
    assert ids_at(order, np.array(positions, dtype=np.int64)).tolist() == expected
