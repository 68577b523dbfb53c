"""From shadow files to what was replayed and omitted at restarts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.audit.report import NOTHING, Bounds
from resumable_data.errors import LedgerError
from resumable_data.findings import format_ranks
from resumable_data.ledger.frames import shown
from resumable_data.logs.findings import judge_log
from resumable_data.logs.report import by_severity
from resumable_data.shadowing.comparing import Multiset, multiset, read_again
from resumable_data.shadowing.findings import shadow_finding
from resumable_data.shadowing.passes import find_passes, group_attempts, lost_rows
from resumable_data.shadowing.reader import read_directory
from resumable_data.shadowing.report import RestartedEpoch, ShadowAttempt, ShadowReport

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.findings import Finding
    from resumable_data.shadowing.comparing import Again
    from resumable_data.shadowing.passes import Attempt, Pass, SegmentRows
    from resumable_data.shadowing.reader import Directory

_UNKNOWN = Bounds(0, None)


def audit_shadow(path: str | os.PathLike[str]) -> ShadowReport:
    """What `shadow` noted, in all launches together: which rows restarts made a job read again, and which never.

    What is certain is told from what is not: `replayed` and `omitted` are bounds. Memory is about 50 bytes per row of
    an epoch with a restart in it.

    Args:
        path: The directory that `shadow` got.

    Raises:
        LedgerError: It is none, or cannot be read.
        LedgerCorruptError: A file is damaged anywhere but at a torn tail.
    """
    directory = read_directory(Path(path))
    if not directory.files:
        raise LedgerError(
            f"expected files that rd.shadow wrote in {shown(path)}, found none. Nothing was audited; give the path "
            "that rd.shadow got."
        )
    attempts = group_attempts(directory.files)
    passes = find_passes(attempts)
    audit = _Audit(passes, attempts)
    epochs = tuple(audit.epoch(one) for one in passes if len(one.segments) > 1 or audit.was_abandoned(one))
    if not epochs:
        audit.add("RD733", "all launches", expected="a restart in mid-epoch", found=f"{len(attempts)} launches")
    findings = [*_evidence(directory, attempts), *audit.findings]
    rows = [_attempt(attempt) for attempt in attempts]
    return ShadowReport(
        path=shown(path),
        verdict=judge_log(findings),
        rows=sum(one.rows for one in rows),
        replayed=sum((one.replayed for one in epochs), NOTHING),
        omitted=sum((one.omitted for one in epochs), NOTHING),
        discarded=sum(lost_rows(attempt) for attempt in attempts[:-1]),
        attempts=tuple(rows),
        epochs=epochs,
        findings=by_severity(findings),
    )


class Reference(NamedTuple):
    """What an epoch without a restart holds, and whether another one held the same."""

    values: Multiset
    is_stable: bool


class _Audit:
    """Compares passes, and gathers what is found."""

    def __init__(self, passes: Sequence[Pass], attempts: Sequence[Attempt]) -> None:
        self.findings: list[Finding] = []
        self._passes = passes
        self._newest = attempts[-1]
        self._references: dict[bool, Reference | None] = {}

    def add(
        self, code: str, where: str, *, expected: str, found: str, count: int = 1, attempt: int | None = None
    ) -> None:
        self.findings.append(shadow_finding(code, where, expected=expected, found=found, count=count, attempt=attempt))

    def was_abandoned(self, one: Pass) -> bool:
        """Whether a restart ended a pass, and the next launch did not go on with it."""
        last = one.segments[-1]
        return not one.has_end and last.is_last and last.attempt is not self._newest

    def epoch(self, one: Pass) -> RestartedEpoch:
        """What the restarts of a pass did to it."""
        where = f"{_name(one)}, launches {'+'.join(str(segment.attempt.number) for segment in one.segments)}"
        rows = [segment.read() for segment in one.segments]
        replayed, num_again, omitted = NOTHING, 0, _UNKNOWN
        if one.is_mixed:
            replayed = _UNKNOWN
            self.add("RD729", where, expected="one or the other", found="both")
        else:
            reference = self._reference(one)
            replayed, num_again = self._replayed(one, rows, reference, where)
            omitted = self._omitted(one, rows, reference, where)
        return RestartedEpoch(
            epoch=one.label,
            attempts=tuple(segment.attempt.number for segment in one.segments),
            rows=sum(part.value.size for part in rows),
            by="contents" if one.is_hashed else "ids",
            read_again=num_again,
            replayed=replayed,
            omitted=omitted,
            has_end=one.has_end,
        )

    def _reference(self, one: Pass) -> Reference | None:
        """Epochs without a restart to compare contents with, or IDs where their number is not known."""
        if not one.is_hashed and one.extent()[0] is not None:
            return None
        if one.is_hashed not in self._references:
            whole = [
                multiset([other.segments[0].read().value])
                for other in self._passes
                if len(other.segments) == 1 and other.has_end and other.is_hashed == one.is_hashed
                if not other.is_mixed
            ][:2]
            is_stable = len(whole) == 2 and all(map(np.array_equal, whole[0], whole[1]))
            self._references[one.is_hashed] = Reference(whole[0], is_stable) if whole else None
        return self._references[one.is_hashed]

    def _replayed(
        self, one: Pass, rows: Sequence[SegmentRows], reference: Reference | None, where: str
    ) -> tuple[Bounds, int]:
        """Rows trained on twice, as bounds, and rows read again."""
        padding = one.extent()[1]
        repeats = max(multiset([part.value]).num_repeats for part in rows)
        is_repetitive = reference is None and repeats > padding
        if is_repetitive:
            self.add("RD732", where, expected=f"at most {padding} repeats", found=f"{repeats} in one launch")
        total, num_again = NOTHING, 0
        for at in range(1, len(rows)):
            again = read_again(rows[:at], rows[at], None if reference is None else reference.values)
            if not again.num_rows:
                continue
            before = one.segments[at - 1].attempt
            is_certain = not is_repetitive and (not again.is_tail or before.saved() is not None)
            low = max(0, again.num_rows - padding) if is_certain else 0
            attempt = one.segments[at].attempt.number
            if low or again.num_rows > padding:
                self._tell(again, low, where, attempt)
            total += Bounds(low, again.num_rows)
            num_again += again.num_rows
        return total, num_again

    def _tell(self, again: Again, low: int, where: str, attempt: int) -> None:
        last = f"last {again.num_batches} batches" if again.num_batches > 1 else "last batch"
        found = f"{again.num_rows} read again, all of each rank's {last} before the restart"
        found += ", and these whole" * again.is_tail
        code = "RD721" if low else "RD722"
        expected = "no row read before" if low else "work since the checkpoint, or nothing"
        self.add(code, where, expected=expected, found=found, count=again.num_rows, attempt=attempt)

    def _omitted(self, one: Pass, rows: Sequence[SegmentRows], reference: Reference | None, where: str) -> Bounds:
        """Samples that were never read, as bounds."""
        last = one.segments[-1]
        length, _, droppable = one.extent()
        seen = multiset([part.value for part in rows])
        if not one.has_end and last.attempt is self._newest and last.is_last:
            self.add("RD728", where, expected="its end", found=f"{int(seen.times.sum())} rows so far")
            return _UNKNOWN
        if length is not None and not one.is_hashed:
            missing = length - int((seen.value < np.uint64(length)).sum())
        elif reference is not None:
            values = reference.values
            missing = int(np.maximum(0, values.times - seen.times_of(values.value)).sum())
        else:
            self.add("RD727", where, expected="the number of samples, or an epoch to compare with", found="neither")
            return _UNKNOWN
        if missing:
            # by comparison, a row that an epoch has and another has not may have been dropped, or augmented
            is_certain = one.has_end or self.was_abandoned(one)
            is_certain &= reference is None or reference.is_stable
            low = max(0, missing - droppable) if is_certain else 0
            expected = f"{length if length is not None else 'all'} samples, of which {droppable} may be dropped"
            self.add("RD723" if low else "RD724", where, expected=expected, found=f"{missing} missing", count=missing)
            return Bounds(low, missing)
        return NOTHING


def _evidence(directory: Directory, attempts: Sequence[Attempt]) -> list[Finding]:
    found = []
    for attempt in attempts:
        missing = set(range(attempt.num_replicas)) - attempt.files.keys()
        if missing:
            text = f"no file of rank {format_ranks(missing)}"
            expected = f"files of ranks 0-{attempt.num_replicas - 1}"
            found.append(
                shadow_finding(
                    "RD725",
                    f"launch {attempt.number}",
                    expected=expected,
                    found=text,
                    attempt=attempt.number,
                    count=len(missing),
                    ranks=missing,
                )
            )
    for file in directory.files:
        where = shown(file.path)
        if file.stopped is not None:
            text = shown(file.stopped)
            found.append(shadow_finding("RD726", where, expected="records up to the end", found=text))
        if file.torn_bytes:
            text = f"{file.torn_bytes} bytes of one"
            found.append(shadow_finding("RD730", where, expected="whole records", found=text))
    for path in directory.unknown:
        found.append(shadow_finding("RD731", shown(path), expected="files of rd.shadow", found=shown(path.name)))
    return found


def _attempt(attempt: Attempt) -> ShadowAttempt:
    iterations = [one for file in attempt.files.values() for one in file.iterations]
    return ShadowAttempt(
        attempt=attempt.number,
        num_replicas=attempt.num_replicas,
        ranks=format_ranks(attempt.files),
        iterations=attempt.num_iterations,
        batches=sum(one.num_batches for one in iterations),
        rows=sum(one.num_rows for one in iterations),
    )


def _name(one: Pass) -> str:
    return "an epoch" if one.label is None else f"epoch {one.label}"
