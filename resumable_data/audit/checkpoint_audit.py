"""The audit of several checkpoints' cursors: one run, one history, and each digest against the order."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.audit.checkpoint_links import check_links, check_overlaps
from resumable_data.audit.cursor_audit import audit_cursor, report_cursor, rows_of_cursor, unreachable
from resumable_data.audit.findings import finding
from resumable_data.audit.packed import check_rows, is_near
from resumable_data.audit.replay import check_take_over, count_cursor, is_reachable
from resumable_data.audit.report import AuditReport, CheckpointProof
from resumable_data.audit.spans import expected_of, shown_lanes, uncovered
from resumable_data.errors import UsageError
from resumable_data.findings import MISSING_EVIDENCE, VIOLATION
from resumable_data.ledger.frames import shown
from resumable_data.order import order_from_description

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.audit.checkpoint_links import NamedCursor
    from resumable_data.audit.packed import Packed, PackedRows
    from resumable_data.audit.updates import Stretch
    from resumable_data.cursor import CoverageSpan, Cursor
    from resumable_data.findings import Finding
    from resumable_data.order import Order

Ranges = tuple[tuple[int, int], ...]


def audit_checkpoints(
    cursors: Sequence[NamedCursor],
    *,
    lacking: Sequence[str] = (),
    since_take_over: bool = False,
    packed: Packed | None = None,
) -> AuditReport:
    """Say from the cursors of several checkpoints of one run what it was trained on.

    They must be of one run and lie in one history. What the report says of the run is said of the cursor with the most
    updates: only its own digests are known to be of what led to it, as a run may have gone on from before an older one.

    Args:
        cursors: The checkpoint and its cursor, in any order; at least one.
        lacking: Checkpoints that should have such a cursor and do not.
        since_take_over: Judge a run that was taken over from another loader by what came after alone.
        packed: Of a run over packed rows, its `resumable_data.packing.PackedTokens`.

    Raises:
        UsageError: The run read packed rows and `packed` is not what it read; or it did not.
        CorruptStateError: The numbers of a cursor are not those of any run.
    """
    named = sorted(cursors, key=lambda one: _progress(one[1]))
    newest = named[-1][1]
    rows = rows_of_cursor(newest, packed)
    for _, cursor in named:
        cursor.check()
        if not (is_reachable(cursor) and (cursor.recipe.order != newest.recipe.order or is_near(rows, cursor))):
            raise unreachable(cursor)
    findings = [
        finding("RD411", shown(path), expected="a cursor, as in the others", found="none under this key")
        for path in lacking
    ]
    linked = [*check_links(named, rows), *check_overlaps(named)]
    findings += linked
    if any(one.severity == VIOLATION for one in linked):
        proofs = [_prove_alone(one, packed, findings) for one in named]
    else:
        proofs = _prove_together(named, rows, findings)
    findings += [*check_take_over(newest, shown(named[-1][0]), is_accepted=since_take_over), *check_rows(rows)]
    report = report_cursor(newest, "checkpoints", _title(named), findings)
    return msgspec.structs.replace(report, checkpoints=tuple(map(_proof, named, proofs)))


def _progress(cursor: Cursor) -> tuple[int, ...]:
    """Sorts cursors of one history; a declared change of the recipe comes between two updates."""
    return cursor.updates, cursor.batches, len(cursor.migrations), cursor.position, cursor.attempt


def _title(named: Sequence[NamedCursor]) -> str:
    paths = list(dict.fromkeys(shown(path) for path, _ in named))
    return ", ".join(paths) if len(paths) < 4 else f"{paths[0]} to {paths[-1]}, {len(paths)} in all"


def _proof(one: NamedCursor, proven: Ranges) -> CheckpointProof:
    path, cursor = one
    return CheckpointProof(
        path=shown(path), attempt=cursor.attempt, updates=cursor.updates, position=cursor.position, proven=proven
    )


def _prove_alone(one: NamedCursor, packed: Packed | None, findings: list[Finding]) -> Ranges:
    """What a cursor proves of its own history, where it has not the same one as others."""
    path, cursor = one
    try:
        report = audit_cursor(cursor, packed=packed, since_take_over=True)
    except UsageError as error:
        findings.append(finding("RD108", shown(path), expected="the documents that it read", found=shown(error)))
        return ()
    findings += [_of(path, found) for found in report.findings if found.severity in (VIOLATION, MISSING_EVIDENCE)]
    is_known = not any(found.severity == VIOLATION or found.code in ("RD108", "RD406") for found in report.findings)
    return _joined(cursor.coverage) if is_known else ()


def _prove_together(named: Sequence[NamedCursor], rows: PackedRows | None, findings: list[Finding]) -> list[Ranges]:
    """What each cursor of one history proves; each position is computed once."""
    counted: list[tuple[str, Cursor, list[Stretch]]] = []
    for path, cursor in named:
        stretches, found = count_cursor(cursor, rows)
        is_last = cursor is named[-1][1]
        findings += [_of(path, one) for one in found if is_last or one.severity == VIOLATION]
        counted.append((path, cursor, [] if found else stretches))
    good = _check_digests(counted, rows, findings)
    path, newest, stretches = counted[-1]
    if stretches:
        findings += [_gap(path, gap, named) for gap in uncovered(newest, stretches)]
    return [_joined(spans) for spans in good]


def _check_digests(
    counted: Sequence[tuple[str, Cursor, list[Stretch]]], rows: PackedRows | None, findings: list[Finding]
) -> list[list[CoverageSpan]]:
    """The spans of each cursor that are those of the order."""
    good: list[list[CoverageSpan]] = [[] for _ in counted]
    # The furthest cursor whose updates are known: all others are on its way.
    way, recipe = next(
        ((stretches, cursor.recipe) for _, cursor, stretches in reversed(counted) if stretches), ([], None)
    )
    if recipe is None:
        return good
    try:
        order: Order = rows or order_from_description(recipe.order)
    except UsageError as error:
        findings.append(finding("RD108", "recipe", expected="an order of this package", found=shown(error)))
        return good
    spans = [(at, span) for at, (_, cursor, known) in enumerate(counted) if known for span in cursor.coverage]
    expected = expected_of(order, way, [span for _, span in spans])
    for (at, span), lanes in zip(spans, expected, strict=True):
        if lanes == span.lanes:
            good[at].append(span)
        else:
            where = f"{shown(counted[at][0])}, positions [{span.start}, {span.stop})"
            findings.append(finding("RD403", where, expected=shown_lanes(lanes), found=shown_lanes(span.lanes)))
    return good


def _of(path: str, found: Finding) -> Finding:
    return msgspec.structs.replace(found, where=f"{shown(path)}: {found.where}")


def _joined(spans: Sequence[CoverageSpan]) -> Ranges:
    """Spans as ranges, joined where they meet."""
    ranges: list[tuple[int, int]] = []
    for span in spans:
        if ranges and ranges[-1][1] == span.start:
            ranges[-1] = (ranges[-1][0], span.stop)
        elif span.start < span.stop:
            ranges.append((span.start, span.stop))
    return tuple(ranges)


def _gap(path: str, gap: tuple[int, int], named: Sequence[NamedCursor]) -> Finding:
    start, stop = gap
    older = [
        where
        for where, cursor in named[:-1]
        if any(span.start < stop and start < span.stop for span in cursor.coverage)
    ]
    found = "none"
    if older:
        found += f"; {shown(older[-1])} has one, and whether the run went on from there cursors do not tell"
    where = f"{shown(path)}, positions [{start}, {stop})"
    return finding("RD405", where, expected="a digest of what was delivered there", found=found)
