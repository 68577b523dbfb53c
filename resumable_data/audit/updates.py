"""Where updates lie, and who reads what of them: the rules of `plan`, for whole columns of records at once.

These are written apart from `plan` on purpose: an audit that asked the planner what was planned could not find
its mistakes. A test holds both against each other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.plan import Place, Schedule, UpdateSpan

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.cursor import Recipe

    Vector = NDArray[np.int64]

_ENDLESS = 1 << 61


class Spans(NamedTuple):
    """What updates take, a column per field; each is (k,) int64.

    Samples at positions [start, start + num_samples), then padding rows; both 0 where the run is over.
    """

    start: Vector
    num_samples: Vector
    padding: Vector


class Stretch(msgspec.Struct, frozen=True):
    """Updates under one recipe, one after another, from a cursor's place on.

    Args:
        recipe: The recipe in effect.
        epoch: Epoch of the place.
        offset: Samples of that epoch before the place.
        first_update: Index of the first update, over the whole run.
        epochs: Epochs of the whole run, None without an end.
    """

    recipe: Recipe
    epoch: int
    offset: int
    first_update: int
    epochs: int | None = None

    @property
    def schedule(self) -> Schedule:
        """The scalar form of the same rules."""
        recipe = self.recipe
        return Schedule(length=recipe.length, global_batch=recipe.global_batch, tail=recipe.tail, epochs=self.epochs)

    @property
    def position(self) -> int:
        """The place as a position."""
        return self.epoch * self.recipe.length + self.offset

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
        if self.recipe.tail != "drop":
            return np.ones(positions.shape, np.bool_)
        length, batch = self.recipe.length, self.recipe.global_batch
        epoch, offset = positions // length, positions % length
        origin = np.where(epoch == self.epoch, self.offset, 0)
        kept: NDArray[np.bool_] = offset < origin + (length - origin) // batch * batch
        return kept

    def _carried(self, number: Vector, settled: Place) -> Spans:
        first = settled.epoch * self.recipe.length + settled.offset
        end = _ENDLESS if self.epochs is None else self.epochs * self.recipe.length
        start = first + number * self.recipe.global_batch
        num_samples = np.clip(end - start, 0, self.recipe.global_batch)
        return Spans(start, num_samples, np.zeros_like(start))

    def _per_epoch(self, number: Vector, settled: Place) -> Spans:
        length, batch = self.recipe.length, self.recipe.global_batch
        is_dropping = self.recipe.tail == "drop"

        def updates_in(num_samples: int) -> int:
            return num_samples // batch if is_dropping else -(-num_samples // batch)

        head = updates_in(length - settled.offset)
        later, nth = np.divmod(number - head, updates_in(length))
        in_head = number < head
        epoch = np.where(in_head, settled.epoch, settled.epoch + 1 + later)
        offset = np.where(in_head, settled.offset + number * batch, nth * batch)
        num_samples = np.minimum(batch, length - offset)
        padding = batch - num_samples if self.recipe.tail == "pad" else np.zeros_like(num_samples)
        if self.epochs is not None:
            is_over = epoch >= self.epochs
            num_samples = np.where(is_over, 0, num_samples)
            padding = np.where(is_over, 0, padding)
        return Spans(epoch * length + offset, num_samples, padding)


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


def shares(spans: Spans, rank: Vector | int, index: Vector, *, num_replicas: int, microbatch: int) -> Shares:
    """What microbatch `index` of `rank` holds, in each of the updates `spans`.

    The busiest rank's R rows are cut into A parts that differ by at most one, larger first; a rank's rows are
    every `num_replicas`-th of the update's.
    """
    num_rows = spans.num_samples + spans.padding
    busiest = _busiest(num_rows, num_replicas)
    parts = np.maximum(-(-busiest // microbatch), 1)
    shorter, longer = np.divmod(busiest, parts)
    own = np.maximum(-(-(num_rows - rank) // num_replicas), 0)
    low = np.minimum(index * shorter + np.minimum(index, longer), own)
    high = np.minimum((index + 1) * shorter + np.minimum(index + 1, longer), own)
    first_row, count = rank + num_replicas * low, high - low
    num_samples = np.clip(-(-(spans.num_samples - first_row) // num_replicas), 0, count)
    return Shares(spans.start + first_row, count, count - num_samples)


def _busiest(num_rows: Vector, num_replicas: int) -> Vector:
    return -(-num_rows // num_replicas)
