"""What to say about layouts: what a move changes, and what to know before making it."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import msgspec

from resumable_data.findings import NOTE, VIOLATION, WARNING, Kind, PlainFinding

if TYPE_CHECKING:
    from resumable_data.plan.layout import Layout

UNCHANGED = ("order of samples", "samples per update", "schedules that count updates", "weights in the loss")

KINDS = {
    "RD601": Kind(
        NOTE,
        "the ranks do not divide the batch",
        "None needed: weights and collectives are exact. Even layouts are among the alternatives.",
    ),
    "RD602": Kind(
        NOTE,
        "ranks idle in the last microbatch",
        "None needed: each runs one filler row of weight zero, so that collectives match.",
    ),
    "RD603": Kind(
        WARNING,
        "filler rows enter batch statistics",
        "Losses summed with the weights ignore them. BatchNorm and router statistics do not: mask them by "
        "microbatch.weights there, or take an even layout.",
    ),
    "RD604": Kind(WARNING, "more ranks than rows", "Use fewer ranks or a larger global batch."),
    "RD605": Kind(
        VIOLATION,
        "the phase is no microbatch boundary",
        "Go on from one of the boundaries, or from the start of the update.",
    ),
    "RD606": Kind(WARNING, "the run is over", "Give more epochs to go on."),
}

_finding = partial(PlainFinding.of, KINDS)


def judge_layout(layout: Layout, *, kind: str) -> list[PlainFinding]:
    """What is uneven about a layout of a ``kind`` of update."""
    ranks = layout.num_replicas
    where = f"{kind} update on {ranks:,} ranks"
    findings = []
    if layout.num_empty and kind == "full":
        found = f"none on {layout.num_empty:,} of {ranks:,}"
        findings.append(_finding("RD604", where, expected="a row on each rank", found=found))
    elif not layout.is_even:
        found = f"{layout.min_rows:,} on some, {layout.max_rows:,} on others"
        findings.append(_finding("RD601", where, expected="the same number of rows on each rank", found=found))
    if layout.num_idle:
        found = f"none on {layout.num_idle:,} of {ranks:,}"
        findings.append(_finding("RD602", where, expected="a row on each rank", found=found))
    if layout.num_filler:
        found = f"{layout.num_filler:,} beside {layout.num_rows:,} rows"
        findings.append(_finding("RD603", where, expected="no filler rows", found=found))
    return findings


def judge_move(phase: int, below: int, above: int, *, is_over: bool) -> list[PlainFinding]:
    """What is wrong with moving at `phase`, which lies between two microbatch boundaries."""
    if is_over:
        return [_finding("RD606", "the place", expected="updates left", found="none")]
    if phase == below:
        return []
    found = f"{phase:,}; going on there omits {phase - below:,} rows or replays {above - phase:,}"
    expected = f"{below:,} or {above:,} rows accumulated"
    return [_finding("RD605", "unfinished update", expected=expected, found=found)]


class Change(msgspec.Struct, frozen=True, kw_only=True):
    """Something that differs after the move: both values, and what that does."""

    what: str
    now: str
    to: str
    effect: str


def find_changes(now: Layout, to: Layout) -> tuple[Change, ...]:
    """What differs between a full update on one rank set and on another."""
    if (now.num_replicas, now.microbatch) == (to.num_replicas, to.microbatch):
        return ()
    rows = span_text(now.min_rows, now.max_rows), span_text(to.min_rows, to.max_rows)
    sums = f"{now.accumulation_steps:,} x {now.num_replicas:,}", f"{to.accumulation_steps:,} x {to.num_replicas:,}"
    changes = [
        _change("sums", sums, "gradients are added in another order: equal up to rounding, not bit for bit"),
    ]
    if rows[0] != rows[1]:
        effect = f"dropout and augmentation: {rows[1]} rows per rank and update, before {rows[0]}"
        changes.insert(0, _change("random numbers", rows, effect))
    if now.num_replicas != to.num_replicas:
        counts = f"{now.num_replicas:,}", f"{to.num_replicas:,}"
        changes.insert(0, _change("random streams", counts, f"one per rank: {counts[0]} saved, {counts[1]} needed"))
    batches = _batch_text(now), _batch_text(to)
    effect = f"BatchNorm, router load: over {batches[1]}, before {batches[0]}"
    changes.append(_change("batch statistics", batches, effect))
    idle = f"{now.idle_percent:.1f} %", f"{to.idle_percent:.1f} %"
    busy = f"{to.max_rows:,} rows on the busiest rank, before {now.max_rows:,}"
    changes.append(_change("work", idle, f"{busy}; idle {idle[1]}, before {idle[0]}"))
    return tuple(changes)


def _change(what: str, values: tuple[str, str], effect: str) -> Change:
    return Change(what=what, now=values[0], to=values[1], effect=effect)


def span_text(low: int, high: int) -> str:
    """``"5"`` or ``"5 to 6"``."""
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"


def _batch_text(layout: Layout) -> str:
    """Rows that a microbatch of one rank holds."""
    if layout.num_filler > layout.num_idle:
        return f"{layout.microbatch:,} rows, filler among them"
    rows = f"{span_text(layout.smallest_microbatch, layout.largest_microbatch)} rows"
    return f"{rows} and filler" if layout.num_idle else rows
