"""What the processes of a job tell each other about one update, and what they make of it together."""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.errors import DisagreementError
from resumable_data.loader.agreement import all_gather_bytes, sum_lanes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch.distributed import ProcessGroup

_FORMAT = struct.Struct("<4qQ3d?3q2Q")


class ProcessReport(NamedTuple):
    """What one process knows of an update.

    Attributes:
        rank: Its data-parallel rank.
        update: The update.
        num_losses: Microbatches whose loss it was given; 0 on stages of a pipeline that have none.
        samples: Samples that it was handed.
        settings: A hash of learning rates, loss scale and scheduler, which must be equal everywhere.
        loss: The sum of the losses that backward was called on.
        gradient_square: Its part of the squared norm of the gradient.
        change_square: Of the difference that the step made.
        is_skipped: Whether the optimizer did not step.
        num_counters: Step counters of its optimizer.
        first_counter: The smallest one.
        last_counter: The largest one.
        lane_0: What its samples add to the first lane of a coverage digest.
        lane_1: To the second.
    """

    rank: int
    update: int
    num_losses: int
    samples: int
    settings: int
    loss: float
    gradient_square: float
    change_square: float
    is_skipped: bool
    num_counters: int
    first_counter: int
    last_counter: int
    lane_0: int
    lane_1: int


def exchange(report: ProcessReport, group: ProcessGroup | None) -> list[ProcessReport]:
    """All processes' reports, in the order of their ranks in `group`: one all-gather of 105 bytes each. Collective."""
    if group is None:
        return [report]
    return [ProcessReport(*_FORMAT.unpack(part)) for part in all_gather_bytes(_FORMAT.pack(*report), group)]


class Together(NamedTuple):
    """What all processes' reports say of an update; for the attributes see `UpdateRecord`."""

    loss: float
    gradient_norm: float
    update_norm: float
    skipped: bool
    optimizer_steps: tuple[int, int] | None
    samples: int
    sample_digest: str


def combine(reports: Sequence[ProcessReport], *, num_replicas: int, reduction_size: int, is_mean: bool) -> Together:
    """What processes' reports say together. The same on all processes, which add in the same order.

    Args:
        reports: One per process.
        num_replicas: Data-parallel ranks.
        reduction_size: Ranks that gradients are reduced over; with context-parallel ones among them, each has a part
            of its rows' losses.
        is_mean: Whether gradients are averaged over these ranks.

    Raises:
        DisagreementError: Processes are at different updates, were handed or did different things, or losses were
            given on some only.
    """
    for what, read in _SAME.items():
        _check_same(what, [read(report) for report in reports])
    lanes = sum_lanes([(report.rank, (report.lane_0, report.lane_1)) for report in reports])
    counters = [report for report in reports if report.num_counters]
    return Together(
        loss=_mean_loss(reports, num_replicas, reduction_size, is_mean=is_mean),
        gradient_norm=math.sqrt(sum(report.gradient_square for report in reports)),
        update_norm=math.sqrt(sum(report.change_square for report in reports)),
        skipped=reports[0].is_skipped,
        optimizer_steps=(min(r.first_counter for r in counters), max(r.last_counter for r in counters))
        if counters
        else None,
        samples=sum({report.rank: report.samples for report in reports}.values()),
        sample_digest="{:016x}{:016x}".format(*lanes),
    )


_SAME: dict[str, Callable[[ProcessReport], object]] = {
    "the index of the update": lambda report: report.update,
    "learning rates, loss scale and the scheduler's step, shown as a hash": lambda report: f"{report.settings:016x}",
    "whether the optimizer skipped the step": lambda report: report.is_skipped,
}


def _check_same(what: str, values: Sequence[object]) -> None:
    if len(set(values)) > 1:
        other = next(rank for rank, value in enumerate(values) if value != values[0])
        raise DisagreementError(
            f"{what}: expected the same on all {len(values)} processes, found {values[0]} on process 0 and "
            f"{values[other]} on process {other}. Their parameters would drift apart. Nothing was recorded of this "
            "update; load one checkpoint on all processes, and call optimizer_step() at each update on all of them."
        )


def _mean_loss(reports: Sequence[ProcessReport], num_replicas: int, reduction_size: int, *, is_mean: bool) -> float:
    """The mean over the global batch.

    Of the processes of one data-parallel rank, context-parallel ones each have a part of the loss, tensor-parallel ones
    copies of it, and all but the last stages of a pipeline none.
    """
    per_rank = dict.fromkeys(range(num_replicas), 0)
    for report in reports:
        per_rank[report.rank] += bool(report.num_losses)
    num_parts = max(1, reduction_size // num_replicas)
    copies, rest = divmod(per_rank[0], num_parts)
    if len(set(per_rank.values())) > 1 or rest or not copies:
        raise DisagreementError(
            f"expected losses from {num_parts} process(es) of each data-parallel rank, or that many times some, found "
            f"{sorted(set(per_rank.values()))} per rank: their mean is not that of the global batch. Nothing was "
            "recorded of this update; call add() at each microbatch on each process that computes a loss."
        )
    total = math.fsum(report.loss for report in reports) if _all_finite(reports) else sum(r.loss for r in reports)
    return total / copies / (reduction_size if is_mean else 1)


def _all_finite(reports: Sequence[ProcessReport]) -> bool:
    return all(math.isfinite(report.loss) for report in reports)
