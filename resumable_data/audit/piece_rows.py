"""Rows of the surviving history with their recorded pieces, and what is wrong with single ones."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import xxhash

from resumable_data.audit.findings import Issue, gather_issues
from resumable_data.audit.inside import TakenPart
from resumable_data.audit.piece_sums import Spans
from resumable_data.audit.rows import expand
from resumable_data.audit.timeline import earliest_rewind
from resumable_data.ledger.row_ids import row_ids

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.packed import PackedRows
    from resumable_data.audit.rank_files import RankFiles
    from resumable_data.findings import Finding
    from resumable_data.ledger.columns import Deliveries
    from resumable_data.ledger.reader import RankLog
    from resumable_data.ledger.row_pieces import RowPieces
    from resumable_data.order import Int64Array

_SHOWN = 8


class PieceRows(NamedTuple):
    """Rows of one rank.

    Attributes:
        rank: The data-parallel rank.
        update: (k,) int64.
        position: (k,) int64.
        pieces: Of all of them.
    """

    rank: int
    update: Int64Array
    position: Int64Array
    pieces: RowPieces

    def take(self, which: Int64Array) -> PieceRows:
        """Some of the rows."""
        if which.size == self.position.size:
            return self
        return PieceRows(self.rank, self.update[which], self.position[which], self.pieces.take(which))


def read_piece_rows(branch: Branch, files: RankFiles, bad: BadRows) -> Iterator[PieceRows]:
    """All rows of an attempt that survive and whose pieces are recorded; records that contradict themselves are told.

    Args:
        branch: The attempt.
        files: Its files.
        bad: Is told which records hold pieces that are not those of their digest.
    """
    for rank in range(branch.claim.num_replicas):
        log = files.read(rank)
        if log is None or not log.has_pieces or log.damage:
            continue
        taken_part, first = TakenPart(rank, branch), 0
        for records, pieces in log.deliveries_with_pieces():
            survives, taken = _survivors(branch, log, records, first, taken_part)
            first += len(records)
            of_row = np.repeat(np.arange(len(records)), records.count)
            pieces = pieces.take(np.flatnonzero(survives[of_row])) if not survives.all() else pieces
            records, taken = records.take(survives), taken[survives]
            position = expand(records.start, records.stride, records.count)
            rows = PieceRows(rank, np.repeat(records.update, records.count), position, pieces)
            bad.check_digests(records, rows)
            if branch.handed_on is not None and taken.any():  # the part that was taken over may end within a record
                beyond = position >= branch.handed_on.start + branch.handed_on.stop_row
                rows = rows.take(np.flatnonzero(~(np.repeat(taken, records.count) & beyond)))
            yield rows


def _survivors(
    branch: Branch, log: RankLog, records: Deliveries, first: int, taken_part: TakenPart
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which deliveries are in the surviving history, those with impossible numbers left out.

    Among them are those that hold some of what the next attempt took over, (n,) bool as well, though its update may be
    committed by none; the caller knows where they end.
    """
    places = np.arange(first, first + len(records))
    rewound = earliest_rewind(log.rewinds.after, log.rewinds.update, places) <= records.update
    survives = ~rewound & (records.update < branch.stop_update) & branch.is_possible(records)
    taken = taken_part.find(records, rewound).first
    return survives | taken, taken


class BadRows:
    """What is wrong with single rows of an attempt.

    Args:
        branch: The attempt.
        rows: The run's rows.
    """

    def __init__(self, branch: Branch, rows: PackedRows) -> None:
        self._branch = branch
        self._rows = rows
        self._issues: list[Issue] = []

    def findings(self) -> list[Finding]:
        """All of it."""
        return gather_issues(self._branch.claim.attempt, self._issues, self._branch.word)

    def check_digests(self, records: Deliveries, rows: PieceRows) -> None:
        """Hold the hashes of rows' pieces against the digests of their records."""
        ids = row_ids(rows.pieces)
        data = ids.astype("<i8", copy=False).data.cast("B")
        edges = [0, *(8 * np.cumsum(records.count)).tolist()]
        digests = [xxhash.xxh3_64_intdigest(data[low:high]) for low, high in itertools.pairwise(edges)]
        differs = (np.array(digests, np.uint64) != records.digest) & (records.count > 0)
        if not differs.any():
            return
        which = np.flatnonzero(np.repeat(differs, records.count))
        wrong = which[ids[which] != self._rows.ids(0, rows.position[which])]
        row = int(wrong[0]) if wrong.size else int(which[0])
        record = int(np.searchsorted(np.cumsum(records.count), row, side="right"))
        self._add(
            "RD215",
            rows,
            np.flatnonzero(np.repeat(differs, records.count)) if not wrong.size else wrong,
            f"pieces whose IDs have the digest {int(records.digest[record]):016x}",
            f"others, at position {int(rows.position[row])}: {_shown(rows.pieces.of_row(row))}",
        )

    def within(self, rows: PieceRows, group: Int64Array) -> tuple[Spans, Int64Array]:
        """The pieces of rows that lie within their documents, and the group of each; others are told.

        Args:
            rows: The rows.
            group: (k,) int64, a group for each row.
        """
        pieces, owner = rows.pieces, np.repeat(np.arange(len(rows.pieces)), np.diff(rows.pieces.edges))
        spans = Spans(pieces.document, pieces.start, pieces.stop)
        known = spans.document < self._rows.num_documents
        kept = self._rows.kept_lengths(np.where(known, spans.document, 0))
        fits = known & (spans.stop <= kept)
        if not fits.all():
            first = int(np.argmin(fits))
            document, start, stop = (int(column[first]) for column in spans)
            expected = f"documents below {self._rows.num_documents}"
            if known[first]:
                expected = f"tokens [0, {int(kept[first])}) of document {document}"
            self._add("RD214", rows, owner[~fits], expected, f"document {document}, tokens [{start}, {stop})")
        self._check_lengths(rows)
        return spans.take(fits), group[owner[fits]]

    def _check_lengths(self, rows: PieceRows) -> None:
        pieces, most = rows.pieces, self._rows.row_length
        tokens = np.append(0, np.cumsum(pieces.stop - pieces.start))[pieces.edges]
        too_long = np.flatnonzero(np.diff(tokens) > most)
        if too_long.size:
            found = f"{int(np.diff(tokens)[too_long[0]])}: {_shown(pieces.of_row(int(too_long[0])))}"
            self._add("RD207", rows, too_long, f"at most {most} tokens in a row", found)

    def _add(self, code: str, rows: PieceRows, which: Int64Array, expected: str, found: str) -> None:
        update = rows.update[which]
        self._issues.append(Issue(code, rows.rank, expected, found, which.size, int(update.min()), int(update.max())))


def _shown(pieces: list[tuple[int, int, int]]) -> str:
    more = " ..." if len(pieces) > _SHOWN else ""
    return " ".join(f"{document}[{start}:{stop}]" for document, start, stop in pieces[:_SHOWN]) + more
