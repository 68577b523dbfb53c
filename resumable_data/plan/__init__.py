"""Positions to updates, microbatches and data-parallel ranks, with nothing required to divide anything."""

from resumable_data.plan.alternatives import Alternatives
from resumable_data.plan.batch_plan import GRADIENT_REDUCTIONS, BatchPlan, loss_factor, require_count
from resumable_data.plan.packed_place import PACKED_KIND, PACKED_LENGTH, PackedPlace
from resumable_data.plan.schedule import RANK_TAILS, TAILS, Place, RunSchedule, Schedule, Segment, UpdateSpan

__all__ = [
    "GRADIENT_REDUCTIONS",
    "PACKED_KIND",
    "PACKED_LENGTH",
    "RANK_TAILS",
    "TAILS",
    "Alternatives",
    "BatchPlan",
    "PackedPlace",
    "Place",
    "RunSchedule",
    "Schedule",
    "Segment",
    "UpdateSpan",
    "loss_factor",
    "require_count",
]
