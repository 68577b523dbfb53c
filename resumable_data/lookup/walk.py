"""All deliveries of a ledger, file after file, and what became of them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.audit.attempt_audit import common_stop, find_jumps
from resumable_data.audit.history import claim_stretch, read_history
from resumable_data.audit.options import Options
from resumable_data.audit.rank_audit import Branch, earliest_rewind
from resumable_data.audit.rank_files import RankFiles
from resumable_data.audit.rows import expand, ids_of
from resumable_data.audit.updates import Course
from resumable_data.errors import UsageError
from resumable_data.order import order_from_description

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.audit.history import Attempt
    from resumable_data.ledger.columns import Deliveries
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
    """

    branch: Branch
    rank: int
    records: Deliveries
    status: NDArray[np.int8]


class Rows(NamedTuple):
    """Rows of deliveries, a column per field, each of them (k,).

    Attributes:
        record: int64, which of the deliveries.
        position: int64; of a padding row, that of the sample it repeats.
        id: int64.
        is_padding: bool.
    """

    record: Vector
    position: Vector
    id: Vector
    is_padding: NDArray[np.bool_]


class Walk:
    """A ledger, attempt by attempt and rank by rank.

    Args:
        path: Its directory. Nothing in it is changed.

    Raises:
        LedgerCorruptError: A claim is damaged; so may a file be that is met later.
        LedgerError: There is no ledger at `path`.
        UsageError: The order of the run is not one of this package.

    Attributes:
        history: Its attempts.
        order: The order of the run.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.history = read_history(Path(path))
        recipe = self.history.newest.claim.start.recipe
        try:
            self.order: Order = order_from_description(recipe.order)
        except UsageError as error:
            raise UsageError(
                f"the ledger's order cannot be rebuilt, so it is not known what was read: {error}"
            ) from None

    def parts(self) -> Iterator[Part]:
        """All deliveries, in the order of attempts, ranks and records."""
        for number in sorted(self.history.attempts):
            attempt = self.history.attempts[number]
            files = RankFiles(attempt, Options())
            branch = self._branch(number, attempt, files)
            for rank in range(attempt.claim.num_replicas):
                yield from self._parts_of(branch, files, rank)

    def _branch(self, number: int, attempt: Attempt, files: RankFiles) -> Branch:
        """An attempt; of one that nothing of survives, no update does."""
        claim, chain = attempt.claim, self.history.chain
        scans = [files.scan(rank) for rank in range(claim.num_replicas)]
        stop = claim.start.next_index
        if number == chain[-1]:
            stop = common_stop(scans)
        elif number in chain:
            child = self.history.attempts[chain[chain.index(number) + 1]].claim.start
            stop = child.batches if claim.start.recipe.counts_batches else child.updates
        jumps = find_jumps(scans, stop) if claim.start.recipe.counts_batches else []
        return Branch(claim, Course.of(claim_stretch(claim), jumps), stop, self.order)

    def _parts_of(self, branch: Branch, files: RankFiles, rank: int) -> Iterator[Part]:
        log = files.read(rank)
        if log is None:
            return
        beyond = Status.IN_FLIGHT if branch.claim.attempt == self.history.chain[-1] else Status.ROLLED_BACK
        first = 0
        for records in log.deliveries():
            places = np.arange(first, first + len(records))
            status = np.where(records.update < branch.stop_update, Status.COMMITTED, beyond).astype(np.int8)
            target = earliest_rewind(log.rewinds.after, log.rewinds.update, places)
            status[target <= records.update] = Status.REWOUND
            yield Part(branch, rank, records, status)
            first += len(records)

    def rows(self, part: Part) -> Rows:
        """The rows of a part's deliveries, filler left out."""
        records, length = part.records, len(self.order)
        record = np.repeat(np.arange(len(records)), records.count)
        virtual = expand(records.start, records.stride, records.count)
        ends = np.cumsum(records.count)
        is_padding = np.arange(record.size) >= np.repeat(ends - records.padding, records.count)
        position, wrap_at = virtual, None
        if records.padding.any():
            wrap_at = (part.branch.course.spans(records.update).start // length + 1) * length
            end = wrap_at[record]
            position = np.where(virtual < end, virtual, end - length + (virtual - end) % length)
        held = records.count > 0
        of_order = np.empty(0, np.int64)
        if held.any():
            wraps = None if wrap_at is None else wrap_at[held]
            of_order = ids_of(self.order, records.start[held], records.stride[held], records.count[held], wraps)
        return Rows(record, position, of_order, is_padding)
