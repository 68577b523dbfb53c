"""Saving: agreement first, plain DCP files, and a manifest, written last, as the mark that all of it is there."""

from __future__ import annotations

import json
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
import torch.distributed.checkpoint as dcp
import xxhash
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

from resumable_data import __version__
from resumable_data.checkpoint.collective import alone_is_meant, gather_bytes, on_first, rank_and_size, together
from resumable_data.checkpoint.files.describe import describe_directory
from resumable_data.checkpoint.live_digest import gather_digests
from resumable_data.checkpoint.manifest import Manifest, TensorKey, Topology, write_manifest
from resumable_data.checkpoint.program import Program
from resumable_data.errors import CheckpointError, DisagreementError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sampler.state import seal_state

if TYPE_CHECKING:
    from resumable_data.loader import ResumableLoader

LOADER_NAME = "loader"
CHECKSUMS = ("crc32", "digest")
_COMPARED_BYTES = 1 << 20


def save_checkpoint(
    path: str | os.PathLike[str],
    state: Mapping[str, Any],
    *,
    loader: ResumableLoader | None = None,
    checksums: str = "crc32",
    allowances: tuple[str, ...] = (),
) -> None:
    """Save a training program in one directory that is checked before anyone trusts it. Collective.

    Processes first make sure that they hold the same cursor and the same plain values. The files are those of
    ``torch.distributed.checkpoint``, which any tool reads. When all of them are on the disk, the first process writes
    the manifest: a directory without one is no checkpoint.

    Args:
        path: A directory that is new or empty; it must be the same one for all processes.
        state: Names to models, optimizers, objects with ``state_dict`` (schedulers, gradient scalers), plain values.
        loader: The loader whose cursor is saved, under the name ``"loader"``.
        checksums: What the manifest says of contents. ``"crc32"``: the checksums of the files' items, which torch
            computes anyway. ``"digest"``: also a digest of each tensor as it is in memory, before it is written: all
            processes that hold the same part must hold the same values, and a program that loads is compared with it.
        allowances: What `load_checkpoint` was told to allow, for the record.

    Raises:
        DisagreementError: Processes hold different cursors, or different values under one name. Nothing was saved.
        CheckpointError: The directory holds something, or it could not be written. There is no manifest then.
        UsageError: The state cannot be saved so that it can be read back.
        FencedError: Another launch of the run goes on with it.
    """
    path = Path(path)
    if checksums not in CHECKSUMS:
        raise UsageError(f"checksums must be one of {CHECKSUMS}, got {checksums!r}")
    if LOADER_NAME in state:
        raise UsageError(
            f"the name {LOADER_NAME!r} is for loader=; give the loader there, or rename that part of the state"
        )
    if loader is not None:
        loader.check_agreement()
    on_first(lambda: _require_empty(path))
    nonce = int.from_bytes(on_first(lambda: os.urandom(8)), "little") >> 1
    program = together(lambda: Program(state, loader))
    saved = together(program.state)
    program.forget()
    saved |= {name: gradients.state_dict() for name, gradients in program.gradients.items()}
    _check_agreement(saved)
    digests = gather_digests(tensors_of(saved)) if checksums == "digest" else {}
    if loader is not None:
        saved[LOADER_NAME] = seal_state(loader.state_dict(), nonce)
    together(lambda: _write(path, saved))
    on_first(lambda: _commit(path, nonce, digests, program, loader, allowances))
    if loader is not None:
        loader.mark_saved()


def _require_empty(path: Path) -> bytes:
    """Refuse a directory that another save may have written to: files of both would be taken for one."""
    try:
        path.mkdir(parents=True, exist_ok=True)
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
    return b""


def _check_agreement(state: dict[str, Any]) -> None:
    """Make sure that what is replicated is the same on all processes. Collective.

    DCP keeps one process's copy of each key, and not always the same process's.
    """
    found = {
        key: _summary(value) for key, value in flatten_state_dict(state)[0].items() if not isinstance(value, DTensor)
    }
    own = msgspec.json.encode(found, order="sorted")
    hashes = gather_bytes(xxhash.xxh3_64_digest(own))
    if len(set(hashes)) == 1:
        return
    everyone = [json.loads(part) for part in gather_bytes(own)]
    keys = sorted({key for one in everyone for key in one})
    differ = [key for key in keys if len({one.get(key) for one in everyone}) > 1]
    shown_keys = ", ".join(
        f"{key} ({' / '.join(sorted({str(one.get(key, 'absent')) for one in everyone}))})" for key in differ[:4]
    )
    more = " ..." if len(differ) > 4 else ""
    raise DisagreementError(
        f"processes hold different values under {len(differ)} names: {shown_keys}{more}. "
        "A checkpoint keeps one process's value of each, and not always the same process's. Nothing was saved; make "
        "the values equal on all processes, or save them under a name of each process."
    )


def _summary(value: Any) -> str:
    """What must be equal of a value: all of a small one, shape and type of a large tensor."""
    if not isinstance(value, torch.Tensor):
        return repr(value) if isinstance(value, (int, float, str, bool, type(None))) else _hash(repr(value).encode())
    kind = f"{value.dtype} {tuple(value.shape)}"
    if value.numel() * value.element_size() > _COMPARED_BYTES:
        return kind
    data = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return f"{kind} {_hash(data)}"


def _hash(data: bytes) -> str:
    return xxhash.xxh3_64_hexdigest(data)


def _write(path: Path, state: dict[str, Any]) -> None:
    with alone_is_meant() as alone:
        dcp.save(state, checkpoint_id=path, no_dist=alone)


def tensors_of(state: dict[str, Any]) -> dict[str, torch.Tensor]:
    """The tensors of a state by their flat keys."""
    flat = flatten_state_dict(state)[0]
    return {key: value for key, value in flat.items() if isinstance(value, torch.Tensor)}


def _commit(
    path: Path,
    nonce: int,
    digests: dict[str, str],
    program: Program,
    loader: ResumableLoader | None,
    allowances: tuple[str, ...],
) -> bytes:
    """Write the manifest of what lies in the directory, as it is found there, and of what was in memory."""
    described, cursor = describe_directory(path), None if loader is None else loader.cursor
    keys = {
        key: msgspec.structs.replace(what, digest=digests[key])
        if key in digests and isinstance(what, TensorKey)
        else what
        for key, what in described.keys.items()
    }
    topology = loader.topology if loader is not None else None
    manifest = Manifest(
        package_version=__version__,
        torch_version=str(torch.__version__),
        python_version=platform.python_version(),
        nonce=f"{nonce:016x}",
        created=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        checksums="digest" if digests else "crc32",
        metadata_xxh3=described.metadata_xxh3,
        keys=keys,
        files=described.files,
        items=described.items,
        cursor=msgspec.Raw(b"null" if cursor is None else cursor.to_json()),
        topology=Topology(
            world_size=rank_and_size()[1],
            dp_size=topology.num_replicas if topology is not None else rank_and_size()[1],
        ),
        update=None if cursor is None else cursor.updates,
        phase=0 if loader is None else loader.phase,
        has_gradients=bool(program.gradients),
        allowances=allowances,
    )
    write_manifest(path, manifest)
    return b""
