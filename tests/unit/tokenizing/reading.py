"""What texts and datasets hold, in plain Python and without the package's code."""

from __future__ import annotations

import re
import struct
from pathlib import Path

SIZES = {1: (1, "B"), 4: (4, "i"), 8: (2, "H")}


def read_megatron(prefix: Path) -> list[list[int]]:
    """The documents of a dataset, by its index alone: each entry is read, and must be in its place."""
    index, tokens = (prefix.with_name(f"{prefix.name}.{ending}").read_bytes() for ending in ("idx", "bin"))
    magic, version, code, num_sequences, num_entries = struct.unpack("<9sQBQQ", index[:34])
    assert (magic, version) == (b"MMIDIDX\0\0", 1)
    assert num_entries == num_sequences + 1
    lengths = struct.unpack_from(f"<{num_sequences}i", index, 34)
    pointers = struct.unpack_from(f"<{num_sequences}q", index, 34 + 4 * num_sequences)
    entries = struct.unpack_from(f"<{num_entries}q", index, 34 + 12 * num_sequences)
    assert len(index) == 34 + 12 * num_sequences + 8 * num_entries
    assert list(entries) == list(range(num_entries))
    size, letter = SIZES[code]
    documents = [
        list(struct.unpack_from(f"<{length}{letter}", tokens, pointer))
        for length, pointer in zip(lengths, pointers, strict=True)
    ]
    assert pointers == tuple(size * sum(lengths[:at]) for at in range(num_sequences))
    assert len(tokens) == size * sum(lengths)
    return documents


def split_by_separator(data: bytes, separator: bytes) -> list[bytes]:
    """From left to right, a separator ends a document; what is left at the end is one if it is something."""
    documents, current, at = [], b"", 0
    while at < len(data):
        if data[at : at + len(separator)] == separator:
            documents.append(current)
            current, at = b"", at + len(separator)
        else:
            current, at = current + data[at : at + 1], at + 1
    return [*documents, current] if current else documents


def split_by_blank_lines(data: bytes) -> list[bytes]:
    """Runs of lines that hold something, without the last one's line end."""
    documents: list[list[bytes]] = [[]]
    for line in data.split(b"\n"):
        if re.fullmatch(rb"[ \t\r\f\v]*", line):
            documents.append([])
        else:
            documents[-1].append(line)
    return [b"\n".join(lines).removesuffix(b"\r") for lines in documents if lines]


def byte_tokens(documents: list[bytes], end_token: int | None = 256) -> list[list[int]]:
    """The tokens of documents that have some."""
    end = [] if end_token is None else [end_token]
    return [[*document, *end] for document in documents if document or end]
