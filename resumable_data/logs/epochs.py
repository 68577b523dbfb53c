"""The tallies of a log: one for all of it, or one for each epoch that it names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.errors import UsageError
from resumable_data.logs.counting import Missing, Tally

if TYPE_CHECKING:
    from resumable_data.logs.plan import LogPlan
    from resumable_data.logs.replays import ReplayLog
    from resumable_data.logs.rows import Rows
    from resumable_data.order import Int64Array

_NUM_EPOCHS_MAX = 4096


class EpochCounts(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in one epoch, or in a whole log that names none.

    Attributes:
        epoch: The epoch; None for a whole log.
        rows: IDs in the log.
        histogram: Pairs (k, number of IDs that were seen k times).
        replayed: Rows that are more than what is planned.
        omitted: Samples that are planned and missing.
        missing_padding: Rows that are planned to fill up ranks, and missing.
        remaining: Samples after the furthest one, in the last epoch of a run that has not ended.
    """

    epoch: int | None
    rows: int
    histogram: tuple[tuple[int, int], ...]
    replayed: int
    omitted: int
    missing_padding: int = 0
    remaining: int = 0


class EpochTallies:
    """Counts rows by epoch.

    Args:
        plan: What is planned.
    """

    def __init__(self, plan: LogPlan) -> None:
        self.names_epochs: bool | None = None
        """Whether the log names epochs; None before its first row."""
        self._plan = plan
        self._tallies: dict[int | None, Tally] = {}

    def add(self, name: str, rows: Rows, replays: ReplayLog) -> None:
        """Count some rows.

        Raises:
            UsageError: There are too many epochs, or some logs name them and others do not.
        """
        if self.names_epochs not in (None, rows.epoch is not None):
            raise UsageError(f"{name}: either all logs must name the epochs or none; what they count would differ")
        self.names_epochs = rows.epoch is not None
        if rows.epoch is None:
            replays.add(name, rows, self._tally(None).add(rows.id), None)
            return
        for epoch in np.unique(rows.epoch).tolist():
            taken = np.flatnonzero(rows.epoch == epoch)
            replays.add(name, rows, taken[self._tally(epoch).add(rows.id[taken])], epoch)

    @property
    def num_samples(self) -> int:
        """N, as given, or the largest ID seen and one."""
        return max(tally.num_samples for tally in self._tallies.values())

    @property
    def epochs(self) -> list[int]:
        """The epochs that the log names."""
        return sorted(epoch for epoch in self._tallies if epoch is not None)

    def missing_epochs(self) -> int:
        """How many planned epochs the log does not have at all."""
        seen = self.epochs
        if not seen:
            return 0
        first, stop = seen[0], seen[-1] + 1
        if self._plan.epochs is not None:
            first = self._plan.first_epoch
            stop = min(stop, first + self._plan.epochs) if self._plan.unfinished else first + self._plan.epochs
        return max(0, stop - first) - sum(first <= epoch < stop for epoch in seen)

    def unplanned_epochs(self) -> list[int]:
        """Epochs that the log has and the plan does not."""
        if self._plan.epochs is None:
            return []
        first = self._plan.first_epoch
        return [epoch for epoch in self.epochs if not first <= epoch < first + self._plan.epochs]

    def counts(self) -> tuple[EpochCounts, ...]:
        """What was counted, by epoch."""
        ordered = sorted(self._tallies.items(), key=lambda item: item[0] or 0)
        last, num_samples = ordered[-1][0], self.num_samples
        for _, tally in ordered:
            tally.reach(num_samples)
        return tuple(self._counts(epoch, tally, is_last=epoch == last) for epoch, tally in ordered)

    def omitted_ids(self, num_max: int) -> list[tuple[int | None, Int64Array]]:
        """The first few omitted IDs, by epoch."""
        found = []
        for epoch, tally in sorted(self._tallies.items(), key=lambda item: item[0] or 0):
            ids = tally.omitted_ids(num_max)
            num_max -= ids.size
            if ids.size:
                found.append((epoch, ids))
        return found

    def _tally(self, epoch: int | None) -> Tally:
        tally = self._tallies.get(epoch)
        if tally is None:
            if len(self._tallies) == _NUM_EPOCHS_MAX:
                raise UsageError(f"the log names more than {_NUM_EPOCHS_MAX} epochs; each takes a byte per sample")
            times = 1 if epoch is not None else self._plan.epochs or 1
            exceptions = self._plan.exceptions(self._plan.first_epoch if epoch is None else epoch, times)
            tally = Tally(self._plan.num_samples, times=times, exceptions=exceptions)
            self._tallies[epoch] = tally
        return tally

    def _counts(self, epoch: int | None, tally: Tally, *, is_last: bool) -> EpochCounts:
        histogram = tally.histogram()
        missing = tally.missing(histogram)
        remaining = 0
        if is_last and self._plan.unfinished:
            remaining = min(missing.omitted, self._remaining(epoch, tally))
            missing = Missing(missing.omitted - remaining, 0)
        return EpochCounts(
            epoch=epoch,
            rows=tally.num_rows,
            histogram=tuple(histogram.items()),
            replayed=tally.num_surplus,
            omitted=missing.omitted,
            missing_padding=missing.padding,
            remaining=remaining,
        )

    def _remaining(self, epoch: int | None, tally: Tally) -> int:
        """Planned samples after the furthest one that was read in the last epoch."""
        assert self._plan.order is not None
        last = self._plan.first_epoch + (self._plan.epochs or 1) - 1 if epoch is None else epoch
        furthest = -1
        for ids in tally.whole_ids():
            if ids.size:
                furthest = max(furthest, int(self._plan.order.offsets(last, ids).max()))
        return max(0, self._plan.planned_samples - 1 - furthest)
