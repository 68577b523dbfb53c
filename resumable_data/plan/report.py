"""What a move from one rank set to another means for a run: both layouts, what changes and what does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import UsageError
from resumable_data.findings import PlainFinding
from resumable_data.plan.alternatives import Alternatives
from resumable_data.plan.batch_plan import BatchPlan, loss_factor, require_count
from resumable_data.plan.layout import Layout, boundaries_around, lay_out
from resumable_data.plan.remarks import UNCHANGED, Change, find_changes, judge_layout, judge_move
from resumable_data.plan.schedule import Schedule

if TYPE_CHECKING:
    from resumable_data.plan.schedule import UpdateSpan

SCHEMA_VERSION = 1
EXACT = "exact"
INEXACT = "inexact"


class RankSet(msgspec.Struct, frozen=True, kw_only=True):
    """Data-parallel ranks, and the largest number of rows that each holds at once."""

    num_replicas: int
    microbatch: int

    def __post_init__(self) -> None:
        require_count("num_replicas", self.num_replicas)
        require_count("microbatch", self.microbatch)


class PlanRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a report is about.

    Attributes:
        schedule: Dataset, global batch, tail and epochs of the run.
        now: The rank set of today.
        to: The one to move to, or None to look at today's alone.
        update: Updates committed so far.
        epoch: Epoch of the next sample.
        offset: Samples of that epoch that are committed, in [0, N).
        phase: Rows of the next update that are already accumulated on `now`.
        pad_microbatches: Whether filler rows bring every microbatch to its full size.
        gradient_reduction: What is done to gradients across ranks, ``"mean"`` or ``"sum"``.
        normalize: What the gradient is a mean over, ``"samples"``, ``"tokens"`` or ``"targets"``.
    """

    schedule: Schedule
    now: RankSet
    to: RankSet | None = None
    update: int = 0
    epoch: int = 0
    offset: int = 0
    phase: int = 0
    pad_microbatches: bool = False
    gradient_reduction: str = "mean"
    normalize: str = "samples"


class UpdateLayouts(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of update on both rank sets.

    Attributes:
        kind: ``"full"``, ``"last"`` (of the run, or of the epoch), or ``"unfinished"`` (what is left of it).
        num_rows: Its rows, padding included and accumulated ones too.
        padding: Rows that repeat a sample.
        phase: Rows already accumulated.
        now: On the rank set of today.
        to: On the other one.
    """

    kind: str
    num_rows: int
    padding: int
    phase: int
    now: Layout
    to: Layout | None


class Move(msgspec.Struct, frozen=True, kw_only=True):
    """What the move does to the data; all zeros at the end of an update.

    Attributes:
        boundary: ``"update"``, ``"microbatch"``, or ``"none"`` where `phase` is no place to move at.
        phase: Rows of the unfinished update that are already accumulated.
        boundary_below: The nearest microbatch boundary at or below `phase`.
        boundary_above: The next one above it.
        replayed: Samples that going on from `phase` could deliver twice.
        omitted: Samples that going on from `phase` could leave out.
        discarded: Samples read again where the accumulated gradient is not saved, and the update starts again.
    """

    boundary: str
    phase: int
    boundary_below: int
    boundary_above: int
    replayed: int
    omitted: int
    discarded: int


class PlanReport(msgspec.Struct, frozen=True, kw_only=True):
    """The answer to a `PlanRequest`; `to_json` and `to_text` show it.

    Attributes:
        verdict: ``"exact"``, or ``"inexact"`` where `request.phase` is no microbatch boundary.
        request: What was asked.
        position: Place of the next update in the run's global sequence.
        updates_left_in_epoch: Updates that start in the epoch at hand, from here on.
        updates_left: Updates to the end of the run; None where it has none.
        dropped_per_epoch: Samples that ``tail="drop"`` skips at the end of the epoch.
        updates: Layouts of a full update, then of a last and of an unfinished one where they differ from it.
        move: What moving here does to the data.
        changes: What the move changes.
        unchanged: What it does not.
        alternatives: Even layouts near the new one.
        findings: What to know before moving, the worst first.
    """

    verdict: str
    request: PlanRequest
    position: int
    updates_left_in_epoch: int
    updates_left: int | None
    dropped_per_epoch: int
    updates: tuple[UpdateLayouts, ...]
    move: Move
    changes: tuple[Change, ...]
    unchanged: tuple[str, ...]
    alternatives: Alternatives
    findings: tuple[PlainFinding, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the move is exact, else 1."""
        return 0 if self.verdict == EXACT else 1

    def to_json(self) -> bytes:
        """The report as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The report for people, at most 100 columns wide for all but enormous numbers."""
        from resumable_data.plan.text import format_report

        return format_report(self)


def make_report(request: PlanRequest) -> PlanReport:
    """Both layouts and what lies between them, in closed form: any number of ranks, rows and samples.

    Raises:
        UsageError: The phase is outside the next update, or the gradient reduction is unknown.
    """
    schedule = request.schedule
    place = schedule.settle(request.epoch, request.offset)
    span = schedule.update_at(place.epoch, place.offset)
    move = _move(request, span)
    updates = _updates(request, span, is_movable=move.boundary != "none")
    newest = updates[0].to or updates[0].now
    target = request.to or request.now
    findings = judge_move(move.phase, move.boundary_below, move.boundary_above, is_over=span is None)
    for layouts in updates:
        findings += judge_layout(layouts.to or layouts.now, kind=layouts.kind)
    epoch_end = Schedule(
        length=schedule.length, global_batch=schedule.global_batch, tail=schedule.tail, epochs=place.epoch + 1
    )
    return PlanReport(
        verdict=INEXACT if move.boundary == "none" else EXACT,
        request=request,
        position=place.epoch * schedule.length + place.offset,
        updates_left_in_epoch=(epoch_end.updates_left(place.epoch, place.offset) or 0) if span else 0,
        updates_left=schedule.updates_left(place.epoch, place.offset),
        dropped_per_epoch=(schedule.length - place.offset) % schedule.global_batch if schedule.tail == "drop" else 0,
        updates=updates,
        move=move,
        changes=find_changes(updates[0].now, newest),
        unchanged=UNCHANGED,
        alternatives=_plan(request, target, schedule.global_batch).alternatives(),
        findings=tuple(sorted(findings, key=lambda finding: finding.precedence)),
    )


def _updates(request: PlanRequest, span: UpdateSpan | None, *, is_movable: bool) -> tuple[UpdateLayouts, ...]:
    """A full update; then the last one and the unfinished one, where there are any and they differ from it."""
    global_batch = request.schedule.global_batch
    updates = [_layouts(request, "full", global_batch)]
    last = _last_update(request) if span else None
    if last and last != (global_batch, 0):
        updates.append(_layouts(request, "last", last[0], padding=last[1]))
    if request.phase and span and is_movable:
        updates.append(_layouts(request, "unfinished", span.num_rows, padding=span.padding, phase=request.phase))
    return tuple(updates)


def _last_update(request: PlanRequest) -> tuple[int, int] | None:
    """(rows, padding) of the last update: of the run for ``tail="carry"``, else of the epoch at hand."""
    schedule = request.schedule
    place = schedule.settle(request.epoch, request.offset)
    if schedule.tail == "drop" or (schedule.tail == "carry" and schedule.epochs is None):
        return None
    stop = schedule.epochs if schedule.tail == "carry" else None
    num_epochs = 1 if stop is None else stop - place.epoch
    rest = (num_epochs * schedule.length - place.offset) % schedule.global_batch or schedule.global_batch
    if schedule.tail == "pad":
        return schedule.global_batch, schedule.global_batch - rest
    return rest, 0


def _layouts(request: PlanRequest, kind: str, num_rows: int, *, padding: int = 0, phase: int = 0) -> UpdateLayouts:
    return UpdateLayouts(
        kind=kind,
        num_rows=num_rows,
        padding=padding,
        phase=phase,
        now=_layout(request, request.now, num_rows, phase),
        to=_layout(request, request.to, num_rows, phase) if request.to else None,
    )


def _layout(request: PlanRequest, ranks: RankSet, num_rows: int, phase: int) -> Layout:
    factor = loss_factor(request.gradient_reduction, ranks.num_replicas)
    return lay_out(
        _plan(request, ranks, num_rows, phase),
        pad_microbatches=request.pad_microbatches,
        loss_scale=factor / num_rows if request.normalize == "samples" else None,
    )


def _plan(request: PlanRequest, ranks: RankSet, num_rows: int, phase: int = 0) -> BatchPlan:
    return BatchPlan(global_batch=num_rows, microbatch=ranks.microbatch, num_replicas=ranks.num_replicas, phase=phase)


def _move(request: PlanRequest, span: UpdateSpan | None) -> Move:
    """The place of `phase` between the microbatch boundaries that the rank set of today makes."""
    phase = request.phase
    if phase == 0:
        return Move(boundary="update", phase=0, boundary_below=0, boundary_above=0, replayed=0, omitted=0, discarded=0)
    if span is None:
        raise UsageError(f"phase is {phase}, but the run is over: no update is unfinished. Leave phase out.")
    whole = _plan(request, request.now, span.num_rows)
    if not 0 < phase < span.num_rows:
        raise UsageError(
            f"phase must be in [0, {span.num_rows}), the rows of the update that is unfinished; got {phase}. An "
            "update whose rows are all accumulated ends at an update boundary: phase 0."
        )
    below, above = boundaries_around(whole, phase)
    is_boundary = phase == below
    return Move(
        boundary="microbatch" if is_boundary else "none",
        phase=phase,
        boundary_below=below,
        boundary_above=above,
        replayed=0 if is_boundary else above - phase,
        omitted=phase - below,
        discarded=phase,
    )
