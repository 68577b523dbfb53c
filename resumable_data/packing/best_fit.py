"""Best fit, longest first, over a histogram of lengths: a step of Python places all equal pieces that fit alike.

The rule, one piece at a time: the longest piece that is left (of equal ones the first given) goes into the row whose
free space is the smallest that holds it; of rows with equal space into the one that came to have it first; into a
new row when none holds it. When ``c`` pieces of length ``l`` are left and ``k`` rows wait with the tightest space
``s``, that rule puts ``s // l`` of them into each of these rows, one row after another: no piece needs to be looked
at by itself. A step places ``each`` pieces into each of ``rows`` rows, numbered from ``first`` on.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from resumable_data.order import Int64Array
from resumable_data.packing.pieces import stable_order


class Steps(NamedTuple):
    """What was done, step by step: three lists of one length, and the number of rows."""

    each: list[int]
    first: list[int]
    rows: list[int]
    num_rows: int


def best_fit(lengths: Int64Array, row_length: int) -> tuple[Int64Array, Int64Array, int]:
    """Place pieces into rows.

    Args:
        lengths: ``(m,)`` int64, each from 1 to ``row_length``.
        row_length: tokens of a row.

    Returns:
        ``(m,)`` int64 indices of the pieces in the order in which they are placed; the ``(m,)`` int64 row of each
        of these; the number of rows, which are numbered in the order in which they are opened.
    """
    if not lengths.size:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0
    sequence = stable_order(row_length - lengths, row_length)
    histogram = np.bincount(lengths)
    distinct = np.flatnonzero(histogram)[::-1]
    steps = _place(distinct.tolist(), histogram[distinct].tolist(), row_length)
    return sequence, _row_of_each_piece(steps), steps.num_rows


def _place(lengths: list[int], counts: list[int], row_length: int) -> Steps:
    """Place ``counts[i]`` pieces of ``lengths[i]``, which descend."""
    each_done: list[int] = []
    first_done: list[int] = []
    rows_done: list[int] = []
    waiting: dict[int, list[tuple[int, int]]] = {}  # free space -> runs of rows that have it, (first, number)
    is_waiting = bytearray(row_length + 1)  # free space -> whether any row has it; searched by memchr
    find = is_waiting.find
    end = 0  # no row that waits has this much space or more
    num_rows = 0
    shortest = lengths[-1]
    for length, count in zip(lengths, counts, strict=True):
        while count:
            space = find(1, length, end)
            if space < 0:
                end = length
                space, first, number, queue = row_length, num_rows, count, None
            else:
                queue = waiting[space]
                first, number = queue[0]
            each = space // length
            if each > count:
                each, rows = count, 1
            else:
                rows = count // each
                rows = number if rows > number else rows
            if queue is None:
                num_rows += rows
            elif rows < number:
                queue[0] = (first + rows, number - rows)
            else:
                del queue[0]
                if not queue:
                    is_waiting[space] = 0
            count -= each * rows
            each_done.append(each)
            first_done.append(first)
            rows_done.append(rows)
            space -= each * length
            if space >= shortest:  # less is of no use to any piece that is left
                if is_waiting[space]:
                    waiting[space].append((first, rows))
                else:
                    waiting[space] = [(first, rows)]
                    is_waiting[space] = 1
                    end = space + 1 if space >= end else end
    return Steps(each_done, first_done, rows_done, num_rows)


def _row_of_each_piece(steps: Steps) -> Int64Array:
    """``(m,)`` int64, in the order in which the pieces are placed."""
    each, first, rows = (np.array(column, dtype=np.int64) for column in steps[:3])
    before = np.cumsum(rows) - rows  # rows that earlier steps touched
    row = np.repeat(first - before, rows)
    row += np.arange(row.size)
    return np.repeat(row, np.repeat(each, rows))
