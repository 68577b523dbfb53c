"""Where the updates of a run over packed rows begin and end: by rows, or by tokens."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.packing.run import PackedRun
from resumable_data.plan import BatchPlan, Place, Segment, UpdateSpan, require_count
from resumable_data.plan.packed_place import PACKED_LENGTH

if TYPE_CHECKING:
    from resumable_data.order import Int64Array
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
        self._edges: Int64Array | None = None  # of the updates to the end of the run, once they are asked for

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
        """Updates from a position to the end of the run; None where it has no end.

        The rest of the run is planned for it, once.
        """
        return None if self.epochs is None else int(self._sizes_from(offset).size)

    def microbatches_left(self, epoch: int, offset: int, *, microbatch: int, num_replicas: int) -> int | None:
        """Microbatches of every rank likewise."""
        if self.epochs is None:
            return None
        sizes, counts = np.unique(self._sizes_from(offset), return_counts=True)
        steps = [
            BatchPlan(global_batch=size, microbatch=microbatch, num_replicas=num_replicas).accumulation_steps
            for size in sizes.tolist()
        ]
        return int(np.dot(steps, counts))

    def _sizes_from(self, position: int) -> Int64Array:
        """Rows of each update from a position to the end of the run."""
        if self._edges is None or position < self._edges[0]:
            self._edges = self._edges_from(position)
        sizes: Int64Array = np.diff(self._edges[np.searchsorted(self._edges, position) :])
        return sizes

    def _edges_from(self, position: int) -> Int64Array:
        """Where updates begin, and the end of the run; planned apart, so that what the run holds stays small."""
        ahead = PackedSchedule(
            self._packed,
            start=self.run.place(position),
            position=position,
            global_batch=self.global_batch,
            by_tokens=self._by_tokens,
            epochs=self.epochs,
        )
        edges = [np.array([position], np.int64)]
        for (start, num_rows, _), num_updates in ahead.segments(0, position):
            edges.append(start + num_rows * np.arange(1, num_updates + 1, dtype=np.int64))
            ahead.run.forget(start)
        return np.concatenate(edges)

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
