"""Opening a log, and cutting it into blocks of whole lines with bounded memory."""

from __future__ import annotations

import os
import stat
from typing import IO, TYPE_CHECKING, NamedTuple

from resumable_data.errors import LogError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_BLOCK_BYTES = 1 << 20
LINE_BYTES_MAX = 1 << 26
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Block(NamedTuple):
    """Whole lines of a file.

    Attributes:
        line: Number of the first one, from 1.
        data: Their bytes, line ends included, except perhaps the last one's.
    """

    line: int
    data: bytes


def open_log(path: Path) -> IO[bytes]:
    """Open a log, which must be a regular file or a link to one: a pipe could not be read a second time.

    Raises:
        LogError: It is something else, empty, or cannot be opened.
    """
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise LogError(f"cannot read {shown(path)}: {error.strerror}. Nothing was counted.") from None
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size:
        return open(descriptor, "rb", buffering=0)
    os.close(descriptor)
    if stat.S_ISREG(status.st_mode):
        raise no_ids(path)
    raise LogError(
        f"{shown(path)}: expected a regular file, found a directory, pipe or device. A log is read twice where IDs "
        "repeat; write it to a file first. Nothing was counted."
    )


def no_ids(path: Path) -> LogError:
    """The error for a file without a single ID."""
    return LogError(
        f"{shown(path)}: expected sample IDs, found none. A rank that read nothing and a log that was lost look the "
        "same, so nothing was counted; leave the file out if it is meant to be empty."
    )


def bad_log(path: Path, where: str, expected: str, found: str) -> LogError:
    """The error for something in a log that no log of sample IDs has."""
    return LogError(
        f"{shown(path)}, {where}: expected {expected}, found {found}. What the log says cannot be known without it; "
        "nothing was counted. Mend the line, or leave out of the file what is no sample ID."
    )


def read_exactly(file: IO[bytes], num_bytes: int, path: Path) -> bytes:
    """The next `num_bytes` bytes, fewer only at the end of the file.

    Raises:
        LogError: The file cannot be read.
    """
    parts: list[bytes] = []
    while num_bytes:
        try:
            part = file.read(num_bytes)
        except OSError as error:
            raise LogError(f"cannot read {shown(path)}: {error.strerror}. Nothing was counted.") from None
        if not part:
            break
        parts.append(part)
        num_bytes -= len(part)
    return b"".join(parts)


def line_blocks(file: IO[bytes], path: Path) -> Iterator[Block]:
    """The lines of a file in blocks, without a byte order mark.

    Raises:
        LogError: A line is longer than `LINE_BYTES_MAX`, or the file cannot be read.
    """
    line, rest = 1, [read_exactly(file, len(_BYTE_ORDER_MARK), path).removeprefix(_BYTE_ORDER_MARK)]
    while data := read_exactly(file, _BLOCK_BYTES, path):
        end = data.rfind(b"\n") + 1
        if end:
            block = b"".join([*rest, data[:end]])
            yield Block(line, block)
            line += block.count(b"\n")
            rest = []
        rest.append(data[end:])
        if sum(map(len, rest)) > LINE_BYTES_MAX:
            line += b"".join(rest).count(b"\n")
            raise bad_log(path, f"line {line}", f"lines of at most {LINE_BYTES_MAX} bytes", "a longer one")
    if any(rest):
        yield Block(line, b"".join(rest))
