"""Megatron's indexed datasets: tokens in ``NAME.bin``, where sequences and documents begin in ``NAME.idx``.

The index, little-endian::

    offset      size        what
    0           9           "MMIDIDX" and two zero bytes
    9           8           version, 1
    17          1           code of the tokens' type: 1 uint8, 2 int8, 3 int16, 4 int32, 5 int64, 8 uint16
    18          8           S, number of sequences
    26          8           D + 1, number of documents and one
    34          4 * S       tokens of each sequence, int32
                8 * S       where it begins in NAME.bin [bytes], int64
                8 * (D + 1) first sequence of each document, then S, int64

Sequences follow one another without gaps, and a document is a run of them. An index of a multimodal dataset has S
more bytes, the mode of each sequence, and is refused: what is not text in it is no tokens.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.ledger.frames import shown
from resumable_data.sources.arguments import check_documents
from resumable_data.sources.base import CHECKED_AT_OPENING_MAX, FlatBase
from resumable_data.sources.files import StoredArray, bad_source, read_head

if TYPE_CHECKING:
    from resumable_data.errors import SourceError
    from resumable_data.order.protocol import Int64Array

MAGIC = b"MMIDIDX\x00\x00"
DTYPE_CODES = {1: "<u1", 2: "<i1", 3: "<i2", 4: "<i4", 5: "<i8", 8: "<u2"}
VERSION = 1
HEADER = struct.Struct("<9sQBQQ")
_CHUNK = 1 << 20
_REMEDY = "Write both files again, from the same run of the tool that made them."


class _Header(NamedTuple):
    """What an index says of itself: type of tokens, sequences, documents, and its size [bytes]."""

    dtype: str
    num_sequences: int
    num_documents: int
    size: int


class MegatronTokens(FlatBase):
    """Documents of a Megatron indexed dataset; both files stay mapped.

    Args:
        path: Either file, or their common name without the ending.

    Raises:
        SourceError: A file cannot be read, or the index is none, or does not fit itself or ``NAME.bin``. Beyond
            `CHECKED_AT_OPENING_MAX` sequences the entries are looked at before they are used, and not here.
    """

    def __init__(self, path: str | os.PathLike[str], /) -> None:
        self._index_path, bin_path = megatron_paths(path)
        header = _read_header(self._index_path)
        num_sequences, num_documents = header.num_sequences, header.num_documents
        _, bin_size = read_head(bin_path, 1)
        if bin_size % np.dtype(header.dtype).itemsize:
            expected = f"a multiple of {np.dtype(header.dtype).itemsize} bytes, as tokens are {header.dtype}"
            raise bad_source(bin_path, "its size", expected, f"{bin_size} bytes", _REMEDY)
        pointers_at = HEADER.size + 4 * num_sequences
        documents_at = pointers_at + 8 * num_sequences
        # No entry of an index is aligned to its size, and numpy gathers from unaligned arrays several times slower
        # than from aligned ones. All are aligned to two bytes: an entry is a row of two or four halves.
        self._lengths = self._map(header.size, HEADER.size, 2 * num_sequences)
        self._pointers = self._map(header.size, pointers_at, 4 * num_sequences)
        self._documents = self._map(header.size, documents_at, 4 * (num_documents + 1))
        num_tokens = bin_size // np.dtype(header.dtype).itemsize
        super().__init__(num_documents, StoredArray.in_file(bin_path, bin_size, header.dtype, 0, num_tokens))
        self._num_sequences, self._num_bytes = num_sequences, bin_size
        self._check_ends()
        if num_sequences <= CHECKED_AT_OPENING_MAX:
            self.check()

    def lengths(self, documents: Int64Array, /) -> Int64Array:
        """Tokens of each document: (k,) int64 -> (k,) int64."""
        first, last = self._sequences(documents)
        single = last - first == 1
        if single.all():
            return self._sequence_lengths(first)
        lengths = (self._begins(last) - self._begins(first)) // self.dtype.itemsize
        if lengths.size and int(lengths.min()) < 0:
            at = int(lengths.argmin())
            raise self._bad(f"document {int(documents[at])}", "an end after its begin", f"{int(lengths[at])} tokens")
        lengths[single] = self._sequence_lengths(first[single])
        return lengths

    def starts(self, documents: Int64Array, /) -> Int64Array:
        """Where each document begins in `tokens`: (k,) int64 -> (k,) int64."""
        first, last = self._sequences(documents)
        begins, ends = self._begins(first), self._begins(last)
        single = np.flatnonzero(last - first == 1)
        said = self._sequence_lengths(first[single]) * self.dtype.itemsize
        self._check_lengths(first[single], begins[single], said, ends[single])
        return begins // self.dtype.itemsize

    def describe(self) -> dict[str, int | str]:
        """What messages say of it."""
        return self._described("megatron", path=shown(self._index_path), sequences=self._num_sequences)

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        """The fingerprint of the contents, after a look at every entry of the index."""
        if self._num_sequences > CHECKED_AT_OPENING_MAX:
            self.check()
        return super().fingerprint(full, documents)

    def check(self) -> None:
        """Look at every entry of the index: one pass over it, in bounded memory.

        Raises:
            SourceError: One does not fit the others, or ``NAME.bin``.
        """
        for at in range(0, self._num_sequences, _CHUNK):
            sequences = np.arange(at, min(at + _CHUNK, self._num_sequences))
            begins = self._begins(np.append(sequences, sequences[-1] + 1))
            said = self._sequence_lengths(sequences) * self.dtype.itemsize
            self._check_lengths(sequences, begins[:-1], said, begins[1:])
        for at in range(0, len(self), _CHUNK):
            self._sequences(np.arange(at, min(at + _CHUNK, len(self))))

    def _map(self, size: int, offset: int, num_halves: int) -> StoredArray:
        return StoredArray.in_file(self._index_path, size, "<u2", offset, num_halves)

    def _sequences(self, documents: Int64Array) -> tuple[Int64Array, Int64Array]:
        """The run of sequences of each document, first and one past the last."""
        check_documents(documents, len(self))
        first, last = _gather_int64(self._documents, documents), _gather_int64(self._documents, documents + 1)
        wrong = (first < 0) | (first > last) | (last > self._num_sequences)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise self._bad(
                f"document {int(documents[at])}",
                f"a run of the {self._num_sequences} sequences",
                f"[{int(first[at])}, {int(last[at])})",
            )
        return first, last

    def _sequence_lengths(self, sequences: Int64Array) -> Int64Array:
        """Tokens of sequences."""
        lengths = self._lengths.array.reshape(-1, 2).take(sequences, 0).view("<i4")[:, 0].astype(np.int64)
        if lengths.size and int(lengths.min()) < 0:
            at = int(lengths.argmin())
            raise self._bad(f"length of sequence {int(sequences[at])}", "0 or more", str(lengths[at]))
        return lengths

    def _begins(self, sequences: Int64Array) -> Int64Array:
        """Where sequences begin in ``NAME.bin`` [bytes]; its end for the one after the last."""
        if not self._num_sequences:
            return np.full(sequences.size, self._num_bytes)
        begins = _gather_int64(self._pointers, np.minimum(sequences, self._num_sequences - 1))
        begins[sequences == self._num_sequences] = self._num_bytes
        wrong = (begins < 0) | (begins > self._num_bytes) | (begins % self.dtype.itemsize != 0)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise self._bad(
                f"pointer of sequence {int(sequences[at])}",
                f"a multiple of {self.dtype.itemsize} bytes from 0 to {self._num_bytes}, the size of the .bin file",
                str(begins[at]),
            )
        return begins

    def _check_lengths(self, sequences: Int64Array, begins: Int64Array, said: Int64Array, ends: Int64Array) -> None:
        wrong = begins + said != ends
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise self._bad(
                f"sequence {int(sequences[at])}",
                f"{int(said[at])} bytes by its length",
                f"{int(ends[at] - begins[at])} from its pointer {int(begins[at])} to the next sequence or the end of "
                "the .bin file",
            )

    def _check_ends(self) -> None:
        ends = _gather_int64(self._documents, np.array([0, len(self)]))
        if ends.tolist() != [0, self._num_sequences]:
            expected = f"the first and the last at sequences 0 and {self._num_sequences}"
            raise self._bad("the documents", expected, f"{int(ends[0])} and {int(ends[1])}")
        if not self._num_sequences or int(self._begins(np.zeros(1, np.int64))[0]) != 0:
            raise self._bad("the first sequence", "byte 0 of the .bin file as its begin", "another, or no sequence")
        last = np.array([self._num_sequences - 1])
        said = self._sequence_lengths(last) * self.dtype.itemsize
        self._check_lengths(last, self._begins(last), said, np.array([self._num_bytes]))

    def _bad(self, where: str, expected: str, found: str) -> SourceError:
        return bad_source(self._index_path, where, expected, found, _REMEDY)


def megatron_paths(path: str | os.PathLike[str]) -> tuple[Path, Path]:
    """The index and the tokens of a dataset, by either file's path or by their common name."""
    text = os.path.abspath(path)
    name = text[:-4] if text.endswith((".idx", ".bin")) else text
    return Path(name + ".idx"), Path(name + ".bin")


def _read_header(path: Path) -> _Header:
    data, size = read_head(path, HEADER.size)
    if len(data) < HEADER.size:
        raise bad_source(path, "its header", f"{HEADER.size} bytes", f"{len(data)}", _REMEDY)
    magic, version, code, num_sequences, num_offsets = HEADER.unpack(data)
    if magic != MAGIC:
        raise bad_source(path, "its first bytes", repr(MAGIC), repr(magic), "Pass the index of a Megatron dataset.")
    if version != VERSION:
        remedy = f"Write it with a tool that writes version {VERSION}."
        raise bad_source(path, "its version", str(VERSION), str(version), remedy)
    if code not in DTYPE_CODES:
        names = ", ".join(f"{code} {np.dtype(name).name}" for code, name in DTYPE_CODES.items())
        raise bad_source(path, "its type of tokens", f"one of {names}", str(code), _REMEDY)
    if num_offsets < 2:
        raise bad_source(path, "its number of documents", "2 or more, one for the end", str(num_offsets), _REMEDY)
    expected = HEADER.size + 12 * num_sequences + 8 * num_offsets
    if size == expected + num_sequences and num_sequences:
        found = "that of a multimodal dataset, with a mode for each sequence"
        raise bad_source(path, "its size", "an index of text", found, "Write the text alone, without multimodal=True.")
    if size != expected:
        said = f"{expected} bytes, for {num_sequences} sequences and {num_offsets} document entries"
        raise bad_source(path, "its size", said, f"{size} bytes", _REMEDY)
    return _Header(DTYPE_CODES[code], num_sequences, num_offsets - 1, size)


def _gather_int64(stored: StoredArray, at: Int64Array) -> Int64Array:
    return stored.array.reshape(-1, 4).take(at, 0).view("<i8")[:, 0].astype(np.int64)
