"""Pieces of documents: cut to the length of a row, cut as one long text, put together row by row."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from resumable_data.order import Int64Array
from resumable_data.packing.rows import PackedRows, running_sum

_RADIX_BITS = 16
"""numpy sorts unsigned integers of 16 bits by their digits, in linear time, where it is asked for a stable sort."""


class Pieces(NamedTuple):
    """Token ranges of documents: three ``(m,)`` int64 arrays."""

    document: Int64Array
    start: Int64Array
    stop: Int64Array

    @classmethod
    def empty(cls, size: int) -> Pieces:
        """Room for so many.

        In one block: what is larger than any array in between stays with the allocator when it is let go of. Three
        blocks go back to the system, and it takes longer to get them again than to fill them.
        """
        return cls(*np.empty((3, size), np.int64))

    def take(self, which: Int64Array) -> Pieces:
        """Some of them, in this order; all of ``which`` must be there."""
        taken = Pieces.empty(which.size)
        for column, out in zip(self, taken, strict=True):
            column.take(which, out=out, mode="clip")  # any other mode makes a copy first
        return taken


def split(lengths: Int64Array, row_length: int) -> Pieces:
    """Cut each document into full rows and a rest; what fits into a row stays whole, an empty one gives nothing.

    Returns:
        The pieces, by document and then by start.
    """
    num_parts = -(-lengths // row_length)  # (k,)
    document = np.repeat(np.arange(lengths.size), num_parts)
    if document.size == np.count_nonzero(lengths):
        return Pieces(document, np.zeros_like(document), lengths[document])
    start = np.arange(document.size) - running_sum(num_parts)[document]
    start *= row_length
    return Pieces(document, start, np.minimum(start + row_length, lengths[document]))


def split_off_full(lengths: Int64Array, row_length: int) -> tuple[Pieces, Int64Array]:
    """Cut full rows off the front of each document.

    Returns:
        The full pieces, by document and then by start, and the ``(k,)`` int64 tokens that are left of each document,
        fewer than a row.
    """
    num_full = lengths // row_length  # (k,)
    rests = lengths - num_full * row_length
    which = np.flatnonzero(num_full)
    counts = num_full.take(which)
    document = np.repeat(which, counts)
    start = np.arange(document.size) - np.repeat(running_sum(counts)[:-1], counts)
    start *= row_length
    return Pieces(document, start, start + row_length), rests


def chunk(lengths: Int64Array, row_length: int, num_rows: int) -> tuple[Pieces, Int64Array]:
    """Lay documents end to end and cut the whole into rows.

    Args:
        lengths: ``(k,)`` int64.
        row_length: tokens of each row but the last.
        num_rows: rows that are wanted; the documents must reach into the last one. What lies behind is left out.

    Returns:
        The pieces in order, and the ``(m,)`` int64 row of each.
    """
    edges = np.minimum(running_sum(lengths), num_rows * row_length)  # (k + 1,)
    begin, end = edges[:-1], edges[1:]
    first_row = begin // row_length
    num_parts = np.where(end > begin, (end - 1) // row_length - first_row + 1, 0)
    document = np.repeat(np.arange(lengths.size), num_parts)
    row = np.arange(document.size) - running_sum(num_parts)[document] + first_row[document]
    origin = begin[document]
    start = np.maximum(row * row_length, origin) - origin
    stop = np.minimum((row + 1) * row_length, end[document]) - origin
    return Pieces(document, start, stop), row


class Placement(NamedTuple):
    """Pieces and the row of each, before they are put together.

    Args:
        pieces: of all rows, in the order in which they were placed.
        row: ``(m,)`` int64, the row of each piece. Of two pieces of one row, the first lies first.
        num_rows: number of rows, each of which has a piece.
        truncated: number of documents whose end was left out, and of tokens left out of them.
    """

    pieces: Pieces
    row: Int64Array
    num_rows: int
    truncated: tuple[int, int] = (0, 0)

    @classmethod
    def of_rows(cls, rows: PackedRows) -> Placement:
        """What was put together already."""
        row = np.repeat(np.arange(len(rows)), np.diff(rows.edges))
        truncated = (rows.num_truncated_documents, rows.num_truncated_tokens)
        return cls(Pieces(rows.document, rows.start, rows.stop), row, len(rows), truncated)

    def rows(self, row_length: int, places: Int64Array | None = None) -> PackedRows:
        """Put the rows together.

        Args:
            row_length: tokens of a full row.
            places: ``(num_rows,)`` int64, the place of each row among all; None for the order of their numbers.
        """
        row = self.row if places is None else places.take(self.row)
        pieces = self.pieces.take(stable_order(row, self.num_rows))
        edges = running_sum(np.bincount(row, minlength=self.num_rows))
        return PackedRows(row_length, *pieces, edges, *self.truncated)


def stable_order(values: npt.NDArray[np.integer], bound: int) -> Int64Array:
    """The stable ascending order of ``(k,)`` integers in ``[0, bound)``, 16 bits at a time.

    A stable order is one order: whatever instructions a processor has for sorting, the answer is the same.
    """
    order: Int64Array = np.argsort(values.astype(np.uint16), kind="stable")  # the low 16 bits
    for shift in range(_RADIX_BITS, max(bound - 1, 0).bit_length(), _RADIX_BITS):
        digits = (values >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order
