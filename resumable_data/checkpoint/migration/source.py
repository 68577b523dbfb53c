"""Where a run is moved from: a checkpoint's run manifest, and what tells this checkpoint from all others."""

from __future__ import annotations

from pathlib import Path

import msgspec

from resumable_data.checkpoint.files.adopt import adopt_checkpoint
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.checkpoint.run_manifest import RunManifest, read_run_manifest


class Source(msgspec.Struct, frozen=True, kw_only=True):
    """A checkpoint that a run is moved from.

    Attributes:
        run: What the program was made of. Of a checkpoint without a run manifest what its files tell, without names.
        nonce: The number of the save; empty where there is no manifest.
        is_adopted: Whether the checkpoint has no run manifest.
    """

    run: RunManifest
    nonce: str
    is_adopted: bool

    @property
    def identity(self) -> tuple[str, str, int | None]:
        """The save's number, the run and the update."""
        cursor = self.run.decode_cursor()
        return self.nonce, "" if cursor is None else cursor.run_id, None if cursor is None else cursor.updates


def read_source(path: Path) -> Source:
    """What the checkpoint at `path` says of the program that saved it.

    Raises:
        CheckpointError: It is damaged, or no checkpoint.
    """
    run, manifest = read_run_manifest(path), read_manifest(path)
    nonce = "" if manifest is None else manifest.nonce
    if run is not None:
        return Source(run=run, nonce=nonce, is_adopted=False)
    adopted = msgspec.structs.replace(adopt_checkpoint(path), models={}, optimizers={})
    return Source(run=adopted, nonce=nonce, is_adopted=True)
