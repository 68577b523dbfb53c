"""Checkpoints: what their files hold, and whether it is whole. Nothing here imports torch."""

from resumable_data.checkpoint.files.report import CheckpointReport
from resumable_data.checkpoint.files.verify import verify_checkpoint

__all__ = ["CheckpointReport", "verify_checkpoint"]
