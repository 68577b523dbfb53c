"""Checkpoints: saved and loaded as a whole, and checked before anyone trusts them.

A name is looked up in its module at its first use: checking files does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.checkpoint.async_save import async_save_checkpoint
    from resumable_data.checkpoint.capture import capture_run
    from resumable_data.checkpoint.files.latest import latest_checkpoint
    from resumable_data.checkpoint.files.report import CheckpointReport
    from resumable_data.checkpoint.files.verify import verify_checkpoint
    from resumable_data.checkpoint.gradients import InFlightGradients
    from resumable_data.checkpoint.load import Loaded, load_checkpoint
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.checkpoint.random_states import RandomStates
    from resumable_data.checkpoint.retention import PruneReport, prune_checkpoints
    from resumable_data.checkpoint.run_manifest import RunManifest, read_run_manifest
    from resumable_data.checkpoint.running import AsyncSave
    from resumable_data.checkpoint.save import save_checkpoint

__all__ = [
    "AsyncSave",
    "CheckpointReport",
    "InFlightGradients",
    "Loaded",
    "Probe",
    "PruneReport",
    "RandomStates",
    "RunManifest",
    "async_save_checkpoint",
    "capture_run",
    "latest_checkpoint",
    "load_checkpoint",
    "prune_checkpoints",
    "read_run_manifest",
    "save_checkpoint",
    "verify_checkpoint",
]

_HOMES = {
    "AsyncSave": "running",
    "CheckpointReport": "files.report",
    "InFlightGradients": "gradients",
    "Loaded": "load",
    "Probe": "probe",
    "PruneReport": "retention",
    "RandomStates": "random_states",
    "async_save_checkpoint": "async_save",
    "RunManifest": "run_manifest",
    "capture_run": "capture",
    "latest_checkpoint": "files.latest",
    "load_checkpoint": "load",
    "prune_checkpoints": "retention",
    "read_run_manifest": "run_manifest",
    "save_checkpoint": "save",
    "verify_checkpoint": "files.verify",
}

if not TYPE_CHECKING:  # a type checker that saw this function would take any misspelt name for an object

    def __getattr__(name: str) -> object:
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
