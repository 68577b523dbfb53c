"""Digests of the tensors that a running program holds, on any placement, and of what a cast makes of saved ones."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch.distributed.checkpoint.metadata import MetadataIndex

from resumable_data.checkpoint.agreed_digests import ChunkDigest, LocalDigest, merge_digests
from resumable_data.checkpoint.collective import gather_bytes
from resumable_data.checkpoint.device_digest import device_sum
from resumable_data.checkpoint.digest import array_digest, box_array, combine
from resumable_data.checkpoint.digest_layout import check_box, split
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from torch.distributed import ProcessGroup

_MASK = (1 << 64) - 1
_CAST_BYTES = 1 << 22
_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}

Chunk = tuple[tuple[int, ...], torch.Tensor]
"""Offsets of a box in its tensor, and the box."""


def tensor_chunks(value: torch.Tensor) -> list[Chunk]:
    """The boxes of a tensor that this process holds, the ones that DCP saves.

    Args:
        value: A tensor, or one that says itself what it holds, as a DTensor of any placement but Partial does.

    Returns:
        Where each box begins and its elements, not copied; none where this process holds no element.

    Raises:
        UsageError: It holds partial sums, is not strided, or has no storage.
    """
    if any(placement.is_partial() for placement in getattr(value, "placements", ())):
        raise UsageError(
            "expected values, got a DTensor with a Partial placement, each rank's a summand: neither a digest nor a "
            "checkpoint can be made of it. Reduce it first, as with redistribute()."
        )
    if not hasattr(value, "__create_chunk_list__"):
        return [((0,) * value.dim(), _strided(value))] if value.numel() else []
    chunks = []
    for number, chunk in enumerate(value.__create_chunk_list__()):
        if 0 in chunk.sizes:
            continue
        index = MetadataIndex("", chunk.offsets, number)
        held = _strided(value.__get_tensor_shard__(index))  # type: ignore[attr-defined]  # those that have the one above
        if held.shape != chunk.sizes:
            raise UsageError(
                f"expected a part of sizes {list(chunk.sizes)} at {list(chunk.offsets)}, this rank holds sizes "
                f"{list(held.shape)}: a checkpoint would put its elements in wrong places. Make the DTensor with "
                "distribute_tensor, or with the shape and stride arguments of from_local."
            )
        chunks.append((tuple(chunk.offsets), held))
    return chunks


def _strided(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.layout != torch.strided or tensor.is_meta or tensor.is_quantized:
        raise UsageError(
            f"expected a strided tensor with values, got layout {tensor.layout} on {tensor.device}: it has no bytes in "
            "C order that a digest could be made of."
        )
    return tensor.detach()


def dtype_name(dtype: torch.dtype) -> str:
    """As `finish` wants it."""
    return str(dtype).removeprefix("torch.")


def tensor_sum(tensor: torch.Tensor, shape: Sequence[int], offsets: Sequence[int]) -> int | torch.Tensor:
    """The partial sum of a box; where it lies on an accelerator, () int64 there, so that nobody waits for it.

    Args:
        tensor: The box.
        shape: Of the whole tensor.
        offsets: Where the box begins.
    """
    check_box(shape, offsets, tensor.shape)
    if tensor.device.type != "cpu":
        return device_sum(tensor, shape, offsets)
    return array_digest(_as_array(tensor), shape, offsets)


def _as_array(tensor: torch.Tensor) -> NDArray[Any]:
    """A tensor's elements, not copied, in an array of whatever type has elements of that size."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    itemsize = tensor.element_size()
    array: NDArray[Any] = (tensor.view(_INTEGERS[itemsize]) if itemsize in _INTEGERS else tensor).numpy()
    return array


def local_digests(flat_state: Mapping[str, torch.Tensor]) -> list[LocalDigest]:
    """What this process holds of each tensor. Not collective.

    Args:
        flat_state: Tensors by their keys, as ``flatten_state_dict`` of DCP makes them.

    Raises:
        UsageError: A value is none that a digest can be made of; names its key.
    """
    held: list[tuple[str, torch.Tensor, list[Chunk]]] = []
    sums: list[int | torch.Tensor] = []
    for key, value in flat_state.items():
        if not isinstance(value, torch.Tensor):
            raise UsageError(f"{key}: expected a tensor, got {type(value).__name__}; only tensors have a digest.")
        try:
            chunks = tensor_chunks(value)
        except UsageError as error:
            raise UsageError(f"{key}: {error}") from None
        held.append((key, value, chunks))
        sums += [tensor_sum(tensor, value.shape, offsets) for offsets, tensor in chunks]
    totals = iter(_on_host(sums))
    return [
        LocalDigest(
            key,
            dtype_name(value.dtype),
            tuple(value.shape),
            tuple(ChunkDigest(offsets, tuple(tensor.shape), next(totals)) for offsets, tensor in chunks),
        )
        for key, value, chunks in held
    ]


def _on_host(sums: Sequence[int | torch.Tensor]) -> list[int]:
    """Sums as integers, one copy for each device that holds some."""
    found = [total if isinstance(total, int) else 0 for total in sums]
    by_device: dict[torch.device, list[int]] = {}
    for place, total in enumerate(sums):
        if isinstance(total, torch.Tensor):
            by_device.setdefault(total.device, []).append(place)
    for places in by_device.values():
        numbers = torch.stack([sums[place] for place in places]).tolist()  # type: ignore[misc]  # tensors all
        for place, number in zip(places, numbers, strict=True):
            found[place] = number & _MASK
    return found


class _Told(msgspec.Struct, array_like=True):
    """What one process tells the others: what it holds, or why it cannot say."""

    digests: list[LocalDigest]
    error: str = ""


def gather_digests(flat_state: Mapping[str, torch.Tensor], group: ProcessGroup | None = None) -> dict[str, str]:
    """The digest of each tensor of a state that is spread over processes. Collective.

    Args:
        flat_state: This process's tensors by their keys, as ``flatten_state_dict`` of DCP makes them.
        group: The processes that hold the state, all by default; without a process group, this one.

    Returns:
        Digests by keys, the same on all processes.

    Raises:
        DisagreementError: See `merge_digests`; on all processes.
        UsageError: See `local_digests`; on all processes.

    Example:
        >>> gather_digests({"weight": torch.arange(6.0).reshape(2, 3)})
        {'weight': 'd2c28e5351f06b58'}
    """
    try:
        told = _Told(local_digests(flat_state))
    except UsageError as error:  # the others must not wait for this process
        told = _Told([], str(error))
    payload = msgspec.json.encode(told)
    gathered = gather_bytes(payload, group)
    ranks = [msgspec.json.decode(part, type=_Told) for part in gathered]
    for rank, found in enumerate(ranks):
        if found.error:
            raise UsageError(found.error if found == told else f"on rank {rank}: {found.error}")
    return merge_digests([found.digests for found in ranks])


def cast_box_digest(
    raw: bytes | bytearray | memoryview,
    saved: torch.dtype,
    live: torch.dtype,
    shape: Sequence[int],
    offsets: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> int:
    """The partial sum of what a box becomes where it is loaded into a tensor of another dtype.

    `finish` it with the name of `live`, and compare it with the digest of the loaded tensor.

    Args:
        raw: The box's elements as they were saved, little-endian.
        saved: Their dtype.
        live: The dtype of the tensor that they are loaded into, cast as ``copy_`` does.
        shape: Of the whole tensor.
        offsets: Where the box begins.
        sizes: Of the box.
        strides: How far apart the box's elements lie in `raw`, in elements; C order by default.

    Raises:
        UsageError: As for `box_digest`.
    """
    array = box_array(raw, saved.itemsize, sizes, strides)
    check_box(shape, offsets, array.shape)
    if array.size == 0:
        return 0
    parts = []
    for part, start in split(array, offsets, _CAST_BYTES):
        elements = torch.from_numpy(np.array(part, order="C").reshape(-1).view(np.uint8)).view(saved)
        cast = elements.reshape(part.shape).to(live)
        parts.append(array_digest(_as_array(cast), shape, start))
    return combine(parts)
