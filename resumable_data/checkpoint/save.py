"""Saving: agreement first, plain DCP files, and a manifest, written last, as the mark that all of it is there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch.distributed.checkpoint as dcp

from resumable_data.checkpoint.collective import alone_is_meant, rank_and_size, together
from resumable_data.checkpoint.prepare import prepare_save

if TYPE_CHECKING:
    from resumable_data.checkpoint.prepare import Prepared
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.loader import ResumableLoader


def save_checkpoint(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    loader: ResumableLoader | None = None,
    checksums: str = "crc32",
    allowances: tuple[str, ...] = (),
    keep: int | None = None,
    run: RunManifest | None = None,
    probe: Probe | None = None,
) -> None:
    """Save a training program in one directory that is checked before anyone trusts it. Collective.

    Processes first make sure that they hold the same cursor and the same plain values. The files are those of
    ``torch.distributed.checkpoint``, which any tool reads. When all of them are on the disk, the first process writes
    the manifest: a directory without one is no checkpoint. A save that still runs beside training is waited for.

    Args:
        path: A directory that is new or empty; it must be the same one for all processes.
        state: Names to models, optimizers, objects with ``state_dict`` (schedulers, gradient scalers), plain values.
        loader: The loader whose cursor is saved, under the name ``"loader"``.
        checksums: What the manifest says of contents. ``"crc32"``: the checksums of the files' items, which torch
            computes anyway. ``"digest"``: also a digest of each tensor as it is in memory, before it is written: all
            processes that hold the same part must hold the same values, and a program that loads is compared with it.
        allowances: What `load_checkpoint` was told to allow, for the record.
        keep: How many checkpoints stay in the directory around this one, at least 1: when it is complete, the first
            process deletes those before the last ``keep - 1`` of lower numbers, as `prune_checkpoints` does. Trouble
            with that is logged. All stay where None.
        run: What the program is made of, as `capture_run` tells; captured where None.
        probe: Fixed examples whose logits are stored, right before anything is saved, for a rehearsal of a move.

    Raises:
        DisagreementError: Processes hold different cursors, or different values under one name. Nothing was saved.
        CheckpointError: The directory holds something, or it could not be written. There is no manifest then. Or the
            save before, which ran beside training, failed; then nothing was saved by this one.
        UsageError: The state cannot be saved so that it can be read back.
        FencedError: Another launch of the run goes on with it.
    """
    prepared = prepare_save(
        Path(path),
        state,
        loader=loader,
        checksums=checksums,
        allowances=allowances,
        keep=keep,
        run=run,
        probe=probe,
    )
    together(lambda: _write(prepared))
    together(lambda: prepared.commit() if rank_and_size()[0] == 0 else None)
    prepared.mark_saved()


def _write(prepared: Prepared) -> None:
    with alone_is_meant() as alone:
        dcp.save(prepared.state, checkpoint_id=prepared.path, no_dist=alone)
