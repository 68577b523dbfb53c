"""A run manifest for a checkpoint that was saved without one: what its files tell, and a list of what they do not."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.checkpoint.files.contents import is_cursor_key
from resumable_data.checkpoint.files.findings import DAMAGED, Findings, judge_checkpoint
from resumable_data.checkpoint.files.verify import scan_directory
from resumable_data.checkpoint.run_manifest import ModelInfo, OptimizerInfo, RunManifest, TensorInfo
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Mapping

    from resumable_data.checkpoint.files.metadata import TensorMetadata

UNKNOWN = "unknown"
_NOT_IN_FILES = (
    *("schedulers", "scalers", "precision", "random_states", "phase", "world_size", "mesh", "batch", "environment"),
)


def adopt_checkpoint(path: Path) -> RunManifest:
    """Make a run manifest from the metadata of a DCP checkpoint, and the cursor where it has one.

    An optimizer is what has ``state`` and ``param_groups`` below its name, as torch's state-dict functions lay it out;
    a model is what has tensors of the names that an optimizer has states of, or else all other names with tensors.

    Raises:
        CheckpointError: It is damaged, or no DCP checkpoint.
    """
    findings = Findings()
    scan = scan_directory(path, "structure", findings)
    if scan.metadata is None or judge_checkpoint(findings.found) == DAMAGED:
        worst = findings.sorted()[0]
        raise CheckpointError(
            f"{shown(path)}: expected a checkpoint that is whole, found {worst.code} {worst.title}. Nothing was "
            "written; adopt an earlier one."
        )
    tensors = {key: one for key, one in scan.metadata.tensors.items() if not is_cursor_key(key)}
    names = sorted({key.partition(".")[0] for key in (*tensors, *scan.metadata.objects) if "." in key})
    objects = scan.metadata.objects
    optimizers = [name for name in names if any(key.startswith(f"{name}.param_groups") for key in objects)]
    trained = {parameter for name in optimizers for parameter in _states(name, tensors)}
    models = {
        name: info for name in names if name not in optimizers and (info := _model(name, tensors, trained)) is not None
    }
    cursors = list(scan.cursors.values())
    unknown = [f"models.{name}.{field}" for name in models for field in ("kind", "wrapper", "buffers")]
    unknown += [
        *_NOT_IN_FILES,
        *(f"optimizers.{name}.{field}" for name in optimizers for field in ("kind", "groups", "steps")),
    ]
    return RunManifest(
        unknown=tuple(sorted(unknown if cursors else [*unknown, "cursor"])),
        models=models,
        optimizers={name: OptimizerInfo(kind=UNKNOWN, groups=()) for name in optimizers},
        cursor=msgspec.Raw(cursors[0].to_json() if cursors else b"null"),
    )


def _states(name: str, tensors: Mapping[str, TensorMetadata]) -> set[str]:
    """Names of the parameters that an optimizer has tensors of."""
    prefix = f"{name}.state."
    return {key.removeprefix(prefix).rpartition(".")[0] for key in tensors if key.startswith(prefix)}


def _model(name: str, tensors: Mapping[str, TensorMetadata], trained: set[str]) -> ModelInfo | None:
    prefix = f"{name}."
    found = {
        key.removeprefix(prefix): TensorInfo(one.dtype, one.shape, key.removeprefix(prefix) in trained)
        for key, one in tensors.items()
        if key.startswith(prefix)
    }
    if not found or (trained and not trained & found.keys()):
        return None
    return ModelInfo(kind=UNKNOWN, wrapper=UNKNOWN, parameters=found, buffers={})
