"""Arrays in numpy's ``.npy`` format, mapped. Nothing is ever unpickled."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.ledger.frames import shown
from resumable_data.sources.files import StoredArray, bad_source, read_head

if TYPE_CHECKING:
    from pathlib import Path

MAGIC = b"\x93NUMPY"
_HEAD_BYTES = 1 << 16
_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
_REMEDY = "Write it with np.save(path, array) of a 1-D integer array."


def map_npy(path: Path) -> StoredArray:
    """The 1-D integer array of an ``.npy`` file.

    Raises:
        SourceError: The file holds something else, or does not end where the array does.
    """
    head, size = read_head(path, _HEAD_BYTES)
    file = io.BytesIO(head)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python says of the literals in a damaged header
            shape, _, dtype = _HEADER_READERS[np.lib.format.read_magic(file)](file)
    except Exception as error:  # a damaged header is parsed as Python's literals, which fails in a dozen ways
        found = shown(f"{type(error).__name__}: {error}".split("\n")[0])
        raise bad_source(path, "its header", "an array in .npy format 1.0 or 2.0", found, _REMEDY) from None
    if dtype.hasobject:
        found = "pickled objects, which can run code when they are read"
        raise bad_source(path, "its header", "integers", found, _REMEDY)
    if dtype.kind not in "iu" or not dtype.isnative:
        raise bad_source(path, "its header", "integers in this machine's byte order", f"dtype {dtype.str!r}", _REMEDY)
    if len(shape) != 1 or shape[0] < 0:
        raise bad_source(path, "its header", "one dimension", f"the shape {shape}", _REMEDY)
    offset, count = file.tell(), shape[0]
    if offset + count * dtype.itemsize != size:
        expected = f"{offset + count * dtype.itemsize} bytes, for {count} values of {dtype.name}"
        raise bad_source(path, "its size", expected, f"{size} bytes", _REMEDY)
    if not count:
        raise bad_source(path, "its shape", "at least one value", "none", _REMEDY)
    return StoredArray.in_file(path, size, dtype.str, offset, count)
