"""Opening and reading files of a checkpoint: regular ones only, and never more bytes than allowed."""

from __future__ import annotations

import os
import stat
from contextlib import contextmanager
from typing import TYPE_CHECKING

from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class CheckpointFile:
    """An open file of a checkpoint. Reading never blocks on a pipe and never goes past its size.

    Attributes:
        path: Its path.
        size: Its size when it was opened [bytes].
        descriptor: For `os.pread` and the like.
    """

    def __init__(self, path: Path, descriptor: int, size: int) -> None:
        self.path, self.descriptor, self.size = path, descriptor, size

    def read(self, offset: int, length: int) -> bytes:
        """Bytes ``[offset, offset + length)``.

        Raises:
            CheckpointError: They are not all in the file, or cannot be read.
        """
        if not 0 <= offset <= offset + length <= self.size:
            raise unreadable(self.path, f"{self.size} bytes, and bytes [{offset}, {offset + length}) are asked for")
        parts: list[bytes] = []
        while length:
            try:
                part = os.pread(self.descriptor, min(length, 1 << 30), offset)
            except OSError as error:
                raise unreadable(self.path, f"an error at byte {offset} ({error.strerror})") from None
            if not part:
                raise unreadable(self.path, f"its end at byte {offset}: it became shorter while it was read")
            parts.append(part)
            offset += len(part)
            length -= len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)


@contextmanager
def open_file(path: Path) -> Iterator[CheckpointFile]:
    """Open a regular file, or what a link leads to.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: It is a directory, FIFO or device, or cannot be opened.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        raise unreadable(path, str(error.strerror if isinstance(error, OSError) else error)) from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise unreadable(path, "a directory, pipe or device")
        yield CheckpointFile(path, descriptor, status.st_size)
    finally:
        os.close(descriptor)


def read_small(path: Path, max_bytes: int) -> bytes | None:
    """All of a file; None where there is none.

    Raises:
        CheckpointError: It has more than `max_bytes`, or cannot be read.
    """
    try:
        with open_file(path) as file:
            if file.size > max_bytes:
                raise unreadable(path, f"{file.size:,} bytes, where at most {max_bytes:,} are read")
            return file.read(0, file.size)
    except FileNotFoundError:
        return None


def list_names(path: Path) -> list[str]:
    """The names in a directory, in order.

    Raises:
        CheckpointError: It cannot be listed.
    """
    try:
        return sorted(os.listdir(path))
    except OSError as error:
        raise CheckpointError(
            f"{shown(path)}: expected a directory that can be listed, found none ({error.strerror}). Nothing was "
            "checked. Make it readable, or name another."
        ) from None


def unreadable(path: Path, found: str) -> CheckpointError:
    """The error for a file that cannot be read as one of a checkpoint."""
    return CheckpointError(
        f"{shown(path)}: expected a readable file of a checkpoint, found {found}. Nothing more was read of it. Restore "
        "it from a copy, or load an earlier checkpoint."
    )
