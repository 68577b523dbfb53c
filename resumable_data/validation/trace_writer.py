"""Writing a trace: a header that is there whole or not at all, then a line at each update."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Self

from resumable_data.errors import TraceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.validation.trace import encode_line

if TYPE_CHECKING:
    from resumable_data.validation.trace import TraceHeader, UpdateRecord


class TraceWriter:
    """Appends lines to a new file. Each is handed to the operating system at once, and is on the disk after `close`.

    Args:
        path: The file; its directory is made.
        header: What the lines are of.
        replace: Whether a file that is there is replaced.

    Raises:
        UsageError: There is a file, and it is not to be replaced.
        TraceError: It cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str], header: TraceHeader, *, replace: bool = False) -> None:
        self._path = Path(path)
        if not replace:
            check_is_free(self._path)
        line, self._check = encode_line(header, 0)
        self._next: int | None = None
        unfinished = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND | os.O_CLOEXEC, 0o666)
            self._write(line)
            os.fsync(self._file)
            os.replace(unfinished, self._path)
        except OSError as error:
            with contextlib.suppress(OSError):
                unfinished.unlink(missing_ok=True)
            raise self._failed(error) from None

    def append(self, record: UpdateRecord) -> None:
        """Write an update's line.

        Raises:
            UsageError: It is not the update after the one before.
            TraceError: It cannot be written; the trace then ends with the line before, or a torn one.
        """
        if self._next is not None and record.update != self._next:
            raise UsageError(
                f"{shown(self._path)}: expected update {self._next}, found update {record.update}: a trace holds "
                "updates one after another. Nothing was written; after a load that goes back, record into a new file."
            )
        line, check = encode_line(record, self._check)
        try:
            self._write(line)
        except OSError as error:
            raise self._failed(error) from None
        self._check, self._next = check, record.update + 1

    def _write(self, line: bytes) -> None:
        written = os.write(self._file, line)
        while written < len(line):  # a signal, or a disk that is almost full
            written += os.write(self._file, line[written:])

    def close(self) -> None:
        """Put the file on the disk, and end it."""
        if self._file >= 0:
            file, self._file = self._file, -1
            try:
                os.fsync(file)
            finally:
                os.close(file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _failed(self, error: OSError) -> TraceError:
        return TraceError(
            f"cannot write {shown(self._path)}: {error.strerror}. The trace lacks this update and later ones."
        )


def check_is_free(path: Path) -> None:
    """Make sure that there is no file yet.

    Raises:
        UsageError: There is one.
    """
    if path.exists():
        raise UsageError(
            f"{shown(path)} is there already: expected a new file, as a trace is of one launch. Nothing was changed; "
            "give it another name, say one with the update that this launch starts at, or replace=True."
        )
