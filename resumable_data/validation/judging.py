"""A verdict on a move from reports that exist already: of state, batch, data and trace. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.checkpoint.migration.changes import degrees, find_changes
from resumable_data.checkpoint.migration.coverage import granted_names, require_covered
from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.errors import MigrationError
from resumable_data.findings import PlainFinding
from resumable_data.validation.batches import batch_text, changed_batch
from resumable_data.validation.checks import FAILED, PASSED, UNPROVEN, WARM_START, Check
from resumable_data.validation.findings import DEVIATES
from resumable_data.validation.findings import PASS as TRACE_PASS
from resumable_data.validation.limits import QUANTITIES
from resumable_data.validation.state_report import COMPLETE, VIOLATED, judge_state
from resumable_data.validation.state_report import WARM_START as STATE_WARM_START
from resumable_data.validation.verdict import Verdict, make_verdict
from resumable_data.validation.verdict_findings import finding

if TYPE_CHECKING:
    from resumable_data.audit import AuditReport
    from resumable_data.checkpoint.migration.effects import Side
    from resumable_data.checkpoint.migration.migration_file import MigrationManifest
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.validation.comparison import TraceComparison
    from resumable_data.validation.state_report import StateReport

_STATE = {COMPLETE: PASSED, VIOLATED: FAILED, STATE_WARM_START: WARM_START}
_GLOBAL_BATCH = "global_batch"
_DTYPE = "dtype"


def judge_move(
    checkpoint: str,
    *,
    state: StateReport,
    saved: RunManifest | None,
    now: RunManifest,
    trace: TraceComparison | None,
    audit: AuditReport | None,
    declaration: Declaration | None = None,
    allow: Collection[str] = (),
    migration: MigrationManifest | None = None,
) -> Verdict:
    """The verdict that reports lead to, without a rehearsal.

    Where the global batch changes nothing is promoted, see `check_of_trace`.

    Args:
        checkpoint: The checkpoint.
        state: Of `check_state`, on the ranks that the run was moved to.
        saved: The run manifest of the checkpoint.
        now: Of `capture_run`, there.
        trace: Of `compare_traces`: of a window there with a control.
        audit: Of `audit_ledger` or `audit_cursor`, after the window, with what may be replayed and omitted.
        declaration: What was declared to survive; that of the migration, or the default, when None.
        allow: What may differ by name, as for `load_checkpoint`.
        migration: What was declared of the move: batch and ranks must be those of its destination.
    """
    if declaration is None:
        declaration = Declaration() if migration is None else migration.declaration
    allow = {*allow, *(() if migration is None else granted_names(migration.needed))}
    checks = [
        *([] if saved is None else check_of_declarations(checkpoint, saved, now, allow, migration)),
        check_of_state(state, allow),
        check_of_batch(saved, now, allow, destination=None if migration is None else migration.destination),
        check_of_trace(trace, batches=changed_batch(saved, now)),
        check_of_coverage(() if audit is None else (audit,), declaration),
    ]
    return make_verdict(
        checkpoint,
        checks,
        declaration=declaration,
        saved=saved,
        now=now,
        tolerances=tolerances_of(trace),
        migration=migration,
    )


def check_of_declarations(
    checkpoint: str, saved: RunManifest, now: RunManifest, allow: Collection[str], migration: MigrationManifest | None
) -> list[Check]:
    """Whether what changes was declared, by a migration of this run and update where there is one.

    Which save a migration is of is known where the checkpoint is read, as a rehearsal does.
    """
    checks, cursor = [], saved.decode_cursor()
    changes = find_changes(saved, now)
    declared = set() if migration is None else {one.values for one in migration.needed}
    if migration is not None and cursor is not None:
        wanted, given = (cursor.run_id, cursor.updates), (migration.run_id, migration.update)
        texts = [f"run {run_id or 'unknown'}, update {update}" for run_id, update in (wanted, given)]
        found = [] if wanted == given else [finding("RD979", "migration", expected=texts[0], found=texts[1])]
        checks.append(Check.of("migration", FAILED if found else PASSED, migration.xxh3, found))
    covered = [one for one in changes if one.values in declared]
    try:
        require_covered(Path(checkpoint), changes, now, covered=covered, names=allow)
    except MigrationError as error:
        undeclared = finding("RD972", "changes", expected="changes that were declared", found=str(error))
        return [*checks, Check.of("load", FAILED, "something changed that nobody declared", [undeclared])]
    return [*checks, Check.of("load", PASSED, "what changes was declared, or is free to change")]


def check_of_state(report: StateReport, allow: Collection[str] = ()) -> Check:
    """Whether all of the state is there, in the dtypes that were saved unless ``"dtype"`` is allowed.

    The global batch is for another check.
    """
    batch = "RD956" if _GLOBAL_BATCH in allow else ""
    found = tuple(one for one in report.findings if one.code != batch)
    verdict = report.verdict if len(found) == len(report.findings) else judge_state(found)
    summary = f"{verdict}: {report.tensors} tensors and {report.values} plain values compared"
    if _DTYPE not in allow and any(one.code == "RD944" for one in found):
        return Check.of("state", FAILED, f'{summary}; cast, which nobody declared: allow "{_DTYPE}"', found)
    return Check.of("state", _STATE.get(verdict, UNPROVEN), summary, found)


def check_of_batch(
    saved: RunManifest | None,
    now: RunManifest,
    allow: Collection[str] = (),
    found: Collection[PlainFinding] = (),
    destination: Side | None = None,
) -> Check:
    """Whether batch and ranks are what was declared: the batch that was saved, unless another was allowed.

    Args:
        saved: What saved.
        now: What is trained now.
        allow: ``"global_batch"`` allows another one.
        found: What else was found about it.
        destination: Where a migration says that the run goes; it takes the place of both.
    """
    findings = [*found, *([] if destination is None else _wrong_ranks(destination, now))]
    if now.batch is None or saved is None or saved.batch is None:
        missing = finding("RD974", "batch", expected="the batch equation, then and now", found="not both of them")
        return Check.of("batch", FAILED if findings else UNPROVEN, "the batch is not known", [*findings, missing])
    then, here = batch_text(saved.batch), batch_text(now.batch)
    wanted = here if _GLOBAL_BATCH in allow else then
    if destination is not None and destination.batch is not None:
        wanted = batch_text(destination.batch)
    if here != wanted:
        findings.append(finding("RD981", "global batch", expected=wanted, found=here))
    change = "" if then == here else f", where it was {then}"
    summary = f"global batch {here}{change}, on {now.batch.dp_size} data-parallel ranks"
    return Check.of("batch", FAILED if findings else PASSED, summary, findings)


def _wrong_ranks(destination: Side, now: RunManifest) -> list[PlainFinding]:
    """Whether there are as many ranks of each kind as was declared; how data-parallel ones are arranged may differ."""
    if not destination.world_size:
        return []
    wanted, found = (_ranks(one.world_size, one.dp_size, degrees(one)) for one in (destination, now))
    return [] if wanted == found else [finding("RD989", "ranks", expected=wanted, found=found)]


def _ranks(world_size: int, dp_size: int, model_axes: Mapping[str, int]) -> str:
    rest = "".join(f" x {name} {size}" for name, size in sorted(model_axes.items()))
    return f"{world_size} processes, dp {dp_size}{rest}"


def has_other_batch(report: TraceComparison) -> bool:
    """Whether updates of two traces are of different numbers of samples, so that nothing of them can be compared."""
    return any(one.code == "RD909" for one in report.findings)


def check_of_trace(
    report: TraceComparison | None, name: str = "trace", *, batches: tuple[str, str] | None = None
) -> Check:
    """Whether updates are those of the control.

    Where the global batch changes, updates can be those of a control that was recorded with the new one, and not that
    of the run from before: the check fails, or stays unproven.

    Args:
        report: The comparison; None without a control.
        name: The check's name.
        batches: The global batch before and after, where it changes.
    """
    changed = [] if batches is None else [finding("RD980", "global batch", expected=batches[0], found=batches[1])]
    if report is None:
        missing = finding("RD987", "control", expected="a trace of the updates on the ranks that saved", found="none")
        return Check.of(name, UNPROVEN, "no control", [*changed, missing])
    if changed and has_other_batch(report):
        return Check.of(name, UNPROVEN, "not compared: an update of the control has other samples", changed)
    apart = ", ".join(
        f"{one.name} {one.largest:.1e} of {one.limit:.1e}" for one in report.quantities if one.largest is not None
    )
    status = {TRACE_PASS: PASSED, DEVIATES: FAILED}.get(report.verdict, UNPROVEN)
    summary = f"{report.verdict}: {report.updates} updates, {report.repeats} repeats of the control; apart by {apart}"
    return Check.of(name, UNPROVEN if changed and status == PASSED else status, summary, [*changed, *report.findings])


def check_of_coverage(reports: Collection[AuditReport], declaration: Declaration) -> Check:
    """Whether each sample was delivered once, within what was declared."""
    if not reports:
        return Check.of("coverage", UNPROVEN, "nothing was audited")
    findings: list[PlainFinding] = [one for report in reports for one in report.findings]
    continuity = declaration.continuity
    for report in reports:
        high = (report.replayed.high, report.omitted.high)
        if None not in high and not continuity.holds(report.replayed.low, report.omitted.low):
            bound = f"at most {continuity.replayed} replayed and {continuity.omitted} omitted"
            findings.append(finding("RD988", report.subject, expected=bound, found=f"{high[0]} and {high[1]}"))
    verdicts = {report.verdict for report in reports}
    is_violated = "violated" in verdicts or any(one.code == "RD988" for one in findings)
    status = FAILED if is_violated else PASSED if verdicts == {"proven"} else UNPROVEN
    summary = "; ".join(f"{one.subject} {one.verdict}: {one.samples} samples" for one in reports)
    return Check.of("coverage", status, summary, findings)


def tolerances_of(report: TraceComparison | None) -> dict[str, float]:
    """The relative deviations that a comparison allowed."""
    limits: Mapping[str, float] = {} if report is None else {one.name: one.limit for one in report.quantities}
    return {name: limits[name] for name in QUANTITIES if name in limits}
