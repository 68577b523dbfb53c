"""One attempt: all of its ranks' files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.audit.findings import Finding, Issue, finding, gather_issues
from resumable_data.audit.rank_audit import Change, RankResult, audit_rank, step_stops, surviving_jumps
from resumable_data.audit.report import AttemptReport, Bounds
from resumable_data.ledger.frames import shown
from resumable_data.ledger.layout import rank_name
from resumable_data.ledger.reader import read_rank

if TYPE_CHECKING:
    from resumable_data.audit.history import Attempt
    from resumable_data.audit.rank_audit import Branch
    from resumable_data.audit.unreadable import UnreadableSample
    from resumable_data.cursor import Cursor
    from resumable_data.ledger import Claim
    from resumable_data.ledger.reader import RankLog
    from resumable_data.ledger.records import Jump


class AttemptResult(NamedTuple):
    """What an attempt's files add to the audit.

    Attributes:
        report: Its line in the report.
        findings: What is wrong.
        changes: Rows by which its ranks' deliveries differ from their shares.
        lost: Samples of the surviving history that files should tell about and do not.
        unverified: Samples of which it is open what was delivered.
        unreadable: Samples of the surviving history that could not be read, as recorded.
    """

    report: AttemptReport
    findings: list[Finding]
    changes: list[Change]
    lost: int = 0
    unverified: int = 0
    unreadable: tuple[UnreadableSample, ...] = ()


class RankFiles:
    """Reads the rank files of one attempt, and keeps what is wrong with them as files.

    Args:
        attempt: The attempt.

    Attributes:
        findings: What is wrong.
        is_whole: Whether every rank has a file, and all that were read are theirs and not torn.
    """

    def __init__(self, attempt: Attempt) -> None:
        self._files = attempt.files.ranks
        self._claim = attempt.claim
        self.findings: list[Finding] = []
        self.is_whole = all(rank in self._files for rank in range(attempt.claim.num_replicas))
        for rank in self._files:
            if rank >= attempt.claim.num_replicas:
                self._report("RD110", rank, f"ranks below {attempt.claim.num_replicas}", f"a file of rank {rank}")

    def read(self, rank: int) -> RankLog | None:
        """A rank's file; None where it is missing, torn before its header ends, or another's."""
        path = self._files.get(rank)
        if path is None:
            return None
        log = read_rank(path)
        if log.torn_bytes:
            self.is_whole = False
            self._report("RD107", rank, "whole records", f"{log.torn_bytes} bytes of one at byte {log.num_bytes}")
        header, claim = log.header, self._claim
        if header is None:
            self.is_whole = False
            return None
        expected = (claim.run_id, claim.attempt, rank, claim.num_replicas, 0)
        found = (header.run_id, header.attempt, header.rank, header.num_replicas, header.peer)
        if expected != found:
            self.is_whole = False
            self._report("RD110", rank, _owner(*expected), _owner(*found))
            return None
        return log

    def count(self, low: int) -> Bounds:
        """A count over all files, without an upper bound where some of them are missing or torn."""
        return Bounds(low, low if self.is_whole else None)

    def _report(self, code: str, rank: int, expected: str, found: str) -> None:
        where = f"attempt {self._claim.attempt}, {rank_name(rank)}"
        self.findings.append(finding(code, where, expected=expected, found=found, attempt=self._claim.attempt))


def _owner(run_id: str, attempt: int, rank: int, num_replicas: int, peer: int) -> str:
    return f"run {shown(run_id)}, attempt {attempt}, rank {rank} of {num_replicas}, peer {peer}"


def common_stop(claim: Claim, logs: list[RankLog | None]) -> int:
    """The end of the newest attempt's part of the surviving history: the last commit found on all ranks.

    Where a file is missing or ends long before the others, it is the last commit found on any, and evidence of
    it is missing.
    """
    steps = sorted((step_stops(log, claim) for log in logs), key=len)
    fewest, most = steps[0], steps[-1]
    # Ranks of one job commit together, so a kill comes between two records of one commit at the most.
    is_plain_kill = len(most) - len(fewest) <= 1 and (not len(most) or all(logs))
    stops = fewest if is_plain_kill else most
    return int(stops[-1]) if len(stops) else claim.start.next_index


def find_jumps(claim: Claim, logs: list[RankLog | None], stop_update: int) -> list[Jump]:
    """Where the loop left an epoch early, of the updates before `stop_update`: as the longest file has it."""
    longest = max((log for log in logs if log), key=lambda log: len(step_stops(log, claim)), default=None)
    return surviving_jumps(longest, stop_update) if longest else []


def audit_branch(
    branch: Branch, files: RankFiles, logs: list[RankLog | None] | None, child: Cursor | None
) -> AttemptResult:
    """Audit an attempt of the surviving history.

    Args:
        branch: The attempt and its part of the history.
        files: Its files.
        logs: One per rank, where they were read already.
        child: The cursor that the next attempt started at; None for the newest.
    """
    claim = branch.claim
    results: list[RankResult] = []
    issues: list[Issue] = []
    for rank in range(claim.num_replicas):
        log = files.read(rank) if logs is None else logs[rank]
        result = audit_rank(log, rank, branch)
        issues += result.issues
        if result.known_stop < branch.stop_update:
            issues.append(_ends_early(log, rank, result, branch))
        results.append(result)
    longest = _longest(results)
    num_steps = int(np.searchsorted(longest.stops, branch.stop_update, side="right"))
    applied = longest.applied[:num_steps]
    issues += _compare_steps(results, branch)
    findings = [*files.findings, *gather_issues(claim.attempt, issues, branch.word), *_check_end(branch)]
    if child is not None:
        findings += _check_applied(branch, longest, num_steps, child)
        findings += _check_counts(branch, child) if branch.counts_batches else []
    rewound, beyond = sum(r.rewound for r in results), sum(r.beyond for r in results)
    report = report_attempt(
        claim,
        stop_update=claim.start.updates + num_steps if child is None else max(child.updates, claim.start.updates),
        skipped=int((~applied).sum()),
        delivered=sum(result.delivered for result in results),
        discarded=files.count(rewound if child is None else rewound + beyond),
        in_flight=beyond if child is None else 0,
    )
    return AttemptResult(
        report,
        findings,
        changes=[change for result in results for change in result.changes],
        lost=sum(result.lost for result in results),
        unverified=sum(result.unverified for result in results),
        unreadable=tuple(one for result in results for one in result.unreadable),
    )


def audit_dead(attempt: Attempt, files: RankFiles, *, is_surely_dead: bool) -> AttemptResult:
    """Count what an attempt outside the surviving history delivered.

    Args:
        attempt: The attempt.
        files: Its files.
        is_surely_dead: Whether the surviving history is known from its beginning, so that this attempt is no
            part of it.
    """
    delivered = 0
    for rank in range(attempt.claim.num_replicas):
        log = files.read(rank)
        if log is not None:
            delivered += int((log.deliveries.count - log.deliveries.padding).sum())
    discarded = files.count(delivered)
    report = report_attempt(
        attempt.claim,
        stop_update=attempt.claim.start.updates,
        skipped=0,
        delivered=delivered,
        discarded=discarded if is_surely_dead else Bounds(0, discarded.high),
        in_flight=0,
    )
    return AttemptResult(report, files.findings, [])


def report_attempt(
    claim: Claim, *, stop_update: int, skipped: int, delivered: int, discarded: Bounds, in_flight: int
) -> AttemptReport:
    """An attempt's line in the report."""
    return AttemptReport(
        attempt=claim.attempt,
        parent=claim.start.attempt,
        num_replicas=claim.num_replicas,
        microbatch=claim.microbatch,
        global_batch=claim.start.recipe.global_batch,
        first_update=claim.start.updates,
        stop_update=stop_update,
        skipped=skipped,
        delivered=delivered,
        discarded=discarded,
        in_flight=in_flight,
    )


def _ends_early(log: RankLog | None, rank: int, result: RankResult, branch: Branch) -> Issue:
    first, stop, last = branch.course.first_update, branch.stop_update, result.known_stop
    expected = f"all commits of {branch.word} {first} to {stop - 1}"
    if log is None:
        return Issue("RD105", rank, expected, "no file that can be used", 1, last, stop - 1)
    found = f"commits up to {branch.word} {last - 1}" if last > first else "no commits"
    return Issue("RD106", rank, expected, found, 1, last, stop - 1)


def _check_end(branch: Branch) -> list[Finding]:
    over = branch.spans.num_samples == 0
    if not over.any():
        return []
    first = int(branch.updates[over][0])
    expected = f"the run of {branch.claim.epochs} epochs to end before update {first}"
    where, found = f"attempt {branch.claim.attempt}", f"updates up to {branch.stop_update - 1}"
    return [finding("RD304", where, expected=expected, found=found, attempt=branch.claim.attempt)]


def _check_applied(branch: Branch, longest: RankResult, num_steps: int, child: Cursor) -> list[Finding]:
    """The next attempt's start cursor counts the steps that were recorded."""
    start = branch.claim.start
    if longest.known_stop < branch.stop_update:
        return []
    applied = int(longest.applied[:num_steps].sum())
    stop = int(longest.stops[num_steps - 1]) if num_steps else branch.course.first_update
    expected = (start.applied + applied, start.skipped + num_steps - applied, stop)
    found = (child.applied, child.skipped, branch.stop_update)
    if expected == found:
        return []
    where = f"start cursor of the attempt after {branch.claim.attempt}"
    text = f"{{}} applied and {{}} skipped updates, up to {branch.word} {{}}"
    return [finding("RD401", where, expected=text.format(*expected) + ", as recorded", found=text.format(*found))]


def _check_counts(branch: Branch, child: Cursor) -> list[Finding]:
    """The next attempt's start cursor counts what the batches took: where updates do not tell, only files do."""
    start, place = branch.claim.start, branch.stop_place
    counted = {
        "samples": start.samples + branch.samples,
        "padding": start.padding + int(branch.spans.padding.sum()),
    }
    # where another recipe was declared, the rest of an epoch that it has no use for was dropped at once
    was_settled = child.migrations != start.migrations and (child.epoch, child.offset) == (place.epoch + 1, 0)
    if not was_settled:
        counted.update(epoch=place.epoch, offset=place.offset, dropped=start.dropped + place.dropped)
    held = {name: getattr(child, name) for name in counted}
    wrong = [f"{name} {held[name]} in place of {value}" for name, value in counted.items() if held[name] != value]
    if not wrong:
        return []
    where = f"start cursor of the attempt after {branch.claim.attempt}"
    expected = f"the place and counts that {branch.stop_update - branch.course.first_update} batches lead to"
    return [finding("RD401", where, expected=expected, found=", ".join(wrong))]


def _longest(results: list[RankResult]) -> RankResult:
    return max(results, key=lambda result: result.stops.size)


def _compare_steps(results: list[RankResult], branch: Branch) -> list[Issue]:
    """Ranks take, apply and skip the same steps."""
    longest = _longest(results)
    issues = []
    for rank, result in enumerate(results):
        size = result.stops.size
        differs = np.flatnonzero((result.applied != longest.applied[:size]) | (result.stops != longest.stops[:size]))
        if differs.size:
            where = int(differs[0])
            update = int(result.stops[where]) - 1
            expected, found = (_describe_step(one, where, branch) for one in (longest, result))
            issues.append(Issue("RD302", rank, f"{expected}, as on other ranks", found, differs.size, update, update))
    return issues


def _describe_step(result: RankResult, step: int, branch: Branch) -> str:
    word = "applied" if result.applied[step] else "skipped"
    return f"{word}, up to batch {int(result.stops[step]) - 1}" if branch.counts_batches else word
