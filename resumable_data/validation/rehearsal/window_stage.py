"""The fourth stage: a short window of updates, its boundaries and its coverage."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.audit import AuditReport, audit_cursor, audit_ledger
from resumable_data.validation.judging import check_of_coverage
from resumable_data.validation.rehearsal.load_stage import ledger_of
from resumable_data.validation.verdict import NOT_RUN, PASSED, Check

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.declaration import Declaration
    from resumable_data.cursor import Cursor
    from resumable_data.validation.rehearsal.job import Job

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
    packed = getattr(loader._content, "_packed", None)
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
