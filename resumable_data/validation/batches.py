"""The global batch before and after a move. Nothing here imports torch."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.checkpoint.run_manifest import BatchInfo, RunManifest


def batch_text(batch: BatchInfo) -> str:
    """The global batch with its unit."""
    return f"{batch.global_batch} {batch.unit}"


def changed_batch(saved: RunManifest | None, now: RunManifest | None) -> tuple[str, str] | None:
    """The global batch before and after, where both are known and it changes."""
    if saved is None or saved.batch is None or now is None or now.batch is None:
        return None
    then, here = batch_text(saved.batch), batch_text(now.batch)
    return None if then == here else (then, here)
