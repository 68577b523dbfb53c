"""``.metadata`` of a DCP checkpoint: which tensors and objects there are, and where in which file they lie."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from resumable_data.checkpoint.files.dtypes import ITEM_BYTES
from resumable_data.checkpoint.files.pickled import Global, Object, PickleFormatError
from resumable_data.checkpoint.files.pickles import parse_pickle

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

METADATA_NAME = ".metadata"
MAX_METADATA_BYTES = 2**28
"""A hundred thousand chunks take 15 MB."""

_MAX_DIMENSIONS = 64
_MAX_SIZE = 2**63
_DCP = "torch.distributed.checkpoint.metadata"
_ALLOWED = {
    *(
        (_DCP, name)
        for name in (
            "Metadata",
            "TensorStorageMetadata",
            "BytesStorageMetadata",
            "ChunkStorageMetadata",
            "TensorProperties",
            "MetadataIndex",
            "StorageMeta",
            "_MEM_FORMAT_ENCODING",
        )
    ),
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"),
    ("torch", "Size"),
    ("torch", "device"),
    ("torch.serialization", "_get_layout"),
    ("pathlib", "Path"),
    ("pathlib", "PosixPath"),
    ("pathlib", "PurePosixPath"),
    ("pathlib._local", "PosixPath"),  # Python 3.13
    ("collections", "OrderedDict"),
}


class Chunk(NamedTuple):
    """A box of a tensor that was saved as one item."""

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]


class TensorMetadata(NamedTuple):
    """A tensor: its dtype as torch names it without ``torch.``, its global shape, and its chunks."""

    dtype: str
    shape: tuple[int, ...]
    chunks: tuple[Chunk, ...]


class StorageItem(NamedTuple):
    """Where one archive lies: a chunk of a tensor, or a Python object.

    Attributes:
        key: Flat key of the state.
        offsets: Of the chunk; None for an object.
        file: Name of the data file.
        start: Where it begins in it [bytes].
        length: Its length [bytes].
        transforms: Names of what was done to the bytes, say a compression; empty as a rule.
    """

    key: str
    offsets: tuple[int, ...] | None
    file: str
    start: int
    length: int
    transforms: tuple[str, ...]


class Metadata(NamedTuple):
    """What ``.metadata`` says.

    Attributes:
        version: Of the format, None where the writer did not say.
        tensors: Flat key to tensor.
        objects: Flat keys of Python objects.
        items: What the data files hold, in the order of the file.
        paths: Flat key to its place in the nested state; None where the planner kept something else.
    """

    version: str | None
    tensors: Mapping[str, TensorMetadata]
    objects: frozenset[str]
    items: tuple[StorageItem, ...]
    paths: Mapping[str, tuple[str | int, ...]] | None


def parse_metadata(data: bytes) -> Metadata:
    """What the bytes of a ``.metadata`` file say.

    Raises:
        ForbiddenGlobalError: It names a global that no checkpoint needs; `torch.distributed.checkpoint` would run it.
        PickleFormatError: It is damaged, or no such file.
    """
    with without_collections():
        return _read(_fields(parse_pickle(data, _is_allowed)[0], "Metadata"))


@contextmanager
def without_collections() -> Iterator[None]:
    """Keep the garbage collector from walking all that is being built, again and again: that is half the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _read(fields: dict[Any, Any]) -> Metadata:
    sizes = _Sizes()
    tensors: dict[str, TensorMetadata] = {}
    objects: set[str] = set()
    for key, value in _mapping(fields.get("state_dict_metadata"), "state_dict_metadata").items():
        name = _text(key, "a key of the state")
        if _is(value, "BytesStorageMetadata"):
            objects.add(name)
        else:
            tensors[name] = _tensor(value, sizes)
    stored = _mapping(fields.get("storage_data"), "storage_data")
    version = fields.get("version")
    return Metadata(
        version=None if version is None else _text(version, "a version"),
        tensors=tensors,
        objects=frozenset(objects),
        items=tuple(_item(index, info, sizes) for index, info in stored.items()),
        paths=_paths(fields.get("planner_data")),
    )


class _Sizes(dict[int, tuple[int, ...]]):
    """Objects of ``torch.Size`` by identity: a chunk and its storage entry share their offsets."""

    def of(self, value: Any) -> tuple[int, ...]:
        """The sizes as a tuple."""
        found = self.get(id(value))
        if found is None:
            found = self[id(value)] = _size(value)
        return found


def _is_allowed(module: str, name: str) -> bool:
    return (module, name) in _ALLOWED or (module == "torch" and name in ITEM_BYTES)


def _is(value: Any, name: str) -> bool:
    return type(value) is Object and value.name is not None and value.name.name == name


def _fields(value: Any, name: str) -> dict[Any, Any]:
    """The attributes of an object that should be of the class `name`."""
    if type(value) is Object and type(value.callee) is Global and value.callee.name == name:
        state: Any = value.state
        if type(state) is dict:
            return state
    if not _is(value, name):
        raise PickleFormatError(f"expected {name}, found {_kind(value)}")
    return _mapping(value.state, f"the fields of {name}")


def _kind(value: Any) -> str:
    return str(value.name) if type(value) is Object and value.name is not None else type(value).__name__


def _mapping(value: Any, what: str) -> dict[Any, Any]:
    if type(value) is not dict:
        raise PickleFormatError(f"expected {what} to be a dict, found {_kind(value)}")
    return value


def _text(value: Any, what: str) -> str:
    if type(value) is not str:
        raise PickleFormatError(f"expected {what} as text, found {_kind(value)}")
    return value


def _count(value: Any, what: str) -> int:
    if type(value) is not int or not 0 <= value < _MAX_SIZE:
        raise PickleFormatError(f"expected {what} to be an integer in [0, 2^63), found {_kind(value)}")
    return value


def _size(value: Any) -> tuple[int, ...]:
    """A ``torch.Size``."""
    if type(value) is Object and value.name == ("torch", "Size") and type(value.args) is tuple:
        value = value.args[0] if value.args else ()
    if type(value) not in (tuple, list) or len(value) > _MAX_DIMENSIONS:
        raise PickleFormatError(f"expected sizes of up to {_MAX_DIMENSIONS} dimensions, found {_kind(value)}")
    for size in value:
        if type(size) is not int or not 0 <= size < _MAX_SIZE:
            raise PickleFormatError(f"expected sizes in [0, 2^63), found {_kind(size)} outside")
    return tuple(value)


def _tensor(value: Any, sizes: _Sizes) -> TensorMetadata:
    fields = _fields(value, "TensorStorageMetadata")
    properties = fields.get("properties")
    if type(properties) is not Object or not _is(properties, "TensorProperties"):
        raise PickleFormatError(f"expected TensorProperties, found {_kind(properties)}")
    state = properties.state
    dtype = state.get("dtype") if type(state) is dict else state[0] if type(state) is tuple and state else None
    if type(dtype) is not Global or dtype.module != "torch" or dtype.name not in ITEM_BYTES:
        raise PickleFormatError(f"expected a dtype of torch, found {_kind(dtype)}")
    chunks = fields.get("chunks")
    if type(chunks) is not list:
        raise PickleFormatError(f"expected a list of chunks, found {_kind(chunks)}")
    return TensorMetadata(dtype.name, sizes.of(fields.get("size")), tuple(_chunk(chunk, sizes) for chunk in chunks))


def _chunk(value: Any, sizes: _Sizes) -> Chunk:
    fields = _fields(value, "ChunkStorageMetadata")
    return Chunk(sizes.of(fields.get("offsets")), sizes.of(fields.get("sizes")))


def _item(index: Any, info: Any, sizes: _Sizes) -> StorageItem:
    where, place = _fields(index, "MetadataIndex"), _fields(info, "_StorageInfo")
    offsets = where.get("offset")
    transforms = place.get("transform_descriptors") or ()
    if type(transforms) not in (list, tuple):
        raise PickleFormatError(f"expected a list of transforms, found {_kind(transforms)}")
    return StorageItem(
        _text(where.get("fqn"), "a key of a storage item"),
        None if offsets is None else sizes.of(offsets),
        _text(place.get("relative_path"), "the name of a file"),
        _count(place.get("offset"), "an offset"),
        _count(place.get("length"), "a length"),
        tuple(_text(one, "a transform") for one in transforms) if transforms else (),
    )


def _paths(value: Any) -> dict[str, tuple[str | int, ...]] | None:
    if type(value) is not dict:
        return None
    paths = {}
    for key, path in value.items():
        if type(key) is not str or type(path) is not tuple or any(type(part) not in (str, int) for part in path):
            return None
        paths[key] = path
    return paths
