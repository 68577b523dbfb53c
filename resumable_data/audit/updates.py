"""Where updates lie, and who reads what of them: the rules of `plan`, for whole columns of records at once.

These are written apart from `plan` on purpose: an audit that asked the planner what was planned could not find
its mistakes. A test holds both against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np

from resumable_data.ledger.records import Jump
from resumable_data.plan import Place, Schedule, UpdateSpan

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from resumable_data.audit.packed import PackedRows
    from resumable_data.cursor import Recipe

    Vector = NDArray[np.int64]

    Number = TypeVar("Number", int, Vector)

_ENDLESS = 1 << 61
_DROPPING_TAILS = ("drop", "drop_ranks", "drop_batch", "pad_ranks_drop_batch")


class Spans(NamedTuple):
    """What updates take, a column per field; each is (k,) int64.

    Samples at positions [start, start + num_samples), then padding rows; both 0 where the run is over.
    """

    start: Vector
    num_samples: Vector
    padding: Vector


class Stretch(msgspec.Struct, frozen=True):
    """Updates under one recipe, one after another, from a place on; batches, where the run is counted by them.

    Args:
        recipe: The recipe in effect.
        epoch: Epoch of the place.
        offset: Samples of that epoch before the place.
        first_update: Index of the first update, over the whole run.
        epochs: Epochs of the whole run, None without an end.
        num_replicas: Ranks; of use where the run is counted by batches, like `microbatch`.
        microbatch: Rows of one batch of one rank.
        left_at: The position at which it was left for a later epoch.
        rows: Of a run over packed rows, these; None of a run over samples.
    """

    recipe: Recipe
    epoch: int
    offset: int
    first_update: int
    epochs: int | None = None
    num_replicas: int = 1
    microbatch: int = 1
    left_at: int = _ENDLESS
    rows: PackedRows | None = None

    @property
    def batch(self) -> int:
        """Rows of one update, or batch of all ranks, that is not cut short."""
        return self.microbatch * self.num_replicas if self.recipe.counts_batches else self.recipe.global_batch

    @property
    def schedule(self) -> Schedule:
        """The scalar form of the same rules.

        Raises:
            UsageError: They are none that a run can have.
        """
        recipe = self.recipe
        return Schedule(
            length=recipe.length,
            global_batch=self.batch,
            tail=recipe.tail,
            epochs=self.epochs,
            num_replicas=self.num_replicas,
        )

    @property
    def position(self) -> int:
        """The place as a position."""
        return self.epoch * self.recipe.length + self.offset

    @property
    def drops(self) -> bool:
        """Whether there may be positions that are in no update."""
        return self.recipe.tail in _DROPPING_TAILS or self.left_at != _ENDLESS

    def spans(self, update: Vector) -> Spans:
        """What these updates take: update (k,) int64, each at least `first_update`."""
        number = update - self.first_update
        settled = self.schedule.settle(self.epoch, self.offset)
        if self.recipe.tail == "carry":
            return self._carried(number, settled)
        return self._per_epoch(number, settled)

    def place_after(self, num_updates: int) -> Place:
        """Where the next update starts after the first `num_updates`; `dropped` is left 0."""
        if num_updates == 0:
            return Place(self.epoch, self.offset)
        last = self.spans(np.array([self.first_update + num_updates - 1], np.int64))
        place = self.schedule.after(UpdateSpan(int(last.start[0]), int(last.num_samples[0]), int(last.padding[0])))
        return Place(place.epoch, place.offset)

    def is_sample(self, positions: Vector) -> NDArray[np.bool_]:
        """Whether a position from the place on is in an update, or else dropped: (k,) int64 to (k,) bool."""
        length = self.recipe.length
        kept = positions < self.left_at
        if self.recipe.tail in _DROPPING_TAILS:
            epoch, offset = positions // length, positions % length
            origin = np.where(epoch == self.epoch, self.offset, 0)
            kept &= offset < origin + self._rows_in(length - origin)
        return kept

    def _carried(self, number: Vector, settled: Place) -> Spans:
        if self.rows is not None:
            return self._packed(number, self.rows)
        first = settled.epoch * self.recipe.length + settled.offset
        end = _ENDLESS if self.epochs is None else min(self.epochs * self.recipe.length, _ENDLESS)
        start = first + number * self.recipe.global_batch
        num_samples = np.clip(end - start, 0, self.recipe.global_batch)
        return Spans(start, num_samples, np.zeros_like(start))

    def _packed(self, number: Vector, rows: PackedRows) -> Spans:
        batch, first = self.recipe.global_batch, self.offset
        if self.recipe.batch_unit:
            starts = rows.update_starts(first, batch, int(number.max(initial=-1)) + 1, epochs=self.epochs)
            last = starts.size - 1  # the run's end, where it comes before
            start, stop = starts[np.minimum(number, last)], starts[np.minimum(number + 1, last)]
        else:
            start = first + number * batch
            stop = start + batch
        end = self.epochs and rows.end_of(self.epochs, at_most=int(stop.max(initial=first)))
        if end is not None:
            start, stop = np.minimum(start, end), np.minimum(stop, end)
        return Spans(start, stop - start, np.zeros_like(start))

    def _per_epoch(self, number: Vector, settled: Place) -> Spans:
        length, batch = self.recipe.length, self.batch
        head_rows, whole_rows = self._rows_in(length - settled.offset), self._rows_in(length)
        head = -(-head_rows // batch)
        later, nth = np.divmod(number - head, -(-whole_rows // batch))
        in_head = number < head
        epoch = np.where(in_head, settled.epoch, settled.epoch + 1 + later)
        first_row = np.where(in_head, number, nth) * batch
        offset = np.where(in_head, settled.offset, 0) + first_row
        num_rows = np.minimum(batch, np.where(in_head, head_rows, whole_rows) - first_row)
        num_samples = np.minimum(num_rows, length - offset)
        padding = num_rows - num_samples
        if self.epochs is not None:
            is_over = epoch >= self.epochs
            num_samples = np.where(is_over, 0, num_samples)
            padding = np.where(is_over, 0, padding)
        return Spans(epoch * length + offset, num_samples, padding)

    def _rows_in(self, num_samples: Number) -> Number:
        """Rows that are read of the last `num_samples` of an epoch, padding included."""
        tail, batch, ranks = self.recipe.tail, self.batch, self.num_replicas
        rows = num_samples
        if tail in ("pad_ranks", "pad_ranks_drop_batch"):
            rows = -(-rows // ranks) * ranks
        elif tail == "drop_ranks":
            rows = rows // ranks * ranks
        elif tail == "pad":
            rows = -(-rows // batch) * batch
        return rows // batch * batch if tail in ("drop", "drop_batch", "pad_ranks_drop_batch") else rows


class Course(msgspec.Struct, frozen=True):
    """The updates of one attempt: stretches one after another, a new one where an epoch was left early.

    Args:
        stretches: At least one, by their first update.
    """

    stretches: tuple[Stretch, ...]

    @classmethod
    def of(cls, start: Stretch, jumps: Sequence[Jump]) -> Course:
        """The course that begins as `start`, with what is left out by `jumps`; those that no loop makes are passed by.

        A loop jumps forward, to the beginning of an epoch.
        """
        stretches = [start]
        for jump in jumps:
            last = stretches[-1]
            epoch, offset = divmod(jump.position, last.recipe.length)
            if jump.update < last.first_update or offset:
                continue
            left_at = _position_after(last, jump.update)
            if left_at < jump.position:
                stretches[-1] = msgspec.structs.replace(last, left_at=left_at)
                stretches.append(msgspec.structs.replace(last, epoch=epoch, offset=0, first_update=jump.update))
        return cls(tuple(stretches))

    @property
    def jumps(self) -> list[Jump]:
        """What it was made of, those passed by left out."""
        return [Jump(one.first_update, one.position) for one in self.stretches[1:]]

    @property
    def recipe(self) -> Recipe:
        """The recipe of all of it."""
        return self.stretches[0].recipe

    @property
    def batch(self) -> int:
        """Rows of one update, or batch of all ranks, that is not cut short."""
        return self.stretches[0].batch

    @property
    def position(self) -> int:
        """Where it starts."""
        return self.stretches[0].position

    @property
    def first_update(self) -> int:
        """Index of its first update."""
        return self.stretches[0].first_update

    def spans(self, update: Vector) -> Spans:
        """What these updates take: update (k,) int64, each at least `first_update`."""
        if len(self.stretches) == 1:
            return self.stretches[0].spans(update)
        spans = Spans(*np.zeros((3, update.size), np.int64))
        for which, stretch in self._parts(update, [one.first_update for one in self.stretches]):
            for column, values in zip(spans, stretch.spans(update[which]), strict=True):
                column[which] = values
        return spans

    def place_before(self, stop_update: int) -> Place:
        """Where `stop_update` starts after the updates before it; `dropped` is left 0."""
        holds = [one for one in self.stretches if one.first_update < stop_update]
        stretch = holds[-1] if holds else self.stretches[0]
        return stretch.place_after(stop_update - stretch.first_update)

    def is_sample(self, positions: Vector) -> NDArray[np.bool_]:
        """Whether a position from its start on is in an update, or else dropped: (k,) int64 to (k,) bool."""
        kept = np.zeros(positions.shape, np.bool_)
        for which, stretch in self._parts(positions, [one.position for one in self.stretches]):
            kept[which] = stretch.is_sample(positions[which])
        return kept

    def _parts(self, values: Vector, firsts: Sequence[int]) -> Iterator[tuple[Vector, Stretch]]:
        """Which of `values` belong to each stretch, given the first value of each: the last that is not above them."""
        number = np.searchsorted(np.array(firsts, np.int64), values, side="right") - 1
        for n, stretch in enumerate(self.stretches):
            yield np.flatnonzero(number == n), stretch


def _position_after(stretch: Stretch, stop_update: int) -> int:
    place = stretch.place_after(stop_update - stretch.first_update)
    return place.epoch * stretch.recipe.length + place.offset


class Shares(NamedTuple):
    """What single microbatches hold, a column per field; each is (k,) int64.

    Row j is at position ``start + j * num_replicas``; the last `padding` of `num_rows` rows are padding.
    """

    start: Vector
    num_rows: Vector
    padding: Vector


def num_microbatches(num_rows: Vector, *, num_replicas: int, microbatch: int) -> Vector:
    """Microbatches of every rank in updates of so many rows: (k,) int64 to (k,) int64."""
    return -(-_busiest(num_rows, num_replicas) // microbatch)


def shares(
    spans: Spans,
    rank: Vector | int,
    index: Vector,
    *,
    num_replicas: int,
    microbatch: int,
    parts: Vector | int = 1,
    behind: Vector | int = 0,
) -> Shares:
    """What microbatches [index, index + parts) of `rank` hold together, in each of the updates `spans`.

    The busiest rank's R rows are cut into A parts that differ by at most one, larger first; a rank's rows are
    every `num_replicas`-th of the update's, those left out that are `behind`.
    """
    num_rows = spans.num_samples + spans.padding - behind
    busiest = _busiest(num_rows, num_replicas)
    shorter, longer = np.divmod(busiest, np.maximum(-(-busiest // microbatch), 1))
    own = np.maximum(-(-(num_rows - rank) // num_replicas), 0)
    low = np.minimum(index * shorter + np.minimum(index, longer), own)
    stop = index + parts
    high = np.minimum(stop * shorter + np.minimum(stop, longer), own)
    first_row, count = behind + rank + num_replicas * low, high - low
    num_samples = np.clip(-(-(spans.num_samples - first_row) // num_replicas), 0, count)
    return Shares(spans.start + first_row, count, count - num_samples)


def _busiest(num_rows: Vector, num_replicas: int) -> Vector:
    return -(-num_rows // num_replicas)
