"""A verdict on a move from reports that exist already: of state, batch, data and trace. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING

from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.findings import PlainFinding
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
    declaration: Declaration = Declaration(),  # noqa: B008  # it is frozen
    allow: Collection[str] = (),
) -> Verdict:
    """The verdict that reports lead to, without a rehearsal.

    Args:
        checkpoint: The checkpoint.
        state: Of `check_state`, on the ranks that the run was moved to.
        saved: The run manifest of the checkpoint.
        now: Of `capture_run`, there.
        trace: Of `compare_traces`: of a window there with a control.
        audit: Of `audit_ledger` or `audit_cursor`, after the window, with what may be replayed and omitted.
        declaration: What was declared to survive.
        allow: What may differ by name: ``"global_batch"``, ``"dtype"``.
    """
    checks = [
        check_of_state(state, allow),
        check_of_batch(saved, now, allow),
        check_of_trace(trace),
        check_of_coverage(() if audit is None else (audit,), declaration),
    ]
    return make_verdict(
        checkpoint,
        checks,
        declaration=declaration,
        saved=saved,
        now=now,
        tolerances=tolerances_of(trace),
    )


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
    saved: RunManifest | None, now: RunManifest, allow: Collection[str] = (), found: Collection[PlainFinding] = ()
) -> Check:
    """Whether the batch is what was declared: what was saved, unless another was allowed.

    Args:
        saved: What saved.
        now: What is trained now.
        allow: ``"global_batch"`` allows another one.
        found: What else was found about it.
    """
    findings = list(found)
    if now.batch is None or saved is None or saved.batch is None:
        missing = finding("RD974", "batch", expected="the batch equation, then and now", found="not both of them")
        return Check.of("batch", FAILED if findings else UNPROVEN, "the batch is not known", [*findings, missing])
    then, here = (f"{one.global_batch} {one.unit}" for one in (saved.batch, now.batch))
    if then != here and _GLOBAL_BATCH not in allow:
        findings.append(finding("RD981", "global batch", expected=then, found=here))
    change = "" if then == here else f", where it was {then}"
    summary = f"global batch {here}{change}, on {now.batch.dp_size} data-parallel ranks"
    return Check.of("batch", FAILED if findings else PASSED, summary, findings)


def check_of_trace(report: TraceComparison | None, name: str = "trace") -> Check:
    """Whether updates are those of the control."""
    if report is None:
        missing = finding("RD987", "control", expected="a trace of the updates on the ranks that saved", found="none")
        return Check.of(name, UNPROVEN, "no control", [missing])
    apart = ", ".join(
        f"{one.name} {one.largest:.1e} of {one.limit:.1e}" for one in report.quantities if one.largest is not None
    )
    status = {TRACE_PASS: PASSED, DEVIATES: FAILED}.get(report.verdict, UNPROVEN)
    summary = f"{report.verdict}: {report.updates} updates, {report.repeats} repeats of the control; apart by {apart}"
    return Check.of(name, status, summary, report.findings)


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
