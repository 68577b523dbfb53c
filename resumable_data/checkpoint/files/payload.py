"""CRC32s of what archives hold, at the speed of memory where a fast library is installed, and in bounded memory."""

from __future__ import annotations

import importlib
import mmap
import zlib
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.checkpoint.files.opening import CheckpointFile
    from resumable_data.checkpoint.files.zips import Record, Window

    Crc32 = Callable[[bytes | memoryview, int], int]

WINDOW_BYTES = 2**23
_SMALL_BYTES = 2**12
_READ_BYTES = 2**18
_MAPPED_FROM_BYTES = 2**20
_POPULATE_READ = 22  # MADV_POPULATE_READ of Linux 5.14, which the mmap module does not name


def crc32_libraries() -> Iterator[tuple[str, Crc32]]:
    """What computes CRC32s here, by name, the fastest first."""
    for module, name in (("isal.isal_zlib", "isal"), ("zlib_ng.zlib_ng", "zlib-ng")):
        try:
            yield name, cast("Crc32", importlib.import_module(module).crc32)
        except ImportError:
            continue
    yield "zlib", zlib.crc32


def fast_crc32() -> tuple[str, Crc32]:
    """The fastest of `crc32_libraries`."""
    return next(crc32_libraries())


def record_crc32(window: Window, record: Record, crc32: Crc32) -> int:
    """The CRC32 of a record's content as it is on the disk.

    Raises:
        CheckpointError: It cannot be read.
    """
    if window.is_whole or record.size <= _SMALL_BYTES:
        return crc32(window.read(record.start - window.start, record.size), 0)
    return range_crc32(window.file, record.start, record.size, crc32)


def range_crc32(file: CheckpointFile, start: int, length: int, crc32: Crc32) -> int:
    """The CRC32 of bytes ``[start, start + length)``.

    Long ranges are mapped, a window at a time, which saves the copy. A disk that fails, or a file that became shorter,
    would end the process where mapped memory is read (SIGBUS); so the pages are asked for first, which says so in an
    error instead, and then they are read as a short range is. Where the system cannot ask, nothing is mapped.

    Raises:
        CheckpointError: They cannot be read.
    """
    value, at, end = 0, start, start + length
    while at < end:
        size = min(WINDOW_BYTES - at % mmap.ALLOCATIONGRANULARITY, end - at)
        mapped = _mapped_crc32(file, at, size, value, crc32) if length >= _MAPPED_FROM_BYTES else None
        if mapped is None:
            size = min(_READ_BYTES, size)
            mapped = crc32(file.read(at, size), value)
        value = mapped
        at += size
    return value


def _mapped_crc32(file: CheckpointFile, at: int, size: int, value: int, crc32: Crc32) -> int | None:
    """The CRC32 that goes on over mapped bytes; None where they cannot be mapped safely."""
    skip = at % mmap.ALLOCATIONGRANULARITY
    try:
        mapped = mmap.mmap(file.descriptor, size + skip, access=mmap.ACCESS_READ, offset=at - skip)
    except (OSError, ValueError):
        return None
    with mapped:
        try:
            mapped.madvise(_POPULATE_READ)
        except (OSError, ValueError, AttributeError):
            return None
        with memoryview(mapped) as view, view[skip:] as part:
            return crc32(part, value)
