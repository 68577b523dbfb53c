"""The audit of a ledger: what the surviving history of a run contains."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.audit.attempt_audit import AttemptResult, audit_branch, audit_dead, find_branch
from resumable_data.audit.branch import Branch
from resumable_data.audit.coverage import check_partition, count_joints, count_multiplicity
from resumable_data.audit.findings import finding
from resumable_data.audit.forks import check_forks
from resumable_data.audit.history import History, read_history
from resumable_data.audit.options import Limits, Options
from resumable_data.audit.packed import check_rows
from resumable_data.audit.rank_files import RankFiles
from resumable_data.audit.replay import check_take_over, count_cursor
from resumable_data.audit.report import NOTHING, AttemptReport, AuditReport, Bounds, judge
from resumable_data.audit.spans import check_spans, uncovered
from resumable_data.audit.tokens import TokenAudit
from resumable_data.audit.unreadable import check_unreadable
from resumable_data.audit.updates import Stretch
from resumable_data.errors import UsageError
from resumable_data.findings import MISSING_EVIDENCE, NOTE, Finding
from resumable_data.ledger.frames import shown
from resumable_data.ledger.records import secret_key
from resumable_data.order import order_from_description

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from resumable_data.audit.packed import Packed
    from resumable_data.audit.rank_result import Change
    from resumable_data.cursor import CoverageSpan
    from resumable_data.order import Order


_BROKEN_CURSOR_CODES = ("RD401", "RD402", "RD404")


def audit_ledger(
    path: str | os.PathLike[str],
    *,
    max_replayed: int = 0,
    max_omitted: int = 0,
    max_discarded: int | None = None,
    since_take_over: bool = False,
    max_unreadable: int | None = None,
    key: str = "",
    salvage: bool = False,
    jobs: int = 1,
    packed: Packed | None = None,
) -> AuditReport:
    """Say from a ledger's files what the surviving history of its run contains.

    The surviving history is made of the newest attempt up to the last commit that all of its ranks recorded, and
    of the attempts it goes on from, each up to the cursor that the next one started at.

    Args:
        path: The ledger's directory. Nothing in it is changed.
        max_replayed: Samples that may be in the surviving history more than once.
        max_omitted: Samples that may be missing from it.
        max_discarded: Samples that may have been delivered and rolled back; None for any number.
        since_take_over: Judge a run that was taken over from another loader by what came after alone.
        max_unreadable: Samples of the surviving history that may have been replaced because they could not be read;
            None for as many as the launches allowed themselves.
        key: The secret that the ledger's digests are keyed with, if they are.
        salvage: Read damaged files up to the damage; such a ledger is never proven.
        jobs: Processes that read rank files.
        packed: Of a run over packed rows, its `resumable_data.packing.PackedTokens`; all of its rows are planned again.

    Raises:
        LedgerCorruptError: A file is damaged anywhere but at a torn tail; the message says where.
        LedgerError: There is no ledger at `path`, or it cannot be read.
        UsageError: A limit is negative, the key is another one than the ledger's, or `packed` is not what the run read.

    Example:
        >>> report = audit_ledger("runs/7/ledger")  # doctest: +SKIP
        >>> report.verdict, report.replayed.low, report.omitted.low  # doctest: +SKIP
        ('proven', 0, 0)
    """
    limits = Limits(max_replayed, max_omitted, max_discarded, max_unreadable)
    options = Options(key=secret_key(key), salvage=salvage, jobs=jobs)
    history = read_history(Path(path), packed)
    findings = list(history.findings)
    order = _rebuild_order(history, findings)
    chain = _Chain(history, order, options)
    # the newest one first: where it ends is where tokens are counted to
    results = {number: chain.audit(number) for number in reversed(history.chain)}
    branches = chain.branches
    for number, attempt in history.attempts.items():
        if number not in results:
            results[number] = audit_dead(attempt, RankFiles(attempt, options), is_surely_dead=history.is_whole)
    findings += check_forks(history)
    findings += [one for number in sorted(results) for one in results[number].findings]
    spans = _spans(history, results)
    has_beginning = _check_cursors(history, order, branches, spans, findings)
    taken_over = check_take_over(history.newest.claim.start, "ledger", is_accepted=since_take_over)
    tokens, num_piece_rows = chain.count_tokens([one for result in results.values() for one in result.changes])
    findings += [*taken_over, *check_rows(history.rows), *tokens]
    has_beginning = has_beginning and (since_take_over or not taken_over)
    is_complete = has_beginning and order is not None
    report = _conclude(history, Path(path), branches, results, findings, limits, is_complete=is_complete)
    return msgspec.structs.replace(report, piece_rows=num_piece_rows or msgspec.UNSET)


def _rebuild_order(history: History, findings: list[Finding]) -> Order | None:
    if history.rows is not None:
        return history.rows
    try:
        return order_from_description(history.newest.claim.start.recipe.order)
    except UsageError as error:
        findings.append(finding("RD108", "recipe", expected="an order of this package", found=shown(error)))
        return None


class _Chain:
    """The attempts of the surviving history, audited one after another, the newest one first.

    Args:
        history: The ledger's attempts.
        order: The order of the run; None where it cannot be rebuilt.
        options: How to read files.

    Attributes:
        branches: Of those that were audited, oldest first.
    """

    def __init__(self, history: History, order: Order | None, options: Options) -> None:
        self.branches: list[Branch] = []
        self._history, self._order, self._options = history, order, options
        self._tokens: TokenAudit | None = None

    def audit(self, number: int) -> AttemptResult:
        """Audit an attempt, and gather the pieces that it recorded."""
        history, attempt = self._history, self._history.attempts[number]
        files = RankFiles(attempt, self._options)
        branch = find_branch(history, number, files, self._order, key=self._options.key)
        check_partition(branch)
        self.branches.insert(0, branch)
        result = audit_branch(branch, files, history.next_start(number), is_provided=history.is_provided(number))
        if history.rows is None:
            return result
        self._tokens = self._tokens or TokenAudit(history.rows, branch.stop_position, self._options)
        return result._replace(findings=result.findings + self._tokens.add(branch, attempt, files))

    def count_tokens(self, changes: list[Change]) -> tuple[list[Finding], int]:
        """What is wrong with tokens by recorded pieces, and of how many rows; for `changes` see `TokenAudit`."""
        return ([], 0) if self._tokens is None else self._tokens.conclude(changes)


def _spans(history: History, results: dict[int, AttemptResult]) -> list[tuple[str, CoverageSpan]]:
    """The coverage digests of the surviving history, and where each comes from."""
    spans = []
    for number in history.chain:
        start = history.attempts[number].claim.start
        spans += [(f"attempt {number}, start cursor", span) for span in start.coverage]
        spans += [(f"attempt {number}, agreed before a save", span) for span in _ascending(results[number].agreements)]
    return spans


def _ascending(spans: Iterable[CoverageSpan]) -> list[CoverageSpan]:
    return sorted(spans, key=lambda span: (span.start, span.stop, span.lanes))


def _check_cursors(
    history: History,
    order: Order | None,
    branches: list[Branch],
    spans: list[tuple[str, CoverageSpan]],
    findings: list[Finding],
) -> bool:
    """Hold coverage digests against the order; whether all from the run's beginning is known."""
    broken = order is None or any(one.code in _BROKEN_CURSOR_CODES for one in findings)
    wrong: list[Finding] = []
    root = history.attempts[history.chain[0]].claim.start
    before, all_stretches = count_cursor(root, history.rows)[0], _stretches(history, branches)
    if order is not None and not broken and all_stretches:
        wrong = check_spans(order, all_stretches, spans)
        findings += wrong
    if history.is_whole:
        return True
    if not broken and not wrong and before and not uncovered(root, before):
        return True
    first = root.taken_over.updates if root.taken_over else 0
    expected = f"deliveries from update {first} on, or a digest of all positions from there to update {root.updates}"
    found = f"deliveries from update {root.updates} on"
    number = history.chain[0]
    findings.append(finding("RD109", f"attempt {number}", expected=expected, found=found, attempt=number))
    return False


def _stretches(history: History, branches: list[Branch]) -> list[Stretch]:
    """The updates of the surviving history; none where the ledger does not tell all from the beginning."""
    start = history.newest.claim.start
    if not start.has_counted_batches:
        return [*count_cursor(start, history.rows)[0], *branches[-1].course.stretches]
    before = [] if history.is_whole else count_cursor(branches[0].claim.start, history.rows)[0]
    if not (before or history.is_whole):
        return []
    return [*before, *(stretch for branch in branches for stretch in branch.course.stretches)]


def _conclude(
    history: History,
    path: Path,
    branches: list[Branch],
    results: dict[int, AttemptResult],
    findings: list[Finding],
    limits: Limits,
    *,
    is_complete: bool,
) -> AuditReport:
    """Add up what the attempts gave; without `is_complete`, nothing bounds the counts from above."""
    results = {number: _close(result, branches[-1].stop_update) for number, result in results.items()}
    changes = [change for result in results.values() for change in result.changes]
    reports = tuple(_with_counts(results[number], branches, is_complete=is_complete) for number in sorted(results))
    counts, joints = count_multiplicity(changes, branches), count_joints(branches)
    unknown = sum(result.lost + result.unverified for result in results.values())
    replayed, omitted = counts.replayed + joints.replayed, counts.omitted + joints.omitted
    discarded = sum((result.report.discarded for result in results.values()), NOTHING)
    root, last = branches[0].claim.start, branches[-1]
    samples = root.samples + sum(branch.samples for branch in branches)
    within = replayed <= limits.replayed and omitted <= limits.omitted
    findings = [_within_limits(one) if within else one for one in findings]
    findings += _check_discarded(discarded, limits)
    unreadable = tuple(one for number in sorted(results) for one in results[number].unreadable)
    num_unreadable = Bounds(len(unreadable), len(unreadable) + unknown if is_complete else None)
    findings += check_unreadable(unreadable, num_unreadable, limits.unreadable)
    return AuditReport(
        subject="ledger",
        path=shown(path),
        verdict=judge(findings),
        run_id=shown(last.claim.run_id),
        updates=reports[-1].stop_update,
        skipped=root.skipped + sum(result.report.skipped for result in results.values()),
        position=last.stop_position,
        epoch=last.stop_place.epoch,
        offset=last.stop_place.offset,
        samples=samples,
        padding=root.padding + sum(branch.padding for branch in branches),
        dropped=max(last.stop_position - samples, 0),
        is_tracked=any(branch.counts_batches for branch in branches),
        replayed=Bounds(replayed, replayed + unknown if is_complete else None),
        omitted=Bounds(omitted, omitted + unknown if is_complete else None),
        unreadable=num_unreadable,
        unreadable_samples=unreadable,
        discarded=discarded,
        in_flight=sum(result.report.in_flight for result in results.values()),
        attempts=reports,
        packed=msgspec.UNSET if history.rows is None else history.rows.place(last.stop_position),
        findings=tuple(sorted(findings, key=lambda one: one.precedence)),
    )


def _close(result: AttemptResult, stop_update: int) -> AttemptResult:
    """What an attempt handed on inside an update is committed where that update is, else in flight."""
    part, report = result.handed_on, result.report
    lost = result.lost + sum(one.samples for one in result.lost_inside if one.update < stop_update)
    unreadable = tuple(one for one in result.unreadable if one.update < stop_update)
    if part is not None and part.update < stop_update:
        report = msgspec.structs.replace(report, stop_position=max(report.first_position, part.stop_position))
    elif part is not None:
        report = msgspec.structs.replace(report, in_flight=report.in_flight + part.samples)
    return result._replace(report=report, lost=lost, unreadable=unreadable)


def _with_counts(result: AttemptResult, branches: list[Branch], *, is_complete: bool) -> AttemptReport:
    """An attempt's line, with what its own deliveries do to the surviving history."""
    counts = count_multiplicity(result.changes, branches)
    unknown = result.lost + result.unverified
    return msgspec.structs.replace(
        result.report,
        replayed=Bounds(counts.replayed, counts.replayed + unknown if is_complete else None),
        omitted=Bounds(counts.omitted, counts.omitted + unknown if is_complete else None),
    )


def _within_limits(one: Finding) -> Finding:
    """A missing or repeated microbatch is no violation where its samples are within what was declared."""
    return msgspec.structs.replace(one, severity=NOTE) if one.code in ("RD201", "RD202") else one


def _check_discarded(discarded: Bounds, limits: Limits) -> list[Finding]:
    most = limits.discarded
    if most is None or (discarded.high is not None and discarded.high <= most):
        return []
    one = finding("RD501", "all attempts", expected=f"at most {most} samples", found=str(discarded))
    return [one if discarded.low > most else msgspec.structs.replace(one, severity=MISSING_EVIDENCE)]
