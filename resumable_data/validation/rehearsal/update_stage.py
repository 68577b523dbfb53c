"""The third stage: one update, and whether it read, moved and counted what it should."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from resumable_data.checkpoint.run_manifest import RunManifest
from resumable_data.cursor import Cursor
from resumable_data.findings import PlainFinding
from resumable_data.validation.checks import FAILED, PASSED, Check
from resumable_data.validation.judging import check_of_batch
from resumable_data.validation.optimizer_state import step_counters
from resumable_data.validation.verdict_findings import finding

if TYPE_CHECKING:
    from resumable_data.validation.rehearsal.job import Job
    from resumable_data.validation.rehearsal.options import Options
    from resumable_data.validation.trace import UpdateRecord


@dataclass(frozen=True)
class Counts:
    """What counts updates, at one moment.

    Attributes:
        cursor: The loader's.
        steps: The largest step counter of each optimizer that has one by now, by name.
        schedulers: Those of schedulers that count updates, by name.
    """

    cursor: Cursor
    steps: dict[str, int]
    schedulers: dict[str, int]

    @classmethod
    def of(cls, job: Job) -> Counts:
        """As they are now."""
        cursor = job.loader.cursor
        counters = {name: step_counters(part) for name, part in job.optimizers.items()}
        steps = {name: max(found) for name, found in counters.items() if found}
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
    for name, steps in after.steps.items():
        expect(name, {1 - skipped}, steps - before.steps.get(name, 0))
    for name, at in before.schedulers.items():
        if at in (before.cursor.updates, before.cursor.applied):
            expect(name, {1, 1 - skipped}, after.schedulers[name] - at)
    apart = [name for name, at in before.schedulers.items() if at not in (before.cursor.updates, before.cursor.applied)]
    let_be = f"; {', '.join(apart)} counts something else" if apart else ""
    counted = ", ".join(f"{name} at {steps}" for name, steps in after.steps.items()) or "no optimizer counts"
    summary = f"update {record.update}: {counted}{let_be}"
    return Check.of("counters", FAILED if findings else PASSED, summary, findings)
