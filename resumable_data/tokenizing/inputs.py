"""The files that texts come from, and the parts in which they are read."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args

from resumable_data.errors import SourceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sources.files import open_regular
from resumable_data.tokenizing.splitting import Whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from resumable_data.tokenizing.splitting import Splitter

Format: TypeAlias = Literal["text", "jsonl"]
FORMATS: tuple[str, ...] = get_args(Format)
JSONL_SUFFIXES = (".jsonl", ".ndjson")
UNCLEAR_SUFFIXES = (".json", ".gz", ".bz2", ".xz", ".zst", ".zip", ".tar", ".parquet", ".arrow", ".npy", ".bin")
DOCUMENT_BYTES_MAX = 1 << 30
_WINDOW_BYTES = 1 << 16
_PART_SPANS_MAX = 256
_LINE_BLOCK_BYTES = 1 << 20


class Input(NamedTuple):
    """A file of texts.

    Attributes:
        path: The file, absolute.
        format: How documents lie in it.
        size: Its size [bytes], when it was looked at first.
    """

    path: Path
    format: Format
    size: int


class Span(NamedTuple):
    """Bytes ``[start, stop)`` of an input, by its number: whole documents, or all that the file holds."""

    number: int
    start: int
    stop: int


def look_at(paths: Sequence[str | os.PathLike[str]], format: Format | None) -> list[Input]:
    """The inputs, each of which can be opened and holds something.

    Args:
        paths: The files.
        format: That of all of them; by their names where None, text where those say nothing.

    Raises:
        UsageError: There is none, or a name says that it is neither text nor JSONL.
        SourceError: One is empty, cannot be read, or is no regular file.
    """
    if not paths:
        raise UsageError("expected at least one file of texts, found none. Nothing was written.")
    return [_look_at_one(Path(os.path.abspath(path)), format) for path in paths]


def parts(inputs: Sequence[Input], splitters: dict[Format, Splitter], part_bytes: int) -> Iterator[list[Span]]:
    """All bytes of all inputs in order, in parts of about `part_bytes` that end where documents do.

    Raises:
        SourceError: A file cannot be read, or a document does not end.
    """
    part: list[Span] = []
    num_bytes = 0
    for number, one in enumerate(inputs):
        for start, stop in _cuts(one, splitters[one.format], part_bytes):
            part.append(Span(number, start, stop))
            num_bytes += stop - start
            if num_bytes >= part_bytes or len(part) == _PART_SPANS_MAX:
                yield part
                part, num_bytes = [], 0
    if part:
        yield part


def read_span(one: Input, span: Span) -> bytes:
    """The bytes of a span.

    Raises:
        SourceError: They cannot be read, or the file is shorter by now.
    """
    with _Reader(one) as reader:
        return reader.read(span.start, span.stop - span.start)


def line_at(one: Input, offset: int) -> int:
    """The number of the line that holds a byte, from 1."""
    with _Reader(one) as reader:
        blocks = range(0, offset, _LINE_BLOCK_BYTES)
        return 1 + sum(reader.read(at, min(_LINE_BLOCK_BYTES, offset - at)).count(b"\n") for at in blocks)


def bad_text(one: Input, where: str, expected: str, found: str, remedy: str) -> SourceError:
    """The error for something in a file that no text has."""
    return SourceError(
        f"{shown(one.path)}, {where}: expected {expected}, found {found}. A document would be missing or another; "
        f"nothing was written. {remedy}"
    )


def _look_at_one(path: Path, format: Format | None) -> Input:
    suffix = path.suffix.lower()
    if format is None and suffix in UNCLEAR_SUFFIXES:
        raise UsageError(
            f"{shown(path)}: expected text or JSONL, found a name that ends in {suffix}. Its bytes would become tokens "
            "as they are; nothing was written. Unpack or convert it, or say what it is with format (--format)."
        )
    descriptor = open_regular(path, "text")
    size = os.fstat(descriptor).st_size
    os.close(descriptor)
    return Input(path, format or ("jsonl" if suffix in JSONL_SUFFIXES else "text"), size)


def _cuts(one: Input, splitter: Splitter, part_bytes: int) -> Iterator[tuple[int, int]]:
    start = 0
    with _Reader(one) as reader:
        while start < one.size:
            stop = _find_cut(reader, splitter, start, part_bytes)
            if stop < 0:
                expected = f"the end of a document within {DOCUMENT_BYTES_MAX:,} bytes, as one is held in memory"
                remedy = "Split the file, or say where documents end with split_on (--split-on)."
                raise bad_text(one, f"line {line_at(one, start)} and after", expected, "none", remedy)
            yield start, stop
            start = stop


def _find_cut(reader: _Reader, splitter: Splitter, start: int, part_bytes: int) -> int:
    """Where a document ends that reaches past `part_bytes` from `start`; -1 where that is too far to hold it."""
    size = reader.size
    if isinstance(splitter, Whole):
        return size if size <= DOCUMENT_BYTES_MAX else -1
    at = max(start, start + part_bytes - splitter.margin)
    if at >= size:
        return size
    window = _WINDOW_BYTES
    while True:
        found = splitter.find_end(reader.read(at, min(window, size - at)))
        if found >= 0:
            return at + found
        if at + window >= size:
            return size
        if window >= DOCUMENT_BYTES_MAX:
            return -1
        window *= 4  # read again from its begin: all looks together cost less than twice the last one


class _Reader:
    """An input that is open for reading at any place."""

    def __init__(self, one: Input) -> None:
        self._path, self.size = one.path, one.size

    def __enter__(self) -> _Reader:
        self._descriptor = open_regular(self._path, "text")
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def read(self, start: int, num_bytes: int) -> bytes:
        """Exactly these bytes."""
        found: list[bytes] = []
        try:
            while num_bytes and (data := os.pread(self._descriptor, num_bytes, start)):
                found.append(data)
                start, num_bytes = start + len(data), num_bytes - len(data)
        except OSError as error:
            raise SourceError(f"cannot read {shown(self._path)}: {error.strerror}. Nothing was written.") from None
        if num_bytes:
            raise SourceError(
                f"{shown(self._path)}: expected {self.size} bytes as when it was looked at first, found {start}. "
                "Documents would be missing; nothing was written. Leave files alone while they are read."
            )
        return found[0] if len(found) == 1 else b"".join(found)
