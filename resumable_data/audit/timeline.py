"""What one rank's file says, by itself, of how far it went: steps, epochs left early, rewinds, rows delivered."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable_data.ledger.records import Jump

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.ledger import Claim
    from resumable_data.ledger.columns import Deliveries
    from resumable_data.ledger.reader import RankLog

    Vector = NDArray[np.int64]

_POSITION_MAX = 1 << 61


def step_stops(log: RankLog | None, claim: Claim) -> Vector:
    """The update after each of a file's steps, for its commits in sequence: (n,) int64, none for a missing file.

    A step commits one update; or, where the run is counted by batches, at least one. A file in which most of their
    deliveries are missing is not believed: numbers alone must not decide how much is counted.
    """
    if log is None:
        return np.empty(0, np.int64)
    first, stops = claim.start.next_index, log.commits.update + 1
    if claim.start.recipe.counts_batches:
        in_sequence = (np.diff(stops, prepend=first) > 0) & (stops - first <= 2 * log.commits.after)
    else:
        in_sequence = stops == first + 1 + np.arange(stops.size)
    return stops[: _leading(in_sequence)]


def surviving_jumps(log: RankLog, stop_update: int) -> list[Jump]:
    """Where a file says that its loop left an epoch early, rewound jumps and those from `stop_update` on left out."""
    jumps, rewinds = log.jumps, log.rewinds
    survives = earliest_rewind(rewinds.after, rewinds.update, jumps.after) > jumps.update
    survives &= jumps.update < stop_update
    columns = (jumps.update[survives].tolist(), jumps.position[survives].tolist())
    return [Jump(update, position) for update, position in zip(*columns, strict=True)]


def earliest_rewind(after: Vector, target: Vector, places: Vector) -> Vector:
    """The earliest update that any later rewind goes back to.

    Args:
        after: (n,) int64, how many deliveries come before each rewind in the file.
        target: (n,) int64, the update that each goes back to.
        places: (k,) int64, places in the file, as numbers of deliveries before.

    Returns:
        (k,) int64, larger than any update where there is no later rewind.
    """
    lowest = np.append(np.minimum.accumulate(target[::-1])[::-1], np.iinfo(np.int64).max)
    earliest: Vector = lowest[np.searchsorted(after, places, side="right")]
    return earliest


def reached_position(records: Deliveries) -> int:
    """The position after the last sample of some deliveries; 0 where there is none."""
    rows = np.maximum(records.count - records.padding, 0)
    held = (rows > 0) & (records.stride <= _POSITION_MAX // np.maximum(rows, 1))
    last = records.start[held] + records.stride[held] * (rows[held] - 1)
    return int(np.minimum(last, _POSITION_MAX).max(initial=-1)) + 1


def _leading(is_good: NDArray[np.bool_]) -> int:
    """How many good ones come before the first bad one."""
    return int(np.argmin(np.append(is_good, False)))
