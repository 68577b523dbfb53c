"""Whether an update read what the order has at the checkpoint's cursor, found out apart from the loop that read it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.cursor import Cursor, sum_lanes
from resumable_data.errors import UsageError
from resumable_data.findings import PlainFinding
from resumable_data.order import order_from_description
from resumable_data.packing import PackedSchedule, PackedTokens
from resumable_data.validation.checks import FAILED, PASSED, UNPROVEN, WARM_START, Check
from resumable_data.validation.verdict_findings import finding

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.declaration import Continuity
    from resumable_data.loader import ResumableLoader
    from resumable_data.order import Order
    from resumable_data.plan import RunSchedule
    from resumable_data.validation.trace import UpdateRecord


def check_samples(
    record: UpdateRecord,
    start: Cursor,
    saved: Cursor | None,
    continuity: Continuity,
    loader: ResumableLoader,
    *,
    is_first: bool,
    is_warm: bool,
    discarded: int = 0,
) -> Check:
    """Whether the update read what the order has at the checkpoint's cursor.

    Args:
        record: The update.
        start: The loader's cursor before it.
        saved: The checkpoint's; None where it has none.
        continuity: What was declared.
        loader: The loader. Of a kind of order that is known, and not packed, its epochs alone are asked for.
        is_first: Whether the update is that at the checkpoint's cursor; not so where gradients of a part of that one
            were saved.
        is_warm: Whether the run begins anew.
        discarded: Samples of this update that were delivered before the save, and whose gradients were not saved.
    """
    origin = saved if saved is not None and is_first else start
    findings = _place_findings(origin, start, continuity)
    expected, order_findings = _expected(origin, start, saved or start, loader)
    findings += order_findings
    if expected is not None and expected != (record.samples, record.sample_digest):
        what = f"{record.samples} samples, digest {record.sample_digest}"
        findings.append(
            finding("RD984", f"update {record.update}", expected=f"{expected[0]}, {expected[1]}", found=what)
        )
    status = FAILED if findings else PASSED if expected is not None else UNPROVEN
    if is_warm or continuity.kind == "none":
        is_moved = origin.position != start.position
        is_lost = bool(findings) or (continuity.kind == "none" and is_moved)
        status = WARM_START if is_lost else status
    summary = f"{record.samples} samples from position {start.position}, digest {record.sample_digest[:8]}"
    if discarded and is_first:  # they count as delivered once: nothing was learned from them before
        summary += f"; {discarded} of them were delivered before the save, and no gradients of them were saved"
    return Check.of("samples", status, summary, findings)


def _place_findings(origin: Cursor, start: Cursor, continuity: Continuity) -> list[PlainFinding]:
    """Whether the loader starts where it should, within what was declared."""
    replayed, omitted = (max(0, origin.position - start.position), max(0, start.position - origin.position))
    if not continuity.holds(replayed, omitted):
        where = f"position {origin.position}"
        what = f"position {start.position}: {replayed} replayed, {omitted} omitted"
        return [finding("RD988", where, expected=f"at most {continuity.replayed}", found=what)]
    if origin.position == start.position and origin.updates != start.updates:
        return [finding("RD988", "updates", expected=str(origin.updates), found=str(start.updates))]
    return []


def _expected(
    origin: Cursor, start: Cursor, saved: Cursor, loader: ResumableLoader
) -> tuple[tuple[int, str] | None, list[PlainFinding]]:
    """How many samples the update at `start` has, and their digest; None where not known. And what is wrong already."""
    described = saved.recipe.order
    if start.recipe.counts_batches or origin.recipe.is_packed != start.recipe.is_packed:
        return None, []
    epochs = loader.epochs
    packed = loader.content.packed
    if packed is not None:
        if packed.describe() != described:
            return None, [finding("RD984", "order", expected=str(described), found=str(packed.describe()))]
        return expected_rows(packed, origin if origin.position == start.position else start, start, epochs), []
    order = _order_of(described, loader)
    return (None if order is None else expected_samples(order, start, epochs)), []


def _order_of(described: dict[str, Any], loader: ResumableLoader) -> Order | None:
    """The order that the checkpoint tells: made anew, or the user's own, that says the same of itself."""
    try:
        return order_from_description(described)
    except UsageError:
        own = loader.content.order
        return own if own.describe() == described else None


def expected_samples(order: Order, start: Cursor, epochs: int | None) -> tuple[int, str] | None:
    """How many samples the update at a cursor has, and their digest, by the order; None where the run is over."""
    return _digest(start.schedule(epochs), order, start)


def expected_rows(packed: PackedTokens, place: Cursor, start: Cursor, epochs: int | None) -> tuple[int, str] | None:
    """The same of packed rows, planned anew.

    Args:
        packed: Documents, and how they are packed.
        place: A cursor at the same position that tells the place among packed rows.
        start: The loader's cursor, whose batch counts.
        epochs: Epochs of the run.
    """
    assert place.packed
    schedule = PackedSchedule(
        packed,
        start=place.packed,
        position=start.position,
        global_batch=start.recipe.global_batch,
        by_tokens=bool(start.recipe.batch_unit),
        epochs=epochs,
    )
    return _digest(schedule, schedule.run, start)


def _digest(schedule: RunSchedule, order: Order, start: Cursor) -> tuple[int, str] | None:
    length = start.recipe.length
    place = schedule.settle(start.epoch, start.offset)
    span = schedule.update_at(place.epoch, place.offset)
    if span is None:
        return None
    positions = np.arange(span.start, span.start + span.num_samples, dtype=np.int64)
    ids = np.concatenate(
        [
            order.ids(int(epoch), positions[positions // length == epoch] % length)
            for epoch in np.unique(positions // length)
        ]
    )
    return span.num_samples, "{:016x}{:016x}".format(*sum_lanes(positions, ids))
