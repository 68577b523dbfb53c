"""What of a pass was read again after a restart, and what of it never."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from resumable_data.shadowing.passes import SegmentRows


class Multiset(NamedTuple):
    """Values with how often each is there.

    Attributes:
        value: (n,) uint64, sorted, each once.
        times: (n,) int64.
    """

    value: NDArray[np.uint64]
    times: NDArray[np.int64]

    def times_of(self, value: NDArray[np.uint64]) -> NDArray[np.int64]:
        """How often each of (k,) values is there."""
        if not self.value.size:
            return np.zeros(value.size, np.int64)
        at = np.minimum(np.searchsorted(self.value, value), self.value.size - 1)
        return np.where(self.value[at] == value, self.times[at], 0)

    @property
    def num_repeats(self) -> int:
        """Rows beyond the first of each value."""
        return int(self.times.sum()) - self.value.size


class Again(NamedTuple):
    """What a segment read that segments before it had read.

    Attributes:
        num_rows: Rows.
        num_batches: They are all in so many last batches of each rank before the restart.
        is_tail: Whether these batches were read again whole, or the segment read nothing else so far: as after going
            back to a checkpoint.
    """

    num_rows: int
    num_batches: int
    is_tail: bool


def multiset(parts: Sequence[NDArray[np.uint64]]) -> Multiset:
    """The values of all parts."""
    value, times = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
    return Multiset(value, times.astype(np.int64))


def read_again(before: Sequence[SegmentRows], after: SegmentRows, reference: Multiset | None) -> Again:
    """Compare a segment with those before it.

    Args:
        before: At least one.
        after: The segment.
        reference: How often each value is in an epoch without a restart; None where that is unknown, and each may be
            there once.
    """
    prior, new = multiset([rows.value for rows in before]), multiset([after.value])
    known = prior.times_of(new.value)
    surplus = np.minimum(known, new.times)
    if reference is not None:
        planned = np.maximum(reference.times_of(new.value), known)
        surplus = np.minimum(surplus, np.maximum(0, known + new.times - planned))
    repeated = new.value[surplus > 0]
    if not repeated.size:
        return Again(0, 0, is_tail=False)
    from_end = _from_end(before)
    is_again = np.isin(np.concatenate([rows.value for rows in before]), repeated)
    num_batches = int(from_end[is_again].max()) + 1
    is_tail = bool(is_again[from_end < num_batches].all()) or int(surplus.sum()) == after.value.size
    return Again(int(surplus.sum()), num_batches, is_tail)


def _from_end(segments: Sequence[SegmentRows]) -> NDArray[np.int64]:
    """How many batches were read after each row, up to the end of the last segment."""
    parts, later = [], 0
    for rows in reversed(segments):
        parts.append(rows.from_end + later)
        later += int(rows.from_end.max(initial=-1)) + 1
    return np.concatenate(parts[::-1])
