"""Reading claims and rank files back, rank files as columns of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

import msgspec
import numpy as np
import xxhash

from resumable_data.errors import LedgerCorruptError, StateError
from resumable_data.ledger.frames import (
    CLAIM_BYTES_MAX,
    CLAIM_KIND,
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES_MAX,
    RANK_KIND,
    FrameReader,
    open_regular,
    shown,
)
from resumable_data.ledger.records import (
    Claim,
    Commit,
    Delivered,
    End,
    Jump,
    RankHeader,
    RankRecord,
    Rewind,
    Unreadable,
    claim_decoder,
    header_decoder,
    record_decoder,
    record_list_decoder,
)

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray
T = TypeVar("T")
_ARRAY_32 = b"\xdd"  # msgpack: an array whose length follows in 4 bytes
_COLUMNS = ("update", "index", "start", "stride", "count", "padding", "filler")


class Deliveries(msgspec.Struct, frozen=True):
    """The `Delivered` records of one file, in order, a column per field.

    Attributes:
        update: (n,) int64, and likewise index, start, stride, count, padding and filler.
        digest: (n,) uint64.
    """

    update: NDArray[np.int64]
    index: NDArray[np.int64]
    start: NDArray[np.int64]
    stride: NDArray[np.int64]
    count: NDArray[np.int64]
    padding: NDArray[np.int64]
    filler: NDArray[np.int64]
    digest: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.update.size

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Deliveries:
        """The records that numpy indexing with `which` gives."""
        columns = [getattr(self, name)[which] for name in (*_COLUMNS, "digest")]
        return Deliveries(*columns)


class Commits(msgspec.Struct, frozen=True):
    """The `Commit` records of one file, in order.

    Attributes:
        update: (n,) int64.
        applied: (n,) bool.
        after: (n,) int64, how many deliveries come before the commit in the file.
    """

    update: NDArray[np.int64]
    applied: NDArray[np.bool_]
    after: NDArray[np.int64]


class Rewinds(msgspec.Struct, frozen=True):
    """The `Rewind` records of one file, in order.

    Attributes:
        update: (n,) int64.
        after: (n,) int64, how many deliveries come before the rewind in the file.
        after_commits: (n,) int64, how many commits come before it.
    """

    update: NDArray[np.int64]
    after: NDArray[np.int64]
    after_commits: NDArray[np.int64]


class Jumps(msgspec.Struct, frozen=True):
    """The `Jump` records of one file, in order.

    Attributes:
        update: (n,) int64.
        position: (n,) int64.
        after: (n,) int64, how many deliveries come before it in the file.
    """

    update: NDArray[np.int64]
    position: NDArray[np.int64]
    after: NDArray[np.int64]


class UnreadableRows(msgspec.Struct, frozen=True):
    """The `Unreadable` records of one file, in order.

    Attributes:
        update: (n,) int64, and likewise index, position and id.
        after: (n,) int64, how many deliveries come before it in the file: the number of the one that it is about.
    """

    update: NDArray[np.int64]
    index: NDArray[np.int64]
    position: NDArray[np.int64]
    id: NDArray[np.int64]
    after: NDArray[np.int64]

    def __len__(self) -> int:
        return self.update.size

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> UnreadableRows:
        """The records that numpy indexing with `which` gives."""
        columns = (self.update, self.index, self.position, self.id, self.after)
        return UnreadableRows(*(column[which] for column in columns))


class RankLog(msgspec.Struct, frozen=True):
    """One rank's file.

    Attributes:
        path: The file.
        header: Its first record; None where the file is torn before its end.
        deliveries: What was handed to the training loop.
        commits: What was committed.
        rewinds: Where iteration started again.
        jumps: Where epochs were left early.
        unreadable: Which rows of the deliveries could not be read.
        has_end: Whether it was closed in order.
        num_bytes: Bytes that were read and found good.
        torn_bytes: Bytes of a torn tail, dropped.
    """

    path: Path
    header: RankHeader | None
    deliveries: Deliveries
    commits: Commits
    rewinds: Rewinds
    jumps: Jumps
    unreadable: UnreadableRows
    has_end: bool
    num_bytes: int
    torn_bytes: int


def read_claim(path: Path) -> Claim:
    """The claim in a file.

    Raises:
        LedgerCorruptError: It is damaged.
        LedgerError: It cannot be read.
    """
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=CLAIM_KIND, payload_bytes_max=CLAIM_BYTES_MAX)
        offset = frames.offset
        payload = frames.first()
        if payload is None:
            raise frames.corrupt(frames.offset, "a whole claim", f"{frames.torn_bytes} bytes of one")
        claim = _decode(claim_decoder, payload, frames, offset)
        end = frames.offset
        if any(payloads for _, payloads in frames.blocks()) or frames.torn_bytes:
            raise frames.corrupt(end, "the end of the file", "more bytes")
    try:
        claim.start.check()
    except StateError as error:
        raise LedgerCorruptError(f"{shown(path)}, byte {offset}: in the claim's start cursor, {error}") from None
    return claim


def read_rank(path: Path) -> RankLog:
    """A rank's file as columns.

    Raises:
        LedgerCorruptError: It is damaged anywhere but at a torn tail.
        LedgerError: It cannot be read.
    """
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=HEADER_BYTES_MAX)
        offset = frames.offset
        payload = frames.first()
        header = None if payload is None else _decode(header_decoder, payload, frames, offset)
        columns = _Columns(frames, is_full=header is not None and header.ids == "full")
        if header is not None:
            frames.payload_bytes_max = header.payload_bytes_max
            for offset, payloads in frames.blocks():
                columns.add(offset, payloads)
    if columns.has_end and frames.torn_bytes:
        raise frames.corrupt(frames.offset, "the end of the file after the record of its end", "more bytes")
    return columns.log(path, header)


class _Columns:
    """Collects the records of one file."""

    def __init__(self, frames: FrameReader, *, is_full: bool) -> None:
        self.has_end = False
        self._frames = frames
        self._is_full = is_full
        self._parts: list[Deliveries] = []
        self._num_deliveries = 0
        self._commits: list[tuple[int, bool, int]] = []
        self._rewinds: list[tuple[int, int, int]] = []
        self._jumps: list[tuple[int, int, int]] = []
        self._unreadable: list[tuple[int, int, int, int, int]] = []

    def add(self, offset: int, payloads: list[bytes]) -> None:
        """Add a batch of records whose first frame is at `offset`."""
        if self.has_end:
            raise self._frames.corrupt(offset, "nothing after the record of the file's end", "another record")
        records = self._decode_all(offset, payloads)
        deliveries = [record for record in records if type(record) is Delivered]
        if len(deliveries) != len(records):
            self._add_events(offset, payloads, records)
        if self._is_full:
            self._check_ids(offset, payloads, records)
        self._parts.append(_columns(deliveries))
        self._num_deliveries += len(deliveries)

    def log(self, path: Path, header: RankHeader | None) -> RankLog:
        """All that was added."""
        parts = self._parts or [_columns([])]
        columns = [np.concatenate([getattr(part, name) for part in parts]) for name in (*_COLUMNS, "digest")]
        commits = np.array(self._commits, np.int64).reshape(-1, 3)
        rewinds = np.array(self._rewinds, np.int64).reshape(-1, 3)
        jumps = np.array(self._jumps, np.int64).reshape(-1, 3)
        unreadable = np.array(self._unreadable, np.int64).reshape(-1, 5)
        return RankLog(
            path=path,
            header=header,
            deliveries=Deliveries(*columns),
            commits=Commits(commits[:, 0], commits[:, 1].astype(bool), commits[:, 2]),
            rewinds=Rewinds(rewinds[:, 0], rewinds[:, 1], rewinds[:, 2]),
            jumps=Jumps(*jumps.T),
            unreadable=UnreadableRows(*unreadable.T),
            has_end=self.has_end,
            num_bytes=self._frames.offset,
            torn_bytes=self._frames.torn_bytes,
        )

    def _decode_all(self, offset: int, payloads: list[bytes]) -> list[RankRecord]:
        """Decode a batch in one call, as if it were one msgpack array."""
        try:
            return record_list_decoder.decode(_ARRAY_32 + len(payloads).to_bytes(4, "big") + b"".join(payloads))
        except msgspec.DecodeError:
            # Frame by frame, to say where. A payload that holds more or less than one record fails here only.
            records = []
            for payload in payloads:
                records.append(_decode(record_decoder, payload, self._frames, offset))
                offset += len(payload) + FRAME_OVERHEAD_BYTES
            return records

    def _add_events(self, offset: int, payloads: list[bytes], records: list[RankRecord]) -> None:
        num_deliveries = self._num_deliveries
        for number, record in enumerate(records):
            if type(record) is Delivered:
                num_deliveries += 1
            elif type(record) is Commit:
                self._commits.append((record.update, record.applied, num_deliveries))
            elif type(record) is Rewind:
                self._rewinds.append((record.update, num_deliveries, len(self._commits)))
            elif type(record) is Jump:
                self._jumps.append((record.update, record.position, num_deliveries))
            elif type(record) is Unreadable:
                self._unreadable.append((record.update, record.index, record.position, record.id, num_deliveries))
            elif type(record) is End:
                self.has_end = True
                if number != len(records) - 1:
                    offset = _offset_of(number + 1, offset, payloads)
                    raise self._frames.corrupt(offset, "nothing after the record of the file's end", "a record")

    def _check_ids(self, offset: int, payloads: list[bytes], records: list[RankRecord]) -> None:
        for number, record in enumerate(records):
            if type(record) is not Delivered:
                continue
            ids = record.ids
            if ids is None or len(ids) != 8 * record.count or xxhash.xxh3_64_intdigest(ids) != record.digest:
                found = "none" if ids is None else f"{len(ids)} bytes of other IDs"
                where = _offset_of(number, offset, payloads)
                raise self._frames.corrupt(where, f"{8 * record.count} bytes of IDs with the record's digest", found)


def _columns(records: list[Delivered]) -> Deliveries:
    size = len(records)
    return Deliveries(
        np.fromiter((r.update for r in records), np.int64, size),
        np.fromiter((r.index for r in records), np.int64, size),
        np.fromiter((r.start for r in records), np.int64, size),
        np.fromiter((r.stride for r in records), np.int64, size),
        np.fromiter((r.count for r in records), np.int64, size),
        np.fromiter((r.padding for r in records), np.int64, size),
        np.fromiter((r.filler for r in records), np.int64, size),
        np.fromiter((r.digest for r in records), np.uint64, size),
    )


def _offset_of(number: int, offset: int, payloads: list[bytes]) -> int:
    return offset + sum(len(payload) + FRAME_OVERHEAD_BYTES for payload in payloads[:number])


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes, frames: FrameReader, offset: int) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise frames.corrupt(offset, "a record of this format", f"another one ({error})") from None
