"""Opening the files of a source: regular files only, mapped read-only, and never read past their end."""

from __future__ import annotations

import mmap
import os
import stat
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import SourceError
from resumable_data.ledger.frames import shown
from resumable_data.sources.page_requests import PageRequests

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.order.protocol import Int64Array

_NOTHING_READ = "No token was read."


def bad_source(path: object, where: str, expected: str, found: str, remedy: str) -> SourceError:
    """The error for something in a file that no sound source has."""
    return SourceError(
        f"{shown(path)}, {where}: expected {expected}, found {found}. Documents would hold other tokens than were "
        f"written. {remedy}"
    )


def open_regular(path: Path, contents: str = "tokens") -> int:
    """Open a file, or what a link leads to, and only a regular one with something in it; returns its descriptor.

    Args:
        path: The file.
        contents: What it is expected to hold, for messages.

    Raises:
        SourceError: It is a directory, FIFO or device, empty, or cannot be opened.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise SourceError(f"cannot read {shown(path)}: {reason}. {_NOTHING_READ}") from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return descriptor
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise SourceError(
            f"{shown(path)}: expected {contents}, found an empty file. One that was lost and one of no {contents} look "
            "the same. Write it again, or leave it out."
        )
    raise SourceError(
        f"{shown(path)}: expected a regular file, found a directory, pipe or device. Documents are read in any order, "
        f"again and again. {_NOTHING_READ} Copy the contents to a file."
    )


def read_head(path: Path, num_bytes: int) -> tuple[bytes, int]:
    """The first bytes of a file, fewer where it is shorter, and its size [bytes].

    Raises:
        SourceError: It cannot be opened or read.
    """
    descriptor = open_regular(path)
    try:
        return os.pread(descriptor, num_bytes, 0), os.fstat(descriptor).st_size
    except OSError as error:
        raise SourceError(f"cannot read {shown(path)}: {error.strerror}. {_NOTHING_READ}") from None
    finally:
        os.close(descriptor)


class StoredArray:
    """A 1-D array that a process can hand to another: by its place in a file, or whole where it is in memory.

    Attributes:
        array: The values, read-only.
    """

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array.view()
        self.array.flags.writeable = False
        self._requests: PageRequests | None = None
        self._place: tuple[Path, int, str, int, int] | None = None

    @classmethod
    def in_file(cls, path: Path, size: int, dtype: str, offset: int, count: int) -> StoredArray:
        """Map values of a file.

        Args:
            path: The file.
            size: Its size [bytes] when its header was checked.
            dtype: Type of the values.
            offset: Where they begin [bytes].
            count: How many there are; they end within the file.

        Raises:
            SourceError: The file cannot be mapped, or has another size by now.
        """
        assert min(offset, count) >= 0
        assert offset + count * np.dtype(dtype).itemsize <= size
        descriptor = open_regular(path)
        try:
            now = os.fstat(descriptor).st_size
            if now != size:
                raise SourceError(
                    f"{shown(path)}: expected {size} bytes as when it was opened first, found {now}. Documents would "
                    "hold other tokens than were planned. Leave files alone while they are read; open the source again."
                )
            mapped = mmap.mmap(descriptor, size, access=mmap.ACCESS_READ)
            requests = PageRequests(descriptor, mapped)
        except (OSError, ValueError) as error:
            raise SourceError(f"cannot map {shown(path)}: {error}. {_NOTHING_READ}") from None
        finally:
            os.close(descriptor)
        stored = cls(np.frombuffer(mapped, dtype, count, offset))
        stored._requests, stored._place = requests, (path, size, dtype, offset, count)
        return stored

    def __reduce__(self) -> tuple[Any, ...]:
        if self._place is not None:
            return StoredArray.in_file, self._place
        return StoredArray, (np.asarray(self.array),)

    def prefetch(self, starts: Int64Array, lengths: Int64Array) -> None:
        """Ask the operating system for the pages of ranges that are read soon; does nothing in memory.

        Where a sample of them is in the page cache already, the rest is not asked for, see `PageRequests`.
        """
        if self._requests is not None and self._place is not None:
            itemsize = self.array.itemsize
            self._requests.ask(starts * itemsize + self._place[3], lengths * itemsize)
