"""What a rank's file must say, from the calls that were made, and what the reader says that it says."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.cursor import CoverageSpan
from resumable_data.ledger import digest_ids

if TYPE_CHECKING:
    from resumable_data.ledger import RankWriter
    from resumable_data.ledger.reader import RankLog

Facts = dict[str, list[tuple[int, ...]]]


class Teller:
    """Makes the calls of a `RankWriter` and takes down the records that they must become.

    Args:
        fold_rows: As given to its ledger.

    Attributes:
        writer: The writer, to be set.
        records: Kind and fields of every record, the header first.
    """

    writer: RankWriter

    def __init__(self, *, fold_rows: int = 0) -> None:
        self.records: list[tuple[str, tuple[int, ...]]] = [("header", ())]
        self._folds = bool(fold_rows)
        self._open: list[tuple[int, ...]] = []
        self._ids: list[np.ndarray[Any, np.dtype[np.int64]]] = []

    def deliver(self, update: int, index: int, start: int, *, stride: int, count: int, is_last: bool) -> None:
        """A microbatch whose IDs are its positions."""
        ids = np.arange(start, start + stride * count, stride, dtype=np.int64)
        shape = (update, index, start, stride, count, 0, 0)
        self.writer.delivered(*shape, digest_ids(ids), ids, is_last=is_last)
        self._open.append(shape)
        self._ids.append(ids)
        if is_last or not self._folds:
            self._fold()

    def commit(self, update: int, *, applied: bool) -> None:
        self._tell("commit", update, applied)
        self.writer.commit(update, applied)

    def rewind(self, update: int) -> None:
        self._tell("rewind", update)
        self.writer.rewind(update)

    def jump(self, update: int, position: int) -> None:
        self._tell("jump", update, position)
        self.writer.jump(update, position)

    def unreadable(self, update: int, index: int, position: int) -> None:
        self._tell("unreadable", update, index, position, position)
        self.writer.unreadable(update, index, position, position)

    def saved(self, update: int) -> None:
        self._tell("saved", update)
        self.writer.saved(update)

    def agreed(self, update: int, stop: int) -> bool:
        """Write down an agreement, which waits for the disk; whether the file can still be relied on."""
        self._tell("agreed", update, 0, stop, 11, 12)
        self.writer.agreed(update, CoverageSpan(0, stop, (11, 12)))
        return not self.writer.broken

    def sync(self) -> bool:
        """Wait for the disk; whether the file can still be relied on."""
        self._fold()
        self.writer.sync()
        return not self.writer.broken

    def close(self) -> bool:
        """Close the file; whether it was good to the end."""
        self._tell("end")
        self.writer.close()
        return not self.writer.broken

    def abandon(self) -> None:
        """Forget the writer, whose process is dead."""
        vars(self).pop("writer", None)

    def _tell(self, kind: str, *fields: int) -> None:
        self._fold()
        self.records.append((kind, fields))

    def _fold(self) -> None:
        if self._open:
            update, index, start, stride, _, *none = self._open[0]
            count = sum(shape[4] for shape in self._open)
            digest = digest_ids(np.concatenate(self._ids))
            fields = (update, index, start, stride, count, *none, len(self._open), digest)
            self.records.append(("delivered", fields))
        self._open, self._ids = [], []


def facts_of(records: list[tuple[str, tuple[int, ...]]]) -> Facts:
    """What a reader must say of these records."""
    facts: Facts = {name: [] for name in ("header", "delivered", "commit", "rewind", "jump", "unreadable")}
    facts |= {"agreed": [], "saved": [], "end": []}
    for kind, fields in records:
        deliveries, commits = len(facts["delivered"]), len(facts["commit"])
        after = {"rewind": (deliveries, commits), **dict.fromkeys(("commit", "jump", "unreadable"), (deliveries,))}
        facts[kind].append((*map(int, fields), *after.get(kind, ())))
    return facts


def facts_in(log: RankLog) -> Facts:
    """What the reader says."""
    d = log.all_deliveries()
    u = log.unreadable
    delivered = (d.update, d.index, d.start, d.stride, d.count, d.padding, d.filler, d.parts, d.digest)
    return {
        "header": [()] if log.header else [],
        "delivered": _rows(*delivered),
        "commit": _rows(log.commits.update, log.commits.applied, log.commits.after),
        "rewind": _rows(log.rewinds.update, log.rewinds.after, log.rewinds.after_commits),
        "jump": _rows(log.jumps.update, log.jumps.position, log.jumps.after),
        "unreadable": _rows(u.update, u.index, u.position, u.id, u.after),
        "agreed": [(one.update, one.start, one.stop, one.lane_0, one.lane_1) for one in log.agreements],
        "saved": _rows(log.saved),
        "end": [()] if log.has_end else [],
    }


def _rows(*columns: Any) -> list[tuple[int, ...]]:
    return [tuple(map(int, row)) for row in zip(*(column.tolist() for column in columns), strict=True)]
