"""Exact data resume for distributed PyTorch training, on any number of ranks, with a proof.

Every public name but the errors is here; the errors live in ``resumable_data.errors``. A name is
looked up in its submodule at its first use, so that importing this package, or auditing a ledger
with it, does not import torch.

Example:
    >>> import resumable_data as rd
    >>> "Shuffle" in dir(rd)
    True
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.audit import AuditReport, audit_checkpoints, audit_cursor, audit_ledger
    from resumable_data.checkpoint import (
        AsyncSave,
        CheckpointReport,
        InFlightGradients,
        PruneReport,
        RandomStates,
        async_save_checkpoint,
        latest_checkpoint,
        load_checkpoint,
        prune_checkpoints,
        save_checkpoint,
        verify_checkpoint,
    )
    from resumable_data.cursor import Cursor, Recipe
    from resumable_data.ledger import Ledger
    from resumable_data.loader import Microbatch, ResumableLoader, Update, evaluation_loader
    from resumable_data.logs import audit_ids
    from resumable_data.order import BlockShuffle, Sequential, Shuffle, TorchShuffle
    from resumable_data.packing import BestFit, Concat, Fill, NoPacking, PackedTokens
    from resumable_data.plan import BatchPlan
    from resumable_data.sampler import ResumableSampler
    from resumable_data.shadowing import audit_shadow, shadow
    from resumable_data.sources import open_tokens
    from resumable_data.tracking import DistributedSampler, TrackedLoader, track

__version__ = "0.1.0"

__all__ = [
    "AsyncSave",
    "AuditReport",
    "BatchPlan",
    "BestFit",
    "BlockShuffle",
    "CheckpointReport",
    "Concat",
    "Cursor",
    "DistributedSampler",
    "Fill",
    "InFlightGradients",
    "Ledger",
    "Microbatch",
    "NoPacking",
    "PackedTokens",
    "PruneReport",
    "RandomStates",
    "Recipe",
    "ResumableLoader",
    "ResumableSampler",
    "Sequential",
    "Shuffle",
    "TorchShuffle",
    "TrackedLoader",
    "Update",
    "__version__",
    "async_save_checkpoint",
    "audit_checkpoints",
    "audit_cursor",
    "audit_ids",
    "audit_ledger",
    "audit_shadow",
    "evaluation_loader",
    "latest_checkpoint",
    "load_checkpoint",
    "open_tokens",
    "prune_checkpoints",
    "save_checkpoint",
    "shadow",
    "track",
    "verify_checkpoint",
]

# Public name -> the submodule that defines it.
_HOMES = {
    "AsyncSave": "checkpoint",
    "AuditReport": "audit",
    "BatchPlan": "plan",
    "BestFit": "packing",
    "BlockShuffle": "order",
    "CheckpointReport": "checkpoint",
    "Concat": "packing",
    "Cursor": "cursor",
    "DistributedSampler": "tracking",
    "Fill": "packing",
    "InFlightGradients": "checkpoint",
    "Ledger": "ledger",
    "Microbatch": "loader",
    "NoPacking": "packing",
    "PackedTokens": "packing",
    "PruneReport": "checkpoint",
    "RandomStates": "checkpoint",
    "Recipe": "cursor",
    "ResumableLoader": "loader",
    "ResumableSampler": "sampler",
    "Sequential": "order",
    "Shuffle": "order",
    "TorchShuffle": "order",
    "TrackedLoader": "tracking",
    "Update": "loader",
    "async_save_checkpoint": "checkpoint",
    "audit_checkpoints": "audit",
    "audit_cursor": "audit",
    "audit_ids": "logs",
    "audit_ledger": "audit",
    "audit_shadow": "shadowing",
    "evaluation_loader": "loader",
    "latest_checkpoint": "checkpoint",
    "load_checkpoint": "checkpoint",
    "open_tokens": "sources",
    "prune_checkpoints": "checkpoint",
    "save_checkpoint": "checkpoint",
    "shadow": "shadowing",
    "track": "tracking",
    "verify_checkpoint": "checkpoint",
}


if not TYPE_CHECKING:  # a type checker that saw this function would take any misspelt name for an object

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value  # the next use finds it without this function
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
