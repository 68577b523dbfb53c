"""How records lie in a file: a head, then frames whose checksums form a chain.

::

    byte 0   8 bytes   magic b"RDLEDGER"
         8   4 bytes   format version, little-endian: 1, or 2 of a rank file that holds pieces of packed rows
        12   4 bytes   kind of file: 1 claim, 2 rank, 101 shadow
        16             frames:
                       4 bytes  n, length of the payload, little-endian
                       n bytes  payload, one msgpack record
                       8 bytes  xxh3_64 of the payload, seeded with the checksum before it, little-endian

The first frame's seed is the xxh3_64 of the 16 bytes of head. A frame that is removed, repeated or moved
breaks the chain at its place.
"""

from __future__ import annotations

import os
import stat
import struct
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import xxhash

from resumable_data.errors import LedgerCorruptError, LedgerError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

MAGIC = b"RDLEDGER"
FORMAT_VERSION = 1
PIECES_VERSION = 2
CLAIM_KIND = 1
RANK_KIND = 2
SHADOW_KIND = 101
KINDS = {CLAIM_KIND: "claim", RANK_KIND: "rank", SHADOW_KIND: "shadow"}
_VERSIONS = {RANK_KIND: (FORMAT_VERSION, PIECES_VERSION)}

CLAIM_BYTES_MAX = 1 << 25  # a claim lists the files of older attempts, about 30 bytes each
HEADER_BYTES_MAX = 1 << 12
FRAME_OVERHEAD_BYTES = 12

_HEAD = struct.Struct("<8sII")
_LENGTH = struct.Struct("<I")
_CHECKSUM = struct.Struct("<Q")
_BORDER = struct.Struct("<QI")
_BLOCK_BYTES = 1 << 21
_SEARCHED_BYTES_MAX = 4096
_SECTOR_BYTES = 512  # a disk writes whole ones

HEAD_BYTES = _HEAD.size
pack_length = _LENGTH.pack
pack_checksum = _CHECKSUM.pack
chain_checksum = xxhash.xxh3_64_intdigest


def make_head(kind: int, version: int = FORMAT_VERSION) -> bytes:
    """The first 16 bytes of a file of this kind."""
    return _HEAD.pack(MAGIC, version, kind)


def versions_of(kind: int) -> tuple[int, ...]:
    """The format versions of a kind of file that are read."""
    return _VERSIONS.get(kind, (FORMAT_VERSION,))


def make_frame(payload: bytes, chain: int) -> tuple[bytes, int]:
    """The frame of a payload after a frame with checksum `chain`, and its own checksum."""
    chain = chain_checksum(payload, chain)
    return pack_length(len(payload)) + payload + pack_checksum(chain), chain


def shown(path: object) -> str:
    """A path for people: what does not print, say a line break in a name, is escaped."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in str(path))


@contextmanager
def open_regular(path: Path) -> Iterator[IO[bytes]]:
    """Open a file for reading, and only a regular file: no symbolic link, FIFO, device or directory.

    Raises:
        LedgerCorruptError: It is something else.
        LedgerError: It cannot be opened, or what is done with it inside the block fails.
    """
    try:
        with open(_open_regular(path), "rb", buffering=0) as file:
            yield file
    except OSError as error:
        raise LedgerError(f"cannot read {shown(path)}: {error.strerror}. Nothing was audited.") from error


def _open_regular(path: Path) -> int:
    try:
        # O_NONBLOCK: opening a FIFO must not wait for a writer.
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        if path.is_symlink():
            raise not_regular(path, "a symbolic link") from None
        raise
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise not_regular(path, "something else")
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def measure(path: Path, stop: int | None = None) -> tuple[int, int]:
    """The size of a file, and the 8 bytes before `stop`, its end when None; 0 where there are not so many.

    After a whole frame these bytes are its checksum.

    Raises:
        LedgerCorruptError: It is no regular file.
        LedgerError: It cannot be read.
    """
    with open_regular(path) as file:
        size = os.fstat(file.fileno()).st_size
        stop = size if stop is None else stop
        if not HEAD_BYTES + _CHECKSUM.size <= stop <= size:
            return size, 0
        last = os.pread(file.fileno(), _CHECKSUM.size, stop - _CHECKSUM.size)
    return size, _CHECKSUM.unpack(last)[0] if len(last) == _CHECKSUM.size else 0


def not_regular(path: Path, found: str) -> LedgerCorruptError:
    """The error for something in a ledger that is no regular file or directory."""
    return LedgerCorruptError(
        f"{shown(path)}: expected a regular file of a ledger, found {found}. Its contents may come from "
        "anywhere, so nothing was audited; put the original file back."
    )


class FrameReader:
    """Reads the frames of one file, in blocks, with bounded memory.

    What a kill or a loss of power leaves is a torn tail: a file that ends in the middle of its last frame, or in zeros
    from the end of a frame or the border of a sector on. It is dropped and counted. Any other damage is an error, which
    comes after what is good before it.

    Args:
        file: Opened by `open_regular`; the caller closes it.
        path: For messages.
        kind: A key of `KINDS`.
        payload_bytes_max: Largest payload allowed; may be changed between `first` and `blocks`.
        num_bytes: Read no further than this; None for all there is.

    Attributes:
        offset: Bytes read and found good.
        torn_bytes: Bytes of the torn tail, once all frames were read.
        version: The file's format version; 0 where its head is torn.
    """

    def __init__(
        self,
        file: IO[bytes],
        path: Path,
        *,
        kind: int,
        payload_bytes_max: int = HEADER_BYTES_MAX,
        num_bytes: int | None = None,
    ) -> None:
        self.path = path
        self.payload_bytes_max = payload_bytes_max
        self.offset = 0
        self.torn_bytes = 0
        self.version = 0
        self._file = file
        self._left = num_bytes
        self._rest = b""
        self._chain = 0
        self._damage: LedgerCorruptError | None = None
        self._has_head = self._read_head(kind)

    def first(self) -> bytes | None:
        """The payload of the first frame; None where the file is torn before its end."""
        while self._has_head:
            payloads = self._take(at_most=1)
            if payloads:
                return payloads[0]
            if self._damage or not self._fill():
                break
        self._finish()
        return None

    def blocks(self) -> Iterator[tuple[int, list[bytes]]]:
        """The remaining payloads: (byte offset of the first frame, payloads in order), in batches.

        Raises:
            LedgerCorruptError: The file is damaged; all before the damage was yielded.
        """
        while self._has_head:
            offset = self.offset
            payloads = self._take()
            if payloads:
                yield offset, payloads
            if self._damage or not self._fill():
                break
        self._finish()

    def corrupt(self, offset: int, expected: str, found: str) -> LedgerCorruptError:
        """The error for damage at a byte offset."""
        return LedgerCorruptError(
            f"{shown(self.path)}, byte {offset}: expected {expected}, found {found}. What was delivered from "
            "there on cannot be known; nothing was audited. Restore the file from a copy."
        )

    def _read_head(self, kind: int) -> bool:
        expected = [make_head(kind, version) for version in versions_of(kind)]
        while len(self._rest) < HEAD_BYTES and self._fill():
            pass
        head = self._rest[:HEAD_BYTES]
        if not any(head) and self._drop_zeros():
            return False
        if len(head) < HEAD_BYTES and any(one.startswith(head) for one in expected):
            return False
        if head not in expected:
            self._damage = self._bad_head(head, kind)
            return False
        self._rest = self._rest[HEAD_BYTES:]
        self.version = versions_of(kind)[expected.index(head)]
        self.offset = HEAD_BYTES
        self._chain = chain_checksum(head)
        return True

    def _bad_head(self, head: bytes, kind: int) -> LedgerCorruptError:
        name = KINDS[kind]
        if len(head) < HEAD_BYTES or not head.startswith(MAGIC):
            return self.corrupt(0, f"a {name} file of a ledger, which starts with {MAGIC!r}", repr(head[:8]))
        _, version, found_kind = _HEAD.unpack(head)
        if version not in versions_of(kind):
            known = " or ".join(map(str, versions_of(kind)))
            return self.corrupt(8, f"format version {known}", f"version {version}, or damage")
        return self.corrupt(12, f"a {name} file (kind {kind})", f"kind {found_kind}")

    def _fill(self) -> bool:
        block = self._file.read(_BLOCK_BYTES if self._left is None else min(_BLOCK_BYTES, self._left))
        self._left = None if self._left is None else self._left - len(block)
        self._rest += block
        return bool(block)

    def _take(self, *, at_most: int | None = None) -> list[bytes]:
        """Take the whole frames at the head of what was read; their payloads."""
        payloads: list[bytes] = []
        buffer, longest, size = self._rest, self.payload_bytes_max, len(self._rest)
        # one call for a frame's checksum and the next one's length, but for the last frame
        checksum_and_length_at, checksum_of = _BORDER.unpack_from, chain_checksum
        used, chain, broken = 0, self._chain, None
        length = _LENGTH.unpack_from(buffer)[0] if size >= _LENGTH.size else 0
        while 0 < length <= longest and len(payloads) != at_most:
            stop = used + 4 + length
            if stop + 8 > size:
                break
            payload = buffer[used + 4 : stop]
            checksum = checksum_of(payload, chain)
            if stop + 12 <= size:
                found, length = checksum_and_length_at(buffer, stop)
            else:
                found, length = _CHECKSUM.unpack_from(buffer, stop)[0], 0
            if checksum != found:
                broken = (stop + 8 - used, checksum, found)
                break
            payloads.append(payload)
            used, chain = stop + 8, checksum
        self._chain = chain
        self._rest = buffer[used:]
        self.offset += used
        if broken:
            self._check_tear(*broken)
        elif len(payloads) != at_most:  # else what follows may be longer: the first payload says how long it may be
            self._check_length()
        return payloads

    def _check_length(self) -> None:
        """Find a length that no frame has; where only zeros follow, read to the end and call them torn."""
        if len(self._rest) < 4:
            return
        (length,) = _LENGTH.unpack_from(self._rest)
        if not 0 < length <= self.payload_bytes_max and not self._drop_zeros():
            expected = f"a frame of 1 to {self.payload_bytes_max} bytes"
            self._damage = self.corrupt(self.offset, expected, f"a length of {length}, or bytes after zeros")

    def _check_tear(self, size: int, expected: int, found: int) -> None:
        """Refuse a frame of `size` bytes with another checksum, unless only its first sectors were written."""
        num_written = len(self._rest.rstrip(b"\0"))
        border = -(-(self.offset + num_written) // _SECTOR_BYTES) * _SECTOR_BYTES
        if border >= self.offset + size or not self._drop_zeros(num_written):
            text = f"{found:016x}: this frame or one before it was changed"
            self._damage = self.corrupt(self.offset, f"a frame with checksum {expected:016x}", text)

    def _drop_zeros(self, start: int = 0) -> bool:
        """Whether there are only zeros from byte `start` of what was read on; they, and what is before, are torn."""
        while not any(self._rest[start:]):
            self.torn_bytes += len(self._rest)
            self._rest, start = b"", 0
            if not self._fill():
                return True
        self.torn_bytes = 0
        return False

    def _finish(self) -> None:
        """What is left at the end of the file is a torn tail, unless it holds a whole frame with a changed length.

        Raises:
            LedgerCorruptError: It does, or damage was found before.
        """
        if self._damage:
            raise self._damage
        rest = self._rest
        if self._has_head and len(rest) > FRAME_OVERHEAD_BYTES:
            first = 5 if len(rest) <= _SEARCHED_BYTES_MAX else len(rest) - 8
            for stop in range(first, len(rest) - 7):
                if chain_checksum(rest[4:stop], self._chain) == _CHECKSUM.unpack_from(rest, stop)[0]:
                    (length,) = _LENGTH.unpack_from(rest)
                    raise self.corrupt(self.offset, f"the length {stop - 4} of the frame there", f"{length}")
        self.torn_bytes += len(rest)
        self._rest = b""
