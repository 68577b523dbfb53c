"""How a worker sends a microbatch: a small one through its pipe, and not each tensor in a shared memory of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch.utils.data._utils.pin_memory import pin_memory

LARGEST_BYTES = 256 * 1024
"""Of all tensors of a parcel. To copy more through a pipe takes longer than to open a shared memory for each tensor."""

_TYPES = frozenset(
    {
        torch.bool,
        torch.uint8,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.float16,
        torch.float32,
        torch.float64,
    }
)
_PLAIN = (bool, int, float, str, bytes, type(None))


class Parcel:
    """Data whose tensors are sent as arrays.

    torch sends each tensor of a worker as a shared memory that the receiver has to open, which takes it about a
    millisecond. What arrives here is memory of the receiving process.

    Args:
        arrays: The data, with an array in place of each tensor, and no other array.
    """

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Any) -> None:
        self._arrays = arrays

    def data(self) -> Any:
        """The data."""
        return _tensors(self._arrays)

    def pin_memory(self) -> Any:
        """The data in pinned memory: what a DataLoader's pinning thread calls."""
        return pin_memory(self.data())  # type: ignore[no-untyped-call]  # torch's has no types


def pack(data: Any) -> Any:
    """A `Parcel` of what has some small tensors, in dicts, lists and tuples; anything else as it is."""
    arrays = _Arrays()
    try:
        packed = arrays.of(data)
    except (_AsItIsError, RecursionError):  # the latter where it holds itself
        return data
    return Parcel(packed) if arrays.num_tensors else data


class _AsItIsError(Exception):
    """Something that only torch's own way of sending keeps as it is."""


class _Arrays:
    """Replaces tensors by arrays.

    Attributes:
        num_tensors: How many so far.
    """

    def __init__(self) -> None:
        self.num_tensors = 0
        self._num_bytes = 0
        self._places: set[int] = set()

    def of(self, data: Any) -> Any:
        """`data` with arrays.

        Raises:
            _AsItIsError: It holds something else than small tensors that share no memory, and plain values.
        """
        kind: Any = type(data)
        if kind is torch.Tensor:
            return self._array(data)
        if kind in _PLAIN:
            return data
        if kind is dict:
            return {key: self.of(value) for key, value in data.items()}
        if kind is list or kind is tuple:
            return kind(self.of(value) for value in data)
        if kind.__bases__ == (tuple,) and hasattr(kind, "_make"):  # a class of a named tuple may be made in its own way
            return kind._make(self.of(value) for value in data)
        raise _AsItIsError

    def _array(self, tensor: torch.Tensor) -> np.ndarray[Any, Any]:
        is_plain = tensor.dtype in _TYPES and tensor.device.type == "cpu" and tensor.layout is torch.strided
        if not is_plain or tensor.requires_grad or tensor.is_neg() or not tensor.is_contiguous():
            raise _AsItIsError
        place, num_bytes = tensor.data_ptr(), tensor.nbytes
        shares_memory = tensor.untyped_storage().nbytes() != num_bytes or (num_bytes > 0 and place in self._places)
        self._num_bytes += num_bytes
        if shares_memory or self._num_bytes > LARGEST_BYTES:
            raise _AsItIsError
        self._places.add(place)
        self.num_tensors += 1
        return tensor.numpy()


def _tensors(arrays: Any) -> Any:
    """What `_Arrays.of` was given."""
    kind: Any = type(arrays)
    if kind is np.ndarray:
        return torch.from_numpy(arrays)
    if kind is dict:
        return {key: _tensors(value) for key, value in arrays.items()}
    if kind is list or kind is tuple:
        return kind(_tensors(value) for value in arrays)
    if isinstance(arrays, tuple):
        return kind._make(map(_tensors, arrays))
    return arrays
