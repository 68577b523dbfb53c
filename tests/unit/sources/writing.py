"""Files of tokens, written from the descriptions of their formats and not by the package's code."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

Documents = list[list[int]]

CODES = {"uint8": 1, "int8": 2, "int16": 3, "int32": 4, "int64": 5, "float64": 6, "float32": 7, "uint16": 8}


class Index(NamedTuple):
    """What an index of Megatron says; a test changes one thing of a sound one."""

    magic: bytes
    version: int
    code: int
    num_sequences: int
    num_entries: int
    lengths: list[int]
    pointers: list[int]
    entries: list[int]
    rest: bytes = b""

    def encode(self) -> bytes:
        head = struct.pack("<9sQBQQ", self.magic, self.version, self.code, self.num_sequences, self.num_entries)
        lengths = struct.pack(f"<{len(self.lengths)}i", *self.lengths)
        pointers = struct.pack(f"<{len(self.pointers)}q", *self.pointers)
        return head + lengths + pointers + struct.pack(f"<{len(self.entries)}q", *self.entries) + self.rest


def make_index(documents: list[Documents], dtype: str) -> Index:
    """The index of documents of sequences."""
    sequences = [sequence for document in documents for sequence in document]
    pointers, entries, end = [], [0], 0
    for sequence in sequences:
        pointers.append(end)
        end += len(sequence) * np.dtype(dtype).itemsize
    for document in documents:
        entries.append(entries[-1] + len(document))
    lengths = [len(sequence) for sequence in sequences]
    return Index(b"MMIDIDX\0\0", 1, CODES[dtype], len(sequences), len(entries), lengths, pointers, entries)


def write_megatron(folder: Path, documents: list[Documents], dtype: str = "uint16", index: Index | None = None) -> Path:
    """Both files of a dataset, of documents of sequences; the index may be another one."""
    tokens = [token for document in documents for sequence in document for token in sequence]
    (folder / "corpus.bin").write_bytes(np.array(tokens, dtype).tobytes())
    (folder / "corpus.idx").write_bytes((index or make_index(documents, dtype)).encode())
    return folder / "corpus.idx"


def write_npy(path: Path, values: list[int], dtype: str, shape: str | None = None) -> Path:
    """A file in numpy's format 1.0."""
    array = np.array(values, dtype)
    descr = array.dtype.str
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape or f'({len(values)},)'}, }}"
    header = header.ljust(128 - 10 - 1) + "\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header)) + header.encode() + array.tobytes())
    return path


def flat(documents: Documents) -> list[int]:
    return [token for document in documents for token in document]


def write_parquet(path: Path, documents: Documents, *, row_group: int = 3, dtype: str = "int32") -> Path:
    import pyarrow
    import pyarrow.parquet

    pyarrow.parquet.write_table(arrow_table(documents, dtype), path, row_group_size=row_group)
    return path


def write_arrow(path: Path, documents: Documents, *, batch: int = 3, dtype: str = "int32", stream: bool = True) -> Path:
    import pyarrow.ipc

    table = arrow_table(documents, dtype)
    new = pyarrow.ipc.new_stream if stream else pyarrow.ipc.new_file
    with new(str(path), table.schema) as writer:
        writer.write_table(table, max_chunksize=batch)
    return path


def arrow_table(documents: Documents, dtype: str, column: str = "input_ids") -> Any:
    import pyarrow

    lists = pyarrow.array(documents, pyarrow.list_(getattr(pyarrow, dtype)()))
    return pyarrow.table({"text": ["a"] * len(documents), column: lists})


def check_source(source: Any, documents: Documents) -> None:
    """A source holds exactly these documents, whichever way it is asked."""
    lengths = [len(document) for document in documents]
    assert len(source) == len(documents)
    assert source.num_tokens == sum(lengths)
    assert source.lengths(np.arange(len(documents))).tolist() == lengths
    backwards = np.arange(len(documents))[::-1].copy()
    assert source.lengths(backwards).tolist() == lengths[::-1]
    assert source.lengths(np.zeros(0, np.int64)).tolist() == []
    for number, document in enumerate(documents):
        found = source.read(number, 0, len(document))
        assert (found.tolist(), found.dtype, found.ndim) == (document, source.dtype, 1)
        assert not found.flags.writeable
        half = len(document) // 2
        assert source.read(number, half, len(document)).tolist() == document[half:]
    if hasattr(source, "tokens"):
        assert source.tokens.tolist() == flat(documents)
        assert source.starts(np.arange(len(documents))).tolist() == [sum(lengths[:i]) for i in range(len(lengths))]
        raw = np.empty(source.num_tokens, source.dtype)
        raw.data[:] = source.tokens.data[:]  # as batches are copied
        assert raw.tolist() == flat(documents)
        source.prefetch(source.starts(backwards), source.lengths(backwards))
