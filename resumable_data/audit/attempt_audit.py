"""One attempt: all of its ranks' files."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.audit.branch import Branch
from resumable_data.audit.findings import Issue, finding, gather_issues
from resumable_data.audit.history import NUM_UPDATES_MAX, claim_stretch, require_room
from resumable_data.audit.inside import check_inside, find_handed_on, rows_behind, samples_behind
from resumable_data.audit.rank_result import Change, RankResult
from resumable_data.audit.report import AttemptReport, Bounds
from resumable_data.audit.timeline import reached_position, step_stops
from resumable_data.audit.updates import Course
from resumable_data.findings import Finding

if TYPE_CHECKING:
    from resumable_data.audit.history import Attempt, History
    from resumable_data.audit.rank_files import RankFiles, Scan
    from resumable_data.audit.unreadable import UnreadableSample
    from resumable_data.cursor import CoverageSpan, Cursor
    from resumable_data.ledger import Claim
    from resumable_data.ledger.records import Jump
    from resumable_data.order import Order


class OpenSamples(NamedTuple):
    """Samples of an update that one launch began and another may have finished.

    Attributes:
        update: The update.
        samples: How many of its samples.
        stop_position: The position after the last of them, where it is of use.
    """

    update: int
    samples: int
    stop_position: int = 0


class AttemptResult(NamedTuple):
    """What an attempt's files add to the audit.

    Attributes:
        report: Its line in the report.
        findings: What is wrong.
        changes: Rows by which its ranks' deliveries differ from their shares.
        lost: Samples of the surviving history that files should tell about and do not.
        unverified: Samples of which it is open what was delivered.
        unreadable: Samples of the surviving history that could not be read, as recorded.
        agreements: The digests that ranks agreed on before saves, in the surviving history.
        handed_on: What it delivered of an update that later attempts went on with.
        lost_inside: Updates that are parted among launches, and samples of them that files should tell about and do
            not.
    """

    report: AttemptReport
    findings: list[Finding]
    changes: list[Change]
    lost: int = 0
    unverified: int = 0
    unreadable: tuple[UnreadableSample, ...] = ()
    agreements: frozenset[CoverageSpan] = frozenset()
    handed_on: OpenSamples | None = None
    lost_inside: tuple[OpenSamples, ...] = ()


def find_branch(history: History, number: int, files: RankFiles, order: Order | None, *, key: int = 0) -> Branch:
    """An attempt's part of the surviving history: none of its updates where it is a dead one.

    Args:
        history: The ledger's attempts.
        number: The attempt.
        files: Its files. Where the history ends, and where a loop left epochs early, is known from all of them
            together: in these cases they are read.
        order: As in `Branch`.
        key: As in `Branch`.

    Raises:
        LedgerCorruptError: Its updates lead beyond the positions that a run can reach.
    """
    claim, is_newest = history.attempts[number].claim, number == history.chain[-1]
    counts_batches, child = claim.start.recipe.counts_batches, history.next_start(number)
    scans = [files.scan(rank) for rank in range(claim.num_replicas)] if counts_batches or is_newest else []
    stop = claim.start.next_index
    if is_newest:
        stop = _common_stop(scans)
    elif child is not None:
        stop = max(child.batches if counts_batches else child.updates, stop)
    require_room(claim, stop)
    jumps = _find_jumps(scans, stop) if counts_batches else []
    course = Course.of(claim_stretch(claim, history.rows), jumps)
    behind = rows_behind(claim, course)
    handed_on = find_handed_on(history, number, course, stop_update=stop, behind=behind)
    return Branch(claim, course, stop, order, key, behind, handed_on)


def _common_stop(scans: list[Scan]) -> int:
    """The end of the newest attempt's part of the surviving history: the last commit found on all ranks.

    Where a file is missing or ends long before the others, it is the last commit found on any, and evidence of
    it is missing; `scans` are one per rank.
    """
    fewest, most = min(scans, key=_num_steps), max(scans, key=_num_steps)
    # Ranks of one job commit together, so a kill comes between two records of one commit at the most.
    is_plain_kill = most.num_steps - fewest.num_steps <= 1 and (
        not most.num_steps or all(one.is_there for one in scans)
    )
    return fewest.stop if is_plain_kill else most.stop


def _find_jumps(scans: list[Scan], stop_update: int) -> list[Jump]:
    """Where the loop left an epoch early, of the updates before `stop_update`: as the longest file has it."""
    return [jump for jump in max(scans, key=_num_steps).jumps if jump.update < stop_update]


def _num_steps(scan: Scan) -> int:
    return scan.num_steps


def audit_branch(branch: Branch, files: RankFiles, child: Cursor | None, *, is_provided: bool = False) -> AttemptResult:
    """Audit an attempt of the surviving history.

    Args:
        branch: The attempt and its part of the history.
        files: Its files.
        child: The cursor that the next attempt started at; None for the newest.
        is_provided: Whether another one of the history delivered what it took over inside an update.
    """
    claim = branch.claim
    results = files.audit(branch)
    issues = [issue for result in results for issue in result.issues]
    for rank, result in enumerate(results):
        if result.known_stop < branch.stop_update:
            issues.append(_ends_early(rank, result, branch))
        elif result.is_missing and branch.handed_on is not None:
            update = branch.handed_on.update
            expected = f"its part of {branch.word} {update}, which the next attempt went on with"
            issues.append(Issue("RD105", rank, expected, "no file that can be used", 1, update, update))
    longest = _longest(results)
    num_steps = int(np.searchsorted(longest.stops, branch.stop_update, side="right"))
    applied = longest.applied[:num_steps]
    issues += _compare_steps(results, branch)
    gathered = [_with_positions(one, branch) for one in gather_issues(claim.attempt, issues, branch.word)]
    peers = files.compare_peers()
    findings = [*files.findings, *gathered, *peers, *_check_end(branch)]
    findings += check_inside(branch, is_provided=is_provided)
    if child is not None:
        findings += _check_applied(branch, longest, num_steps, child)
        findings += _check_counts(branch, child) if branch.counts_batches else []
        findings += _check_saved(branch, max(result.saved for result in results))
    rewound, beyond = sum(r.rewound for r in results), sum(r.beyond for r in results)
    report = report_attempt(
        claim,
        stop_update=claim.start.updates + num_steps if child is None else max(child.updates, claim.start.updates),
        first_position=claim.start.position + samples_behind(branch),
        stop_position=branch.stop_position,
        reached_position=max(result.reached for result in results),
        is_newest=child is None,
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
        agreements=frozenset().union(*(result.agreements for result in results)),
        handed_on=_handed_on(branch, results),
        lost_inside=_lost_inside(branch, results, is_provided=is_provided),
    )


def _handed_on(branch: Branch, results: list[RankResult]) -> OpenSamples | None:
    """What later attempts took over of the update after this attempt's last one."""
    part = branch.handed_on
    if part is None:
        return None
    return OpenSamples(part.update, sum(result.handed_on for result in results), part.stop_position)


def _lost_inside(branch: Branch, results: list[RankResult], *, is_provided: bool) -> tuple[OpenSamples, ...]:
    """Samples of parted updates that are not in any file, and should be in this attempt's or in those before it."""
    first = branch.course.first_update
    behind = 0 if is_provided or not branch.behind else samples_behind(branch)
    return (
        OpenSamples(first, behind),
        OpenSamples(branch.stop_update, sum(result.lost_inside for result in results)),
    )


def audit_dead(attempt: Attempt, files: RankFiles, *, is_surely_dead: bool) -> AttemptResult:
    """Count what an attempt outside the surviving history delivered.

    Args:
        attempt: The attempt.
        files: Its files.
        is_surely_dead: Whether the surviving history is known from its beginning, so that this attempt is no
            part of it.
    """
    delivered, reached, stops = 0, 0, [attempt.claim.start.updates]
    for rank in range(attempt.claim.num_replicas):
        log = files.read(rank)
        if log is not None:
            for block in log.deliveries():
                delivered += int((block.count - block.padding).sum())
                reached = max(reached, reached_position(block))
            stops.append(attempt.claim.start.updates + step_stops(log, attempt.claim).size)
    discarded = files.count(delivered)
    report = report_attempt(
        attempt.claim,
        survives=False,
        stop_update=max(stops),
        first_position=attempt.claim.start.position,
        stop_position=attempt.claim.start.position,
        reached_position=reached,
        is_newest=False,
        skipped=0,
        delivered=delivered,
        discarded=discarded if is_surely_dead else Bounds(0, discarded.high),
        in_flight=0,
    )
    return AttemptResult(report, files.findings, [])


def report_attempt(
    claim: Claim,
    *,
    survives: bool = True,
    stop_update: int,
    first_position: int,
    stop_position: int,
    reached_position: int,
    is_newest: bool,
    skipped: int,
    delivered: int,
    discarded: Bounds,
    in_flight: int,
) -> AttemptReport:
    """An attempt's line in the report."""
    return AttemptReport(
        attempt=claim.attempt,
        parent=claim.parent,
        num_replicas=claim.num_replicas,
        microbatch=claim.microbatch,
        global_batch=claim.start.recipe.global_batch,
        survives=survives,
        first_update=claim.start.updates,
        stop_update=stop_update,
        first_position=first_position,
        stop_position=max(stop_position, first_position),
        reached_position=reached_position,
        is_newest=is_newest,
        skipped=skipped,
        delivered=delivered,
        discarded=discarded,
        in_flight=in_flight,
        taken_over=claim.inside.samples if claim.inside else msgspec.UNSET,
    )


def _with_positions(one: Finding, branch: Branch) -> Finding:
    """A finding about updates, with the positions of these."""
    if one.first_update is None or one.last_update is None:
        return one
    first = branch.course.first_update
    ends = np.array([max(one.first_update, first), max(one.last_update, first)], np.int64)
    spans = branch.course.spans(np.minimum(ends, first + NUM_UPDATES_MAX))
    last = int(spans.start[1] + spans.num_samples[1]) - 1
    return msgspec.structs.replace(one, first_position=int(spans.start[0]), last_position=max(last, 0))


def _ends_early(rank: int, result: RankResult, branch: Branch) -> Issue:
    first, stop, last = branch.course.first_update, branch.stop_update, result.known_stop
    expected = f"all commits of {branch.word} {first} to {stop - 1}"
    if result.is_missing:
        return Issue("RD105", rank, expected, "no file that can be used", 1, last, stop - 1)
    found = f"commits up to {branch.word} {last - 1}" if last > first else "no commits"
    return Issue("RD106", rank, expected, found, 1, last, stop - 1)


def _check_end(branch: Branch) -> list[Finding]:
    first = branch.totals.first_over
    if first is None:
        return []
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
    expected_text = text.format(*expected) + ", as recorded"
    return [finding("RD401", where, expected=expected_text, found=text.format(*found), attempt=branch.claim.attempt)]


def _check_counts(branch: Branch, child: Cursor) -> list[Finding]:
    """The next attempt's start cursor counts what the batches took: where updates do not tell, only files do."""
    start, place = branch.claim.start, branch.stop_place
    counted = {
        "samples": start.samples + branch.samples,
        "padding": start.padding + branch.padding,
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
    return [finding("RD401", where, expected=expected, found=", ".join(wrong), attempt=branch.claim.attempt)]


def _check_saved(branch: Branch, saved: int) -> list[Finding]:
    """The next attempt starts at the newest checkpoint that is recorded as complete, or at a later one."""
    if saved <= branch.stop_update:
        return []
    where = f"start cursor of the attempt after {branch.claim.attempt}"
    expected = f"{branch.word} {saved}, at the newest checkpoint that was recorded as complete"
    found = f"{branch.word} {branch.stop_update}"
    return [finding("RD407", where, expected=expected, found=found, attempt=branch.claim.attempt)]


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
