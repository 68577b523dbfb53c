"""Every token of every document once an epoch, by the pieces in a ledger and the lengths of the documents alone.

No row is planned for that. What a plan is asked is where epochs begin, and what the surviving history has reached: the
place that the cursor has. All of an epoch's documents are to be held that come before the last window's; rows of that
window, which is not at its end, hold tokens of its documents once or not yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.audit.findings import finding
from resumable_data.audit.piece_rows import BadRows, read_piece_rows
from resumable_data.audit.piece_sums import NUM_LANES, Spans, concatenate, find_faults, sum_spans
from resumable_data.audit.rank_files import RankFiles

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.history import Attempt
    from resumable_data.audit.options import Options
    from resumable_data.audit.packed import PackedRows
    from resumable_data.audit.piece_sums import Faults, Lanes
    from resumable_data.audit.rank_result import Change
    from resumable_data.findings import Finding
    from resumable_data.order import Int64Array

_CHUNK_DOCUMENTS = 1 << 18
_NUM_BUCKETS = 1 << 12
_SEARCHED_DOCUMENTS = 1 << 20
_ONCE = "each token of a document in one committed row"


class _Launch(NamedTuple):
    branch: Branch
    attempt: Attempt


class TokenAudit:
    """Gathers the recorded pieces of the surviving history, launch by launch in any order, and judges them.

    It keeps 32 bytes for each epoch and the pieces of one window; where something is wrong the files are read twice
    more, and the pieces of some million documents are kept.

    Args:
        rows: The run's rows, asked for places and documents only.
        stop: The position after the surviving history.
        options: How to read files.
    """

    def __init__(self, rows: PackedRows, stop: int, options: Options) -> None:
        place = rows.place(stop)
        self._rows, self._place, self._options = rows, place, options
        ends = rows.ends_up_to(stop)[: place.epoch]
        # sections: whole epochs, whole windows of the epoch that is not at its end, the window that is not at its end
        self._edges = np.concatenate(([0], ends, [stop - place.row, stop])).astype(np.int64)
        self._num_rows = np.zeros(self._num_sections, np.int64)
        self._sums: Lanes = np.zeros((self._num_sections, NUM_LANES), np.uint64)
        self._open: list[Spans] = []
        self._launches: list[_Launch] = []
        self._whole: Lanes | None = None

    @property
    def _num_sections(self) -> int:
        return self._edges.size - 1

    def add(self, branch: Branch, attempt: Attempt, files: RankFiles) -> list[Finding]:
        """Add what an attempt of the surviving history recorded; what is wrong with single rows."""
        self._launches.append(_Launch(branch, attempt))
        bad = BadRows(branch, self._rows)
        for part in read_piece_rows(branch, files, bad):
            section = self._section_of(part.position)
            part = part.take(np.flatnonzero(section < self._num_sections))
            section = self._section_of(part.position)
            self._num_rows += np.bincount(section, minlength=self._num_sections)
            spans, of_piece = bad.within(part, section)
            self._sums += sum_spans(spans, of_piece, self._num_sections)
            self._open.append(spans.take(of_piece == self._num_sections - 1))
        self._open = [concatenate(self._open)]
        return bad.findings()

    def conclude(self, changes: Sequence[Change]) -> tuple[list[Finding], int]:
        """What is wrong, and of how many rows the recorded pieces told it.

        Args:
            changes: Rows by which deliveries differ from what was expected. They are found by their positions; of the
                epochs that they are in, tokens tell nothing more.
        """
        judged = self._num_rows == np.diff(self._edges)
        for change in changes:
            first = self._section_of(change.start)
            last = self._section_of(change.start + change.stride * (change.count - 1))
            for low, high in zip(first.tolist(), last.tolist(), strict=True):
                judged[low : high + 1] = False
        num_rows = int(self._num_rows[judged].sum())
        if not num_rows:
            return [], 0
        if self._rows.has_own_truncation:
            expected = "tokens left out of documents that are longer than a row, and cut to it"
            return [finding("RD216", "packed rows", expected=expected, found="others, as the plan counts them")], 0
        findings: list[Finding] = []
        for section in np.flatnonzero(judged).tolist():
            if section == self._num_sections - 1:
                findings += self._judge_open()
            elif (self._sums[section] != self._expected(section)).any():
                findings += self._locate(section)
        return findings, num_rows

    def _section_of(self, position: Int64Array) -> Int64Array:
        return np.searchsorted(self._edges[1:], position, side="right")

    def _expected(self, section: int) -> Lanes:
        """The sum of what a section is to hold."""
        is_whole = section < self._place.epoch
        if is_whole and self._whole is not None:
            return self._whole
        total = np.zeros(NUM_LANES, np.uint64)
        for spans in self._documents(section):
            total += sum_spans(spans, np.zeros_like(spans.document), 1)[0]
        if is_whole:
            self._whole = total
        return total

    def _documents(self, section: int) -> Iterator[Spans]:
        """What a section is to hold of each document, some at a time; those without a token left out."""
        place, rows = self._place, self._rows
        if section < place.epoch:
            for first in range(0, rows.num_documents, _CHUNK_DOCUMENTS):
                yield self._kept(np.arange(first, min(first + _CHUNK_DOCUMENTS, rows.num_documents)))
            return
        for first in range(0, place.carry_document, _CHUNK_DOCUMENTS):
            places = np.arange(first, min(first + _CHUNK_DOCUMENTS, place.carry_document))
            yield self._kept(rows.documents(place.epoch, places))
        if place.carry_offset:
            document = rows.documents(place.epoch, np.array([place.carry_document], np.int64))
            yield Spans(document, np.zeros(1, np.int64), np.array([place.carry_offset], np.int64))

    def _kept(self, documents: Int64Array) -> Spans:
        kept = self._rows.kept_lengths(documents)
        return Spans(documents, np.zeros_like(kept), kept).take(kept > 0)

    def _judge_open(self) -> list[Finding]:
        """Rows of a window that is not at its end: tokens of its documents, none of them twice."""
        place, held = self._place, concatenate(self._open)
        if not held.document.size:
            return []
        low, high = place.carry_document, self._rows.window_stop(place.window)
        documents = self._rows.documents(place.epoch, np.arange(low, high, dtype=np.int64))
        start = np.zeros_like(documents)
        start[:1] = place.carry_offset
        expected = Spans(documents, start, self._rows.kept_lengths(documents))
        expected = _ascending(expected.take(expected.start < expected.stop))
        is_own = np.isin(held.document, expected.document)
        findings = []
        if not is_own.all():
            text = f"documents at places [{low}, {high}) of the order of epoch {place.epoch}, in its window"
            findings = _tell("RD214", _epoch(place.epoch), f"{text} {place.window}", held.take(~is_own), "in it")
        twice = find_faults(held.take(is_own), expected).twice
        return findings + _tell("RD212", _epoch(place.epoch), _ONCE, twice, "twice")

    def _locate(self, section: int) -> list[Finding]:
        """Where a section's pieces do not hold each token once: among documents whose sums differ."""
        bucket_sums = np.zeros((_NUM_BUCKETS, NUM_LANES), np.uint64)
        for spans in self._spans_of(section):
            bucket_sums += sum_spans(spans, spans.document % _NUM_BUCKETS, _NUM_BUCKETS)
        for spans in self._documents(section):
            bucket_sums -= sum_spans(spans, spans.document % _NUM_BUCKETS, _NUM_BUCKETS)
        at_most = max(1, _SEARCHED_DOCUMENTS * _NUM_BUCKETS // self._rows.num_documents)
        buckets = np.flatnonzero(bucket_sums.any(axis=1))[:at_most]

        def chosen(parts: Iterator[Spans]) -> Spans:
            return concatenate([one.take(np.isin(one.document % _NUM_BUCKETS, buckets)) for one in parts])

        expected, held = chosen(self._documents(section)), chosen(self._spans_of(section))
        expected = _ascending(expected)
        is_own = np.isin(held.document, expected.document)
        where = _epoch(section)
        findings = _tell("RD214", where, "documents of the windows so far", held.take(~is_own), "in them")
        return findings + _tell_faults(find_faults(held.take(is_own), expected), where)

    def _spans_of(self, section: int) -> Iterator[Spans]:
        """The recorded pieces of a section, read again."""
        for branch, attempt in self._launches:
            bad = BadRows(branch, self._rows)
            for part in read_piece_rows(branch, RankFiles(attempt, self._options), bad):
                these = part.take(np.flatnonzero(self._section_of(part.position) == section))
                yield bad.within(these, np.zeros_like(these.position))[0]


def _epoch(epoch: int) -> str:
    return f"epoch {epoch}"


def _ascending(spans: Spans) -> Spans:
    """Spans by ascending documents."""
    return spans.take(np.argsort(spans.document, kind="stable"))


def _tell_faults(faults: Faults, where: str) -> list[Finding]:
    twice = _tell("RD212", where, _ONCE, faults.twice, "twice")
    return twice + _tell("RD213", where, _ONCE, faults.never, "in none")


def _tell(code: str, where: str, expected: str, spans: Spans, how: str) -> list[Finding]:
    """One finding for all of some spans, which names the first one."""
    count = spans.document.size
    if not count:
        return []
    first = int(np.lexsort((spans.start, spans.document))[0])
    document, start, stop = (int(column[first]) for column in spans)
    more = f", and {count - 1} more ranges" if count > 1 else ""
    found = f"document {document}, tokens [{start}, {stop}), {how}{more}"
    return [finding(code, where, expected=expected, found=found, count=count)]
