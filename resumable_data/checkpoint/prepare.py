"""What every save does before a byte is written: agree, claim the directory, take the state; and its commit mark."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import xxhash
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.nn import Module

from resumable_data import __version__
from resumable_data.checkpoint.agreed_values import check_values_agree
from resumable_data.checkpoint.capture import capture_run
from resumable_data.checkpoint.collective import gather_bytes, rank_and_size, together
from resumable_data.checkpoint.files.describe import describe_directory
from resumable_data.checkpoint.live_digest import gather_digests
from resumable_data.checkpoint.manifest import Manifest, TensorKey, Topology, write_manifest, write_whole
from resumable_data.checkpoint.probe_file import PROBE_NAME
from resumable_data.checkpoint.program import Program
from resumable_data.checkpoint.retention import check_keep, prune_after
from resumable_data.checkpoint.run_manifest import RUN_MANIFEST_NAME
from resumable_data.checkpoint.running import settle_running
from resumable_data.errors import CheckpointError, DisagreementError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.writer import sync_directory
from resumable_data.sampler.state import seal_state

if TYPE_CHECKING:
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.cursor import Cursor
    from resumable_data.loader import ResumableLoader

LOADER_NAME = "loader"
CHECKSUMS = ("crc32", "digest")


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A save that all processes agreed on: what is to be written, and what its manifest says of this moment.

    Attributes:
        path: The directory, which exists and is empty.
        state: What DCP writes; its tensors may share the program's memory.
        nonce: The number of the save.
        digests: Those of tensors, by flat key, where they were asked for.
        cursor: The loader's.
        phase: Rows of the update at the cursor that the training loop was given.
        has_gradients: Whether the state has those of the phase.
        run: What the program is made of.
        probe: Logits of fixed examples, as they are written; empty without any.
        topology: The processes.
        random: What becomes of random states on other ranks; empty where there are none.
        allowances: What the load before was told to allow.
        keep: How many checkpoints stay in the directory around it; all of them where None.
        mark_saved: Records in the ledger that the checkpoint is complete. For the thread that trains alone.
    """

    path: Path
    state: dict[str, Any]
    nonce: int
    digests: dict[str, str]
    cursor: Cursor | None
    phase: int
    has_gradients: bool
    run: RunManifest
    probe: bytes
    topology: Topology
    random: str
    allowances: tuple[str, ...]
    keep: int | None
    mark_saved: Callable[[], None]

    def commit(self) -> None:
        """Write the manifest, and delete what is too old then. For the first process.

        Raises:
            CheckpointError: The directory does not hold what was saved, or the manifest is too large.
            OSError: It cannot be written.
        """
        write_manifest(self.path, self._manifest())
        if self.keep is not None:
            prune_after(self.path, self.keep)

    def _manifest(self) -> Manifest:
        """Of what lies in the directory, as it is found there, and of what was in memory."""
        run = self.run.to_json()
        write_whole(self.path, RUN_MANIFEST_NAME, run)
        if self.probe:
            write_whole(self.path, PROBE_NAME, self.probe)
        described, digests, cursor = describe_directory(self.path), self.digests, self.cursor
        keys = {
            key: msgspec.structs.replace(what, digest=digests[key])
            if key in digests and isinstance(what, TensorKey)
            else what
            for key, what in described.keys.items()
        }
        return Manifest(
            package_version=__version__,
            torch_version=str(torch.__version__),
            python_version=platform.python_version(),
            nonce=f"{self.nonce:016x}",
            created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            checksums="digest" if digests else "crc32",
            metadata_xxh3=described.metadata_xxh3,
            keys=keys,
            files=described.files,
            items=described.items,
            cursor=msgspec.Raw(b"null" if cursor is None else cursor.to_json()),
            topology=self.topology,
            update=None if cursor is None else cursor.updates,
            phase=self.phase,
            has_gradients=self.has_gradients,
            run_xxh3=f"{xxhash.xxh3_64_intdigest(run):016x}",
            probe_xxh3=f"{xxhash.xxh3_64_intdigest(self.probe):016x}" if self.probe else None,
            rng=self.random,
            allowances=self.allowances,
        )


def prepare_save(
    path: Path,
    state: Mapping[str, Any],
    *,
    loader: ResumableLoader | None,
    checksums: str,
    allowances: tuple[str, ...],
    keep: int | None,
    run: RunManifest | None = None,
    probe: Probe | None = None,
) -> Prepared:
    """Wait for the save before, agree on cursor and values, claim the directory, and take the state. Collective.

    Raises:
        DisagreementError: Processes hold different cursors, or different values under one name.
        CheckpointError: The directory holds something or cannot be made, or the save before, which ran beside
            training, failed.
        UsageError: The state cannot be saved so that it can be read back.
        FencedError: Another launch of the run goes on with it.
    """
    if checksums not in CHECKSUMS:
        raise UsageError(f"checksums must be one of {CHECKSUMS}, got {checksums!r}")
    if keep is not None:
        check_keep(keep, path)
    if LOADER_NAME in state:
        raise UsageError(
            f"the name {LOADER_NAME!r} is for loader=; give the loader there, or rename that part of the state"
        )
    if loader is not None:
        loader.check_agreement()
    nonce = int.from_bytes(gather_bytes(together(lambda: _claim(path)))[0], "little") >> 1
    run = run or together(lambda: capture_run(state, loader))
    logits = _logits(probe, state)
    program, saved = together(lambda: _take(state, loader))
    saved |= {name: gradients.state_dict() for name, gradients in program.gradients.items()}
    random = program.random
    shared = {name: value for name, value in saved.items() if name not in random}
    check_values_agree(shared)
    digests = gather_digests(tensors_of(shared)) if checksums == "digest" else {}
    if loader is not None:
        saved[LOADER_NAME] = seal_state(loader.state_dict(), nonce)
    size = rank_and_size()[1]
    return Prepared(
        path=path,
        state=saved,
        nonce=nonce,
        digests=digests,
        cursor=None if loader is None else loader.cursor,
        phase=0 if loader is None else loader.phase,
        has_gradients=bool(program.gradients),
        run=run,
        probe=logits,
        topology=Topology(world_size=size, dp_size=size if loader is None else loader.topology.num_replicas),
        random="".join(part.policy for part in random.values()),
        allowances=allowances,
        keep=keep,
        mark_saved=_nothing if loader is None else loader.saved_mark(),
    )


def _logits(probe: Probe | None, state: Mapping[str, Any]) -> bytes:
    """What the models give for the probe's examples now, on the first process. Collective."""
    if probe is None:
        return b""
    record = together(lambda: probe.run(part for part in state.values() if isinstance(part, Module)))
    others = sorted({one.decode() for one in gather_bytes(record.examples.encode())})
    if len(others) > 1:
        raise DisagreementError(
            f"a probe: expected the same examples on all processes, found {len(others)} kinds of them. What a move is "
            "held against would depend on who stored it. Nothing was saved; make them of a fixed seed."
        )
    return record.to_bytes() if rank_and_size()[0] == 0 else b""


def _take(state: Mapping[str, Any], loader: ResumableLoader | None) -> tuple[Program, dict[str, Any]]:
    """The program and the state of all its parts."""
    program = Program(state, loader)
    try:
        return program, program.state()
    finally:
        program.forget()


def _nothing() -> None: ...


def _claim(path: Path) -> bytes:
    """The number of the save, on the first process, once the one before is done and the directory is there for it."""
    settle_running()
    if rank_and_size()[0] != 0:
        return b""
    _require_empty(path)
    return os.urandom(8)


def _require_empty(path: Path) -> None:
    """Refuse a directory that another save may have written to: files of both would be taken for one."""
    try:
        _make_directory(path)
        names = sorted(os.listdir(path))
    except OSError as error:
        raise CheckpointError(f"cannot save to {shown(path)}: {error.strerror}. Nothing was saved.") from error
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise CheckpointError(
            f"expected a new or empty directory at {shown(path)}, found {shown(names[0])}{more} in it. A save over "
            "another one leaves files of both if it is interrupted, and nothing tells them apart. Nothing was saved; "
            "name a directory of its own for each save, or remove what an interrupted save left there."
        )


def _make_directory(path: Path) -> None:
    """Make a directory and those above it, durably: older checkpoints are deleted once there is one in it."""
    missing = [one for one in (path, *path.parents) if not one.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for one in missing:
        sync_directory(one.parent)


def tensors_of(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a state by their flat keys."""
    flat = flatten_state_dict(state)[0]
    return {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}
