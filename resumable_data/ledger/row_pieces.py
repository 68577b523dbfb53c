"""Pieces of packed rows as a ledger holds them: a few columns of numbers, each in the fewest bytes.

The pieces of the k rows of a record, m pieces in all::

    byte 0   low 4 bits    C, bytes of each number in the first column
             high 4 bits   D, of the second, at least 1
         1   low 4 bits    S, of the third
             high 4 bits   T, of the fourth
         2   k * C bytes   pieces of each row, less one
             m * D bytes   document of each piece, row after row, in the order in which they lie in their row
             m * S bytes   its first token, counted from 0
             m * T bytes   its number of tokens, less one

Numbers are little-endian, in 0 to 8 bytes; 0 bytes stand for 0. A piece takes a byte at least, so that no record holds
more pieces than bytes.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from resumable_data.order import Int64Array

_HEAD_BYTES = 2
_WIDTH_MAX = 8
_NUMBER_MAX = 1 << 60  # of documents and tokens: sums of a few still fit int64
_PIECE_TOKENS_MAX = 1 << 40
_NUMPY_WIDTHS = (1, 2, 4, 8)


class Pieces(Protocol):
    """Rows of pieces, one after another: `RowPieces`, or packed rows."""

    @property
    def edges(self) -> Int64Array:
        """``(num_rows + 1,)``: the pieces ``[edges[i], edges[i + 1])`` are row i's."""
        ...

    @property
    def document(self) -> Int64Array:
        """``(m,)``, whose piece it is."""
        ...

    @property
    def start(self) -> Int64Array:
        """``(m,)``, first token of the piece in its document."""
        ...

    @property
    def stop(self) -> Int64Array:
        """``(m,)``, the token after its last."""
        ...


@dataclass(frozen=True, eq=False)
class RowPieces:
    """Rows of pieces; for the fields see `Pieces`."""

    edges: Int64Array
    document: Int64Array
    start: Int64Array
    stop: Int64Array

    def __len__(self) -> int:
        """Number of rows."""
        return self.edges.size - 1

    @classmethod
    def of_first(cls, rows: Pieces, num_rows: int) -> RowPieces:
        """The first so many of some rows."""
        stop = int(rows.edges[num_rows])
        return cls(rows.edges[: num_rows + 1], rows.document[:stop], rows.start[:stop], rows.stop[:stop])

    @classmethod
    def of_all(cls, parts: Sequence[RowPieces]) -> RowPieces:
        """The rows of some parts, one after another."""
        if len(parts) == 1:
            return parts[0]
        sizes = _concatenate([np.diff(part.edges) for part in parts])
        columns = [_concatenate([getattr(part, name) for part in parts]) for name in ("document", "start", "stop")]
        return cls(_running_sum(sizes), *columns)

    def take(self, rows: Int64Array) -> RowPieces:
        """These rows, in this order: ``(k,)`` int64 in ``[0, num_rows)``."""
        sizes = np.diff(self.edges)[rows]
        edges = _running_sum(sizes)
        pieces = np.repeat(self.edges[rows] - edges[:-1], sizes)
        pieces += np.arange(pieces.size)
        return RowPieces(edges, self.document[pieces], self.start[pieces], self.stop[pieces])

    def of_row(self, row: int) -> list[tuple[int, int, int]]:
        """``(document, start, stop)`` of each piece of a row, in the order in which they lie in it."""
        these = slice(int(self.edges[row]), int(self.edges[row + 1]))
        columns = (self.document[these], self.start[these], self.stop[these])
        return list(zip(*(column.tolist() for column in columns), strict=True))


class BadPiecesError(ValueError):
    """Bytes that are no pieces; `record` is the number of the record that holds them."""

    def __init__(self, record: int, found: str) -> None:
        super().__init__(found)
        self.record = record


def row_bytes_max(row_length: int) -> int:
    """Bytes that the pieces of one row take at most: each has a token of the row's `row_length`."""
    return _WIDTH_MAX * (1 + 3 * row_length)


def encode_pieces(rows: Pieces) -> bytes:
    """The bytes of some rows' pieces."""
    edges, document, start = rows.edges, rows.document, rows.start
    columns = (edges[1:] - edges[:-1] - 1, document, start, rows.stop - start - 1)
    of_count, of_document, of_start, of_tokens = (_width(column) for column in columns)
    widths = (of_count, max(of_document, 1), of_start, of_tokens)
    head = bytes((widths[0] | widths[1] << 4, widths[2] | widths[3] << 4))
    return head + b"".join([_narrow(column, width) for column, width in zip(columns, widths, strict=True)])


def decode_pieces(records: Sequence[bytes], count: Int64Array) -> RowPieces:
    """The rows of some records, one after another.

    Args:
        records: What `encode_pieces` gave, of each.
        count: ``(k,)`` int64, the rows of each.

    Raises:
        BadPiecesError: One of them holds something else.
    """
    alike: defaultdict[bytes, list[int]] = defaultdict(list)  # records whose columns are as wide are read at once
    for number, record in enumerate(records):
        alike[record[:_HEAD_BYTES]].append(number)
    parts = [
        _decode_alike(head, [records[number] for number in numbers], count[numbers], numbers)
        for head, numbers in alike.items()
    ]
    together = RowPieces.of_all(parts)
    if len(parts) < 2:
        return together
    arrangement = np.array([number for numbers in alike.values() for number in numbers])  # of records in `together`
    return together.take(np.argsort(np.repeat(arrangement, count[arrangement]), kind="stable"))


def _decode_alike(head: bytes, records: list[bytes], count: Int64Array, numbers: list[int]) -> RowPieces:
    """The rows of records with one head; `numbers` are theirs, for errors."""
    size = np.fromiter(map(len, records), np.int64, len(records))
    widths = [half for byte in head for half in (byte & 15, byte >> 4)]
    if len(widths) != 4 or max(widths) > _WIDTH_MAX or not widths[1]:
        raise BadPiecesError(numbers[0], f"a head of {head.hex() or 'no bytes'}")
    of_count, *of_piece = widths
    begin = _HEAD_BYTES + count * of_count
    _require(begin + count * sum(of_piece) <= size, numbers, "too few bytes for its rows")
    owner = np.repeat(np.arange(count.size), count)
    of_row = _column(records, np.full_like(begin, _HEAD_BYTES), begin, of_count, owner.size)
    _require_all((of_row >= 0) & (of_row < size.max()), owner, numbers, "a row of more pieces than bytes")
    num_pieces = np.bincount(owner, weights=of_row + 1, minlength=count.size).astype(np.int64)
    _require(begin + num_pieces * sum(of_piece) == size, numbers, "another number of bytes than its pieces take")
    owner = np.repeat(np.arange(count.size), num_pieces)
    columns = []
    for width, most in zip(of_piece, (_NUMBER_MAX, _NUMBER_MAX, _PIECE_TOKENS_MAX), strict=True):
        stop = begin + num_pieces * width
        column = _column(records, begin, stop, width, owner.size)
        _require_all((column >= 0) & (column < most), owner, numbers, "a number beyond those of any documents")
        columns.append(column)
        begin = stop
    document, start, tokens = columns
    return RowPieces(_running_sum(of_row + 1), document, start, start + tokens + 1)


def _require(holds: NDArray[np.bool_], numbers: list[int], found: str) -> None:
    if not holds.all():
        raise BadPiecesError(numbers[int(np.argmin(holds))], found)


def _require_all(holds: NDArray[np.bool_], owner: Int64Array, numbers: list[int], found: str) -> None:
    """Likewise, of what several of the records hold."""
    if not holds.all():
        raise BadPiecesError(numbers[int(owner[np.argmin(holds)])], found)


def _width(column: Int64Array) -> int:
    """The fewest bytes that hold each number."""
    return (int(column.max()).bit_length() + 7) // 8 if column.size else 0


def _narrow(column: Int64Array, width: int) -> bytes:
    """Numbers in the low `width` bytes of each."""
    if width in _NUMPY_WIDTHS:
        return column.astype(f"<u{width}").tobytes()
    return column.astype("<i8").view(np.uint8).reshape(-1, 8)[:, :width].tobytes()


def _column(records: list[bytes], begin: Int64Array, stop: Int64Array, width: int, num_numbers: int) -> Int64Array:
    """The numbers of `width` bytes in ``[begin, stop)`` of each record; those of 2^63 and more come out negative."""
    slices = zip(records, begin.tolist(), stop.tolist(), strict=True)
    data = b"".join([record[low:high] for record, low, high in slices])
    wide = np.zeros((num_numbers, 8), np.uint8)
    wide[:, :width] = np.frombuffer(data, np.uint8).reshape(num_numbers, width)
    numbers: Int64Array = wide.view("<i8")[:, 0].astype(np.int64, copy=False)
    return numbers


def _concatenate(parts: list[Int64Array]) -> Int64Array:
    return np.concatenate([np.empty(0, np.int64), *parts])


def _running_sum(sizes: Int64Array) -> Int64Array:
    """``(k,)`` sizes to the ``(k + 1,)`` edges between them, from 0 on."""
    edges = np.zeros(sizes.size + 1, np.int64)
    sizes.cumsum(out=edges[1:])
    return edges
