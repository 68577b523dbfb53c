"""The part of the update at the cursor that a rank was handed, and whose gradient is accumulated if it trains on it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from resumable_data.cursor import NO_ROWS, add_lanes

if TYPE_CHECKING:
    from resumable_data.cursor import Lanes
    from resumable_data.sampler.rank_rows import MicrobatchRows


class OpenPart(NamedTuple):
    """How far into the update at the cursor a rank is.

    Attributes:
        samples: Rows of it that all ranks together were handed, padding rows among them.
        lanes: This rank's part of their coverage digest.
        is_complete: Whether these are all of its rows.
        is_fetched: Whether the whole update was delivered ahead, so that only the loop knows how much of it was used.
        has_own: Whether this session delivered some of them.
        targets: Target tokens of the whole update, where they were counted.
    """

    samples: int = 0
    lanes: Lanes = NO_ROWS
    is_complete: bool = False
    is_fetched: bool = False
    has_own: bool = False
    targets: int | None = None


class HandedOut:
    """Counts the microbatches that a loop takes out of updates which were delivered whole.

    Where a loop goes through an update once more, it counts from the beginning: only the last time is for training.
    """

    def __init__(self) -> None:
        self.rows: MicrobatchRows | None = None
        self.lanes: Lanes = NO_ROWS

    def add(self, rows: MicrobatchRows) -> None:
        """Count one more."""
        if rows.microbatch == 0:
            self.lanes = NO_ROWS
        self.rows = rows
        self.lanes = add_lanes(self.lanes, rows.lanes)
