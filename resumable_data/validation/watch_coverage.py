"""Holds what the loop was handed against the run's order, update by update."""

from __future__ import annotations

import dataclasses
from itertools import groupby
from typing import TYPE_CHECKING

import msgspec

from resumable_data.cursor import NO_ROWS, add_lanes
from resumable_data.errors import ResumableDataError
from resumable_data.validation.watch_report import WatchCoverage

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.cursor import Lanes
    from resumable_data.loader import ResumableLoader
    from resumable_data.validation.trace import UpdateRecord

Expected = tuple[int, int, "Lanes"]


class OrderWatch:
    """Says of one update after another whether its samples are the order's. On one process, and of all ranks' samples.

    Args:
        loader: Its loader; what it has committed when the first update is recorded says where to look in the order.
    """

    def __init__(self, loader: ResumableLoader) -> None:
        self._loader = loader
        self._expected: Iterator[Expected] | None = None
        self.coverage = WatchCoverage()

    def take(self, record: UpdateRecord) -> None:
        """Look at the next update."""
        if self.coverage.reason:
            return
        try:
            if self._expected is None:
                self._expected = expected_updates(self._loader)
            update, samples, lanes = next(self._expected, (-1, 0, NO_ROWS))
        except (ResumableDataError, OSError) as error:
            self._give_up(f"what the order has in update {record.update} cannot be found out: {error}")
            return
        if update != record.update:
            self._give_up(f"update {record.update} was recorded where the cursor was at another one")
            return
        before = self.coverage
        is_same = (record.samples, record.sample_digest) == (samples, f"{lanes[0]:016x}{lanes[1]:016x}")
        difference = None if is_same else update
        self.coverage = WatchCoverage(
            updates=before.updates + 1,
            samples=before.samples + record.samples,
            expected_samples=before.expected_samples + samples,
            first_difference=difference if before.first_difference is None else before.first_difference,
        )

    def _give_up(self, reason: str) -> None:
        self.coverage = msgspec.structs.replace(self.coverage, reason=reason)


def expected_updates(loader: ResumableLoader) -> Iterator[Expected]:
    """Index, samples and coverage digest of each update from the cursor on, as one rank would read it."""
    cursor = loader.cursor
    alone = dataclasses.replace(loader.layout, rank=0, num_replicas=1)
    together = loader.rank_rows(alone).from_place(update=cursor.next_index, epoch=cursor.epoch, offset=cursor.offset)
    for update, microbatches in groupby(together, key=lambda one: one.update):
        samples, lanes = 0, NO_ROWS
        for one in microbatches:
            samples, lanes = samples + one.num_samples, add_lanes(lanes, (one.lane_0, one.lane_1))
        yield update, samples, lanes
