"""Where rows come from that a log has more often than planned."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable

    from resumable_data.logs.reading import Source
    from resumable_data.logs.rows import Rows
    from resumable_data.order import Int64Array

_NUM_SHOWN = 8
_NUM_KEPT = 4096


class Seen(msgspec.Struct, frozen=True, kw_only=True):
    """One row of a log.

    Attributes:
        where: File and line, or row.
        rank: The rank that read it; None where the log does not say.
        step: The step, or None.
    """

    where: str
    rank: int | None
    step: int | None

    def __str__(self) -> str:
        parts = [f"{name} {value}" for name, value in (("rank", self.rank), ("step", self.step)) if value is not None]
        return f"{', '.join(parts)} ({self.where})" if parts else self.where


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """A row of a log that is more than what is planned for its ID.

    Attributes:
        id: The sample.
        epoch: Its epoch, None where the log does not say.
        first: Where it was seen first.
        again: Where it is too often.
    """

    id: int
    epoch: int | None
    first: Seen | None
    again: Seen


class ReplayLog:
    """Gathers such rows: how many by rank and file, and the first few in full."""

    def __init__(self) -> None:
        self.num_rows = 0
        self.by_rank: dict[int, int] = {}
        self.by_file: dict[str, int] = {}
        self.first_step: int | None = None
        self.last_step: int | None = None
        self.kept: list[tuple[int | None, Int64Array]] = []
        """Epoch and IDs of the first `_NUM_KEPT` or so."""
        self._num_kept = 0
        self._shown: list[Replay] = []

    def add(self, name: str, rows: Rows, surplus: Int64Array, epoch: int | None) -> None:
        """Add the rows `surplus` of one epoch in a block of the log `name`."""
        if not surplus.size:
            return
        self.num_rows += surplus.size
        self.by_file[name] = self.by_file.get(name, 0) + surplus.size
        if rows.rank is not None:
            for rank, number in zip(*np.unique(rows.rank[surplus], return_counts=True), strict=True):
                self.by_rank[int(rank)] = self.by_rank.get(int(rank), 0) + int(number)
        if rows.step is not None:
            first, last = int(rows.step[surplus].min()), int(rows.step[surplus].max())
            self.first_step = first if self.first_step is None else min(self.first_step, first)
            self.last_step = last if self.last_step is None else max(self.last_step, last)
        if self._num_kept < _NUM_KEPT:
            self.kept.append((epoch, rows.id[surplus]))
            self._num_kept += surplus.size
        for row in surplus[: _NUM_SHOWN - len(self._shown)].tolist():
            again = _seen(name, rows, row)
            self._shown.append(Replay(id=int(rows.id[row]), epoch=epoch, first=None, again=again))

    def first_few(self, sources: Iterable[Source]) -> tuple[Replay, ...]:
        """The first few, with where their IDs were seen first: reads the logs again up to there."""
        firsts: dict[tuple[int | None, int], Seen] = {}
        wanted = {(replay.epoch, replay.id) for replay in self._shown}
        for source in sources:
            if len(firsts) == len(wanted):
                break
            for rows in source.read():
                for key in wanted - firsts.keys():
                    is_it = rows.id == key[1]
                    if key[0] is not None and rows.epoch is not None:
                        is_it &= rows.epoch == key[0]
                    if is_it.any():
                        firsts[key] = _seen(source.name, rows, int(is_it.argmax()))
                if len(firsts) == len(wanted):
                    break
        return tuple(
            msgspec.structs.replace(replay, first=_other(firsts.get((replay.epoch, replay.id)), replay.again))
            for replay in self._shown
        )


def _other(first: Seen | None, again: Seen) -> Seen | None:
    """Where it was seen first, unless that is the row itself: of a sample that should not be there at all."""
    return None if first == again else first


def _seen(name: str, rows: Rows, row: int) -> Seen:
    rank = None if rows.rank is None else int(rows.rank[row])
    step = None if rows.step is None else int(rows.step[row])
    return Seen(where=f"{name} {rows.locate(row)}", rank=rank, step=step)
