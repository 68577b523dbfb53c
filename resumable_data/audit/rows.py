"""From records to rows: the positions they hold, in chunks, and the digests of the IDs there."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from resumable_data.order import ids_at

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.order import Order

    Vector = NDArray[np.int64]

CHUNK_ROWS = 1 << 15
_POSITION_MAX = 1 << 62


def expand(start: Vector, stride: Vector, count: Vector) -> Vector:
    """The positions of records one after another: start, stride, count (k,) int64 to (count.sum(),) int64."""
    if count.size and count[0] > 0 and np.all(count == count[0]):
        steps = np.arange(count[0], dtype=np.int64)
        is_regular = bool(np.all(stride == stride[0]))  # the usual case, in one pass over the rows
        steps = stride[0] * steps if is_regular else stride[:, np.newaxis] * steps
        return (start[:, np.newaxis] + steps).ravel()
    ends = np.cumsum(count)
    total = int(ends[-1]) if count.size else 0
    steps = np.arange(total, dtype=np.int64) - np.repeat(ends - count, count)
    steps *= np.repeat(stride, count)
    steps += np.repeat(start, count)
    return steps


def is_possible(
    start: Vector, stride: Vector, count: Vector, padding: Vector, *, count_max: Vector
) -> NDArray[np.bool_]:
    """Whether records stay within the numbers that a run can reach: (k,) bool."""
    fits = (count <= count_max) & (padding <= count)
    fits &= stride <= (_POSITION_MAX - start) // np.maximum(count, 1)
    return fits


def chunks(count: Vector) -> Iterator[slice]:
    """Slices of records that hold about `CHUNK_ROWS` rows, at least one record each."""
    ends = np.cumsum(count)
    first = 0
    while first < count.size:
        before = ends[first] - count[first]
        stop = max(int(np.searchsorted(ends, before + CHUNK_ROWS, side="right")), first + 1)
        yield slice(first, stop)
        first = stop


def digests(
    order: Order, start: Vector, stride: Vector, count: Vector, wrap_at: Vector | None, key: int
) -> NDArray[np.uint64]:
    """What `digest_ids` gives for each record, from the order alone.

    Args:
        order: The order of the run.
        start: (k,) int64, and likewise `stride` and `count`.
        stride: As in the record.
        count: As in the record.
        wrap_at: (k,) int64, the end of the epoch at which a record's positions go on from that epoch's beginning;
            None where they go on into the next epoch.
        key: What the digests are keyed with, 0 where they are not.

    Returns:
        (k,) uint64.
    """
    result = np.empty(count.shape, np.uint64)
    for chunk in chunks(count):
        sizes = count[chunk]
        ids = _ids_of(order, start[chunk], stride[chunk], sizes, None if wrap_at is None else wrap_at[chunk])
        data = ids.astype("<i8", copy=False).data.cast("B")
        edges = [0, *(8 * np.cumsum(sizes)).tolist()]
        result[chunk] = [xxhash.xxh3_64_intdigest(data[low:high], key) for low, high in itertools.pairwise(edges)]
    return result


def _ids_of(order: Order, start: Vector, stride: Vector, count: Vector, wrap_at: Vector | None) -> Vector:
    """IDs of the rows of records, see `digests`: (count.sum(),) int64."""
    length = len(order)
    first, last = int(start.min()), int((start + stride * (count - 1)).max())
    epoch = first // length
    is_in_one_epoch = last < (epoch + 1) * length
    if is_in_one_epoch and (wrap_at is None or last < int(wrap_at.min())):
        return order.ids(epoch, expand(start - epoch * length, stride, count))
    return ids_at(order, positions_of(start, stride, count, wrap_at, length))


def positions_of(start: Vector, stride: Vector, count: Vector, wrap_at: Vector | None, length: int) -> Vector:
    """Positions of the samples that rows of records are, or repeat, see `digests`: (count.sum(),) int64."""
    positions = expand(start, stride, count)
    if wrap_at is not None:
        ends = np.repeat(wrap_at, count)
        beyond = positions >= ends
        positions[beyond] = ends[beyond] - length + (positions[beyond] - ends[beyond]) % length
    return positions
