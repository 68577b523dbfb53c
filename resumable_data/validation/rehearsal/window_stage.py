"""The fourth stage: a short window of updates, its boundaries and its coverage."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.audit import AuditReport, audit_cursor, audit_ledger
from resumable_data.ledger.frames import shown
from resumable_data.validation.checks import FAILED, NOT_RUN, PASSED, Check
from resumable_data.validation.compare import compare_traces
from resumable_data.validation.judging import check_of_coverage, check_of_trace, has_other_batch, tolerances_of
from resumable_data.validation.rehearsal.load_stage import ledger_of

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.declaration import Declaration
    from resumable_data.cursor import Cursor
    from resumable_data.validation.comparison import TraceComparison
    from resumable_data.validation.rehearsal.job import Job
    from resumable_data.validation.rehearsal.options import Options

LONGEST = 3
"""A window is made up to so many times as long, to have a boundary in it."""


def window_length(job: Job, start: Cursor, updates: int) -> int:
    """How many updates the window has: longer than asked for where a boundary is then crossed."""
    length = updates
    for every in _boundaries(job).values():
        to_next = every - start.updates % every
        if length < to_next <= LONGEST * updates:
            length = to_next
    return length


def _boundaries(job: Job) -> dict[str, int]:
    found = {"logging": job.log_every if job.log else None}
    found["evaluation"] = job.evaluate_every if job.evaluate else None
    return {name: every for name, every in found.items() if every}


def check_boundaries(job: Job, start: Cursor) -> Check:
    """Which boundaries were crossed since a cursor."""
    declared, now = _boundaries(job), job.loader.cursor
    missing = sorted({"logging", "evaluation"} - declared.keys())
    crossed = [name for name, every in declared.items() if now.crossed(start, every_updates=every)]
    told = [f"{name} every {every} updates" for name, every in declared.items() if name in crossed]
    told += [f"{name} every {every} updates: none crossed" for name, every in declared.items() if name not in crossed]
    told += [f"no {name} declared" for name in missing]
    status = PASSED if len(crossed) == 2 else NOT_RUN
    return Check.of("boundaries", status, f"updates {start.updates} to {now.updates - 1}; " + ", ".join(told))


def check_coverage(job: Job, declaration: Declaration) -> Check:
    """Whether all that was committed was delivered, by the cursor's digest, and by the ledger where there is one.

    After `ResumableLoader.check_agreement`, and after the loader was closed; on the first process.
    """
    loader, bound = job.loader, declaration.continuity
    packed = loader.content.packed
    reports: list[AuditReport] = [audit_cursor(loader.cursor, since_take_over=True, packed=packed)]
    ledger = ledger_of(loader)
    if ledger is not None:
        reports.append(
            audit_ledger(
                ledger,
                max_replayed=bound.replayed,
                max_omitted=bound.omitted,
                since_take_over=True,
                packed=packed,
            )
        )
    return check_of_coverage(reports, declaration)


def check_first_update(trace: Path, options: Options, batches: tuple[str, str] | None) -> Check:
    """Whether the first update is that of the control: that it deviates is known by now, that it does not is not."""
    report = _compare(trace, options, 1)
    check = check_of_trace(report, "first update", batches=batches)
    if batches is not None and has_other_batch(report):
        return Check.of("first update", NOT_RUN, check.summary)
    return check if check.status == FAILED else Check.of("first update", PASSED, check.summary)


def check_trace(
    trace: Path,
    options: Options,
    tolerances: dict[str, float],
    *,
    batches: tuple[str, str] | None,
    is_warm: bool,
) -> tuple[Check, dict[str, float]]:
    """Whether the window's updates are those of the control.

    Returns:
        The check, and the tolerances with those that were used.
    """
    if options.record is not None:
        return Check.of("trace", NOT_RUN, f"recorded in {shown(options.record)}"), tolerances
    if is_warm:
        return Check.of("trace", NOT_RUN, "a warm start does not do what the control did"), tolerances
    comparison = None if options.control is None else _compare(trace, options, options.updates)
    return check_of_trace(comparison, batches=batches), tolerances | tolerances_of(comparison)


def _compare(trace: Path, options: Options, min_updates: int) -> TraceComparison:
    assert options.control is not None
    return compare_traces(
        options.control,
        trace,
        repeats=options.repeats,
        limits=options.declaration.tolerances,
        min_updates=min_updates,
    )
