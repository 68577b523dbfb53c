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
    from resumable_data.checkpoint.migration.declaration import Continuity, Declaration
    from resumable_data.checkpoint.migration.destination import Destination
    from resumable_data.checkpoint.migration.migration_file import MigrationManifest, plan_migration, read_migration
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.checkpoint.random_states import RandomStates
    from resumable_data.checkpoint.retention import PruneReport, prune_checkpoints
    from resumable_data.checkpoint.run_manifest import RunManifest, read_run_manifest
    from resumable_data.checkpoint.running import AsyncSave
    from resumable_data.checkpoint.save import save_checkpoint

__all__ = [
    "AsyncSave",
    "CheckpointReport",
    "Continuity",
    "Declaration",
    "Destination",
    "InFlightGradients",
    "Loaded",
    "MigrationManifest",
    "Probe",
    "PruneReport",
    "RandomStates",
    "RunManifest",
    "async_save_checkpoint",
    "capture_run",
    "latest_checkpoint",
    "load_checkpoint",
    "plan_migration",
    "prune_checkpoints",
    "read_migration",
    "read_run_manifest",
    "save_checkpoint",
    "verify_checkpoint",
]

_HOMES = {
    "AsyncSave": "running",
    "CheckpointReport": "files.report",
    "Continuity": "migration.declaration",
    "Declaration": "migration.declaration",
    "Destination": "migration.destination",
    "InFlightGradients": "gradients",
    "Loaded": "load",
    "MigrationManifest": "migration.migration_file",
    "Probe": "probe",
    "PruneReport": "retention",
    "RandomStates": "random_states",
    "async_save_checkpoint": "async_save",
    "RunManifest": "run_manifest",
    "capture_run": "capture",
    "latest_checkpoint": "files.latest",
    "load_checkpoint": "load",
    "plan_migration": "migration.migration_file",
    "prune_checkpoints": "retention",
    "read_migration": "migration.migration_file",
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
