"""Packing, compared with the oracle that places one document at a time."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resumable_data import BestFit, Concat, Fill, NoPacking, Shuffle
from resumable_data.packing import Carry, PackedRows, Policy, WindowPlan
from tests import packing_oracle as oracle
from tests.packing_oracle import rows_of

ROW_LENGTHS = st.one_of(st.integers(1, 12), st.sampled_from([64, 100]))
LENGTHS = st.one_of(
    st.lists(st.integers(0, 12), max_size=60),
    st.lists(st.integers(0, 300), max_size=25),
    st.lists(st.sampled_from([4, 6, 30, 37, 60, 64]), max_size=60),
)
TRUNCATE = st.booleans()


def array(values: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, dtype=np.int64)


def assert_complete(packed: PackedRows, lengths: list[int], row_length: int) -> None:
    """Every token that was not left out is in one row; no row is longer than asked for; the counts are right."""
    tokens = Counter(
        (document, token) for row in rows_of(packed) for document, start, stop in row for token in range(start, stop)
    )
    assert set(tokens.values()) <= {1}
    if packed.num_truncated_tokens:
        lengths = [min(length, row_length) for length in lengths]
    assert set(tokens) == {(document, token) for document, length in enumerate(lengths) for token in range(length)}
    sizes = [oracle.size(row) for row in rows_of(packed)]
    assert all(0 < size <= row_length for size in sizes)
    assert packed.tokens_per_row().tolist() == sizes
    assert packed.num_tokens == sum(sizes)
    assert packed.num_padding == len(packed) * row_length - sum(sizes)


@given(lengths=LENGTHS, row_length=ROW_LENGTHS, truncate=TRUNCATE)
def test_best_fit(lengths: list[int], row_length: int, truncate: bool) -> None:
    """The rows are those of best fit one document at a time, row for row and piece for piece."""
    packed = BestFit(truncate).pack(array(lengths), row_length)
    assert rows_of(packed) == oracle.best_fit(lengths, row_length, truncate=truncate)
    assert_complete(packed, lengths, row_length)
    packed.check(array(lengths))


@given(lengths=LENGTHS, row_length=ROW_LENGTHS, percent=st.integers(1, 100))
def test_fill(lengths: list[int], row_length: int, percent: int) -> None:
    """Rows below the threshold are dissolved, all others are those of best fit."""
    packed = Fill(percent / 100).pack(array(lengths), row_length)
    assert rows_of(packed) == oracle.fill(lengths, row_length, percent=percent)
    assert_complete(packed, lengths, row_length)
    packed.check(array(lengths))
    assert all(100 * size >= percent * row_length for size in packed.tokens_per_row()[:-1].tolist())


@given(lengths=LENGTHS, row_length=ROW_LENGTHS)
def test_concat(lengths: list[int], row_length: int) -> None:
    """All rows are full but the last."""
    packed = Concat().pack(array(lengths), row_length)
    assert rows_of(packed) == oracle.concat(lengths, row_length)
    assert_complete(packed, lengths, row_length)
    packed.check(array(lengths))


@given(lengths=LENGTHS, row_length=ROW_LENGTHS, truncate=TRUNCATE)
def test_no_packing(lengths: list[int], row_length: int, truncate: bool) -> None:
    """Each document, or full row of one, is a row."""
    packed = NoPacking(truncate).pack(array(lengths), row_length)
    assert rows_of(packed) == oracle.no_packing(lengths, row_length, truncate=truncate)
    assert_complete(packed, lengths, row_length)
    packed.check(array(lengths))


@given(lengths=LENGTHS, row_length=ROW_LENGTHS, cuts=st.lists(st.integers(0, 60), max_size=4))
def test_concat_goes_on_from_any_carry(lengths: list[int], row_length: int, cuts: list[int]) -> None:
    """Cut anywhere into windows, each of which knows only two integers of those before, the rows are the same."""
    expected = oracle.concat(lengths, row_length)
    carry = Carry(0, 0)
    rows = []
    for stop in sorted({min(cut, len(lengths)) for cut in cuts}):
        part = array(lengths[carry.document : stop])
        placed, rest = Concat().place_full(part, row_length, consumed=carry.offset)
        packed = placed.rows(row_length)
        assert packed.fill == 1
        rows += rows_of(packed.of_documents(np.arange(carry.document, max(stop, carry.document))))
        carry = Carry(carry.document + rest.document, rest.offset)
    packed = Concat().place(array(lengths[carry.document :]), row_length, consumed=carry.offset).rows(row_length)
    packed.check(array(lengths[carry.document :]), consumed=carry.offset)
    rows += rows_of(packed.of_documents(np.arange(carry.document, len(lengths))))
    assert rows == expected


@given(
    lengths=LENGTHS.filter(bool),
    row_length=ROW_LENGTHS,
    window=st.integers(1, 30),
    seed=st.integers(0, 2**63 - 1),
    policy=st.sampled_from([BestFit(), Fill(), Concat(), NoPacking()]),
)
def test_windows(lengths: list[int], row_length: int, window: int, seed: int, policy: Policy) -> None:
    """A window's rows are those of its documents in another order; with Concat those of the whole epoch."""
    order = Shuffle(len(lengths), seed=seed % 7)
    plan = WindowPlan(order, array(lengths).take, policy, row_length=row_length, window=window, seed=seed)
    documents = order.ids(3, np.arange(len(lengths)))
    concatenated = Concat().pack(array(lengths)[documents], row_length).of_documents(documents)
    expected = rows_of(concatenated)
    carry = None
    num_rows = 0
    for number in range(plan.num_windows):
        planned = plan.plan(3, number, carry)
        carry = planned.carry
        assert plan.carry_into(3, number + 1) == carry
        if isinstance(policy, Concat):
            alone = expected[num_rows : num_rows + len(planned.rows)]
            num_rows += len(planned.rows)
        else:
            part = documents[number * window : (number + 1) * window]
            alone = rows_of(policy.pack(array(lengths)[part], row_length).of_documents(part))
        assert sorted(rows_of(planned.rows)) == sorted(alone)
    assert carry == (len(lengths), 0)
    if isinstance(policy, Concat):
        assert num_rows == len(expected)
