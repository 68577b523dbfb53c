"""Logs in numpy's ``.npy`` format. Nothing is ever unpickled."""

from __future__ import annotations

import math
import warnings
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from resumable_data.ledger.frames import shown
from resumable_data.logs.files import bad_log, read_exactly
from resumable_data.logs.rows import IGNORED, Rows, as_int64, make_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from resumable_data.logs.rows import Fields

_Table: TypeAlias = "np.ndarray[tuple[int, int], np.dtype[Any]]"

_BLOCK_IDS = 1 << 18
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


class _Header(NamedTuple):
    """Of one array: ``num_rows`` rows of ``width`` values, each of ``dtype``."""

    num_rows: int
    width: int
    dtype: np.dtype[Any]
    is_by_columns: bool


def read_npy(file: IO[bytes], path: Path, fields: Fields) -> Iterator[Rows]:
    """The IDs of an array, or of several that were saved to one file one after another.

    An array of integers of any shape is IDs in C order; with `fields.columns` it has two dimensions, and a row's values
    are what they say. A structured array has named fields.
    """
    row = 0
    size = file.seek(0, 2)
    file.seek(0)
    while file.tell() < size:
        header = _read_header(file, path, fields)
        yield from _read_array(file, path, fields, header, row)
        row += header.num_rows


def _read_header(file: IO[bytes], path: Path, fields: Fields) -> _Header:
    where = f"byte {file.tell()}"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "ignore"
            )  # numpy's about headers of Python 2, Python's about what a damaged one holds
            shape, is_fortran, dtype = _HEADER_READERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # a damaged header is parsed as Python's literals, which fails in a dozen ways
        found = f"{type(error).__name__}: {error}".split("\n")[0]
        raise bad_log(path, where, "an array in .npy format 1.0 or 2.0", shown(found)) from None
    _check_dtype(path, where, dtype)
    _check_shape(path, where, shape, dtype, fields)
    if is_fortran and len(shape) > 2:
        raise bad_log(path, where, "an array in C order", "Fortran order in more than two dimensions")
    num_rows, width = (shape[0], math.prod(shape[1:])) if shape else (1, 1)
    start = file.tell()
    left = file.seek(0, 2) - start
    file.seek(start)
    if num_rows * width * dtype.itemsize > left:
        whole = left // (width * dtype.itemsize)
        raise bad_log(path, f"row {whole}", f"{num_rows} rows", f"a file that ends {left} bytes after its header")
    return _Header(num_rows, width, dtype, is_fortran and len(shape) > 1)


def _check_shape(path: Path, where: str, shape: tuple[int, ...], dtype: np.dtype[Any], fields: Fields) -> None:
    columns = fields.columns
    if any(length < 0 for length in shape):
        raise bad_log(path, where, "a shape", str(shape))
    if columns is None:
        return
    if dtype.names or len(shape) != 2 or shape[1] != len(columns):
        raise bad_log(path, where, f"an array with the columns {', '.join(columns)}", f"{dtype} of shape {shape}")
    if columns[-1] == "ids":
        raise bad_log(path, where, "a column id, as all rows of an array have the same length", "ids")


def _check_dtype(path: Path, where: str, dtype: np.dtype[Any]) -> None:
    parts = [dtype[name] for name in dtype.names] if dtype.names else [dtype]
    if dtype.hasobject:
        raise bad_log(path, where, "integers", "pickled objects, which can run code when they are read")
    if not dtype.itemsize or not any(part.kind in "iu" for part in parts):
        raise bad_log(path, where, "integers", str(dtype))


def _read_array(file: IO[bytes], path: Path, fields: Fields, header: _Header, first_row: int) -> Iterator[Rows]:
    step = max(1, _BLOCK_IDS // max(header.width, 1))
    start = file.tell()
    end = start + header.num_rows * header.width * header.dtype.itemsize
    for at in range(0, header.num_rows if header.width else 0, step):
        count = min(step, header.num_rows - at)
        table = _read_table(file, path, header, start, at, count)
        yield _rows_of(table, path, fields, first_row + at)
    file.seek(end)


def _read_table(file: IO[bytes], path: Path, header: _Header, start: int, at: int, count: int) -> _Table:
    """Rows [at, at + count) of an array that begins at byte `start`: (count, width)."""
    size = header.dtype.itemsize
    if not header.is_by_columns:
        file.seek(start + at * header.width * size)
        return _values(file, path, header.dtype, count * header.width, at).reshape(count, header.width)
    columns = []
    for column in range(header.width):
        file.seek(start + (column * header.num_rows + at) * size)
        columns.append(_values(file, path, header.dtype, count, at))
    return np.stack(columns, axis=1)


def _values(file: IO[bytes], path: Path, dtype: np.dtype[Any], count: int, row: int) -> NDArray[Any]:
    data = read_exactly(file, count * dtype.itemsize, path)
    if len(data) != count * dtype.itemsize:  # the file was cut while it was read
        raise bad_log(path, f"row {row} or later", f"{count * dtype.itemsize} bytes", f"{len(data)}")
    return np.frombuffer(data, dtype)


def _rows_of(table: _Table, path: Path, fields: Fields, first_row: int) -> Rows:
    if table.dtype.names:
        roles = fields.resolve(table.dtype.names, path)
        for name in roles.values():
            if table.dtype[name].kind not in "iu":
                raise bad_log(path, f"field {name!r}", "integers", str(table.dtype[name]))
        found = {role: as_int64(table[name].reshape(-1)) for role, name in roles.items()}
        return make_rows(found, _locator(first_row, table.shape[1]))
    if fields.columns is None:
        return make_rows({"id": as_int64(table.reshape(-1))}, _locator(first_row, table.shape[1]))
    found = {name: as_int64(table[:, at]) for at, name in enumerate(fields.columns) if name != IGNORED}
    return make_rows(found, _locator(first_row, 1))


def _locator(first_row: int, width: int) -> Callable[[int], str]:
    return lambda at: f"row {first_row + at // width}"
