"""Where updates begin and end in the global sequence, for every tail and number of epochs."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec

from resumable_data.errors import UsageError
from resumable_data.plan.batch_plan import BatchPlan, require_count
from resumable_data.plan.packed_place import PackedPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

TAILS = ("carry", "short", "drop", "pad")

RANK_TAILS = ("pad_ranks", "drop_ranks", "pad_ranks_drop_batch", "drop_batch")
"""Tails of runs over torch's DataLoader and a DistributedSampler: what they do depends on the number of ranks."""

_ENDLESS = 1 << 62


class Place(NamedTuple):
    """A place in the run: `offset` samples into `epoch`, and the samples skipped on the way there."""

    epoch: int
    offset: int
    dropped: int = 0


class UpdateSpan(NamedTuple):
    """What one update takes: samples at positions [start, start + num_samples), then padding rows."""

    start: int
    num_samples: int
    padding: int

    @property
    def num_rows(self) -> int:
        """Rows of the update, padding included."""
        return self.num_samples + self.padding


class Segment(NamedTuple):
    """`num_updates` updates of the same size, one after another; the next starts `num_samples` further on."""

    span: UpdateSpan
    num_updates: int


class RunSchedule(Protocol):
    """Where the updates of a run begin and end; places are given by epoch and offset."""

    @property
    def length(self) -> int:
        """Samples of one epoch."""
        ...

    @property
    def global_batch(self) -> int:
        """Rows of an update that is not cut short; or tokens, where it is counted by these."""
        ...

    @property
    def epochs(self) -> int | None:
        """Epochs of the whole run; None without an end."""
        ...

    def settle(self, epoch: int, offset: int) -> Place:
        """Where the next update starts, from where the one before ended."""
        ...

    def packed_place(self, place: Place) -> PackedPlace | None:
        """The same place among packed rows, to which all is committed; None in a run over samples."""
        ...

    def segments(self, epoch: int, offset: int) -> Iterator[Segment]:
        """All segments from a place to the end of the run."""
        ...

    def update_at(self, epoch: int, offset: int) -> UpdateSpan | None:
        """The update that starts at a place; None where the run is over."""
        ...

    def updates_left(self, epoch: int, offset: int) -> int | None:
        """Updates from a place to the end of the run; None where it has no end."""
        ...

    def microbatches_left(self, epoch: int, offset: int, *, microbatch: int, num_replicas: int) -> int | None:
        """Microbatches of every rank from a place to the end of the run; None where it has no end."""
        ...


class Schedule(msgspec.Struct, frozen=True, kw_only=True):
    """Cuts the run's positions into updates.

    ============  =======================================================================================
    tail          what happens where an epoch of N samples does not hold a whole number of updates
    ============  =======================================================================================
    ``"carry"``   an update crosses the epochs' border; only the run's last one is short
    ``"short"``   the last update of each epoch is short
    ``"drop"``    the rest of each epoch is skipped and counted
    ``"pad"``     the last update of each epoch is filled with offsets 0, 1, ... of that epoch, counted apart
    ============  =======================================================================================

    Where a DataLoader over a DistributedSampler cuts the positions into its batches (all ranks' together), each
    epoch's rest is made a multiple of the number of ranks, and the last batch is short:

    ==========================  =========================================================================
    tail                        sampler and DataLoader
    ==========================  =========================================================================
    ``"pad_ranks"``             neither has ``drop_last``: padded with offsets 0, 1, ... of the epoch
    ``"drop_ranks"``            the sampler has it: cut to a multiple of the ranks
    ``"pad_ranks_drop_batch"``  the DataLoader has it: padded, and what does not fill a batch is dropped
    ``"drop_batch"``            both have it: what does not fill a batch is dropped
    ==========================  =========================================================================

    Args:
        length: Samples of one epoch, N >= 1.
        global_batch: Rows of one update, G >= 1; with one of the second four, rows of one batch of all ranks.
        tail: One of the eight above.
        epochs: Epochs of the whole run, or None for a run without an end.
        num_replicas: Number of ranks; of use with the second four only.

    Raises:
        UsageError: An argument is outside its range, or the tail would drop everything.
    """

    length: int
    global_batch: int
    tail: str = "carry"
    epochs: int | None = None
    num_replicas: int = 1

    def __post_init__(self) -> None:
        require_count("length", self.length)
        require_count("global_batch", self.global_batch)
        if self.epochs is not None:
            require_count("epochs", self.epochs)
        require_count("num_replicas", self.num_replicas)
        if self.tail not in (*TAILS, *RANK_TAILS):
            raise UsageError(f"tail must be one of {TAILS}, got {self.tail!r}")
        if self.rows_of(self.length) == 0:
            raise UsageError(
                f"tail={self.tail!r} with {self.global_batch} rows at a time would drop all {self.length} samples of "
                'every epoch. Use tail="carry" (or drop_last=False), or fewer rows.'
            )

    def rows_of(self, num_samples: int) -> int:
        """Rows, padding included, that are read of the last `num_samples` of an epoch."""
        rows = num_samples
        if self.tail in ("pad_ranks", "pad_ranks_drop_batch"):
            rows += -rows % self.num_replicas
        elif self.tail == "drop_ranks":
            rows -= rows % self.num_replicas
        elif self.tail == "pad":
            rows += -rows % self.global_batch
        if self.tail in ("drop", "drop_batch", "pad_ranks_drop_batch"):
            rows -= rows % self.global_batch
        return rows

    def settle(self, epoch: int, offset: int) -> Place:
        """Where the next update starts, from `offset` in [0, N]: past the rest that the tail drops."""
        rest = self.length - offset
        if rest == 0:
            return Place(epoch + 1, 0)
        if self.tail != "carry" and self.rows_of(rest) == 0:
            return Place(epoch + 1, 0, rest)
        return Place(epoch, offset)

    def packed_place(self, place: Place) -> None:
        """None: places of samples have nothing more to tell."""

    def is_over(self, epoch: int) -> bool:
        """Whether the run has no epoch `epoch`."""
        return self.epochs is not None and epoch >= self.epochs

    def segment_at(self, epoch: int, offset: int) -> Segment | None:
        """The longest row of equal updates that starts at this place; None where the run is over."""
        epoch, offset, _ = self.settle(epoch, offset)
        if self.is_over(epoch):
            return None
        start = epoch * self.length + offset
        if self.tail == "carry":
            samples = _ENDLESS if self.epochs is None else self.epochs * self.length - start
            rows = samples
        else:
            samples, rows = self.length - offset, self.rows_of(self.length - offset)
        full = min(samples, rows) // self.global_batch
        if full:
            return Segment(UpdateSpan(start, self.global_batch, 0), full)
        rows = min(rows, self.global_batch)
        return Segment(UpdateSpan(start, min(samples, rows), max(0, rows - samples)), 1)

    def segments(self, epoch: int, offset: int) -> Iterator[Segment]:
        """All segments from this place to the end of the run, endless where `epochs` is None."""
        while segment := self.segment_at(epoch, offset):
            yield segment
            stop = segment.span.start + segment.num_updates * segment.span.num_samples
            epoch, offset = divmod(stop, self.length)

    def update_at(self, epoch: int, offset: int) -> UpdateSpan | None:
        """The update that starts at this place; None where the run is over."""
        segment = self.segment_at(epoch, offset)
        return segment and segment.span

    def after(self, span: UpdateSpan) -> Place:
        """The place where the next update starts after this one."""
        return self.settle(*divmod(span.start + span.num_samples, self.length))

    def updates_left(self, epoch: int, offset: int) -> int | None:
        """Updates from this place to the end of the run; None where it has no end."""
        return None if self.epochs is None else sum(count for _, count in self._sizes_left(epoch, offset))

    def microbatches_left(self, epoch: int, offset: int, *, microbatch: int, num_replicas: int) -> int | None:
        """Microbatches of every rank from this place to the end of the run; None where it has no end."""
        if self.epochs is None:
            return None
        return sum(
            count * BatchPlan(global_batch=rows, microbatch=microbatch, num_replicas=num_replicas).accumulation_steps
            for rows, count in self._sizes_left(epoch, offset)
        )

    def _sizes_left(self, epoch: int, offset: int) -> Iterator[tuple[int, int]]:
        """(rows, number of updates of that many rows) from this place to the end of a finite run."""
        assert self.epochs is not None
        epoch, offset, _ = self.settle(epoch, offset)
        if self.is_over(epoch):
            return
        later_epochs = self.epochs - epoch - 1
        if self.tail == "carry":
            rest = self.length - offset + later_epochs * self.length
            yield from self._sizes(rest, 1)
        else:
            yield from self._sizes(self.rows_of(self.length - offset), 1)
            yield from self._sizes(self.rows_of(self.length), later_epochs)

    def _sizes(self, num_rows: int, times: int) -> Iterator[tuple[int, int]]:
        full, rest = divmod(num_rows, self.global_batch)
        yield self.global_batch, full * times
        if rest:
            yield rest, times
