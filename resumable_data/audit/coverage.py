"""How often each position of the surviving history was delivered.

The shares of an update's microbatches are, taken together, its rows, each once; `check_partition` makes sure of
it. So every position was delivered once, but for the rows by which ranks differ from their shares: only those
need counting, in windows of positions, with memory that does not depend on their number.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.audit.rows import expand
from resumable_data.audit.updates import Spans, num_microbatches, shares

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.rank_result import Change

    Vector = NDArray[np.int64]

WINDOW_POSITIONS = 1 << 18
_CHECKED_MAX = 1 << 20


class Multiplicity(NamedTuple):
    """Positions delivered more than once (each repeat counts), and never."""

    replayed: int
    omitted: int


def count_multiplicity(changes: Sequence[Change], branches: Sequence[Branch]) -> Multiplicity:
    """Replayed and omitted positions, given the rows by which deliveries differ from the shares of `branches`."""
    if not changes:
        return Multiplicity(0, 0)
    start = np.concatenate([change.start for change in changes])
    stride = np.concatenate([change.stride for change in changes])
    left = np.concatenate([change.count for change in changes])
    sign = np.concatenate([np.full(change.start.size, change.sign, np.int64) for change in changes])
    arrangement = np.argsort(start, kind="stable")
    next_row, stride, left, sign = (column[arrangement] for column in (start, stride, left, sign))
    started = 0
    active = np.empty(0, np.int64)
    replayed = omitted = 0
    while active.size or started < next_row.size:
        heads = np.append(next_row[active], next_row[started : started + 1])
        low = int(heads.min())
        stop = int(np.searchsorted(next_row[started:], low + WINDOW_POSITIONS)) + started
        active = np.append(active, np.arange(started, stop))
        started = stop
        room = -(-(low + WINDOW_POSITIONS - next_row[active]) // stride[active])
        take = np.minimum(left[active], np.maximum(room, 0))
        delta = _window(next_row[active], stride[active], take, sign[active], low)
        counts = _count_window(delta, low, branches)
        replayed += counts.replayed
        omitted += counts.omitted
        next_row[active] += take * stride[active]
        left[active] -= take
        active = active[left[active] > 0]
    return Multiplicity(replayed, omitted)


def _window(start: Vector, stride: Vector, count: Vector, sign: Vector, low: int) -> Vector:
    """How deliveries differ from expected in a window: (k,) int64 per position, from `low` on; see `_count_window`.

    Two numbers share each entry: rows delivered in the upper 32 bits, rows not delivered in the lower.
    """
    size = int((start + stride * (count - 1) + 1 - low)[count > 0].max(initial=0))
    delta = np.zeros(size, np.int64)
    for value, weight in ((1, 1 << 32), (-1, 1)):
        which = sign == value
        rows = expand(start[which], stride[which], count[which]) - low
        delta += weight * np.bincount(rows, minlength=size)
    return delta


def _count_window(delta: Vector, low: int, branches: Sequence[Branch]) -> Multiplicity:
    touched = np.flatnonzero(delta)
    more, fewer = delta[touched] >> 32, delta[touched] & 0xFFFFFFFF
    expected = _num_expected(touched + low, branches)
    times = expected - fewer + more
    before = np.maximum(expected - 1, 0)
    replayed = int((np.maximum(times - 1, 0) - before).sum())
    return Multiplicity(replayed, int(((expected > 0) & (times <= 0)).sum()))


def _num_expected(positions: Vector, branches: Sequence[Branch]) -> Vector:
    """How many branches' updates hold each position: (k,) int64 to (k,) int64."""
    expected = np.zeros(positions.shape, np.int64)
    for branch in branches:
        inside = (positions >= branch.course.position) & (positions < branch.stop_position)
        which = np.flatnonzero(inside)
        expected[which] += branch.course.is_sample(positions[which])
    return expected


def count_joints(branches: Sequence[Branch]) -> Multiplicity:
    """Positions that branches share, and that lie between them, where one does not begin at the end of the last."""
    replayed = omitted = 0
    for before, after in itertools.pairwise(branches):
        gap = after.course.position - before.stop_position
        skipped = after.claim.start.dropped - before.claim.start.dropped - before.stop_place.dropped
        replayed += max(-gap, 0)
        omitted += max(gap - max(skipped, 0), 0)
    return Multiplicity(replayed, omitted)


def check_partition(branch: Branch) -> None:
    """Make sure that the shares of all ranks are, together, each kind of update's rows, each once.

    Updates of more rows than real ones have follow the same rule, and are passed by.

    Raises:
        AssertionError: They are not, which is a mistake of this package.
    """
    num_replicas, microbatch = branch.claim.num_replicas, branch.claim.microbatch
    for rows_of_one, num_padding, behind in sorted(branch.totals.kinds):
        if max(rows_of_one, num_replicas) > _CHECKED_MAX:
            continue
        size = np.array([rows_of_one], np.int64)
        left = size - behind
        steps = int(num_microbatches(left, num_replicas=num_replicas, microbatch=microbatch)[0])
        rank, index = (grid.ravel() for grid in np.indices((num_replicas, steps), np.int64))
        span = Spans(np.zeros(1, np.int64), size - num_padding, np.full(1, num_padding, np.int64))
        share = shares(span, rank, index, num_replicas=num_replicas, microbatch=microbatch, behind=behind)
        rows = expand(share.start, np.full(rank.size, num_replicas, np.int64), share.num_rows)
        times = np.bincount(rows, minlength=rows_of_one)
        is_once = times.size == rows_of_one and not times[:behind].any() and bool((times[behind:] == 1).all())
        if not is_once or int(share.padding.sum()) != min(num_padding, int(left[0])):
            raise AssertionError(
                f"the shares of an update of {rows_of_one} rows on {num_replicas} ranks overlap or leave gaps"
            )
