"""Where pieces and padding lie in a batch of rows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from resumable_data.order import Int64Array
from resumable_data.packing.rows import PackedRows, running_sum


class Padding(NamedTuple):
    """The end of a row that is not full."""

    row: int
    after: int  # so many pieces of the batch lie before it
    size: int  # places, at least 1


class Sequences(NamedTuple):
    """The pieces of rows and the padding at their ends, one after another in the batch laid out as ``(k * L,)``."""

    sizes: list[int]  # (s,)
    edges: Int64Array  # (s + 1,)
    padding: list[Padding]  # the last row's first, so that inserting one moves no other's place

    @classmethod
    def of(cls, rows: PackedRows, used: Int64Array) -> Sequences:
        """The sequences of rows of which pieces take ``used``: (k,) int64 places."""
        sizes = rows.stop - rows.start
        listed = sizes.tolist()
        if sum(listed) == len(rows) * rows.row_length:
            return cls(listed, running_sum(sizes), [])
        padded = np.flatnonzero(used < rows.row_length)[::-1]
        columns = (padded, rows.edges[padded + 1], rows.row_length - used[padded])
        padding = list(map(Padding, *(column.tolist() for column in columns)))
        for row_end in padding:
            listed.insert(row_end.after, row_end.size)
        return cls(listed, running_sum(np.array(listed, dtype=np.int64)), padding)

    def longest(self) -> int:
        """Places of the longest; 0 where there is none."""
        return max(self.sizes, default=0)

    def write_positions(self, position_ids: npt.NDArray[np.int32]) -> None:
        """Count from 0 in each, in ``(k * L,)`` int32."""
        here, ramp = position_ids.data, np.arange(self.longest(), dtype=np.int32).data
        begin = 0
        for size in self.sizes:
            end = begin + size
            here[begin:end] = ramp[:size]
            begin = end
