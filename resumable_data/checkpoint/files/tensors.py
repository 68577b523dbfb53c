"""Tensors in ``data.pkl``: dtype, shape, strides, and the record that holds the elements."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable_data.checkpoint.files.dtypes import ITEM_BYTES, STORAGE_DTYPES
from resumable_data.checkpoint.files.pickled import Global, Key, Object, PersistentId, PickleFormatError

if TYPE_CHECKING:
    from collections.abc import Iterator

_UTILS = "torch._utils"
_TENSORS = {(_UTILS, "_rebuild_tensor_v2"), (_UTILS, "_rebuild_tensor_v3")}
_PARAMETERS = {(_UTILS, "_rebuild_parameter"), (_UTILS, "_rebuild_parameter_with_state")}
_MAX_SIZE = 2**63

_BUILTINS = ("bytearray", "bytes", "complex", "dict", "frozenset", "list", "set", "slice", "tuple")
_PLAIN = {
    *((module, name) for module in ("builtins", "__builtin__") for name in _BUILTINS),  # protocol 2 has the old name
    ("_codecs", "encode"),
    ("_io", "BytesIO"),
    ("collections", "Counter"),
    ("collections", "OrderedDict"),
    ("collections", "defaultdict"),
    ("datetime", "datetime"),
    ("datetime", "timedelta"),
    ("numpy", "dtype"),
    ("numpy", "ndarray"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "scalar"),
    ("numpy._core.numeric", "_frombuffer"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy.core.multiarray", "scalar"),
    ("numpy.core.numeric", "_frombuffer"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    ("torch", "Size"),
    ("torch", "Tensor"),
    ("torch", "device"),
    ("torch._tensor", "_rebuild_from_type_v2"),
    ("torch.nn.parameter", "Parameter"),
    ("torch.serialization", "_get_layout"),
    ("torch.storage", "UntypedStorage"),
    ("torch.storage", "TypedStorage"),
}


def is_plain_global(module: str, name: str) -> bool:
    """Whether a global makes data and nothing else; any other is code of whoever wrote the pickle."""
    if (module, name) in _PLAIN:
        return True
    if module == "torch":
        return name in ITEM_BYTES or name in STORAGE_DTYPES
    return module == _UTILS and name.startswith("_rebuild_")


class TensorLayout(NamedTuple):
    """How a tensor lies in its record.

    Attributes:
        dtype: As torch names it, without ``torch.``.
        shape: Its sizes.
        strides: In elements.
        offset: Of its first element in the record, in elements.
        record: The record, say ``"data/0"``.
        record_bytes: What the pickle says of its size [bytes].
    """

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int
    record: str
    record_bytes: int

    @property
    def num_elements(self) -> int:
        """The product of its sizes."""
        return math.prod(self.shape)

    @property
    def stop_bytes(self) -> int:
        """Where its last element ends in the record [bytes]; 0 for a tensor without elements."""
        if not self.num_elements:
            return 0
        last = self.offset + sum((size - 1) * stride for size, stride in zip(self.shape, self.strides, strict=True))
        return (last + 1) * ITEM_BYTES[self.dtype]

    @property
    def is_row_major(self) -> bool:
        """Whether its elements lie in the order of their coordinates, one after another, from the record's start."""
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected and self.num_elements:
                return False
            expected *= size
        return self.offset == 0


def tensor_layout(value: Any) -> TensorLayout | None:
    """The layout of what a pickle says is a plain tensor or parameter; None for anything else.

    Raises:
        PickleFormatError: It says so and then makes no sense.
    """
    if type(value) is Object and value.name in _PARAMETERS and type(value.args) is tuple and value.args:
        value = value.args[0]
    if type(value) is not Object or value.name is None or value.name not in _TENSORS:
        return None
    args = value.args
    if type(args) is not tuple or len(args) < 6 or type(args[0]) is not PersistentId:
        raise PickleFormatError("a tensor without storage, sizes and strides")
    storage, offset, shape, strides = args[:4]
    dtype, record, length = _storage(storage.value)
    is_untyped = value.name.name == "_rebuild_tensor_v3"
    if is_untyped:
        dtype = args[6].name if len(args) > 6 and type(args[6]) is Global and args[6].module == "torch" else ""
    if dtype not in ITEM_BYTES:
        raise PickleFormatError(f"a tensor of the unknown dtype {dtype!r:.40}")
    numbers = (offset, length, *_sizes(shape), *_sizes(strides))
    if any(type(number) is not int or not 0 <= number < _MAX_SIZE for number in numbers) or len(shape) != len(strides):
        raise PickleFormatError("a tensor whose offset, sizes and strides are not integers in [0, 2^63)")
    item_bytes = 1 if is_untyped else ITEM_BYTES[dtype]
    return TensorLayout(dtype, tuple(shape), tuple(strides), offset, record, length * item_bytes)


def _sizes(value: Any) -> tuple[Any, ...]:
    if type(value) is not tuple:
        raise PickleFormatError("sizes or strides that are no tuple")
    return value


def _storage(value: Any) -> tuple[str, str, Any]:
    """Dtype, record and number of elements of ``("storage", class, key, device, number)``."""
    if type(value) is not tuple or len(value) != 5 or value[0] != "storage" or type(value[1]) is not Global:
        raise PickleFormatError("a reference that is no storage")
    _, kind, key, _, length = value
    if kind.name not in STORAGE_DTYPES or type(key) is not str:
        raise PickleFormatError(f"a storage of the unknown class {kind}")
    return STORAGE_DTYPES[kind.name], f"data/{key}", length


def walk_tensors(root: Any) -> Iterator[tuple[str, TensorLayout]]:
    """All plain tensors in what a pickle holds, each once, with their places in the nested state, as DCP names them.

    Raises:
        PickleFormatError: One makes no sense.
    """
    seen: set[int] = set()
    stack: list[tuple[str, Any]] = [("", root)]
    while stack:
        path, value = stack.pop()
        children = _children(value)
        if children is None or id(value) in seen:
            continue
        seen.add(id(value))
        layout = tensor_layout(value)
        if layout is not None:
            yield path, layout
            continue
        stack += [(f"{path}.{name}" if path and name else path or name, child) for name, child in reversed(children)]


def _children(value: Any) -> list[tuple[str, Any]] | None:
    """What a value contains, with names; None for what contains nothing."""
    if type(value) is dict:
        return [(_name(key), child) for key, child in value.items()]
    if type(value) in (list, tuple):
        return [(str(at), child) for at, child in enumerate(value)]
    if type(value) is Object:
        return [("", value.items), ("", value.state), ("", value.args)]
    return None


def _name(key: Any) -> str:
    return "?" if type(key) in (Object, Key) else str(key)
