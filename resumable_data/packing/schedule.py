"""Where the updates of a run over packed rows begin and end: by rows, or by tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

from resumable_data.packing.run import PackedRun
from resumable_data.plan import BatchPlan, Place, Segment, UpdateSpan, require_count
from resumable_data.plan.packed_place import PACKED_LENGTH

if TYPE_CHECKING:
    from resumable_data.packing.packed_tokens import PackedTokens
    from resumable_data.plan import PackedPlace

_GROUPED = 64
"""Updates by tokens that are planned at once; those of equal size, one after another, are one segment."""


class PackedSchedule:
    """Cuts the rows of a run into updates, as `Schedule` does for samples. Updates cross the borders of epochs.

    Rows are numbered through all epochs, so that every place has epoch 0 here and its position as the offset, see
    `PACKED_LENGTH`; `packed_place` tells the rest.

    Args:
        packed: Documents and how they are packed.
        start: Where the run goes on.
        position: The position there.
        global_batch: Rows of an update, or tokens.
        by_tokens: Whether it counts tokens: an update then takes rows until they have so many.
        epochs: Epochs of the whole run; endless when None.

    Raises:
        UsageError: `epochs` is no number of them.

    Attributes:
        run: The rows by position.
    """

    length = PACKED_LENGTH
    tail = "carry"

    def __init__(
        self,
        packed: PackedTokens,
        *,
        start: PackedPlace,
        position: int,
        global_batch: int,
        by_tokens: bool,
        epochs: int | None,
    ) -> None:
        if epochs is not None:
            require_count("epochs", epochs)
        self.run = PackedRun(packed, start=start, position=position, epochs=epochs)
        self.global_batch = global_batch
        self.epochs = epochs
        self._packed = packed
        self._by_tokens = by_tokens

    def settle(self, epoch: int, offset: int) -> Place:
        """The place at a position."""
        return Place(0, offset)

    def packed_place(self, place: Place) -> PackedPlace:
        """The same place among packed rows, to which all is committed: what is before is not asked for again."""
        packed = self.run.place(place.offset)
        self.run.forget(place.offset)
        return packed

    def segments(self, epoch: int, offset: int) -> Iterator[Segment]:
        """All segments from a position to the end of the run, found as windows are planned."""
        position = offset
        while segments := self._segments_at(position):
            yield from segments
            last = segments[-1]
            position = last.span.start + last.num_updates * last.span.num_samples

    def update_at(self, epoch: int, offset: int) -> UpdateSpan | None:
        """The update that starts at a position; None where the run is over."""
        segments = self._segments_at(offset)
        return segments[0].span if segments else None

    def updates_left(self, epoch: int, offset: int) -> int | None:
        """Updates from a position to the end of the run, all of which is planned for it; None where it has no end."""
        return None if self.epochs is None else sum(segment.num_updates for segment in self._left(offset))

    def microbatches_left(self, epoch: int, offset: int, *, microbatch: int, num_replicas: int) -> int | None:
        """Microbatches of every rank likewise."""
        if self.epochs is None:
            return None
        return sum(
            num_updates
            * BatchPlan(global_batch=span.num_rows, microbatch=microbatch, num_replicas=num_replicas).accumulation_steps
            for span, num_updates in self._left(offset)
        )

    def _left(self, position: int) -> Iterator[Segment]:
        """The segments from a position on, planned apart so that what the run holds stays small."""
        ahead = PackedSchedule(
            self._packed,
            start=self.run.place(position),
            position=position,
            global_batch=self.global_batch,
            by_tokens=self._by_tokens,
            epochs=self.epochs,
        )
        for segment in ahead.segments(0, position):
            yield segment
            ahead.run.forget(segment.span.start)

    def _segments_at(self, position: int) -> list[Segment]:
        """The next segments; none where the run is over."""
        return self._by_budget(position) if self._by_tokens else self._by_rows(position)

    def _by_rows(self, position: int) -> list[Segment]:
        num_rows = self.run.stop(position + self.global_batch) - position
        if num_rows <= 0:
            return []
        full = num_rows // self.global_batch
        return [Segment(UpdateSpan(position, self.global_batch if full else num_rows, 0), full or 1)]

    def _by_budget(self, position: int) -> list[Segment]:
        spans: list[UpdateSpan] = []
        known = self.run.stop(position + 1)
        while len(spans) < _GROUPED and position < known:
            stop = self.run.next_after(position, self.global_batch, before=known if spans else None)
            if stop is None and spans:  # windows further on are for later
                break
            if stop is None:  # the run's last update has what is left
                stop = self.run.stop(position + 1)
            spans.append(UpdateSpan(position, stop - position, 0))
            position = stop
        groups = [list(group) for _, group in groupby(spans, key=lambda span: span.num_samples)]
        return [Segment(group[0], len(group)) for group in groups]
