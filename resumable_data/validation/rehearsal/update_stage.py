"""The third stage: one update, and whether it read, moved and counted what it should."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.checkpoint.run_manifest import RunManifest
from resumable_data.cursor import Cursor, sum_lanes
from resumable_data.errors import UsageError
from resumable_data.findings import PlainFinding
from resumable_data.order import order_from_description
from resumable_data.validation.checks import FAILED, PASSED, UNPROVEN, WARM_START, Check
from resumable_data.validation.judging import check_of_batch
from resumable_data.validation.optimizer_state import StepWatch
from resumable_data.validation.verdict_findings import finding

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.declaration import Continuity
    from resumable_data.validation.rehearsal.job import Job
    from resumable_data.validation.rehearsal.options import Options
    from resumable_data.validation.trace import UpdateRecord


@dataclass(frozen=True)
class Counts:
    """What counts updates, at one moment.

    Attributes:
        cursor: The loader's.
        steps: The largest step counter of the optimizer; None where there is none yet.
        schedulers: Those of schedulers that count updates, by name.
    """

    cursor: Cursor
    steps: int | None
    schedulers: dict[str, int]

    @classmethod
    def of(cls, job: Job) -> Counts:
        """As they are now."""
        cursor = job.loader.cursor
        watch = StepWatch(job.optimizer)
        steps = max(watch.counters(), default=None)
        watch.close()
        positions = {name: getattr(part, "last_epoch", None) for name, part in job.schedulers.items()}
        schedulers = {name: at for name, at in positions.items() if isinstance(at, int)}
        return cls(cursor, steps, schedulers)


def check_batch(job: Job, saved: RunManifest | None, now: RunManifest, options: Options) -> Check:
    """The batch, and whether the loader weighs losses for as many ranks as the model averages gradients over."""
    found = []
    ranks, weighed = job.averaged_over(), job.loader.reduction_size
    if ranks is not None and job.loader.gradient_reduction == "mean" and ranks != weighed:
        axes = " x ".join(f"{name} {size}" for name, size in job.loader.topology.axes)
        where = f"loader on {axes}, {job.loader.topology.num_replicas} data-parallel ranks"
        found.append(finding("RD982", where, expected=f"{ranks} ranks, as the model has", found=str(weighed)))
    # a control is recorded on the ranks from before the move
    migration = None if options.record is not None else options.migration
    destination = None if migration is None else migration.destination
    return check_of_batch(saved, now, options.waived, found, destination)


def check_samples(
    record: UpdateRecord,
    start: Cursor,
    saved: Cursor | None,
    continuity: Continuity,
    *,
    is_first: bool,
    is_warm: bool,
    epochs: int | None,
) -> Check:
    """Whether the update read what the order has at the checkpoint's cursor.

    Args:
        record: The update.
        start: The loader's cursor before it.
        saved: The checkpoint's; None where it has none.
        continuity: What was declared.
        is_first: Whether the update is that at the checkpoint's cursor; not so where it was saved inside one.
        is_warm: Whether the run begins anew.
        epochs: Epochs of the run.
    """
    origin = saved if saved is not None and is_first else start
    replayed, omitted = (max(0, origin.position - start.position), max(0, start.position - origin.position))
    findings: list[PlainFinding] = []
    if not continuity.holds(replayed, omitted):
        where = f"position {origin.position}"
        what = f"position {start.position}: {replayed} replayed, {omitted} omitted"
        findings.append(finding("RD988", where, expected=f"at most {continuity.replayed}", found=what))
    elif origin.position == start.position and origin.updates != start.updates:
        findings.append(finding("RD988", "updates", expected=str(origin.updates), found=str(start.updates)))
    order = (saved or start).recipe.order
    expected = expected_samples(start, order, epochs)
    if expected is not None and expected != (record.samples, record.sample_digest):
        what = f"{record.samples} samples, digest {record.sample_digest}"
        findings.append(
            finding("RD984", f"update {record.update}", expected=f"{expected[0]}, {expected[1]}", found=what)
        )
    status = FAILED if findings else PASSED if expected is not None else UNPROVEN
    if is_warm or continuity.kind == "none":
        is_lost = bool(findings) or (continuity.kind == "none" and bool(replayed or omitted))
        status = WARM_START if is_lost else status
    summary = f"{record.samples} samples from position {start.position}, digest {record.sample_digest[:8]}"
    return Check.of("samples", status, summary, findings)


def expected_samples(start: Cursor, described: dict[str, Any], epochs: int | None) -> tuple[int, str] | None:
    """How many samples the update at a cursor has, and their digest, from an order alone; None where not known."""
    recipe = start.recipe
    if recipe.is_packed or recipe.counts_batches:
        return None
    try:
        order = order_from_description(described)
    except UsageError:  # a user's own order
        return None
    schedule = start.schedule(epochs)
    place = schedule.settle(start.epoch, start.offset)
    span = schedule.update_at(place.epoch, place.offset)
    if span is None:
        return None
    positions = np.arange(span.start, span.start + span.num_samples, dtype=np.int64)
    ids = np.concatenate(
        [
            order.ids(int(epoch), positions[positions // recipe.length == epoch] % recipe.length)
            for epoch in np.unique(positions // recipe.length)
        ]
    )
    return span.num_samples, "{:016x}{:016x}".format(*sum_lanes(positions, ids))


def check_step(record: UpdateRecord) -> Check:
    """Whether the update moved the parameters, by a finite amount."""
    rates = ", ".join(f"{name} {rate:.4g}" for name, rate in record.learning_rates.items())
    moved = record.update_norm or 0.0
    summary = (
        f"loss {record.loss:.6g}, gradient norm {record.gradient_norm:.4g}, parameters moved by {moved:.4g}, "
        f"learning rate {rates}, loss scale {record.loss_scale:g}{', skipped' if record.skipped else ''}"
    )
    findings = []
    values = {"parameter delta": moved} | ({} if record.skipped else {"gradient norm": record.gradient_norm})
    for name, value in (values | {"loss": record.loss}).items():
        if not math.isfinite(value):
            findings.append(finding("RD985", name, expected="a finite value", found=str(value)))
    is_meant = not record.skipped and any(record.learning_rates.values())
    if is_meant and moved == 0.0:
        findings.append(finding("RD985", "parameter delta", expected="more than 0", found="0"))
    return Check.of("step", FAILED if findings else PASSED, summary, findings)


def check_counters(record: UpdateRecord, before: Counts, after: Counts) -> Check:
    """Whether all that counts updates counted one."""
    findings: list[PlainFinding] = []

    def expect(what: str, expected: set[int], found: int) -> None:
        if found not in expected:
            wanted = " or ".join(map(str, sorted(expected)))
            findings.append(finding("RD986", what, expected=wanted, found=str(found)))

    skipped = int(record.skipped)
    expect("cursor, applied", {1 - skipped}, after.cursor.applied - before.cursor.applied)
    expect("cursor, skipped", {skipped}, after.cursor.skipped - before.cursor.skipped)
    if after.steps is not None:
        expect("optimizer", {1 - skipped}, after.steps - (before.steps or 0))
    for name, at in before.schedulers.items():
        if at in (before.cursor.updates, before.cursor.applied):
            expect(name, {1, 1 - skipped}, after.schedulers[name] - at)
    apart = [name for name, at in before.schedulers.items() if at not in (before.cursor.updates, before.cursor.applied)]
    let_be = f"; {', '.join(apart)} counts something else" if apart else ""
    summary = f"update {record.update}: optimizer at {after.steps}{let_be}"
    return Check.of("counters", FAILED if findings else PASSED, summary, findings)
