"""The contents of each row of a batch as 64 bits, whatever the batch is made of.

What a row is:

* a list of mappings holds one sample in each element;
* where there are tensors or arrays, all with the same first dimension, the rows along it, of all of them. Lists with
  as many plain values belong to the rows; other values belong to none, and are ignored;
* else a list holds one sample in each element, and a tuple, or the values of a mapping, hold one field of all samples
  in each element.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from resumable_data.shadowing.records import ROWS_MAX

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

_PLAIN = (str, bytes, int, float, bool, type(None), np.generic)
_DEPTH_MAX = 32


class NotHashable(Exception):
    """A batch whose rows cannot be told."""


def hash_rows(batch: Any) -> bytes:
    """The hash of each row of a batch: 8 bytes each, little-endian.

    Raises:
        NotHashable: It has no rows, or holds something that is not known.
    """
    columns = _columns(batch)
    num_rows = len(columns[0])
    if num_rows > ROWS_MAX:
        raise NotHashable(f"a batch of {num_rows} rows, where {ROWS_MAX} fit a record")
    hashes = [0] * num_rows
    digest = xxhash.xxh3_64_intdigest
    for column in columns:
        hashes = [digest(row, chain) for row, chain in zip(column, hashes, strict=True)]
    return np.array(hashes, "<u8").tobytes()


def _columns(batch: Any) -> list[Sequence[Any]]:
    """Columns of equal length: for each row, its bytes."""
    if isinstance(batch, list) and batch and all(isinstance(item, Mapping) for item in batch):
        return [[_encode(item) for item in batch]]
    leaves: list[Any] = []
    _collect(batch, leaves, 0)
    arrays = [leaf for leaf in leaves if not isinstance(leaf, list)]
    lengths = {len(array) for array in arrays}
    if len(lengths) == 1:
        (length,) = lengths
        return [_rows(leaf) for leaf in leaves if len(leaf) == length]
    if isinstance(batch, list):
        return [[_encode(item) for item in batch]]
    fields = list(batch.values()) if isinstance(batch, Mapping) else batch
    are_lists = isinstance(fields, (list, tuple)) and all(isinstance(field, (list, tuple)) for field in fields)
    if are_lists and len({len(field) for field in fields}) == 1:
        return [[_encode(item) for item in field] for field in fields]
    raise NotHashable(f"a {type(batch).__name__} in which no rows can be told")


def _collect(value: Any, leaves: list[Any], depth: int) -> None:
    """All arrays with rows, as `NDArray` or tensors, and all lists of plain values, depth first."""
    if depth > _DEPTH_MAX:
        raise NotHashable(f"a batch of more than {_DEPTH_MAX} levels")
    if _is_tensor(value) or isinstance(value, np.ndarray):
        if value.ndim:
            leaves.append(value)
    elif isinstance(value, Mapping):
        for one in value.values():
            _collect(one, leaves, depth + 1)
    elif isinstance(value, (list, tuple)):
        if value and all(isinstance(one, _PLAIN) for one in value):
            leaves.append(list(value))
            return
        for one in value:
            _collect(one, leaves, depth + 1)


def _rows(leaf: Any) -> Sequence[Any]:
    if isinstance(leaf, list):
        return [_encode(item) for item in leaf]
    array = _as_array(leaf)
    if array.dtype.hasobject:
        return [_encode(item) for item in array.tolist()]
    if not array.size:
        return [b""] * len(array)
    rows: Any = array.reshape(len(array), -1).view(np.uint8)  # a sequence of rows, which mypy does not see
    return rows  # type: ignore[no-any-return]  # as above


def _is_tensor(value: Any) -> bool:
    torch = sys.modules.get("torch")  # a batch holds no tensor where nobody imported torch
    return torch is not None and isinstance(value, torch.Tensor)


def _as_array(value: Any) -> NDArray[Any]:
    """An array, contiguous, with the bytes of a tensor or array; tensors on other devices are copied."""
    if isinstance(value, np.ndarray):
        return np.ascontiguousarray(value)
    torch = sys.modules["torch"]
    if value.layout != torch.strided or value.is_quantized:
        raise NotHashable(f"a tensor of layout {value.layout}")
    plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
    # As bytes: numpy has no bfloat16. A new last dimension, because a view needs one.
    array: NDArray[Any] = plain.unsqueeze(-1).view(torch.uint8).numpy()
    return array


def _encode_other(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.hasobject:
        return value.tolist()
    if isinstance(value, np.ndarray) or _is_tensor(value):
        return [list(value.shape), _as_array(value).tobytes()]
    raise NotHashable(f"a value of type {type(value).__module__}.{type(value).__qualname__}")


_encoder = msgspec.msgpack.Encoder(enc_hook=_encode_other, order="deterministic")


def _encode(value: Any) -> bytes:
    try:
        return _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError) as error:
        raise NotHashable(f"a value of type {type(value).__name__}: {error}") from error
