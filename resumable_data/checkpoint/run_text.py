"""The run manifest as a person reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.records import Transition
    from resumable_data.checkpoint.run_manifest import ModelInfo, OptimizerInfo, RunManifest

_SHOWN = 6


def run_manifest_text(manifest: RunManifest) -> str:
    """A few lines for each part, and what is not known."""
    lines = [line for name, model in manifest.models.items() for line in _model(name, model)]
    lines += [line for name, one in manifest.optimizers.items() for line in _optimizer(name, one)]
    for name, scheduler in manifest.schedulers.items():
        rates = ", ".join(f"{rate:g}" for rate in scheduler.learning_rates)
        lines.append(f"{name}: {scheduler.kind} at {scheduler.position}, learning rates {rates}")
    for name, scaler in manifest.scalers.items():
        lines.append(f"{name}: {'on' if scaler.is_enabled else 'off'}, scale {scaler.scale:g}")
    lines += [f"{name}: {kind}" for name, kind in manifest.other_parts.items()]
    lines += [f"precision of {name}: {text}" for name, text in manifest.precision.items()]
    if "random_states" not in manifest.unknown:
        lines.append(f"random states: {manifest.random_states or 'none'}")
    if manifest.schedule_unit is not None:
        lines.append(f"schedule counts {manifest.schedule_unit}")
    lines += _data(manifest)
    lines += [line for transition in manifest.transitions[-_SHOWN:] for line in _transition(transition)]
    if manifest.environment is not None:
        one = manifest.environment
        lines.append(f"torch {one.torch}, python {one.python}, numpy {one.numpy}, device {one.device}")
        lines.append(", ".join(f"{name}={value}" for name, value in one.modes.items() if value != ""))
    lines.append(f"not known: {', '.join(manifest.unknown) or 'nothing'}")
    return "\n".join(map(shown, lines))


def _model(name: str, model: ModelInfo) -> Iterator[str]:
    trained = sum(info.is_kept for info in model.parameters.values())
    yield f"{name}: {model.kind} ({model.wrapper or 'not wrapped'}), {model.num_parameters:,} elements"
    yield f"  {len(model.parameters)} parameters, {trained} trained; {len(model.buffers)} buffers"
    for group in model.tied[:_SHOWN]:
        yield f"  tied: {' = '.join(group)}"
    for part, kind in list(model.batch_statistics.items())[:_SHOWN]:
        yield f"  looks across the microbatch: {part} ({kind})"


def _optimizer(name: str, optimizer: OptimizerInfo) -> Iterator[str]:
    counts = dict.fromkeys(optimizer.steps or ())
    steps = f"stepped {' to '.join(map(str, counts))} times" if counts else "steps not counted"
    yield f"{name}: {optimizer.kind}, {steps}"
    for at, group in enumerate(optimizer.groups[:_SHOWN]):
        settings = ", ".join(f"{key}={value}" for key, value in group.settings.items() if value is not None)
        yield f"  group {at}: {len(group.parameters)} parameters, {settings}"


def _transition(transition: Transition) -> Iterator[str]:
    by = f", migration {transition.migration_xxh3}" if transition.migration_xxh3 else ""
    by += f", allowed as {', '.join(transition.allowances)}" if transition.allowances else ""
    yield f"moved before update {'?' if transition.update is None else transition.update}{by}"
    for change in transition.changes:
        yield f"  {change.field}: {change.saved} to {change.now} ({change.risk})"
    if transition.unknown:
        yield f"  not compared: {', '.join(transition.unknown)}"


def _data(manifest: RunManifest) -> Iterator[str]:
    cursor, batch = manifest.decode_cursor(), manifest.batch
    if cursor is not None:
        inside = f", inside it after {manifest.phase} rows" if manifest.phase else ""
        run = cursor.run_id or "without an ID"
        yield f"data: update {cursor.updates}{inside}, position {cursor.position}, run {run}"
    if batch is not None:
        steps = "" if batch.accumulation_steps is None else f" x {batch.accumulation_steps} accumulation steps"
        yield (
            f"batch: {batch.global_batch} {batch.unit} = microbatch {batch.microbatch} x {batch.dp_size} data-parallel "
            f"ranks{steps} at most; {batch.invariant} stay the same"
        )
    if "mesh" not in manifest.unknown:
        axes = " x ".join(f"{name} {size}" for name, size in manifest.mesh.axes)
        yield f"topology: {manifest.world_size} processes, {axes}; data-parallel: {', '.join(manifest.mesh.data_axes)}"
