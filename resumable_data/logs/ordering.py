"""Whether each rank read its samples in the planned order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.logs.plan import LogPlan
    from resumable_data.logs.rows import Rows
    from resumable_data.order import Int64Array

_NUM_SHOWN = 8
_NUM_BREAKS_MAX = 100
_FIRST_WINDOW = 1 << 10
_LARGEST_WINDOW = 1 << 18


class Place(msgspec.Struct, frozen=True):
    """A place in the planned order, and the ID there.

    Attributes:
        epoch: The epoch.
        offset: Place in it; from N on, one that padding repeats.
        id: The sample.
    """

    epoch: int
    offset: int
    id: int

    def __str__(self) -> str:
        return f"ID {self.id} (epoch {self.epoch}, offset {self.offset})"


class Break(NamedTuple):
    """Where a rank's IDs do not go on as planned."""

    where: str
    rank: int
    expected: Place
    found: Place


class _Stream(msgspec.Struct):
    """One rank's progress: `row` is ``epoch * rows_per_epoch + offset`` of what comes next."""

    rank: int
    row: int
    num_breaks: int = 0


class OrderCheck:
    """Follows each rank through the plan; after a break, it goes on from where the rank went on.

    A rank with `_NUM_BREAKS_MAX` breaks is not followed any further: its log has another order altogether.

    Args:
        plan: With an order.
    """

    def __init__(self, plan: LogPlan) -> None:
        self.shown: list[Break] = []
        self.gave_up = False
        self.lacks_ranks = False
        """Whether the order, or a part of it, was not checked because a log does not say which rank read what."""
        self.lacks_number = False
        """Whether it was not checked because there are several ranks and their number was not declared."""
        self._plan = plan
        self._streams: dict[int, _Stream] = {}

    @property
    def num_breaks(self) -> int:
        """Breaks on all ranks, at least."""
        return sum(stream.num_breaks for stream in self._streams.values())

    @property
    def ranks(self) -> list[int]:
        """Ranks with a break."""
        return [rank for rank, stream in self._streams.items() if stream.num_breaks]

    def add(self, name: str, rows: Rows) -> None:
        """Follow the rows of a log that go on from those added before."""
        num_replicas = self._plan.num_replicas
        if rows.rank is None and num_replicas not in (None, 1):
            self.lacks_ranks = True
        elif rows.rank is not None and num_replicas is None and rows.rank.any():
            self.lacks_number = True
        elif self._plan.rows_per_epoch:
            for rank, taken in _by_rank(rows.rank, rows.id.size):
                if rank < (num_replicas or 1):
                    self._follow(rank, taken, rows, name)

    def _follow(self, rank: int, taken: Int64Array | slice, rows: Rows, name: str) -> None:
        ids = rows.id[taken]
        epochs = None if rows.epoch is None else rows.epoch[taken]
        stream = self._streams.get(rank)
        if stream is None:
            first = self._plan.first_epoch if epochs is None else int(epochs[0])
            stream = self._streams[rank] = _Stream(rank, first * self._plan.rows_per_epoch + rank)

        def locate(at: int) -> str:
            return f"{name} {rows.locate(at if isinstance(taken, slice) else int(taken[at]))}"

        self._run(stream, ids, epochs, locate)

    def _run(self, stream: _Stream, ids: Int64Array, epochs: Int64Array | None, locate: Callable[[int], str]) -> None:
        at, window = 0, _FIRST_WINDOW
        step, total = self._plan.num_replicas or 1, self._plan.rows_per_epoch
        while at < ids.size and stream.num_breaks < _NUM_BREAKS_MAX:
            epoch, offset = divmod(stream.row, total)
            count = min(window, ids.size - at, -(-(total - offset) // step))
            planned = self._plan.ids_at(epoch, offset + step * np.arange(count, dtype=np.int64))
            is_wrong = planned != ids[at : at + count]
            if epochs is not None:
                is_wrong |= epochs[at : at + count] != epoch
            wrong = int(is_wrong.argmax()) if is_wrong.any() else count
            if wrong == count:
                stream.row = self._after(stream.rank, epoch, offset + step * (count - 1))
                window = min(2 * window, _LARGEST_WINDOW)
            else:
                expected = Place(epoch, offset + step * wrong, int(planned[wrong]))
                found = self._find(ids[at + wrong :], epoch, None if epochs is None else int(epochs[at + wrong]))
                self._break(stream, Break(locate(at + wrong), stream.rank, expected, found))
                stream.row = self._after(stream.rank, found.epoch, found.offset)
                count, window = wrong + 1, _FIRST_WINDOW
            at += count

    def _after(self, rank: int, epoch: int, offset: int) -> int:
        """The row that a rank reads after one at `offset`."""
        total, offset = self._plan.rows_per_epoch, offset + (self._plan.num_replicas or 1)
        return epoch * total + offset if offset < total else (epoch + 1) * total + rank

    def _find(self, ids: Int64Array, expected_epoch: int, epoch: int | None) -> Place:
        """Where the first of `ids` is, in its epoch, or in the one that the second ID fits best."""
        sample = int(ids[0])
        if epoch is not None:
            return self._place(sample, epoch)
        first = self._plan.first_epoch
        last = first + (self._plan.epochs or 1) - 1
        likely = min(max(expected_epoch, first), last)
        places = [self._place(sample, one) for one in (likely, likely - 1, likely + 1) if first <= one <= last]
        fitting = [place for place in places if ids.size > 1 and self._id_after(place) == ids[1]]
        return (fitting or places)[0]

    def _place(self, sample: int, epoch: int) -> Place:
        assert self._plan.order is not None
        return Place(epoch, int(self._plan.order.offsets(epoch, np.array([sample], np.int64))[0]), sample)

    def _id_after(self, place: Place) -> int:
        """The ID that a rank reads after the one at `place`; -1 at the end of an epoch."""
        offset = place.offset + (self._plan.num_replicas or 1)
        if offset >= self._plan.rows_per_epoch:
            return -1
        return int(self._plan.ids_at(place.epoch, np.array([offset], np.int64))[0])

    def _break(self, stream: _Stream, found: Break) -> None:
        stream.num_breaks += 1
        self.gave_up |= stream.num_breaks == _NUM_BREAKS_MAX
        if len(self.shown) < _NUM_SHOWN:
            self.shown.append(found)


def _by_rank(ranks: Int64Array | None, size: int) -> Iterator[tuple[int, Int64Array | slice]]:
    """Each rank with its rows, in their order."""
    if ranks is None:
        yield 0, slice(0, size)
        return
    if (ranks == ranks[0]).all():
        yield int(ranks[0]), slice(0, size)
        return
    by_rank = np.argsort(ranks, kind="stable")
    starts = np.flatnonzero(np.diff(ranks[by_rank], prepend=-1))
    for taken in np.split(by_rank, starts[1:]):
        yield int(ranks[taken[0]]), taken
