"""A plan's report for people."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from resumable_data.findings import NOTE
from resumable_data.plan.packed_place import PACKED_LENGTH
from resumable_data.plan.remarks import span_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from resumable_data.findings import PlainFinding
    from resumable_data.plan.layout import Layout, Repeat
    from resumable_data.plan.report import PlanReport, UpdateLayouts

    Row = tuple[str, Callable[[Layout], str]]

_WIDTH = 96


def format_report(report: PlanReport) -> str:
    """Both layouts side by side, the place in the run, what the move changes, even layouts nearby, and warnings."""
    sections = [[_headline(report)], *_tables(report), _fields(_progress(report))]
    if report.changes:
        sections.append(["changes with the move", *_fields([(at.what, at.effect) for at in report.changes])])
        sections.append(["stays as it is", "  " + ", ".join(report.unchanged)])
    sections.append(["even layouts nearby", *_fields(_alternatives(report))])
    if warnings := _warnings(report):
        sections.append(["before you move" if report.request.to else "to know", *warnings])
    return "\n\n".join("\n".join(lines) for lines in sections)


def _headline(report: PlanReport) -> str:
    request, move = report.request, report.move
    ranks = f"{request.now.num_replicas:,} ranks"
    if request.to:
        ranks = f"{request.now.num_replicas:,} to {request.to.num_replicas:,} ranks"
    if move.boundary == "none":
        return f"{ranks}, {move.phase:,} rows into the update: not exact, no microbatch ends there"
    if request.to is None:
        return f"{ranks}, {request.schedule.global_batch:,} rows per update"
    where = "at the end of any update" if move.boundary == "update" else f"{move.phase:,} rows into the update"
    return f"{ranks}, {where}: exact, 0 samples replayed, 0 omitted"


def _tables(report: PlanReport) -> list[list[str]]:
    """A table for each kind of update: a line for each property, a column for each rank set."""
    tables = []
    for layouts in report.updates:
        columns = [layouts.now, layouts.to] if layouts.to else [layouts.now]
        rows = _full_rows(report) if layouts.kind == "full" else _SHORT_ROWS
        head = [_title(layouts), *(["now", "new"] if layouts.to else [""])]
        tables.append([head, *([f"  {name}", *(show(layout) for layout in columns)] for name, show in rows)])
    widths = [max(len(line[column]) for table in tables for line in table) + 3 for column in (0, 1)]
    return [[_table_line(line, widths) for line in table] for table in tables]


def _table_line(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, now, *new = cells
    return "".join((name.ljust(widths[0]), now.ljust(widths[1]), *new)).rstrip()


def _title(layouts: UpdateLayouts) -> str:
    if layouts.kind == "unfinished":
        return f"unfinished update, {layouts.num_rows - layouts.phase:,} rows left"
    padding = f" ({layouts.padding:,} padding)" if layouts.padding else ""
    return f"{layouts.kind} update, {layouts.num_rows:,} rows{padding}"


def _full_rows(report: PlanReport) -> list[Row]:
    def loss_scale(layout: Layout) -> str:
        if layout.loss_scale is not None:
            return f"{layout.loss_scale:.8g}"
        return f"{layout.num_replicas if report.request.gradient_reduction == 'mean' else 1:,} / target tokens"

    return [
        ("ranks", lambda at: f"{at.num_replicas:,}"),
        ("microbatch, at most", lambda at: f"{at.microbatch:,}"),
        *_SHORT_ROWS,
        ("rows of a rank", lambda at: span_text(at.min_rows, at.max_rows)),
        ("filler rows", lambda at: f"{at.num_filler:,}"),
        ("idle share of rank time", lambda at: f"{at.idle_percent:.1f} %"),
        ("loss scale", loss_scale),
        ("even", lambda at: "yes" if at.is_even else "no"),
    ]


_SHORT_ROWS: list[Row] = [
    ("accumulation steps", lambda at: f"{at.accumulation_steps:,}"),
    ("stretches over all ranks", lambda at: _repeats(at.stretches)),
    ("microbatches, busiest rank", lambda at: _repeats(at.microbatches)),
    ("ranks idle in the last one", lambda at: f"{at.num_idle:,}"),
]


def _repeats(repeats: Sequence[Repeat]) -> str:
    return ", ".join(f"{repeat.count:,} of {repeat.size:,}" for repeat in repeats)


def _progress(report: PlanReport) -> list[tuple[str, str]]:
    request = report.request
    epochs = request.schedule.epochs
    run = "no end" if report.updates_left is None else f"{report.updates_left:,} updates"
    if request.schedule.length == PACKED_LENGTH:
        fields = [("place", f"update {request.update:,}, at packed row {request.offset:,} of the run")]
    else:
        fields = [
            ("place", f"update {request.update:,}, at offset {request.offset:,} of epoch {request.epoch:,}"),
            ("left in the epoch", f"{report.updates_left_in_epoch:,} updates of {request.schedule.length:,} samples"),
            ("left in the run", f"{run} of {epochs:,} epochs" if epochs else run),
        ]
    if report.dropped_per_epoch:
        fields.append(("dropped", f"{report.dropped_per_epoch:,} samples at the end of the epoch"))
    if report.move.boundary == "microbatch":
        rows = f"{report.move.discarded:,} accumulated rows"
        fields.append(("unfinished", f"{rows}: the loader resumes at the update's start and reads them again"))
    return fields


def _alternatives(report: PlanReport) -> list[tuple[str, str]]:
    ranks, even = report.request.to or report.request.now, report.alternatives
    rows = [("ranks, full microbatches", even.num_replicas), ("ranks, equal rows", even.num_replicas_equal)]
    if even.num_replicas == even.num_replicas_equal:
        rows = [("ranks", even.num_replicas)]
    rows.append((f"batch on {ranks.num_replicas:,} ranks", even.global_batches))
    return [(name, "  ".join(f"{value:,}" for value in values) or "none") for name, values in rows]


def _warnings(report: PlanReport) -> list[str]:
    """Findings that are no notes, each code once; what notes say stands in the tables."""
    first: dict[str, PlainFinding] = {}
    for finding in report.findings:
        if finding.severity != NOTE:
            first.setdefault(finding.code, finding)
    lines = []
    for finding in first.values():
        lines.append(f"  {finding.code} {finding.severity}: {finding.title}")
        for text in (f"{finding.where}: expected {finding.expected}, found {finding.found}.", finding.remedy):
            lines += wrap(text, _WIDTH, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return lines


def _fields(fields: Sequence[tuple[str, str]]) -> list[str]:
    width = max(len(name) for name, _ in fields) + 4
    lines = []
    for name, value in fields:
        first, *rest = wrap(value, _WIDTH - width)
        lines += [f"  {name}".ljust(width) + first, *(" " * width + line for line in rest)]
    return lines
