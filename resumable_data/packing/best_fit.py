"""Best fit, longest first, over a histogram of lengths: a step of Python places all equal pieces that fit alike.

The rule, one piece at a time: the longest piece that is left (of equal ones the first given) goes into the row whose
free space is the smallest that holds it; of rows with equal space into the one that came to have it first; into a
new row when none holds it. When ``c`` pieces of length ``l`` are left and ``k`` rows wait with the tightest space
``s``, that rule puts ``s // l`` of them into each of these rows, one row after another: no piece needs to be looked
at by itself. A step places ``each`` pieces into each of the rows ``[first, stop)``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from resumable_data.order import Int64Array
from resumable_data.packing.pieces import stable_order


class Steps(NamedTuple):
    """What was done, step by step: three lists of one length, and the number of rows at the end."""

    each: list[int]
    first: list[int]
    stop: list[int]
    num_rows: int


def best_fit(lengths: Int64Array, row_length: int) -> tuple[Int64Array, Int64Array, int]:
    """Place pieces into rows.

    Args:
        lengths: ``(m,)`` int64, each from 0 to ``row_length - 1``; those of 0 are left out.
        row_length: tokens of a row.

    Returns:
        ``(k,)`` int64 indices of the pieces in the order in which they are placed; the ``(k,)`` int64 row of each
        of these; the number of rows, which are numbered in the order in which they are opened.
    """
    histogram = np.bincount(lengths, minlength=1)
    num_pieces = lengths.size - int(histogram[0])
    if not num_pieces:
        return np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int64), 0
    sequence = stable_order(row_length - lengths, row_length + 1)[:num_pieces]
    distinct = np.flatnonzero(histogram[1:])[::-1] + 1
    steps = _place(distinct, histogram[distinct], row_length)
    return sequence, _row_of_each_piece(steps), steps.num_rows


def _place(lengths: Int64Array, counts: Int64Array, row_length: int) -> Steps:
    """Place ``counts[i]`` pieces of ``lengths[i]``, which descend.

    The rows that wait with equal space are a queue of steps: their head is ``head[space]``, and ``following`` leads
    on until ``tail[space]``. Flat lists of integers, because this loop is what packing costs: tuples and deques in
    their place make it half as fast again.
    """
    # No two pieces longer than half a row share one: each such length is a step that opens rows, and all of them wait
    # with different spaces.
    num_long = int(np.count_nonzero(2 * lengths > row_length))
    spaces = row_length - lengths[:num_long]
    ends = counts[:num_long].cumsum()
    shortest = int(lengths[-1])
    each_done = [1] * num_long
    first_done: list[int] = (ends - counts[:num_long]).tolist()
    stop_done: list[int] = ends.tolist()
    upcoming = first_done.copy()  # of each step, the first of its rows that waits still
    following = [0] * num_long
    waits = np.zeros(row_length + 1, np.uint8)
    waits[spaces[spaces >= shortest]] = 1  # less is of no use to any piece that is left
    is_waiting = bytearray(waits)  # free space -> whether any row has it; find() is a memchr
    step_of = np.zeros(row_length + 1, np.int64)
    step_of[spaces] = np.arange(num_long)
    head: list[int] = step_of.tolist()
    tail = head.copy()
    end = int(spaces[-1]) + 1 if num_long else 0  # no row that waits has this much space or more
    num_rows = stop_done[-1] if num_long else 0
    for length, count in zip(lengths[num_long:].tolist(), counts[num_long:].tolist(), strict=True):
        while count:
            space = is_waiting.find(1, length, end)
            is_new = space < 0
            if is_new:
                end = length
                space, first, limit = row_length, num_rows, num_rows + count
            else:
                step = head[space]
                first, limit = upcoming[step], stop_done[step]
            each = space // length
            if each > count:
                each, stop = count, first + 1
            else:
                stop = first + count // each
                stop = limit if stop > limit else stop
            count -= each * (stop - first)
            if is_new:
                num_rows = stop
            elif stop < limit:
                upcoming[step] = stop
            elif step == tail[space]:
                is_waiting[space] = 0
            else:
                head[space] = following[step]
            space -= each * length
            if space >= shortest:
                step = len(each_done)
                if is_waiting[space]:
                    following[tail[space]] = step
                else:
                    head[space] = step
                    is_waiting[space] = 1
                    end = space + 1 if space >= end else end
                tail[space] = step
            each_done.append(each)
            first_done.append(first)
            stop_done.append(stop)
            upcoming.append(first)
            following.append(0)
    return Steps(each_done, first_done, stop_done, num_rows)


def _row_of_each_piece(steps: Steps) -> Int64Array:
    """``(k,)`` int64, in the order in which the pieces are placed."""
    each, first, stop = (np.fromiter(column, np.int64, len(column)) for column in steps[:3])
    rows = stop - first
    row = np.repeat(stop - np.cumsum(rows), rows)
    row += np.arange(row.size)
    return np.repeat(row, np.repeat(each, rows))
