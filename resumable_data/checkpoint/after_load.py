"""What else must hold of a program that took over a checkpoint: casts, tied weights, and what counts its steps."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

from resumable_data.checkpoint.collective import gather_bytes, rank_and_size, together
from resumable_data.checkpoint.files.archives import ArchiveChecker, read_items
from resumable_data.checkpoint.files.digests import file_digest
from resumable_data.checkpoint.files.findings import Findings
from resumable_data.checkpoint.files.metadata import METADATA_NAME, parse_metadata
from resumable_data.checkpoint.live_digest import cast_box_digest, dtype_name, gather_digests
from resumable_data.checkpoint.manifest import TensorKey
from resumable_data.checkpoint.reading import read
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from resumable_data.checkpoint.files.archives import ItemContent
    from resumable_data.checkpoint.files.metadata import StorageItem
    from resumable_data.checkpoint.files.tensors import TensorLayout
    from resumable_data.checkpoint.manifest import Manifest
    from resumable_data.cursor import Cursor

_SHOWN = 4


def check_digests(path: Path, manifest: Manifest, tensors: Mapping[str, torch.Tensor]) -> None:
    """Hold a program's tensors against the digests that were taken before the save, where there are any. Collective.

    Raises:
        CheckpointError: Some are not what was saved.
        DisagreementError: Processes that hold the same part of a tensor hold different values.
    """
    if manifest.checksums != "digest":
        return
    saved = {key: what for key, what in manifest.keys.items() if isinstance(what, TensorKey) and what.digest}
    # a tensor of another type was cast, as was allowed: its bits are not those that were saved
    alike = {
        key: tensor
        for key, tensor in tensors.items()
        if key in saved and saved[key].dtype == str(tensor.dtype).removeprefix("torch.")
    }
    found = gather_digests(alike)
    wrong = [key for key, digest in found.items() if digest != saved[key].digest]
    if wrong:
        raise CheckpointError(
            f"{shown(path)}: expected tensors as they were saved, found {len(wrong)} of {len(found)} that are not: "
            f"{', '.join(wrong[:4])}{' ...' if len(wrong) > 4 else ''}. The program holds something else than what was "
            "saved: do not go on from it. Check the files with level='payload'; if they are sound, something changed "
            "the values while they were read."
        )


def check_casts(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Make sure that tensors of another type than was saved are what a cast makes of the saved ones. Collective.

    Args:
        path: The checkpoint.
        tensors: Those of the program, by flat key.

    Raises:
        CheckpointError: Some are not.
    """
    if not tensors:
        return
    expected, found = digests_in_files(path, tensors), gather_digests(tensors)
    wrong = [key for key in sorted(tensors) if found[key] != expected[key]]
    if wrong:
        raise CheckpointError(
            f"{shown(path)}: expected tensors of another type to be the saved ones, cast; found {len(wrong)} of "
            f"{len(tensors)} that are not: {_some(wrong)}. The program holds something else than what was saved: do "
            "not go on from it. Check the files with level='payload'."
        )


def digests_in_files(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """What the digests of a program's tensors should be, by what the files hold, cast to their types. Collective.

    Each process reads some of them whole, a chunk at a time.

    Args:
        path: The checkpoint.
        tensors: Those of the program, by keys that the checkpoint has as well.
    """
    rank, size = rank_and_size()
    mine = sorted(tensors)[rank::size]
    digests = together(lambda: _cast_digests(path, {key: tensors[key] for key in mine}))
    expected: dict[str, str] = {}
    for part in gather_bytes(msgspec.json.encode(digests)):
        expected |= msgspec.json.decode(part, type=dict[str, str])
    return expected


def _cast_digests(path: Path, tensors: Mapping[str, torch.Tensor]) -> dict[str, str]:
    """What the digests of some tensors should be, from the files alone."""
    metadata = parse_metadata((path / METADATA_NAME).read_bytes())
    files: dict[str, list[StorageItem]] = {}
    for item in metadata.items:
        if item.key in tensors:
            files.setdefault(item.file, []).append(item)
    chunks: dict[str, list[ItemContent]] = {key: [] for key in tensors}
    for content in read_items(path, files, metadata, ArchiveChecker(Findings(), with_payload=False)):
        chunks[content.item.key].append(content)

    def digest(key: str, live: torch.dtype) -> str:
        def of_box(raw: bytes, layout: TensorLayout, shape: Sequence[int], offsets: Sequence[int]) -> int:
            saved = getattr(torch, layout.dtype)
            return cast_box_digest(raw, saved, live, shape, offsets, layout.shape, layout.strides)

        return file_digest(path, chunks[key], dtype=dtype_name(live), shape=tensors[key].shape, of_box=of_box)

    return {key: digest(key, tensor.dtype) for key, tensor in tensors.items()}


def _tied_keys(flat: Mapping[str, Any]) -> list[list[str]]:
    """Keys of tensors that are one and the same memory, as tied weights are: groups of two or more."""
    groups: dict[tuple[Any, ...], list[str]] = {}
    for key, value in flat.items():
        if isinstance(value, torch.Tensor):
            local = value.to_local() if isinstance(value, DTensor) else value
            if local.numel():
                place = (local.device, local.data_ptr(), tuple(local.shape), local.stride(), local.dtype)
                groups.setdefault(place, []).append(key)
    return [keys for keys in groups.values() if len(keys) > 1]


def check_tied(path: Path, flat: Mapping[str, Any], in_checkpoint: Collection[str]) -> None:
    """Make sure that what is tied in the program is equal in the checkpoint: of two entries the last would be taken.

    Collective; nothing of the program changes.

    Args:
        path: The checkpoint.
        flat: The program's state by flat keys.
        in_checkpoint: Keys of the checkpoint.

    Raises:
        CheckpointError: It is not.
    """
    own = [[key for key in keys if key in in_checkpoint] for keys in _tied_keys(flat)]
    # a process that holds nothing of a tensor does not see that it is tied
    groups = _union([keys for keys in own if len(keys) > 1])
    if not groups:
        return
    saved = {key: torch.empty_like(flat[key]) for keys in groups for key in keys}
    read(path, saved)
    differ = _union([keys for keys in groups if not all(_is_same(saved[keys[0]], saved[key]) for key in keys[1:])])
    if differ:
        everyones = [" and ".join(keys) for keys in differ]
        raise CheckpointError(
            f"{shown(path)}: expected equal values of what is tied in the program, found different ones of "
            f"{_some(everyones)}. One of them would be lost. Nothing was loaded; untie them in the program, or find "
            "out which was trained."
        )


def _union(groups: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """The groups of all processes. Collective."""
    gathered = gather_bytes(msgspec.json.encode(groups))
    return sorted({group for part in gathered for group in msgspec.json.decode(part, type=list[tuple[str, ...]])})


def _is_same(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors of one placement have the same bits here."""
    parts = [one.to_local() if isinstance(one, DTensor) else one for one in (first, second)]
    a, b = (part.detach().contiguous().reshape(-1).view(torch.uint8) for part in parts)
    return torch.equal(a, b)


def check_counters(
    state: Mapping[str, Any],
    optimizers: Iterable[str],
    schedulers: Iterable[str],
    cursor: Cursor | None,
    *,
    absent: Collection[str] = (),
) -> str:
    """Whether what counts the program's steps agrees: optimizers, schedulers and the cursor. Collective.

    Args:
        state: The state that was loaded, by name.
        optimizers: Names of optimizers.
        schedulers: Names of what may be a learning rate's schedule.
        cursor: The loader's; None without one.
        absent: Flat keys that were not loaded, which count nothing.

    Returns:
        What does not agree; empty where nothing does not.
    """
    own = {name: sorted(_steps(name, state[name], absent)) for name in optimizers}
    gathered = gather_bytes(msgspec.json.encode(own))
    everyones = [msgspec.json.decode(part, type=dict[str, list[float]]) for part in gathered]
    faults = []
    for name in own:
        steps = sorted({step for one in everyones for step in one.get(name, [])})
        if len(steps) > 1:
            faults.append(f"{name}: its parameters were stepped {_some([f'{step:g}' for step in steps])} times")
        elif steps and cursor is not None and not cursor.taken_over and steps[0] != cursor.applied:
            faults.append(f"{name}: stepped {steps[0]:g} times, and {cursor.applied} applied updates are committed")
    for name in schedulers:
        last = state[name].get("last_epoch") if isinstance(state[name], Mapping) else None
        if cursor is not None and isinstance(last, int) and _is_off_by_one(last, cursor):
            faults.append(f"{name}: at {last}, and {cursor.updates} updates are committed, {cursor.applied} applied")
    return "; ".join(faults)


def _steps(name: str, state: Any, absent: Collection[str]) -> set[float]:
    """The values of ``step`` in an optimizer's state."""
    flat, paths = flatten_state_dict({name: state})
    steps = (value for key, value in flat.items() if paths[key][-1] == "step" and key not in absent)
    return {float(step.to_local() if isinstance(step, DTensor) else step) for step in steps}


def _is_off_by_one(last: int, cursor: Cursor) -> bool:
    """Whether a schedule counts updates, but one more or less than there are; others count epochs, or anything."""
    counts = {cursor.updates, cursor.applied}
    epoch = cursor.packed.epoch if cursor.packed else cursor.epoch
    return last not in {*counts, epoch} and bool({last - 1, last + 1} & counts) and not cursor.taken_over


def _some(keys: Sequence[str]) -> str:
    return ", ".join(keys[:_SHOWN]) + (" ..." if len(keys) > _SHOWN else "")
