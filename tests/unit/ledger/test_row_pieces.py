"""Pieces of packed rows as a ledger holds them, against an oracle that reads and writes number by number."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.ledger.row_ids import row_ids
from resumable_data.ledger.row_pieces import BadPiecesError, RowPieces, decode_pieces, encode_pieces, row_bytes_max
from tests.examples import examples
from tests.packed_run_oracle import row_id
from tests.pieces_oracle import Rows, decode, encode

NUMBERS = st.one_of(st.just(0), st.integers(0, 300), st.integers(0, 1 << 33), st.integers(0, (1 << 60) - 1))
TOKENS = st.one_of(st.just(1), st.integers(1, 300), st.integers(1, 1 << 40))
PIECES = st.tuples(NUMBERS, NUMBERS, TOKENS).map(lambda p: (p[0], p[1], p[1] + p[2]))
ROWS = st.lists(st.lists(PIECES, min_size=1, max_size=5), max_size=4)


def as_pieces(rows: Rows) -> RowPieces:
    columns = np.array([piece for row in rows for piece in row], np.int64).reshape(-1, 3).T
    return RowPieces(np.cumsum([0, *map(len, rows)]), *(column.copy() for column in columns))


def as_lists(pieces: RowPieces) -> Rows:
    return [pieces.of_row(row) for row in range(len(pieces))]


def test_the_example_of_the_documentation() -> None:
    """Two rows, byte by byte."""
    rows = [[(3, 0, 5), (300, 256, 259)], [(7, 0, 8)]]
    data = bytes.fromhex("21 12 01 00 0300 2c01 0700 0000 0001 0000 04 02 07")
    assert encode_pieces(as_pieces(rows)) == encode(rows) == data
    assert as_lists(decode_pieces([data], np.array([2]))) == rows


@examples(150, quick=50)
@given(records=st.lists(ROWS, max_size=6))
def test_bytes_are_those_of_the_oracle_and_lead_back(records: list[Rows]) -> None:
    """Records of any numbers, some of them as wide as others: the same rows in the same order, with their IDs."""
    data = [encode_pieces(as_pieces(rows)) for rows in records]
    assert data == [encode(rows) for rows in records]
    together = decode_pieces(data, np.array([len(rows) for rows in records], np.int64))
    wanted = [row for rows in records for row in rows]
    assert as_lists(together) == wanted
    if all(max(piece) < 1 << 62 for row in wanted for piece in row):
        assert row_ids(together).tolist() == [row_id(row) for row in wanted]


@given(
    rows=ROWS.filter(bool),
    extra=st.tuples(*[st.integers(0, 8)] * 4),
    which=st.lists(st.integers(0, 3), max_size=6),
)
def test_wider_numbers_are_read_too(rows: Rows, extra: tuple[int, ...], which: list[int]) -> None:
    """A writer may take more bytes than the fewest; and any rows of what was read can be taken."""
    head = encode(rows)
    fewest = (head[0] % 16, head[0] // 16, head[1] % 16, head[1] // 16)
    widths = tuple(min(8, own + more) for own, more in zip(fewest, extra, strict=True))
    pieces = decode_pieces([encode(rows, widths=widths)], np.array([len(rows)]))  # type: ignore[arg-type]
    assert as_lists(pieces) == rows
    chosen = [number % len(rows) for number in which]
    assert as_lists(pieces.take(np.array(chosen, np.int64))) == [rows[number] for number in chosen]


@examples(150, quick=50)
@given(rows=ROWS, count=st.none() | st.integers(0, 9) | st.just(1 << 40), seed=st.integers(0, 1 << 32))
def test_any_bytes_are_read_as_the_oracle_reads_them_or_refused(rows: Rows, count: int | None, seed: int) -> None:
    """Bytes changed, cut, or random, and other numbers of rows; beside a good record, which is not the one blamed."""
    rng = random.Random(seed)
    data = bytearray(encode(rows) if rng.random() < 0.9 else rng.randbytes(rng.randrange(40)))
    for _ in range(rng.randrange(3)):
        at = rng.choice([0, 1, rng.randrange(len(data) + 1)])
        if at < len(data):
            data[at] = rng.choice([0, 1, 0x18, 0x88, 255, rng.randrange(256)])
        if rng.random() < 0.3:
            del data[rng.randrange(len(data) + 1) :]
    num_rows = len(rows) if count is None else count
    wanted, good = decode(bytes(data), num_rows), [[(1, 2, 3)]]
    records, counts = [encode(good), bytes(data)], np.array([1, num_rows])
    if wanted is not None:
        assert as_lists(decode_pieces(records, counts)) == good + wanted
        return
    with pytest.raises(BadPiecesError) as caught:
        decode_pieces(records, counts)
    assert caught.value.record == 1


@pytest.mark.parametrize("head", ["1800", "0100", "8888", "1101", "1010"])
def test_numbers_alone_allocate_nothing(head: str) -> None:
    """A few bytes that speak of 2^40 rows, or of 2^64 pieces in one, are refused for the price of their bytes."""
    data = bytes.fromhex(head) + b"\xff" * 64
    tracemalloc.start()
    try:
        for count in (1, 8, 1 << 40):
            with pytest.raises(BadPiecesError):
                decode_pieces([data], np.array([count]))
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_no_row_takes_more_than_it_is_said() -> None:
    """The limit of a file's records holds the largest rows of the largest numbers."""
    rows = [[(2**60 - 1, 2**60 - 2, 2**60 - 1)] * 7]
    assert len(encode(rows, widths=(8, 8, 8, 8))) - 2 <= row_bytes_max(7)
