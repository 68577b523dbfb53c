"""The zip archive that ``torch.save`` writes: each item of a DCP data file is one, and so is a file of its own.

::

    local header, name, padding, content, descriptor     of each record, one after another:
                                                          data.pkl, byteorder, data/0, data/1, ..., version
    central directory                                     names, sizes, CRC32s and places of the records
    zip64 end, locator, end

Nothing is compressed. Every place and size that is written twice is compared, and records must follow each other
without a gap, so that a byte is either checked, or covered by a CRC32, or padding.
"""

from __future__ import annotations

import struct
import zlib
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.checkpoint.files.opening import CheckpointFile

MAX_DIRECTORY_BYTES = 2**27
_AT_ONCE_BYTES = 2**14
"""Archives up to this size are read whole; of larger ones the beginning and the end, which hold most headers."""
_EDGE_BYTES = 2**12

_END = struct.Struct("<4sHHHHIIH")
_LOCATOR = struct.Struct("<4sIQI")
_END_64 = struct.Struct("<4sQHHIIQQQQ")
_ENTRY = struct.Struct("<4sHHHHHHIIIHHHHHII")
_LOCAL = struct.Struct("<4sHHHHHIIIHH")
_DESCRIPTOR = struct.Struct("<4sIII")
_DESCRIPTOR_64 = struct.Struct("<4sIQQ")
_HAS_DESCRIPTOR = 8
_ABSENT_16, _ABSENT_32 = 0xFFFF, 0xFFFFFFFF
_UNCHECKED = ".data/serialization_id"


class ArchiveError(Exception):
    """The bytes are not an archive as torch writes them; callers say in which file and of which tensor."""


class Record(NamedTuple):
    """One record: its name without the archive's own, its CRC32, its size and where its content begins in the file."""

    name: str
    crc32: int
    size: int
    start: int


class Archive(NamedTuple):
    """What an archive holds, by its directory.

    Attributes:
        records: In the order of the file.
        has_checksums: Whether torch recorded CRC32s; with ``torch.serialization.set_crc32_options(False)`` all are 0.
    """

    records: tuple[Record, ...]
    has_checksums: bool

    def find(self, name: str) -> Record | None:
        """The record of this name."""
        return next((record for record in self.records if record.name == name), None)

    @property
    def payload_crc32(self) -> int:
        """What identifies the content: the CRC32 of the one record that holds it.

        Of a tensor that is ``data/0``, of an object ``data.pkl``; of an object with tensors in it the CRC32 of the
        little-endian CRC32s of ``data.pkl`` and all ``data/*``, in the order of the file.
        """
        tensors = [record.crc32 for record in self.records if record.name.startswith("data/")]
        pickled = [record.crc32 for record in self.records if record.name == "data.pkl"]
        if len(tensors) == 1:
            return tensors[0]
        if not tensors:
            return pickled[0] if pickled else 0
        if not self.has_checksums:
            return 0
        return zlib.crc32(struct.pack(f"<{len(pickled) + len(tensors)}I", *pickled, *tensors))


class _Entry(NamedTuple):
    """A record by the central directory."""

    name: bytes
    flags: int
    crc32: int
    size: int
    start: int


class Window:
    """Bytes ``[start, start + length)`` of a file, of which the edges are in memory.

    Args:
        file: The file.
        start: Where the window begins [bytes].
        length: Its length [bytes].
    """

    def __init__(self, file: CheckpointFile, start: int, length: int) -> None:
        self.file, self.start, self.length = file, start, length
        if length <= _AT_ONCE_BYTES:
            self._edges = [(0, file.read(start, length))]
        else:
            tail = length - _EDGE_BYTES
            self._edges = [(0, file.read(start, _EDGE_BYTES)), (tail, file.read(start + tail, _EDGE_BYTES))]

    @property
    def is_whole(self) -> bool:
        """Whether all of it is in memory."""
        return len(self._edges) == 1

    def read(self, at: int, length: int) -> bytes:
        """Bytes ``[at, at + length)`` of the window.

        Raises:
            ArchiveError: They are not all in it.
        """
        if not 0 <= at <= at + length <= self.length:
            raise ArchiveError(f"bytes [{at}, {at + length}) of an archive of {self.length}")
        for begin, data in self._edges:
            if begin <= at and at + length <= begin + len(data):
                return data[at - begin : at - begin + length]
        return self.file.read(self.start + at, length)


def read_archive(window: Window) -> Archive:
    """The records of the archive that fills a window.

    Raises:
        ArchiveError: It is none, or one that was cut or changed outside the records' contents.
        CheckpointError: The file cannot be read.
    """
    count, begin, size = _find_directory(window)
    if size > MAX_DIRECTORY_BYTES:
        raise ArchiveError(f"a directory of {size:,} bytes, where at most {MAX_DIRECTORY_BYTES:,} are read")
    entries = list(_entries(window.read(begin, size), count))
    records: list[Record] = []
    at, folder = 0, None
    for entry, next_start in zip(entries, [*(entry.start for entry in entries[1:]), begin], strict=True):
        if entry.start != at:
            raise ArchiveError(f"a record that begins at byte {entry.start}, where {at} is next")
        content = _check_local(window, entry, next_start)
        name = entry.name.decode("utf-8", "replace")
        this_folder, _, inner = name.partition("/")
        folder = this_folder if folder is None else folder
        if this_folder != folder or not inner:
            raise ArchiveError(f"a record named {shown(name)!r} in the archive {shown(folder)!r}")
        records.append(Record(inner, entry.crc32, entry.size, window.start + content))
        at = next_start
    if len({record.name for record in records}) != len(records):
        raise ArchiveError("two records of one name")
    has_checksums = any(record.crc32 for record in records if record.name != _UNCHECKED)
    return Archive(tuple(records), has_checksums)


def _find_directory(window: Window) -> tuple[int, int, int]:
    """Number of records, and where their directory begins and how long it is."""
    at = window.length - _END.size
    if at < 0:
        raise ArchiveError(f"{window.length} bytes, too few for an archive")
    magic, *disks, count, size, begin, comment = _END.unpack(window.read(at, _END.size))
    if magic != b"PK\x05\x06":
        raise ArchiveError("no end of a zip archive in its last 22 bytes")
    if comment or disks[:2] != [0, 0] or disks[2] != count:
        raise ArchiveError("an end of a zip archive that torch does not write")
    end = at
    if at >= _LOCATOR.size + _END_64.size:
        locator = _LOCATOR.unpack(window.read(at - _LOCATOR.size, _LOCATOR.size))
        if locator[0] == b"PK\x06\x07":
            end = locator[2]
            count, size, begin = _find_directory_64(window, locator, (count, size, begin), at)
    if begin + size != end or count > size // _ENTRY.size:
        raise ArchiveError(f"{count} records in a directory of {size} bytes at {begin}, which should end at {end}")
    return count, begin, size


def _find_directory_64(
    window: Window, locator: tuple[bytes, int, int, int], short: tuple[int, int, int], end: int
) -> tuple[int, int, int]:
    _, disk, at, disks = locator
    if (disk, disks) != (0, 1) or at + _END_64.size + _LOCATOR.size != end:
        raise ArchiveError("a zip64 locator that leads elsewhere")
    magic, length, _, _, *more_disks, here, count, size, begin = _END_64.unpack(window.read(at, _END_64.size))
    if magic != b"PK\x06\x06" or length != _END_64.size - 12 or more_disks != [0, 0] or here != count:
        raise ArchiveError("a zip64 end that torch does not write")
    for value, value_64, absent in zip(short, (count, size, begin), (_ABSENT_16, *[_ABSENT_32] * 2), strict=True):
        if value not in (value_64, absent):
            raise ArchiveError("two ends that do not agree")
    return count, size, begin


def _entries(directory: bytes, count: int) -> Iterator[_Entry]:
    at = 0
    for _ in range(count):
        if at + _ENTRY.size > len(directory):
            raise ArchiveError("a directory that ends too early")
        entry = _ENTRY.unpack_from(directory, at)
        magic, _, _, flags, method, _, _, crc32, packed, size, *lengths, disk, _, _, start = entry
        name_end = at + _ENTRY.size + lengths[0]
        extra = directory[name_end : name_end + lengths[1]]
        if magic != b"PK\x01\x02" or method or disk:
            raise ArchiveError("an entry of the directory that torch does not write")
        if _ABSENT_32 in (packed, size, start):
            size, packed, start = _long_numbers(extra, size, packed, start)
        if packed != size:
            raise ArchiveError("a compressed record")
        yield _Entry(directory[at + _ENTRY.size : name_end], flags, crc32, size, start)
        at = name_end + lengths[1] + lengths[2]
    if at != len(directory):
        raise ArchiveError("a directory that goes on after its last entry")


def _long_numbers(extra: bytes, *numbers: int) -> tuple[int, int, int]:
    """The 64-bit numbers in an entry's zip64 field in place of those that did not fit."""
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        field = extra[at + 4 : at + 4 + length]
        at += 4 + length
        if kind != 1:
            continue
        values = iter(struct.unpack(f"<{len(field) // 8}Q", field[: len(field) // 8 * 8]))
        try:
            size, packed, start = (next(values) if number == _ABSENT_32 else number for number in numbers)
        except (StopIteration, RuntimeError):
            break
        return size, packed, start
    raise ArchiveError("a size that does not fit 32 bits and has no zip64 field")


def _check_local(window: Window, entry: _Entry, next_start: int) -> int:
    """Where the content of a record begins, having compared its local header and descriptor with its entry."""
    local = _LOCAL.unpack(window.read(entry.start, _LOCAL.size))
    magic, _, flags, method, _, _, crc32, packed, size, name_length, extra_length = local
    begin = entry.start + _LOCAL.size
    if magic != b"PK\x03\x04" or method or flags != entry.flags or name_length != len(entry.name):
        raise ArchiveError(f"at byte {entry.start}: no local header that fits the directory")
    if window.read(begin, name_length) != entry.name:
        raise ArchiveError(f"at byte {begin}: another name than in the directory")
    content: int = begin + name_length + extra_length
    left = next_start - content - entry.size
    if flags & _HAS_DESCRIPTOR:
        numbers_fit = _is_descriptor(window, content + entry.size, left, entry)
    else:
        numbers_fit = left == 0 and crc32 == entry.crc32
    if not numbers_fit or any(number not in (0, _ABSENT_32, entry.size) for number in (packed, size)):
        raise ArchiveError(f"at byte {entry.start}: checksum and size of a record twice, and they do not agree")
    return content


def _is_descriptor(window: Window, at: int, length: int, entry: _Entry) -> bool:
    layout = {_DESCRIPTOR.size: _DESCRIPTOR, _DESCRIPTOR_64.size: _DESCRIPTOR_64}.get(length)
    if layout is None:
        return False
    return layout.unpack(window.read(at, length)) == (b"PK\x07\x08", entry.crc32, entry.size, entry.size)
