"""Packing: documents become rows of one length, alike on every machine. Never imports torch."""

from __future__ import annotations

from resumable_data.packing.batch import IGNORED_LABEL, RowBatch, RowBuffers
from resumable_data.packing.gather import gather, prefetch, target_tokens
from resumable_data.packing.history import PackedHistory
from resumable_data.packing.packed_tokens import PackedRow, PackedTokens
from resumable_data.packing.policies import BestFit, Carry, Concat, Fill, NoPacking, Policy
from resumable_data.packing.registry import policy_from_description
from resumable_data.packing.rows import PackedRows
from resumable_data.packing.run import PackedRun
from resumable_data.packing.schedule import PackedSchedule
from resumable_data.packing.windows import DEFAULT_WINDOW, PlannedWindow, WindowPlan

__all__ = [
    "DEFAULT_WINDOW",
    "IGNORED_LABEL",
    "BestFit",
    "Carry",
    "Concat",
    "Fill",
    "NoPacking",
    "PackedHistory",
    "PackedRow",
    "PackedRows",
    "PackedRun",
    "PackedSchedule",
    "PackedTokens",
    "PlannedWindow",
    "Policy",
    "RowBatch",
    "RowBuffers",
    "WindowPlan",
    "gather",
    "policy_from_description",
    "prefetch",
    "target_tokens",
]
