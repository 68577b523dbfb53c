"""Appending to one rank's file, on the training loop's hot path."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from resumable_data.errors import LedgerWriteError
from resumable_data.ledger.frames import (
    HEADER_BYTES_MAX,
    RANK_KIND,
    chain_checksum,
    make_frame,
    make_head,
    pack_checksum,
    pack_length,
    shown,
)
from resumable_data.ledger.records import (
    Commit,
    Delivered,
    End,
    Jump,
    RankHeader,
    RankRecord,
    Rewind,
    Unreadable,
    encode_record,
)

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

_logger = logging.getLogger(__name__)
_NOT_OPEN = -1


class RankWriter:
    """Appends what one rank delivers and commits; made by `Ledger.open_rank`.

    Each record is one `write`, so a killed process loses nothing that was recorded; `sync` makes it survive a
    loss of power. Trouble ends this rank's ledger and nothing else: it is logged once, `broken` becomes True,
    nothing more is written, and the audit says "unproven". With ``on_error="raise"`` it raises
    LedgerWriteError.

    Args:
        path: The file, which must not exist; None makes a writer that is broken from the start.
        header: What the file starts with.
        on_error: ``"unproven"`` or ``"raise"``.
    """

    def __init__(self, path: Path | None, header: RankHeader | None, *, on_error: str = "unproven") -> None:
        self._path = path
        self._on_error = on_error
        self._descriptor = _NOT_OPEN
        self._chain = 0
        self._payload_bytes_max = 0
        self._is_full = header is not None and header.ids == "full"
        self._is_directory_synced = False
        self.broken = path is None
        """Whether records are missing from the file, and will be."""
        if path is not None and header is not None:
            self._create(path, header)

    def delivered(
        self,
        update: int,
        index: int,
        start: int,
        stride: int,
        count: int,
        padding: int,
        filler: int,
        digest: int,
        ids: NDArray[np.int64] | None = None,
    ) -> None:
        """Record a microbatch handed to the training loop; the arguments are the fields of `Delivered`.

        `ids` (count,) int64 are needed, and kept, only where the ledger was made with ``ids="full"``.
        """
        kept = ids.astype("<i8").tobytes() if self._is_full and ids is not None else None
        self._append(Delivered(update, index, start, stride, count, padding, filler, digest, kept))

    def unreadable(self, update: int, index: int, position: int, sample_id: int) -> None:
        """Record a sample of the microbatch recorded next that could not be read; see `Unreadable`."""
        self._append(Unreadable(update, index, position, sample_id))

    def commit(self, update: int, applied: bool) -> None:
        """Record that the optimizer took (`applied`) or skipped the step of `update`."""
        self._append(Commit(update, applied))

    def jump(self, update: int, position: int) -> None:
        """Record that the batch `update`, delivered next, starts a later epoch at `position`; see `Jump`."""
        self._append(Jump(update, position))

    def rewind(self, update: int) -> None:
        """Record that iteration starts again at `update`; what was delivered from there on is discarded."""
        self._append(Rewind(update))

    def sync(self) -> None:
        """Wait until all that was recorded is on the disk, the file's name included."""
        if self._descriptor == _NOT_OPEN:
            return
        try:
            os.fdatasync(self._descriptor)
            if not self._is_directory_synced and self._path is not None:
                for directory in (self._path.parent, self._path.parent.parent):
                    sync_directory(directory)
                self._is_directory_synced = True
        except OSError as error:
            self._fail(error)

    def close(self) -> None:
        """Record the orderly end and close the file. Closing again does nothing."""
        if self._descriptor == _NOT_OPEN:
            return
        self._append(End())
        self.sync()
        self._release()

    def __del__(self) -> None:
        self._release()

    def _append(self, record: RankRecord) -> None:
        if self._descriptor == _NOT_OPEN:
            return
        try:
            payload = encode_record(record)
            size = len(payload)
            if size > self._payload_bytes_max:
                raise OSError(f"a record of {size} bytes, where the file's header allows {self._payload_bytes_max}")
            self._chain = chain = chain_checksum(payload, self._chain)
            written = os.write(self._descriptor, pack_length(size) + payload + pack_checksum(chain))
            if written != size + 12:
                raise OSError(f"only {written} of {size + 12} bytes were written")
        except Exception as error:  # whatever went wrong, the ledger must not be what ends a training run
            self._fail(error)

    def _create(self, path: Path, header: RankHeader) -> None:
        """Create the file, which must not exist: two writers of one file would spoil both stories."""
        try:
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._descriptor = os.open(path, flags, 0o666)
            head = make_head(RANK_KIND)
            payload = encode_record(header)
            assert len(payload) <= HEADER_BYTES_MAX
            frame, self._chain = make_frame(payload, chain_checksum(head))
            self._payload_bytes_max = header.payload_bytes_max
            write_all(self._descriptor, head + frame)
        except Exception as error:  # as in _append
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.broken = True
        self._release()
        message = (
            f"the ledger file {shown(self._path)} could not be written: {error}. What this rank delivers "
            "from here on is not recorded, so the audit will say 'unproven'. Make room or "
            "repair the file system, and restart from a checkpoint to open a new attempt."
        )
        if self._on_error == "raise":
            raise LedgerWriteError(message) from error
        _logger.error("%s Training goes on.", message)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, _NOT_OPEN
        if descriptor != _NOT_OPEN:
            os.close(descriptor)


def write_all(descriptor: int, data: bytes) -> None:
    """Write all of `data`; what an interrupted write leaves over is written too.

    Raises:
        OSError: It cannot be written.
    """
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def sync_directory(path: Path) -> None:
    """Wait until the names in a directory are on the disk.

    Raises:
        OSError: They may not be.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
