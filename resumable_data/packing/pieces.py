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

    def take(self, which: Int64Array) -> Pieces:
        """Some of them, in this order."""
        return Pieces(self.document.take(which), self.start.take(which), self.stop.take(which))


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


def in_rows(pieces: Pieces, edges: Int64Array, row_length: int) -> PackedRows:
    """Pieces that already lie in the order of their rows."""
    return PackedRows(row_length, *pieces, edges)


def row_edges(row: npt.NDArray[np.integer], num_rows: int) -> Int64Array:
    """``(num_rows + 1,)`` int64: where the pieces of each row begin, once they are sorted by ``row: (m,)``."""
    return running_sum(np.bincount(row, minlength=num_rows))


def stable_order(values: npt.NDArray[np.integer], bound: int) -> Int64Array:
    """The stable ascending order of ``(k,)`` integers in ``[0, bound)``, 16 bits at a time.

    A stable order is one order: whatever instructions a processor has for sorting, the answer is the same.
    """
    order: Int64Array = np.argsort(values.astype(np.uint16), kind="stable")  # the low 16 bits
    for shift in range(_RADIX_BITS, max(bound - 1, 0).bit_length(), _RADIX_BITS):
        digits = (values >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order
