"""How often each ID was seen, in one or two bytes per sample."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.logs.plan import Exceptions
    from resumable_data.order import Int64Array

_WIDTHS = (np.uint8, np.uint16, np.uint32, np.uint64)
_LOW_BITS = 0xFFFF
_BLOCK = 1 << 20
_UNKNOWN_LENGTH_MAX = 1 << 32


class Missing(NamedTuple):
    """What is seen less often than planned.

    Attributes:
        omitted: Samples, each as often as it is missing.
        padding: Repeats of samples that padding plans and nobody read.
    """

    omitted: int
    padding: int


class Tally:
    """Counts IDs against how often each is planned.

    Args:
        num_samples: IDs are in [0, num_samples); None to take the largest ID seen for the last one.
        times: How often each ID is planned.
        exceptions: Those that are planned more or less often.

    Raises:
        UsageError: There is not enough memory for one byte per sample.
    """

    def __init__(self, num_samples: int | None, *, times: int, exceptions: Exceptions) -> None:
        self.num_rows = 0
        self.num_surplus = 0
        self._times = times
        self._exceptions = exceptions
        self._has_fewer = bool((exceptions.times < times).any())
        self._peak = 0
        self._is_open = num_samples is None
        self._length = num_samples or 0
        self._table: NDArray[Any] = _zeros(self._length, np.uint8)

    def add(self, ids: Int64Array) -> Int64Array:
        """Count (n,) IDs; returns which rows [0, n) are more than what is planned for their ID, in order."""
        if self._is_open:
            self._grow(int(ids.max()) + 1)
        self._widen(ids)
        np.add.at(self._table, ids, self._table.dtype.type(1))
        now = self._table.take(ids)
        self._peak = max(self._peak, int(now.max()))
        self.num_rows += ids.size
        rows = self._suspects(ids, now)
        if rows.size:
            rows = self._surplus(ids, now, rows)
            self.num_surplus += rows.size
        return rows

    @property
    def num_samples(self) -> int:
        """IDs that can be seen, or were: [0, num_samples)."""
        return self._length

    def reach(self, num_samples: int) -> None:
        """Count IDs up to `num_samples`, where their number was not given."""
        if self._is_open:
            self._grow(num_samples)

    def histogram(self) -> dict[int, int]:
        """How many IDs were seen k times, by k; without those that no ID was seen."""
        found: dict[int, int] = {}
        for start in range(0, self._length, _BLOCK):
            seen = self._table[start : min(start + _BLOCK, self._length)]
            for times, number in _histogram(seen):
                found[times] = found.get(times, 0) + number
        return dict(sorted(found.items()))

    def missing(self, histogram: dict[int, int]) -> Missing:
        """What was seen less often than planned, given the `histogram`."""
        ids, planned = self._exceptions
        seen = self._table[ids].astype(np.int64)
        total = sum(max(0, self._times - times) * number for times, number in histogram.items())
        # the exceptions were counted as if they were planned like all others
        total -= int(np.maximum(0, self._times - seen).sum())
        padding = np.maximum(0, planned - np.maximum(seen, self._times)).sum()
        omitted = np.maximum(0, np.minimum(planned, self._times) - seen).sum()
        return Missing(total + int(omitted), int(padding))

    def omitted_ids(self, num_max: int) -> Int64Array:
        """The first few IDs that were seen less often than planned, repeats by padding aside."""
        parts: list[Int64Array] = []
        for ids, seen in self._blocks():
            parts.append(ids[seen < np.minimum(self._planned(ids), self._times)])
            if sum(part.size for part in parts) >= num_max:
                break
        return np.concatenate([np.empty(0, np.int64), *parts])[:num_max]

    def whole_ids(self) -> Iterator[Int64Array]:
        """All IDs that were seen at least as often as most are planned, in blocks."""
        for ids, seen in self._blocks():
            yield ids[seen >= self._times]

    def _blocks(self) -> Iterator[tuple[Int64Array, NDArray[Any]]]:
        for start in range(0, self._length, _BLOCK):
            seen = self._table[start : min(start + _BLOCK, self._length)]
            yield np.arange(start, start + seen.size, dtype=np.int64), seen

    def _planned(self, ids: Int64Array) -> Int64Array:
        """How often each of (n,) IDs is planned."""
        known, times = self._exceptions
        planned = np.full(ids.size, self._times, np.int64)
        if known.size:
            at = np.minimum(np.searchsorted(known, ids), known.size - 1)
            is_known = known[at] == ids
            planned[is_known] = times[at[is_known]]
        return planned

    def _suspects(self, ids: Int64Array, now: NDArray[Any]) -> Int64Array:
        is_suspect = now > self._times
        if self._has_fewer:
            is_suspect |= self._planned(ids) < self._times
        return np.flatnonzero(is_suspect)

    def _surplus(self, ids: Int64Array, now: NDArray[Any], rows: Int64Array) -> Int64Array:
        """Of the suspects, which hold all rows of their IDs, those past the planned number, by the order of rows."""
        by_id = rows[np.argsort(ids[rows], kind="stable")]
        sorted_ids = ids[by_id]
        starts = np.flatnonzero(np.concatenate([[True], sorted_ids[1:] != sorted_ids[:-1]]))
        sizes = np.diff(np.append(starts, sorted_ids.size))
        nth = np.arange(sorted_ids.size) - np.repeat(starts - (now[by_id[starts]].astype(np.int64) - sizes), sizes) + 1
        return np.sort(by_id[nth > self._planned(sorted_ids)])

    def _widen(self, ids: Int64Array) -> None:
        """Make sure that adding `ids` cannot overflow a count."""
        # equal IDs have equal low bits, so this can only be too much
        if self._peak + int(np.bincount(ids & _LOW_BITS).max()) <= np.iinfo(self._table.dtype).max:
            return
        ordered = np.sort(ids)
        starts = np.flatnonzero(np.concatenate([[True], ordered[1:] != ordered[:-1]]))
        most = self._peak + int(np.diff(np.append(starts, ids.size)).max())
        if most > np.iinfo(self._table.dtype).max:
            self._table = self._table.astype(next(width for width in _WIDTHS if most <= np.iinfo(width).max))

    def _grow(self, length: int) -> None:
        if length > _UNKNOWN_LENGTH_MAX:
            raise UsageError(
                f"found the ID {length - 1}, and the number of samples was not given: one byte for each ID below it "
                "may be far more memory than needed. Say the number of samples (--samples N) if that is right."
            )
        self._length = max(self._length, length)
        if self._length > self._table.size:
            larger = _zeros(max(self._length, min(2 * self._table.size, _UNKNOWN_LENGTH_MAX)), self._table.dtype.type)
            larger[: self._table.size] = self._table
            self._table = larger


def _histogram(seen: NDArray[Any]) -> list[tuple[int, int]]:
    if seen.dtype.itemsize <= 2:
        counts = np.bincount(seen)
        values = np.flatnonzero(counts)
        return list(zip(values.tolist(), counts[values].tolist(), strict=True))
    unique, numbers = np.unique(seen, return_counts=True)
    return list(zip(unique.tolist(), numbers.tolist(), strict=True))


def _zeros(length: int, dtype: type[np.unsignedinteger[Any]]) -> NDArray[Any]:
    try:
        return np.zeros(length, dtype)
    except (MemoryError, ValueError):
        raise UsageError(
            f"expected memory for one byte for each of {length} samples, found less. Nothing was counted; count on a "
            "machine with more, or check the number of samples."
        ) from None
