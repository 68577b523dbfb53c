"""Whether the cursors of several checkpoints lie in one history of one run."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from resumable_data.audit.findings import finding
from resumable_data.audit.replay import UNKNOWN_EPOCHS, check_successor
from resumable_data.audit.spans import shown_lanes
from resumable_data.cursor import NO_ROWS, add_lanes, compare_recipes
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.audit.packed import PackedRows
    from resumable_data.cursor import Cursor, Lanes
    from resumable_data.findings import Finding

NamedCursor = tuple[str, "Cursor"]

_MASK = (1 << 64) - 1
_GROWING = ("applied", "skipped", "samples", "tokens", "padding", "dropped", "batches", "position")


def check_links(named: Sequence[NamedCursor], rows: PackedRows | None) -> list[Finding]:
    """Hold each cursor against the one before it.

    Args:
        named: Where each comes from, and the cursor, by updates.
        rows: Of a run over packed rows, those of the last cursor's recipe.
    """
    runs: dict[str, str] = {}
    for path, cursor in named:
        if cursor.run_id:
            runs.setdefault(cursor.run_id, path)
    if len(runs) > 1:
        (first, path), *others = runs.items()
        found = ", ".join(f"run {shown(run_id)} in {shown(where)}" for run_id, where in others[:5])
        more = f" and {len(others) - 5} more" if len(others) > 5 else ""
        return [finding("RD408", shown(path), expected=f"run {shown(first)} in all", found=found + more)]
    findings = []
    for (path, before), (next_path, after) in itertools.pairwise(named):
        where = f"{shown(next_path)}, after {shown(path)}"
        findings += _check_link(before, after, where, rows)
    return findings


def _check_link(before: Cursor, after: Cursor, where: str, rows: PackedRows | None) -> list[Finding]:
    if before.recipe.order != after.recipe.order:
        changes = [one for one in compare_recipes(before.recipe, after.recipe) if one.field.startswith("order.")]
        found = ", ".join(f"{one.field} {one.saved!r} and {one.now!r}" for one in changes)
        return [finding("RD409", where, expected="one order", found=shown(found))]
    shrunk = [
        f"{name} {getattr(before, name)} and then {getattr(after, name)}"
        for name in _GROWING
        if getattr(after, name) < getattr(before, name)
    ]
    if shrunk:
        expected = f"at least the counts of the one before it, at update {before.updates}"
        return [finding("RD409", where, expected=expected, found=", ".join(shrunk))]
    differences = check_successor(before, after, epochs=UNKNOWN_EPOCHS, where=where, rows=rows)
    # What is said there of attempts is true of checkpoints; an undeclared change of the recipe has its own name.
    findings = [
        one if one.code == "RD402" else finding("RD409", where, expected=_of_checkpoints(one.expected), found=one.found)
        for one in differences
    ]
    if not findings and after.attempt < before.attempt and after.attempt:
        expected = f"attempt {before.attempt} or a newer one at update {after.updates}"
        findings = [finding("RD410", where, expected=expected, found=f"attempt {after.attempt}")]
    return findings


def _of_checkpoints(text: str) -> str:
    return text.replace("the attempt that it goes on from", "the checkpoint before it").replace(
        "the attempt it goes on from", "the checkpoint before it"
    )


class _Sums:
    """Digests as differences: of positions that spans connect, what lies between them is known.

    Each position points to another, with the digest of what lies from that one to this one.
    """

    def __init__(self) -> None:
        self._links: dict[int, tuple[int, Lanes]] = {}

    def add(self, start: int, stop: int, lanes: Lanes) -> Lanes:
        """Note the digest of [start, stop); what is known of it, `lanes` where nothing was."""
        root, to_start = self._find(start)
        other, to_stop = self._find(stop)
        if root == other:
            return _minus(to_stop, to_start)
        self._links[other] = root, _minus(add_lanes(lanes, to_start), to_stop)
        return lanes

    def _find(self, position: int) -> tuple[int, Lanes]:
        lanes = NO_ROWS
        while position in self._links:
            position, step = self._links[position]
            lanes = add_lanes(lanes, step)
        return position, lanes


def _minus(a: Lanes, b: Lanes) -> Lanes:
    return (a[0] - b[0]) & _MASK, (a[1] - b[1]) & _MASK


def check_overlaps(named: Sequence[NamedCursor]) -> list[Finding]:
    """Coverage digests agree wherever spans of several checkpoints tell of the same positions.

    A digest is a sum, so that of [0, 20) and that of [0, 10) give that of [10, 20); for this no order is needed.
    """
    sums, findings = _Sums(), []
    for path, cursor in named:
        for span in cursor.coverage:
            known = sums.add(span.start, span.stop, span.lanes)
            if known != span.lanes:
                where = f"{shown(path)}, positions [{span.start}, {span.stop})"
                expected = f"the digest that follows from checkpoints before it, {shown_lanes(known)}"
                findings.append(finding("RD409", where, expected=expected, found=shown_lanes(span.lanes)))
    return findings
