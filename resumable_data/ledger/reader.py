"""Reading claims and rank files back, rank files as columns of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec
import numpy as np
import xxhash

from resumable_data.errors import LedgerCorruptError, StateError
from resumable_data.ledger import frequent
from resumable_data.ledger.columns import (
    COLUMNS,
    Commits,
    Deliveries,
    Jumps,
    Rewinds,
    UnreadableRows,
    concatenate,
    deliveries_of,
    shape_of,
    write_out,
)
from resumable_data.ledger.frames import (
    CLAIM_BYTES_MAX,
    CLAIM_KIND,
    FRAME_OVERHEAD_BYTES,
    PIECES_VERSION,
    RANK_KIND,
    FrameReader,
    open_regular,
    shown,
)
from resumable_data.ledger.frequent import Agains, read_frequent
from resumable_data.ledger.records import (
    HEADER_ID_MODES,
    ID_WIDTHS,
    PIECES,
    Again,
    Agreed,
    Claim,
    Commit,
    Delivered,
    End,
    Jump,
    RankHeader,
    RankRecord,
    Rewind,
    Saved,
    Unreadable,
    claim_decoder,
    header_decoder,
    record_decoder,
    record_list_decoder,
)
from resumable_data.ledger.row_pieces import BadPiecesError, RowPieces, decode_pieces

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray
T = TypeVar("T")
_ARRAY_32 = b"\xdd"  # msgpack: an array whose length follows in 4 bytes

KEEP_RECORDS = 1 << 17
"""Of files with up to so many deliveries these are kept in memory, 72 bytes each, which saves reading them twice."""


class RankLog(msgspec.Struct, frozen=True):
    """One rank's file.

    Attributes:
        path: The file.
        header: Its first record; None where the file is torn before its end.
        num_deliveries: Records of deliveries.
        commits: What was committed.
        rewinds: Where iteration started again.
        jumps: Where epochs were left early.
        unreadable: Which rows of the deliveries could not be read.
        agreements: The digests that ranks agreed on before saves.
        saved: (n,) int64, the updates at which complete checkpoints stand.
        has_end: Whether it was closed in order.
        num_bytes: Bytes that were read and found good.
        torn_bytes: Bytes of a torn tail, dropped.
        damage: Where it is damaged, if it was read all the same.
        kept: Its deliveries, where they are in memory.
    """

    path: Path
    header: RankHeader | None
    num_deliveries: int
    commits: Commits
    rewinds: Rewinds
    jumps: Jumps
    unreadable: UnreadableRows
    agreements: tuple[Agreed, ...]
    saved: NDArray[np.int64]
    has_end: bool
    num_bytes: int
    torn_bytes: int
    damage: str
    kept: list[Deliveries] | None

    @property
    def has_pieces(self) -> bool:
        """Whether its deliveries hold the pieces of their packed rows."""
        return self.header is not None and self.header.ids == PIECES

    def deliveries(self) -> Iterator[Deliveries]:
        """What was handed to the training loop, block after block, in order.

        Raises:
            LedgerCorruptError: The file was changed since it was first read.
            LedgerError: It cannot be read.
        """
        if self.kept is not None:
            yield from self.kept
            return
        for deliveries, _ in self._read_again(checks_ids=False):  # they were when it was first read
            yield deliveries

    def deliveries_with_pieces(self) -> Iterator[tuple[Deliveries, RowPieces]]:
        """The same, with the pieces of all their rows; of files that hold them. The file is read again.

        Raises:
            LedgerCorruptError: The file was changed since it was first read.
            LedgerError: It cannot be read.
        """
        for deliveries, pieces in self._read_again(checks_ids=True):
            assert pieces is not None
            yield deliveries, pieces

    def _read_again(self, *, checks_ids: bool) -> Iterator[tuple[Deliveries, RowPieces | None]]:
        with open_regular(self.path) as file:
            # up to where it was read before: the job may be writing on
            frames = FrameReader(file, self.path, kind=RANK_KIND, num_bytes=self.num_bytes)
            header, blocks = _open(frames)
            yield from _Follower().follow(blocks, checks_ids=checks_ids)
            if header != self.header or frames.offset != self.num_bytes:
                raise frames.corrupt(frames.offset, f"{self.num_bytes} bytes, as when it was first read", "others")

    def all_deliveries(self) -> Deliveries:
        """What was handed to the training loop, at once: for files that fit memory."""
        return concatenate(list(self.deliveries()))


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


def read_rank(path: Path, *, keep_records: int = KEEP_RECORDS, salvage: bool = False) -> RankLog:
    """A rank's file: all but its deliveries, which `RankLog.deliveries` gives in blocks.

    Args:
        path: The file.
        keep_records: Up to so many deliveries are kept in memory; those of a file with more are read again.
        salvage: Read a damaged file up to the damage, and say so in `RankLog.damage`.

    Raises:
        LedgerCorruptError: It is damaged anywhere but at a torn tail.
        LedgerError: It cannot be read.
    """
    follower = _Follower()
    kept: list[Deliveries] | None = []
    header, damage = None, ""
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=RANK_KIND)
        try:
            header, blocks = _open(frames)
            for deliveries, _ in follower.follow(blocks):
                kept = None if kept is None or follower.num_deliveries > keep_records else [*kept, deliveries]
        except LedgerCorruptError as error:
            if not salvage:
                raise
            damage = str(error)
        return follower.log(path, header, frames, kept, damage)


class _Block(NamedTuple):
    """Records that were read together.

    Attributes:
        frames: The file.
        offset: Byte offset of the first record's frame.
        payloads: Their payloads.
        agains: Those that say that a delivery is like the one before, and nothing more.
        commits: Those that commit.
        others: All others, by their number.
        id_bytes: Bytes of each ID that is kept, 0 where none are.
        has_pieces: Whether the pieces of packed rows are.
    """

    frames: FrameReader
    offset: int
    payloads: list[bytes]
    agains: Agains
    commits: frequent.QuickCommits
    others: dict[int, RankRecord]
    id_bytes: int
    has_pieces: bool

    def corrupt(self, number: int, expected: str, found: str) -> LedgerCorruptError:
        """The error for what is wrong with a record."""
        before = sum(len(payload) + FRAME_OVERHEAD_BYTES for payload in self.payloads[:number])
        return self.frames.corrupt(self.offset + before, expected, found)


def _open(frames: FrameReader) -> tuple[RankHeader | None, Iterator[_Block]]:
    """The header of a file, None where it is torn before its end, and the records after it."""
    offset = frames.offset
    payload = frames.first()
    if payload is None:
        return None, iter(())
    header = _decode(header_decoder, payload, frames, offset)
    if header.id_bytes not in ID_WIDTHS or header.ids not in HEADER_ID_MODES:
        expected = f"a header with IDs as one of {HEADER_ID_MODES}, in one of {ID_WIDTHS} bytes"
        raise frames.corrupt(offset, expected, f"{shown(header.ids)!r}, {header.id_bytes} bytes")
    if (header.ids == PIECES) != (frames.version == PIECES_VERSION):
        expected = f"pieces of packed rows in files of format version {PIECES_VERSION}, and only there"
        raise frames.corrupt(offset, expected, f"{shown(header.ids)!r} in one of version {frames.version}")
    frames.payload_bytes_max = header.payload_bytes_max
    return header, _blocks(frames, header)


def _blocks(frames: FrameReader, header: RankHeader) -> Iterator[_Block]:
    width, has_pieces = header.id_bytes if header.ids == "full" else 0, header.ids == PIECES
    for offset, payloads in frames.blocks():
        agains, commits, left = read_frequent(payloads, takes_ids=not has_pieces)
        records = _decode_all(frames, offset, payloads, left)
        others = dict(zip(left, records, strict=True))
        yield _Block(frames, offset, payloads, agains, commits, others, width, has_pieces)


def _decode_all(frames: FrameReader, offset: int, payloads: list[bytes], numbers: list[int]) -> list[RankRecord]:
    """Decode some of a batch's payloads in one call, as if they were one msgpack array."""
    chosen = [payloads[number] for number in numbers]
    try:
        return record_list_decoder.decode(_ARRAY_32 + len(chosen).to_bytes(4, "big") + b"".join(chosen))
    except msgspec.DecodeError:
        # Frame by frame, to say where. A payload that holds more or less than one record fails here only.
        records, next_one = [], 0
        for number in numbers:
            offset += sum(len(payload) + FRAME_OVERHEAD_BYTES for payload in payloads[next_one:number])
            records.append(_decode(record_decoder, payloads[number], frames, offset))
            next_one = number
        return records


class _Follower:
    """Follows the records of one file: gives its deliveries as columns, and keeps all others."""

    def __init__(self) -> None:
        self._num_deliveries = 0
        self._num_commits = 0
        self._commits: list[Commits] = []
        self._rewinds: list[tuple[int, int, int]] = []
        self._jumps: list[tuple[int, int, int]] = []
        self._unreadable: list[tuple[int, int, int, int, int]] = []
        self._agreements: list[Agreed] = []
        self._saved: list[int] = []
        self._has_end = False
        self._last: tuple[int, ...] | None = None  # of the newest delivery, which an `Again` goes on from

    @property
    def num_deliveries(self) -> int:
        """Deliveries followed so far."""
        return self._num_deliveries

    def follow(
        self, blocks: Iterator[_Block], *, checks_ids: bool = True
    ) -> Iterator[tuple[Deliveries, RowPieces | None]]:
        """The deliveries of blocks, those that say "again" written out; where IDs are checked, with pieces if any.

        Raises:
            LedgerCorruptError: Something follows the record of the file's end, or a record goes on from nothing.
        """
        block = None
        for block in blocks:
            if self._has_end:
                raise block.corrupt(0, "nothing after the record of the file's end", "another record")
            columns, number = self._columns(block)
            pieces = None
            if block.id_bytes and checks_ids:
                _check_ids(block, number, columns)
            if block.has_pieces and checks_ids:
                pieces = _read_pieces(block, number, columns)
            self._keep_events(block, number)
            self._num_deliveries += len(columns)
            yield columns, pieces
        if block and self._has_end and block.frames.torn_bytes:
            expected = "the end of the file after the record of its end"
            raise block.frames.corrupt(block.frames.offset, expected, "more bytes")

    def log(
        self, path: Path, header: RankHeader | None, frames: FrameReader, kept: list[Deliveries] | None, damage: str
    ) -> RankLog:
        """All that was followed."""
        commits = [Commits(np.empty(0, np.int64), np.empty(0, np.bool_), np.empty(0, np.int64)), *self._commits]
        rewinds = np.array(self._rewinds, np.int64).reshape(-1, 3)
        jumps = np.array(self._jumps, np.int64).reshape(-1, 3)
        unreadable = np.array(self._unreadable, np.int64).reshape(-1, 5)
        return RankLog(
            path=path,
            header=header,
            num_deliveries=self._num_deliveries,
            commits=Commits(
                np.concatenate([one.update for one in commits]),
                np.concatenate([one.applied for one in commits]),
                np.concatenate([one.after for one in commits]),
            ),
            rewinds=Rewinds(rewinds[:, 0], rewinds[:, 1], rewinds[:, 2]),
            jumps=Jumps(*jumps.T),
            unreadable=UnreadableRows(*unreadable.T),
            agreements=tuple(self._agreements),
            saved=np.array(self._saved, np.int64),
            has_end=self._has_end,
            num_bytes=frames.offset,
            torn_bytes=frames.torn_bytes,
            damage=damage,
            kept=kept,
        )

    def _keep_events(self, block: _Block, deliveries: NDArray[np.int64]) -> None:
        """Keep what is no delivery; `deliveries` (n,) int64 are the numbers of those that are."""
        commits = block.commits
        rest = [(n, record) for n, record in block.others.items() if not isinstance(record, Delivered | Again)]
        late = [(n, record.update, record.applied) for n, record in rest if isinstance(record, Commit)]
        if late:
            more = [np.array(column) for column in zip(*late, strict=True)]
            columns = [np.concatenate(pair) for pair in zip(commits, more, strict=True)]
            arrangement = np.argsort(columns[0], kind="stable")
            commits = frequent.QuickCommits(*(column[arrangement] for column in columns))
        after = self._num_deliveries + np.searchsorted(deliveries, commits.number)
        for number, record in rest:
            num_deliveries = self._num_deliveries + int(np.searchsorted(deliveries, number))
            num_commits = self._num_commits + int(np.searchsorted(commits.number, number))
            self._keep_event(block, number, record, num_deliveries, num_commits)
        self._commits.append(Commits(commits.update, commits.applied, after))
        self._num_commits += commits.update.size

    def _keep_event(
        self, block: _Block, number: int, record: RankRecord, num_deliveries: int, num_commits: int
    ) -> None:
        if isinstance(record, Rewind):
            self._rewinds.append((record.update, num_deliveries, num_commits))
        elif isinstance(record, Jump):
            self._jumps.append((record.update, record.position, num_deliveries))
        elif isinstance(record, Unreadable):
            self._unreadable.append((record.update, record.index, record.position, record.id, num_deliveries))
        elif isinstance(record, Agreed):
            self._agreements.append(record)
        elif isinstance(record, Saved):
            self._saved.append(record.update)
        elif isinstance(record, End):
            self._has_end = True
            if number != len(block.payloads) - 1:
                raise block.corrupt(number + 1, "nothing after the record of the file's end", "a record")

    def _columns(self, block: _Block) -> tuple[Deliveries, NDArray[np.int64]]:
        """The columns of deliveries, each `Again` one microbatch further than the one before; their numbers."""
        agains = block.agains
        given = {n: record for n, record in block.others.items() if isinstance(record, Delivered)}
        odd = {n: record for n, record in block.others.items() if isinstance(record, Again)}
        number = np.concatenate((agains.number, np.array([*given, *odd], np.int64)))
        arrangement = np.argsort(number, kind="stable")
        is_again = np.repeat([True, False, True], [agains.number.size, len(given), len(odd)])
        is_next = np.concatenate((agains.is_next, np.zeros(len(given), bool), [r.is_next for r in odd.values()]))
        digests = [*(record.digest for record in given.values()), *(record.digest for record in odd.values())]
        digest = np.concatenate((agains.digest, np.array(digests, np.uint64)))
        is_again, is_next, digest = is_again[arrangement], is_next[arrangement], digest[arrangement]
        shapes = [shape_of(record) for record in given.values()]
        if self._last is not None:
            shapes, is_again = [self._last, *shapes], np.concatenate(([False], is_again))
            is_next = np.concatenate(([False], is_next))
        try:
            columns = write_out(np.array(shapes, np.int64).reshape(-1, len(COLUMNS)), is_again, is_next.astype(bool))
        except ValueError as error:
            raise block.corrupt(0, "microbatches that go on from the one before", str(error)) from None
        if columns.shape[1]:
            self._last = tuple(columns[:, -1].tolist())
        return deliveries_of(columns[:, columns.shape[1] - digest.size :], digest), number[arrangement]


def _check_ids(block: _Block, number: NDArray[np.int64], deliveries: Deliveries) -> None:
    """Make sure that all deliveries carry their IDs, and the digest of these."""
    has_ids = np.zeros(number.size, np.bool_)
    for kept in block.agains.kept:
        which = np.searchsorted(number, kept.number)
        fits = block.id_bytes * deliveries.count[which] == kept.ids.shape[1]
        if fits.all() and (_digests(kept.ids, block.id_bytes) == deliveries.digest[which]).all():
            has_ids[which] = True
            continue
        for row, one in enumerate(which.tolist()):
            _check_record(block, number, deliveries, one, kept.ids[row].tobytes())
    for one in np.flatnonzero(~has_ids).tolist():
        record = block.others.get(int(number[one]))
        _check_record(block, number, deliveries, one, record.ids if isinstance(record, Delivered | Again) else None)


def _read_pieces(block: _Block, number: NDArray[np.int64], deliveries: Deliveries) -> RowPieces:
    """The pieces of the rows of all deliveries. Whether they have the digest is for the audit to say."""
    records = [block.others.get(one) for one in number.tolist()]
    held = [(record.ids if isinstance(record, Delivered | Again) else None) or b"" for record in records]
    try:
        return decode_pieces(held, deliveries.count)
    except BadPiecesError as error:
        expected = f"the pieces of {int(deliveries.count[error.record])} packed rows"
        raise block.corrupt(int(number[error.record]), expected, str(error)) from None


def _digests(ids: NDArray[np.uint8], width: int) -> NDArray[np.uint64]:
    """What `digest_ids` gives for the IDs of each record: (k, bytes) uint8 to (k,) uint64."""
    data = ids.view(f"<u{width}").astype("<i8", order="C")
    step, everything = 8 * data.shape[1], data.data.cast("B")
    return np.array([xxhash.xxh3_64_intdigest(everything[at : at + step]) for at in range(0, data.nbytes, step)], "u8")


def _check_record(
    block: _Block, number: NDArray[np.int64], deliveries: Deliveries, which: int, ids: bytes | None
) -> None:
    size = block.id_bytes * int(deliveries.count[which])
    if ids is not None and len(ids) == size:
        stored = np.frombuffer(ids, f"<u{block.id_bytes}").astype("<i8")
        if xxhash.xxh3_64_intdigest(stored.tobytes()) == int(deliveries.digest[which]):
            return
    text = "none" if ids is None else f"{len(ids)} bytes of other IDs"
    expected = f"{size} bytes of IDs with the record's digest"
    raise block.corrupt(int(number[which]), expected, text)


def _decode(decoder: msgspec.msgpack.Decoder[T], payload: bytes, frames: FrameReader, offset: int) -> T:
    try:
        return decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise frames.corrupt(offset, "a record of this format", f"another one ({error})") from None
