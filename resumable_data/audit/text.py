"""An audit's report for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.audit.picture import draw_coverage
from resumable_data.findings import SEVERITIES

if TYPE_CHECKING:
    from resumable_data.audit.report import AttemptReport, AuditReport, CheckpointProof
    from resumable_data.findings import Finding

_EXPLAINED = {
    "proven": "every committed sample was delivered exactly once",
    "violated": "the surviving history is not what the recipe says",
    "unproven": "evidence is missing",
}
_COLUMNS = (
    "attempt",
    "parent",
    "ranks",
    "microbatch",
    "updates",
    "delivered",
    "replayed",
    "omitted",
    "discarded",
    "in flight",
)

_PROOF_COLUMNS = ("checkpoint", "attempt", "updates", "position", "proves positions")


def format_report(report: AuditReport) -> str:
    """The verdict, the counts, a table of attempts, and the findings with their remedies."""
    explained = _EXPLAINED[report.verdict]
    if report.verdict == "proven" and report.packed:
        explained = "every committed row was delivered exactly once, and rows hold each token of their documents once"
    if report.verdict == "proven" and (report.replayed.low or report.omitted.low):
        explained = "replayed and omitted samples are within the declared bounds"
    if report.verdict == "proven" and _is_taken_over(report):
        explained += ", since the run was taken over"
    if report.verdict == "proven" and report.unreadable.low:
        explained += f", but for {report.unreadable} that could not be read, as declared"
    if {"RD408", "RD409"} & {one.code for one in report.findings}:
        explained = "the checkpoints are not of one history"
    lines = [f"{report.verdict.upper()}: {explained}", ""]
    counts = _counts(report)
    width = max(10, *(len(name) for name, _ in counts))
    lines += [f"  {name:<{width}} {value}" for name, value in counts]
    if report.checkpoints:
        lines += ["", *_align([_PROOF_COLUMNS, *map(_proof_row, report.checkpoints)], left=1)]
    if report.attempts:
        lines += ["", *_table(report.attempts)]
    picture = draw_coverage(report)
    if picture:
        lines += ["", *(f"  {line}" for line in picture)]
    for finding in sorted(report.findings, key=lambda f: SEVERITIES.index(f.severity)):
        lines += ["", *_finding(finding)]
    return "\n".join(lines)


def _counts(report: AuditReport) -> list[tuple[str, str]]:
    skipped = f", {report.skipped} of them skipped by the optimizer" if report.skipped else ""
    counts = [
        (report.subject, report.path),
        ("run", report.run_id or "(none)"),
        ("updates", f"{report.updates}{skipped}"),
        *_progress(report),
        ("replayed", str(report.replayed)),
        ("omitted", str(report.omitted)),
    ]
    if report.checkpoints:
        last = report.checkpoints[-1]
        counts.append(("proven", f"positions {_ranges(last.proven)} of [0, {last.position}), by {last.path}"))
    if report.unreadable.low:
        counts.append(("unreadable", f"{report.unreadable}, replaced by rows of weight 0"))
    if report.subject == "ledger":
        counts += [("discarded", str(report.discarded)), ("in flight", str(report.in_flight))]
    if report.dropped:
        counts.append(("dropped", f"{report.dropped}, {_declared_by(report, 'drop')}"))
    if report.padding:
        counts.append(("padding", f"{report.padding} rows, {_declared_by(report, 'pad')}"))
    return counts


def _progress(report: AuditReport) -> list[tuple[str, str]]:
    here = report.packed
    if not here:
        return [("samples", f"{report.samples}, up to epoch {report.epoch}, offset {report.offset}")]
    counts = [
        ("rows", f"{report.samples}, up to epoch {here.epoch}, window {here.window}, row {here.row}"),
        ("tokens", f"{here.tokens}, {here.target_tokens} of them targets, each once; {here.documents} documents ended"),
    ]
    if report.piece_rows:
        counts.append(("pieces", f"of {report.piece_rows} rows recorded, and held against the documents"))
    if here.truncated_tokens:
        counts.append(("truncated", f"{here.truncated_tokens} tokens, as the policy declares"))
    return counts


def _is_taken_over(report: AuditReport) -> bool:
    return any(one.code == "RD112" for one in report.findings)


def _declared_by(report: AuditReport, tail: str) -> str:
    by = f'as tail="{tail}" declares'
    if report.is_tracked:
        by = {"drop": "by drop_last, or in epochs left early", "pad": "as the sampler fills up its ranks"}[tail]
    return by + (", or what the run was taken over from" if _is_taken_over(report) else "")


def _table(attempts: tuple[AttemptReport, ...]) -> list[str]:
    return _align([_COLUMNS, *(_row(attempt) for attempt in attempts)])


def _align(rows: list[tuple[str, ...]], *, left: int = 0) -> list[str]:
    """Rows as lines, of which the first `left` columns are aligned to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]


def _proof_row(proof: CheckpointProof) -> tuple[str, ...]:
    return (
        proof.path,
        str(proof.attempt or "-"),
        str(proof.updates),
        str(proof.position),
        _ranges(proof.proven),
    )


def _ranges(ranges: tuple[tuple[int, int], ...]) -> str:
    return " ".join(f"[{start}, {stop})" for start, stop in ranges) or "nothing"


def _row(attempt: AttemptReport) -> tuple[str, ...]:
    first, stop = attempt.first_update, attempt.stop_update
    return (
        str(attempt.attempt),
        str(attempt.parent or "-"),
        str(attempt.num_replicas),
        str(attempt.microbatch),
        (f"{first}-{stop - 1}" if stop > first else "none") + _taken_over(attempt),
        str(attempt.delivered),
        str(attempt.replayed),
        str(attempt.omitted),
        str(attempt.discarded),
        str(attempt.in_flight),
    )


def _taken_over(attempt: AttemptReport) -> str:
    return f" (from row {attempt.taken_over} of {attempt.first_update})" if attempt.taken_over else ""


def _finding(finding: Finding) -> list[str]:
    times = f" ({finding.count} times)" if finding.count > 1 else ""
    return [
        f"{finding.code} {finding.severity}: {finding.title}{times}",
        f"  where     {finding.where}",
        f"  expected  {finding.expected}",
        f"  found     {finding.found}",
        f"  remedy    {finding.remedy}",
    ]
