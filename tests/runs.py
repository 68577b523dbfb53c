"""Run manifests that tests move runs between, and checkpoints that hold nothing but them. Needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from resumable_data.checkpoint.manifest import Manifest, Topology, write_manifest
from resumable_data.checkpoint.run_manifest import RUN_MANIFEST_NAME, BatchInfo, RunManifest, SchedulerInfo
from resumable_data.cursor import Cursor, Recipe
from resumable_data.ledger.records import Mesh
from resumable_data.order import Shuffle
from resumable_data.plan import BatchPlan

if TYPE_CHECKING:
    from pathlib import Path

COSINE = "torch.optim.lr_scheduler.CosineAnnealingLR"
NONCE = "0123456789abcdef"


def make_run(
    *,
    axes: tuple[tuple[str, int], ...] = (("dp", 4),),
    data_axes: tuple[str, ...] = ("dp",),
    updates: int = 5,
    microbatch: int = 4,
    run_id: str = "00000000000000aa",
    **changes: Any,
) -> RunManifest:
    """The run manifest of a program at the end of an update; fields of the recipe and of the manifest by name."""
    of_recipe = {name: changes.pop(name) for name in Recipe.__struct_fields__ if name in changes}
    recipe = Recipe(**{"order": Shuffle(1000, seed=3).describe(), "global_batch": 32, **of_recipe})
    samples = updates * recipe.global_batch
    cursor = Cursor.begin(recipe)
    cursor = msgspec.structs.replace(cursor, run_id=run_id, applied=updates, samples=samples, offset=samples)
    size = dp_size = 1
    for name, length in axes:
        size *= length
        dp_size *= length if name in data_axes else 1
    plan = BatchPlan(global_batch=recipe.global_batch, microbatch=microbatch, num_replicas=dp_size)
    fields: dict[str, Any] = {
        "precision": {"model.parameters": "float32"},
        "schedulers": {"scheduler": SchedulerInfo(kind=COSINE, position=updates, learning_rates=(0.1,), settings={})},
        "random_states": "reseed",
        "cursor": msgspec.Raw(cursor.to_json()),
        "world_size": size,
        "mesh": Mesh(axes, data_axes),
        "batch": BatchInfo(
            global_batch=recipe.global_batch,
            unit=recipe.batch_unit or "samples",
            microbatch=microbatch,
            dp_size=dp_size,
            accumulation_steps=plan.accumulation_steps,
            invariant="samples",
        ),
        "schedule_unit": "updates",
    }
    return RunManifest(**{**fields, **changes})


def write_checkpoint(path: Path, run: RunManifest, nonce: str = NONCE) -> Path:
    """A directory with the two manifests of a checkpoint, which is all that a move is planned from."""
    path.mkdir()
    (path / RUN_MANIFEST_NAME).write_bytes(run.to_json())
    manifest = Manifest(
        package_version="0.1.0",
        torch_version="2.13.0",
        python_version="3.11.7",
        nonce=nonce,
        created="2026-01-01T00:00:00Z",
        checksums="crc32",
        metadata_xxh3="f" * 16,
        keys={},
        files=(),
        items=(),
        topology=Topology(world_size=run.world_size, dp_size=run.dp_size),
    )
    write_manifest(path, manifest)
    return path
