"""Documents in a column of lists of integers, in parts: Arrow files and Parquet files."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sources.arguments import check_documents
from resumable_data.sources.base import SourceBase
from resumable_data.sources.files import bad_source

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenArray

DEFAULT_COLUMN = "input_ids"
_REMEDY = "Write the file again; or give column=, if another column holds the tokens."


class Part(NamedTuple):
    """Documents of one record batch or row group: document d of it is ``values[offsets[d] : offsets[d + 1]]``."""

    values: TokenArray
    offsets: Int64Array


class ColumnTokens(SourceBase):
    """Documents in parts, with the lengths of all of them in memory: 4 bytes each, or 8 where one has 2^31 tokens.

    Args:
        path: File or folder.
        column: Name of the column.
        dtype: Type of its integers.
        lengths: Tokens of the documents of each part, (k,) int64 each.
    """

    def __init__(self, path: Path, column: str, dtype: np.dtype[Any], lengths: Iterable[Int64Array]) -> None:
        self._path, self._column = path, column
        parts = [_narrow(part) for part in lengths]
        self._all_lengths = np.concatenate(parts) if parts else np.zeros(0, np.int32)
        self._firsts = np.cumsum([0, *(part.size for part in parts)])
        if not self._all_lengths.sum():
            raise bad_source(path, f"column {column!r}", "tokens", "none", _REMEDY)
        super().__init__(self._all_lengths.size, int(self._all_lengths.sum(dtype=np.int64)), dtype)

    def lengths(self, documents: Int64Array, /) -> Int64Array:
        """Tokens of each document: (k,) int64 -> (k,) int64."""
        check_documents(documents, len(self))
        return self._all_lengths[documents].astype(np.int64)

    def read(self, document: int, start: int, stop: int, /) -> TokenArray:
        """Tokens ``[start, stop)`` of one document: a view of its part."""
        document, start, stop = self._checked_range(document, start, stop)
        number = int(np.searchsorted(self._firsts, document, side="right")) - 1
        part = self._part(number)
        begin = int(part.offsets[document - int(self._firsts[number])])
        return part.values[begin + start : begin + stop]

    @abstractmethod
    def _part(self, number: int) -> Part:
        """The documents of one part."""


def checked_part(column: Any, path: Path, name: str) -> Part:
    """The documents of an Arrow array of lists, after a look at every offset of it.

    Raises:
        SourceError: A list or a token is null, or the array is damaged.
    """
    column.validate(full=True)
    # Slices of an array of lists share its values, and say by their offsets which are theirs.
    size = getattr(column.type, "list_size", None)
    if column.null_count:
        raise bad_source(path, f"column {name!r}", "a list of tokens in each row", "a null", _REMEDY)
    if not len(column):
        return Part(np.zeros(0, np.int64), np.zeros(1, np.int64))
    if size is not None:
        values, offsets = column.flatten(), np.arange(len(column) + 1) * size
    else:
        values, offsets = column.values, column.offsets.to_numpy(zero_copy_only=False).astype(np.int64)
        values, offsets = values.slice(int(offsets[0]), int(offsets[-1] - offsets[0])), offsets - offsets[0]
    if values.null_count:
        raise bad_source(path, f"column {name!r}", "integers in its lists", "a null", _REMEDY)
    return Part(values.to_numpy(zero_copy_only=True), offsets)


def choose_column(schema: Any, column: str | None, path: Path) -> tuple[str, np.dtype[Any]]:
    """The column of tokens and the type of its integers.

    Raises:
        UsageError: None is named, and there is not one that must be meant.
        SourceError: The named one is not there, or holds no lists of integers.
    """
    lists = [name for name in schema.names if _integer_type(schema, name) is not None]
    if column is None:
        if DEFAULT_COLUMN not in lists and len(lists) != 1:
            raise UsageError(
                f"{shown(path)}: expected a column {DEFAULT_COLUMN!r} or only one with lists of integers, found "
                f"{lists or 'none'} among {schema.names}. Something else would be read as tokens. Give column=."
            )
        column = DEFAULT_COLUMN if DEFAULT_COLUMN in lists else lists[0]
    if schema.names.count(column) != 1:
        found = f"{schema.names.count(column)} of that name, among {schema.names}"
        raise bad_source(path, f"column {column!r}", "one column", found, "Give column= one of them.")
    dtype = _integer_type(schema, column)
    if dtype is None:
        raise bad_source(path, f"column {column!r}", "lists of integers", str(schema.field(column).type), _REMEDY)
    return column, dtype


def _integer_type(schema: Any, name: str) -> np.dtype[Any] | None:
    import pyarrow.types as types

    if schema.names.count(name) != 1:
        return None
    kind = schema.field(name).type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list or not types.is_integer(kind.value_type):
        return None
    dtype: np.dtype[Any] = np.dtype(kind.value_type.to_pandas_dtype())
    return dtype


def _narrow(lengths: Int64Array) -> np.ndarray[Any, Any]:
    fits = not lengths.size or int(lengths.max()) < 1 << 31
    return lengths.astype(np.int32) if fits else lengths


def need_pyarrow(path: Path, error: ImportError) -> UsageError:
    """The error where pyarrow is not installed."""
    return UsageError(
        f"expected pyarrow to read {shown(path)}, found none ({error}). No token was read; install it with pip install "
        "'resumable-data[arrow]'."
    )
