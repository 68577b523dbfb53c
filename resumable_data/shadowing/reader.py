"""Reading shadow files back: what they hold, and of single iterations the values too."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.errors import LedgerError
from resumable_data.ledger.frames import (
    FRAME_OVERHEAD_BYTES,
    HEADER_BYTES_MAX,
    SHADOW_KIND,
    FrameReader,
    not_regular,
    open_regular,
    shown,
)
from resumable_data.shadowing.records import (
    PAYLOAD_BYTES_MAX,
    Begin,
    End,
    Hashes,
    Header,
    Ids,
    Record,
    Saved,
    Stopped,
    header_decoder,
    is_file_name,
    record_decoder,
)

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray


class Iteration(msgspec.Struct, kw_only=True):
    """One ``iter()`` on one rank.

    Attributes:
        begin: What the sampler said.
        num_batches: Batches handed out.
        num_rows: Their rows.
        num_hashed: How many of the batches are noted by hashes.
        has_end: Whether the iterator came to its end.
        saved: Batches at the last checkpoint that was marked in it, None where there is none.
    """

    begin: Begin
    num_batches: int = 0
    num_rows: int = 0
    num_hashed: int = 0
    has_end: bool = False
    saved: int | None = None

    @property
    def is_whole(self) -> bool:
        """Whether the loop was handed all of it, and perhaps left without asking for more."""
        planned = self.begin.num_batches
        return self.has_end or (planned is not None and self.num_batches >= planned)


class ShadowFile(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's file of one launch.

    Attributes:
        path: The file.
        header: Whose it is.
        iterations: In order.
        stopped: Why shadowing stopped, None where it did not say so.
        torn_bytes: Bytes of a torn tail, dropped.
    """

    path: Path
    header: Header
    iterations: tuple[Iteration, ...]
    stopped: str | None
    torn_bytes: int


class Values(NamedTuple):
    """The rows of one iteration of one rank, in order.

    Attributes:
        value: (n,) uint64, IDs or hashes.
        batch: (n,) int64, the batch that each is of.
    """

    value: NDArray[np.uint64]
    batch: NDArray[np.int64]


class Directory(NamedTuple):
    """The files in a directory: those that shadowing wrote, and others."""

    files: tuple[ShadowFile, ...]
    unknown: tuple[Path, ...]


def read_directory(path: Path) -> Directory:
    """What is in a directory, without the values, and without files that are torn within their head.

    Raises:
        LedgerError: It cannot be read.
        LedgerCorruptError: A file is damaged anywhere but at a torn tail.
    """
    try:
        with os.scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise LedgerError(
            f"expected a directory that rd.shadow wrote at {shown(path)}, found none that can be read "
            f"({error.strerror}). Nothing was audited; give the path that rd.shadow got."
        ) from None
    files, unknown = [], []
    for entry in found:
        if not is_file_name(entry.name):
            unknown.append(path / entry.name)
            continue
        if not entry.is_file(follow_symlinks=False):
            raise not_regular(path / entry.name, "something else")
        file = read_file(path / entry.name)
        if file is not None:
            files.append(file)
    return Directory(tuple(files), tuple(unknown))


def read_file(path: Path) -> ShadowFile | None:
    """What is in a file, without the values; None where it is torn within its head.

    Raises:
        LedgerError: It cannot be read.
        LedgerCorruptError: It is damaged anywhere but at a torn tail.
    """
    iterations: list[Iteration] = []
    stopped: str | None = None
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=SHADOW_KIND, payload_bytes_max=HEADER_BYTES_MAX)
        header = _header(frames)
        if header is None:
            return None
        for offset, record in _records(frames):
            if stopped is not None:
                raise frames.corrupt(offset, "nothing after the record of a stop", "another record")
            if isinstance(record, Begin):
                iterations.append(Iteration(begin=record))
            elif isinstance(record, Stopped):
                stopped = record.reason
            elif not iterations or (iterations[-1].has_end and not isinstance(record, Saved)):
                raise frames.corrupt(offset, "the begin of an iteration", "a record of one")
            else:
                _add(iterations[-1], record, frames, offset)
    return ShadowFile(
        path=path, header=header, iterations=tuple(iterations), stopped=stopped, torn_bytes=frames.torn_bytes
    )


def read_values(file: ShadowFile, iteration: int) -> Values:
    """The rows of one iteration in a file that was read before.

    Raises:
        LedgerError: It cannot be read.
        LedgerCorruptError: It is damaged, now.
    """
    parts: list[bytes] = []
    number = -1
    with open_regular(file.path) as opened:
        frames = FrameReader(opened, file.path, kind=SHADOW_KIND, payload_bytes_max=HEADER_BYTES_MAX)
        _header(frames)
        for _, record in _records(frames):
            number += isinstance(record, Begin)
            if number > iteration:
                break
            if number == iteration and isinstance(record, (Ids, Hashes)):
                parts.append(record.values)
    counts = np.array([len(part) // 8 for part in parts], np.int64)
    value = np.frombuffer(b"".join(parts), "<u8").astype(np.uint64)
    return Values(value, np.repeat(np.arange(counts.size, dtype=np.int64), counts))


def _header(frames: FrameReader) -> Header | None:
    offset = frames.offset
    payload = frames.first()
    if payload is None:
        return None
    try:
        header = header_decoder.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise frames.corrupt(offset, "a header of this format", f"another record ({error})") from None
    if header.rank >= header.num_replicas:
        raise frames.corrupt(offset, f"a rank below {header.num_replicas}", f"rank {header.rank}")
    return header


def _records(frames: FrameReader) -> Iterator[tuple[int, Record]]:
    """All records after the header, each with the byte that it starts at."""
    frames.payload_bytes_max = PAYLOAD_BYTES_MAX
    for offset, payloads in frames.blocks():
        at = offset
        for payload in payloads:
            try:
                record = record_decoder.decode(payload)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise frames.corrupt(at, "a record of this format", f"another one ({error})") from None
            yield at, record
            at += len(payload) + FRAME_OVERHEAD_BYTES


def _add(iteration: Iteration, record: Record, frames: FrameReader, offset: int) -> None:
    if isinstance(record, End):
        iteration.has_end = True
    elif isinstance(record, Saved):
        iteration.saved = iteration.num_batches
    elif isinstance(record, (Ids, Hashes)):
        if len(record.values) % 8:
            raise frames.corrupt(offset, "values of 8 bytes", f"{len(record.values)} bytes of them")
        iteration.num_batches += 1
        iteration.num_rows += len(record.values) // 8
        iteration.num_hashed += isinstance(record, Hashes)
