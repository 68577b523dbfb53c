"""A comparison of traces for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.ledger.frames import shown
from resumable_data.validation.findings import DEVIATES, NOT_DISTINGUISHABLE, PASS, UNPROVEN
from resumable_data.validation.limits import ROUNDING

if TYPE_CHECKING:
    from resumable_data.validation.comparison import TraceComparison, TracedRun
    from resumable_data.validation.findings import TraceFinding

_EXPLAINED = {
    PASS: "the candidate does what the control did, within what the control varies by itself",
    DEVIATES: "the candidate does not do what the control did",
    NOT_DISTINGUISHABLE: "nothing deviates that must not, and faults could hide in what is allowed",
    UNPROVEN: "nothing deviates, and evidence is missing",
}
_COLUMNS = ("quantity", "first update", "largest", "at update", "limit", "from", "noise")


def format_comparison(report: TraceComparison) -> str:
    """The verdict, what was compared, a table of deviations, and the findings with their remedies."""
    explained = _EXPLAINED[report.verdict]
    if report.verdict == PASS and any(one.limit_source == ROUNDING for one in report.quantities):
        explained = "the candidate does what the control did, within rounding; how the control varies was not looked at"
    lines = [f"{report.verdict.upper()}: {explained}", ""]
    lines += [f"  {name:<12} {value}" for name, value in _facts(report)]
    if report.quantities:
        lines += ["", *_table(report)]
    told: set[str] = set()
    for finding in report.findings:
        lines += ["", *_finding(finding, told)]
    return "\n".join(lines)


def _facts(report: TraceComparison) -> list[tuple[str, str]]:
    last = report.first_update + report.updates - 1
    facts = [
        ("control", _run(report.control)),
        ("candidate", _run(report.candidate)),
        ("repeats", f"{report.repeats} of the control"),
        ("updates", f"{report.updates}, {report.first_update} to {last}" if report.updates else "none"),
    ]
    speeds = (report.control.samples_per_device_s, report.candidate.samples_per_device_s)
    if speeds[0] and speeds[1]:
        facts.append(("throughput", f"{speeds[0]:.4g} and {speeds[1]:.4g} samples/s per device, not judged"))
    if report.hidden_faults:
        facts.append(("may hide", "; ".join(report.hidden_faults)))
    if report.first_excess:
        facts.append(("moved first", f"{report.first_excess.quantity}, at update {report.first_excess.update}"))
    return facts


def _run(run: TracedRun) -> str:
    axes = " x ".join(f"{name} {size}" for name, size in run.axes)
    return f"{shown(run.path)} ({axes}, {run.dtype})"


def _table(report: TraceComparison) -> list[str]:
    rows = [_COLUMNS]
    for one in report.quantities:
        largest, first = ("not finite" if value is None else f"{value:.1e}" for value in (one.largest, one.first))
        noise = "-" if one.noise is None else f"{one.noise:.1e}"
        rows.append((one.name, first, largest, str(one.at_update), f"{one.limit:.1e}", one.limit_source, noise))
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    return ["  " + "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]


def _finding(finding: TraceFinding, told: set[str]) -> list[str]:
    """A finding, with its remedy where that was not told before."""
    times = f" ({finding.count} updates)" if finding.count > 1 else ""
    lines = [
        f"{finding.code} {finding.severity}: {finding.title}{times}",
        f"  where     {finding.where}",
        f"  expected  {finding.expected}",
        f"  found     {finding.found}",
    ]
    if finding.remedy not in told:
        told.add(finding.remedy)
        lines.append(f"  remedy    {finding.remedy}")
    return lines
