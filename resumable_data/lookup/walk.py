"""All deliveries of a ledger, file after file, and what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.audit.attempt_audit import find_branch
from resumable_data.audit.history import read_history
from resumable_data.audit.inside import TakenPart
from resumable_data.audit.options import Options
from resumable_data.audit.packed import not_given
from resumable_data.audit.rank_files import RankFiles
from resumable_data.audit.rows import positions_of
from resumable_data.audit.timeline import earliest_rewind
from resumable_data.errors import LedgerCorruptError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.row_ids import row_ids
from resumable_data.lookup.parted import hand_on
from resumable_data.order import ids_at, order_from_description

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.packed import Packed
    from resumable_data.ledger.columns import Deliveries
    from resumable_data.ledger.reader import RankLog
    from resumable_data.ledger.row_pieces import RowPieces
    from resumable_data.order import Order

    Vector = NDArray[np.int64]

STATUSES = ("committed", "rewound", "rolled back", "in flight")


class Status:
    """What became of a delivery: its place in `STATUSES`."""

    COMMITTED = 0
    REWOUND = 1
    ROLLED_BACK = 2
    IN_FLIGHT = 3


class Part(NamedTuple):
    """Some deliveries of one file.

    Attributes:
        branch: The attempt, with its updates.
        rank: The data-parallel rank.
        records: The deliveries.
        status: (n,) int8, see `Status`.
        pieces: Of packed rows, the pieces of all rows of the deliveries, where the file holds them.
    """

    branch: Branch
    rank: int
    records: Deliveries
    status: NDArray[np.int8]
    pieces: RowPieces | None = None

    def take(self, which: Vector | NDArray[np.bool_] | slice) -> Part:
        """The deliveries that numpy indexing with `which` gives."""
        records, pieces = self.records.take(which), self.pieces
        if pieces is not None:
            chosen = np.zeros(len(self.records), np.bool_)
            chosen[which] = True  # ascending, in all uses
            pieces = pieces.take(np.flatnonzero(np.repeat(chosen, self.records.count)))
        return self._replace(records=records, status=self.status[which], pieces=pieces)


class Rows(NamedTuple):
    """Rows of deliveries, a column per field, each of them (k,).

    Attributes:
        record: int64, which of the deliveries.
        position: int64; of a padding row, that of the sample it repeats.
        id: int64.
        is_padding: bool.
        pieces: Of packed rows, their pieces, where the file holds them.
    """

    record: Vector
    position: Vector
    id: Vector
    is_padding: NDArray[np.bool_]
    pieces: RowPieces | None = None


class Walk:
    """A ledger, attempt by attempt and rank by rank.

    Args:
        path: Its directory. Nothing in it is changed.
        packed: Of a run over packed rows, its `resumable_data.packing.PackedTokens`; not needed where all files hold
            the pieces of their rows. Epochs of rows are not known without it.

    Raises:
        LedgerCorruptError: A claim is damaged; so may a file be that is met later.
        LedgerError: There is no ledger at `path`.
        UsageError: The order of the run is not one of this package; or it read packed rows, and they are not given.

    Attributes:
        history: Its attempts.
        recipe: The recipe of the newest one.
    """

    def __init__(self, path: str | os.PathLike[str], packed: Packed | None = None) -> None:
        self.history = read_history(Path(path), packed, needs_rows=False)
        self.recipe = recipe = self.history.newest.claim.start.recipe
        self._order: Order | None = self.history.rows
        if recipe.is_packed:
            return
        try:
            self._order = order_from_description(recipe.order)
        except UsageError as error:
            raise UsageError(
                f"the ledger's order cannot be rebuilt, so it is not known what was read: {error}"
            ) from None

    @property
    def order(self) -> Order:
        """The order of the run.

        Raises:
            UsageError: It read packed rows, and they are not given.
        """
        if self._order is None:
            raise not_given()
        return self._order

    def parts(self) -> Iterator[Part]:
        """All deliveries, in the order of attempts, ranks and records."""
        last = self.history.chain[-1]
        newest = self._branch(last)
        for number in sorted(self.history.attempts):
            branch, files = newest if number == last else self._branch(number)
            for rank in range(branch.claim.num_replicas):
                yield from self._parts_of(branch, files, rank, newest[0].stop_update)

    def _branch(self, number: int) -> tuple[Branch, RankFiles]:
        files = RankFiles(self.history.attempts[number], Options())
        return find_branch(self.history, number, files, self._order), files

    def _parts_of(self, branch: Branch, files: RankFiles, rank: int, stop_update: int) -> Iterator[Part]:
        """The deliveries of one file; `stop_update` is where the whole surviving history ends."""
        log = files.read(rank)
        if log is None:
            return
        taken_part = TakenPart(rank, branch)
        handed_on = Status.COMMITTED if branch.stop_update < stop_update else Status.IN_FLIGHT
        beyond = Status.IN_FLIGHT if branch.claim.attempt == self.history.chain[-1] else Status.ROLLED_BACK
        if self._order is None and not log.has_pieces:
            raise not_given()
        first = 0
        for records, pieces in _deliveries(log):
            if not branch.is_possible(records).all():
                raise LedgerCorruptError(
                    f"{shown(log.path)}: expected rows that a run can reach, found numbers beyond. They cannot be "
                    "listed; the audit says which records hold them."
                )
            places = np.arange(first, first + len(records))
            status = np.where(records.update < branch.stop_update, Status.COMMITTED, beyond).astype(np.int8)
            target = earliest_rewind(log.rewinds.after, log.rewinds.update, places)
            status[target <= records.update] = Status.REWOUND
            first += len(records)
            taken = taken_part.find(records, target <= records.update).first
            if branch.handed_on is not None and taken.any():
                records, status = hand_on(records, status, taken, branch.handed_on, handed_on)  # in two
            yield Part(branch, rank, records, status, pieces)

    def rows(self, part: Part) -> Rows:
        """The rows of a part's deliveries, filler left out."""
        records = part.records
        record = np.repeat(np.arange(len(records)), records.count)
        ends, wrap_at = np.cumsum(records.count), part.branch.wrap_at(records.update)
        is_padding = np.arange(record.size) >= np.repeat(ends - records.padding, records.count)
        position = positions_of(records.start, records.stride, records.count, wrap_at, self.recipe.length)
        ids = ids_at(self.order, position) if part.pieces is None else row_ids(part.pieces)
        return Rows(record, position, ids, is_padding, part.pieces)


def _deliveries(log: RankLog) -> Iterator[tuple[Deliveries, RowPieces | None]]:
    if log.has_pieces:
        yield from log.deliveries_with_pieces()
    else:
        yield from ((records, None) for records in log.deliveries())
