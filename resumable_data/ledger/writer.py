"""Appending to one rank's file, on the training loop's hot path."""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import xxhash

from resumable_data.errors import LedgerWriteError
from resumable_data.ledger.frames import (
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    PIECES_VERSION,
    RANK_KIND,
    chain_checksum,
    make_frame,
    make_head,
    pack_checksum,
    pack_length,
    shown,
)
from resumable_data.ledger.records import (
    PIECES,
    Again,
    Agreed,
    Commit,
    Delivered,
    End,
    Jump,
    RankHeader,
    RankRecord,
    Rewind,
    Saved,
    Unreadable,
    digest_ids,
    encode_record,
)
from resumable_data.ledger.row_pieces import RowPieces, encode_pieces

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from numpy.typing import NDArray

    from resumable_data.cursor import CoverageSpan

_logger = logging.getLogger(__name__)
_NOT_OPEN = -1


class _Shape(msgspec.Struct, frozen=True, gc=False):
    """What a delivery is, its digest apart."""

    update: int
    index: int
    start: int
    stride: int
    count: int
    padding: int
    filler: int
    parts: int = 1

    def follows(self, last: _Shape) -> bool:
        """Whether `Again` says all of it after `last`."""
        if self.padding or self.filler or last.padding or last.filler:
            return False
        if self.stride != last.stride or self.count != last.count or not self.count or self.parts != last.parts:
            return False
        if self.start != last.start + last.stride * last.count:
            return False
        if self.update == last.update:
            return self.index == last.index + last.parts
        return self.update == last.update + 1 and self.index == 0


class _Fold:
    """Microbatches of one update that become one record.

    Args:
        shape: The first of them.
        key: What the digest is keyed with.
    """

    def __init__(self, shape: _Shape, key: int) -> None:
        self.shape = shape
        self.parts = 0
        self.ids: list[NDArray[np.int64]] = []
        self.pieces: list[RowPieces] = []
        self._hash = xxhash.xxh3_64(seed=key)
        self.count = 0

    def takes(self, shape: _Shape) -> bool:
        """Whether the next microbatch fits into the same record."""
        first = self.shape
        return (
            shape.update == first.update
            and shape.index == first.index + self.parts
            and shape.start == first.start + first.stride * self.count
            and shape.stride == first.stride
        )

    def add(self, count: int, ids: NDArray[np.int64], pieces: RowPieces | None) -> None:
        """Add the next microbatch."""
        self._hash.update(ids.astype("<i8", copy=False).data)
        self.ids.append(ids)
        self.pieces += [] if pieces is None else [pieces]
        self.count += count
        self.parts += 1

    @property
    def digest(self) -> int:
        """The digest of all their IDs."""
        return self._hash.intdigest()


class RankWriter:
    """Appends what one rank delivers and commits; made by `Ledger.open_rank`.

    Each record is one `write`, so a killed process loses nothing that was recorded, but for the microbatches that wait
    to be folded, fewer than `fold_rows` rows; `sync` makes it survive a loss of power. Trouble ends this rank's ledger
    and nothing else: it is logged once, `broken` becomes True, and nothing more is written, so that the audit may say
    "unproven". With ``on_error="raise"`` it raises LedgerWriteError.

    Args:
        path: The file, which must not exist; None makes a writer that is broken from the start.
        header: What the file starts with.
        on_error: ``"unproven"`` or ``"raise"``.
        key: What digests are keyed with, see `secret_key`; 0 where they are not.
        fold_rows: Smaller microbatches of one update are folded into records of about so many rows.
    """

    def __init__(
        self,
        path: Path | None,
        header: RankHeader | None,
        *,
        on_error: str = "unproven",
        key: int = 0,
        fold_rows: int = 0,
    ) -> None:
        self._path = path
        self._on_error = on_error
        self._descriptor = _NOT_OPEN
        self._chain = 0
        self._payload_bytes_max = 0
        self._id_type = f"<u{header.id_bytes}" if header is not None and header.ids == "full" else ""
        self.needs_pieces = header is not None and header.ids == PIECES
        """Whether `delivered` has to be given the pieces of packed rows."""
        self._key = key
        self._fold_rows = fold_rows
        self._fold: _Fold | None = None
        self._last: _Shape | None = None
        self.needs_ids = bool(self._id_type or key or fold_rows)
        """Whether `delivered` has to be given the IDs."""
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
        *,
        pieces: RowPieces | None = None,
        is_last: bool = True,
    ) -> None:
        """Record a microbatch handed to the training loop; the arguments are the fields of `Delivered`.

        Args:
            update: See `Delivered`, like all up to `digest`.
            index: As above.
            start: As above.
            stride: As above.
            count: As above.
            padding: As above.
            filler: As above.
            digest: As above, without a key.
            ids: (count,) int64, the IDs; not needed where `needs_ids` is False.
            pieces: Of packed rows, those of the `count` rows; not needed where `needs_pieces` is False.
            is_last: Whether the update is complete with it, so that nothing more can be folded into its record.
        """
        if self._descriptor == _NOT_OPEN:
            return
        shape = _Shape(update, index, start, stride, count, padding, filler)
        if self._fold is not None and not self._fold.takes(shape):
            self._unfold()
        if self._fold_rows > count and ids is not None and not (padding or filler) and count:
            fold = self._fold = self._fold or _Fold(shape, self._key)
            fold.add(count, ids, pieces)
            if is_last or fold.count >= self._fold_rows:
                self._unfold()
            return
        if self._fold is not None:
            self._unfold()
        if self._key and ids is not None:
            digest = digest_ids(ids, self._key)
        self._deliver(shape, digest, ids, pieces)

    def unreadable(self, update: int, index: int, position: int, sample_id: int) -> None:
        """Record a sample of the microbatch recorded next that could not be read; see `Unreadable`."""
        self._append(Unreadable(update, index, position, sample_id))

    def agreed(self, update: int, span: CoverageSpan) -> None:
        """Record what the ranks agreed on right before a save, see `Agreed`, and wait for the disk."""
        self._append(Agreed(update, span.start, span.stop, *span.lanes))
        self.sync()

    def saved(self, update: int) -> None:
        """Record that the checkpoint at `update` is complete on the disk, see `Saved`."""
        self._append(Saved(update))

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
        if self._fold is not None:
            self._unfold()
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
        try:
            self._release()
        except OSError as error:
            self._fail(error)

    def __del__(self, close: Callable[[int], None] = os.close) -> None:
        # nothing global is used, `suppress` neither: the interpreter may be shutting down
        if self._descriptor >= 0:
            try:  # noqa: SIM105  # see above
                close(self._descriptor)
            except OSError:
                pass

    def _unfold(self) -> None:
        fold, self._fold = self._fold, None
        assert fold is not None
        ids = np.concatenate(fold.ids) if self._id_type else None
        pieces = RowPieces.of_all(fold.pieces) if fold.pieces else None
        shape = msgspec.structs.replace(fold.shape, count=fold.count, parts=fold.parts)
        self._deliver(shape, fold.digest, ids, pieces)

    def _deliver(self, shape: _Shape, digest: int, ids: NDArray[np.int64] | None, pieces: RowPieces | None) -> None:
        kept = None
        if self.needs_pieces:
            if pieces is None or len(pieces) != shape.count:
                self._fail(ValueError(f"the pieces of {shape.count} rows were not given"))
                return
            kept = encode_pieces(pieces)
        if self._id_type and ids is not None:
            narrow = ids.astype(self._id_type)
            if not _is_same(narrow, ids):
                self._fail(ValueError(f"an ID outside what the order's length allows, {int(ids.max())}"))
                return
            kept = narrow.tobytes()
        last, self._last = self._last, shape
        if last is not None and shape.follows(last):
            self._write(Again(shape.update != last.update, digest, kept))
        else:
            s = shape
            fields = (s.update, s.index, s.start, s.stride, s.count, s.padding, s.filler)
            self._write(Delivered(*fields, digest, kept, s.parts))

    def _append(self, record: RankRecord) -> None:
        if self._fold is not None:
            self._unfold()
        self._write(record)

    def _write(self, record: RankRecord) -> None:
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
            head = make_head(RANK_KIND, PIECES_VERSION if header.ids == PIECES else FORMAT_VERSION)
            payload = encode_record(header)
            assert len(payload) <= HEADER_BYTES_MAX
            frame, self._chain = make_frame(payload, chain_checksum(head))
            self._payload_bytes_max = header.payload_bytes_max
            write_all(self._descriptor, head + frame)
        except Exception as error:  # as in _write
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.broken = True
        with suppress(OSError):  # one error is told, the first
            self._release()
        message = (
            f"the ledger file {shown(self._path)} could not be written: {error}. What this rank delivers "
            "from here on is not recorded, so the audit may say 'unproven'. Make room or "
            "repair the file system, and restart from a checkpoint to open a new attempt."
        )
        if self._on_error == "raise":
            raise LedgerWriteError(message) from error
        _logger.error("%s Training goes on.", message)

    def _release(self) -> None:
        descriptor, self._descriptor = self._descriptor, _NOT_OPEN
        if descriptor != _NOT_OPEN:
            os.close(descriptor)


def _is_same(narrow: NDArray[Any], ids: NDArray[np.int64]) -> bool:
    """Whether a narrower copy has all of (k,) int64 IDs; bytes are compared in a third of the time of elements."""
    if narrow.itemsize == ids.itemsize:  # the bytes of a negative one are the same
        return not (ids < 0).any()
    return narrow.astype(np.int64).tobytes() == ids.tobytes()


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
