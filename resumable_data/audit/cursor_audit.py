"""The audit of a single cursor: its digest against the order, with no other file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.audit.findings import finding
from resumable_data.audit.packed import check_rows, find_rows, is_near
from resumable_data.audit.replay import check_take_over, count_cursor, is_reachable
from resumable_data.audit.report import PROVEN, AuditReport, Bounds, judge
from resumable_data.audit.spans import check_spans, uncovered
from resumable_data.errors import CorruptStateError, UsageError
from resumable_data.findings import Finding
from resumable_data.ledger.frames import shown
from resumable_data.order import order_from_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.audit.packed import Packed, PackedRows
    from resumable_data.cursor import Cursor
    from resumable_data.order import Order


def audit_cursor(
    cursor: Cursor, *, path: str = "", since_take_over: bool = False, packed: Packed | None = None
) -> AuditReport:
    """Say from a cursor alone whether exactly its committed samples were delivered, each once.

    The digest in the cursor is recomputed from the order of its recipe, for all positions before the cursor. This
    takes time in proportion to the samples committed.

    Args:
        cursor: The cursor, say from a checkpoint.
        path: Where it comes from, for the report.
        since_take_over: Judge a run that was taken over from another loader by what came after alone.
        packed: Of a run over packed rows, its `resumable_data.packing.PackedTokens`.

    Raises:
        UsageError: The run read packed rows and `packed` is not what it read; or it did not.
        CorruptStateError: Its numbers are not those of any run.
    """
    rows = rows_of_cursor(cursor, packed)
    stretches, findings = count_cursor(cursor, rows)
    if not findings:
        try:
            order: Order = rows or order_from_description(cursor.recipe.order)
            findings += check_spans(order, stretches, [("cursor", span) for span in cursor.coverage])
        except UsageError as error:
            findings.append(finding("RD108", "recipe", expected="an order of this package", found=shown(error)))
        findings += [_gap(*gap) for gap in uncovered(cursor, stretches)]
    findings += [*check_take_over(cursor, "cursor", is_accepted=since_take_over), *check_rows(rows)]
    return report_cursor(cursor, "cursor", shown(path), findings)


def rows_of_cursor(cursor: Cursor, packed: Packed | None) -> PackedRows | None:
    """The rows of the run of a cursor, of which none beyond it is planned; None where it read samples.

    Raises:
        UsageError: The run read packed rows and `packed` is not what it read; or it did not.
        CorruptStateError: Its numbers are not those of any run.
    """
    cursor.check()
    if not is_reachable(cursor):
        raise unreachable(cursor)
    rows = find_rows(cursor.recipe, packed)
    if not is_near(rows, cursor):
        raise unreachable(cursor)
    if rows is not None:
        rows.limit = cursor.position
    return rows


def unreachable(cursor: Cursor) -> CorruptStateError:
    """The error for a cursor whose numbers no run reaches."""
    return CorruptStateError(
        f"expected the cursor of a run, found numbers that no run reaches: {shown(cursor)}. Nothing was audited; "
        "the cursor was not written by this package, or was edited."
    )


def report_cursor(cursor: Cursor, subject: str, path: str, findings: Sequence[Finding]) -> AuditReport:
    """What an audit says of a run up to a cursor."""
    verdict = judge(findings)
    count = Bounds(0, 0 if verdict == PROVEN else None)
    return AuditReport(
        subject=subject,
        path=path,
        verdict=verdict,
        run_id=shown(cursor.run_id),
        updates=cursor.updates,
        skipped=cursor.skipped,
        position=cursor.position,
        epoch=cursor.epoch,
        offset=cursor.offset,
        samples=cursor.samples,
        padding=cursor.padding,
        dropped=cursor.dropped,
        is_tracked=cursor.has_counted_batches,
        replayed=count,
        omitted=count,
        packed=cursor.packed,
        findings=tuple(sorted(findings, key=lambda one: one.precedence)),
    )


def _gap(start: int, stop: int) -> Finding:
    where = f"cursor, positions [{start}, {stop})"
    return finding("RD405", where, expected="a digest of what was delivered there", found="none")
