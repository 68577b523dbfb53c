"""A verdict for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.ledger.frames import shown
from resumable_data.validation.checks import PASSED, UNPROVEN, WARM_START
from resumable_data.validation.verdict import PROMOTE, REJECT

if TYPE_CHECKING:
    from resumable_data.findings import PlainFinding
    from resumable_data.validation.verdict import Ranks, Verdict

_EXPLAINED = {
    PROMOTE: "the run may go on where this was rehearsed",
    REJECT: "do not go on with the run there",
    WARM_START: "weights go on, the run does not: a new experiment",
    UNPROVEN: "nothing failed, and what a promotion needs was not shown",
    PASSED: "what was asked for passed; that is not all, and no verdict on the move",
}


def format_verdict(report: Verdict) -> str:
    """The verdict, what it holds for, a line for each check, findings with remedies, and what is not proven."""
    lines = [f"{report.verdict.upper()}: {_EXPLAINED[report.verdict]}", ""]
    lines += [f"  {name:<11} {value}" for name, value in _facts(report)]
    width = max((len(check.name) for check in report.checks), default=0)
    lines += ["", *(f"  {one.status:<10}  {one.name:<{width}}  {shown(one.summary)}" for one in report.checks)]
    told: set[str] = set()
    for check in report.checks:
        for finding in check.findings:
            lines += ["", *_finding(check.name, finding, told)]
    if report.warm_start is not None:
        lines += ["", f"new experiment {report.warm_start.identity}, from run {report.warm_start.run_id or '?'}; lost:"]
        lines += [f"  {shown(one)}" for one in report.warm_start.lost]
    lines += ["", "not proven:", *(f"  {one}" for one in report.not_proven)]
    return "\n".join(lines)


def _facts(report: Verdict) -> list[tuple[str, str]]:
    facts = [("checkpoint", shown(report.checkpoint) + (", made for the exercise" if report.is_synthetic else ""))]
    if report.saved is not None:
        facts.append(("saved on", _ranks(report.saved)))
    if report.now is not None:
        facts.append(("holds for", _ranks(report.now)))
    if report.batch is not None:
        one = report.batch
        steps = "" if one.accumulation_steps is None else f", {one.accumulation_steps} microbatches per rank"
        equation = f"{one.global_batch} {one.unit} on {one.dp_size} data-parallel ranks{steps} of {one.microbatch}"
        facts.append(("batch", equation))
    continuity = report.declaration.continuity
    bound = f", {continuity.replayed} replayed and {continuity.omitted} omitted" if continuity.kind == "bounded" else ""
    facts.append(("declared", f"the same {report.declaration.invariant}; data continuity {continuity.kind}{bound}"))
    if report.migration_xxh3 is not None:
        facts.append(("migration", report.migration_xxh3))
    changes = [f"{one.field} {one.saved} to {one.now}" for one in report.changes]
    facts += [("changes", ", ".join(changes))] if changes else []
    if report.tolerances:
        facts.append(("tolerances", ", ".join(f"{name} {value:.1e}" for name, value in report.tolerances.items())))
    return facts


def _ranks(ranks: Ranks) -> str:
    axes = " x ".join(f"{name} {size}" for name, size in ranks.axes)
    return f"{axes}: {ranks.world_size} processes, {ranks.dp_size} data-parallel ranks"


def _finding(check: str, finding: PlainFinding, told: set[str]) -> list[str]:
    """A finding, with its remedy where that was not told before."""
    lines = [
        f"{finding.code} {finding.severity}: {finding.title}",
        f"  check     {check}",
        f"  where     {shown(finding.where)}",
        f"  expected  {shown(finding.expected)}",
    ]
    found = finding.found.splitlines() or [""]
    lines += [f"  found     {shown(found[0])}", *(f"            {shown(line)}" for line in found[1:])]
    if finding.remedy not in told:
        told.add(finding.remedy)
        lines.append(f"  remedy    {finding.remedy}")
    return lines
