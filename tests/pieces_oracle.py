"""Pieces of packed rows as bytes, read and written number by number, as `docs/ledger.md` says it."""

from __future__ import annotations

import xxhash

from tests.packed_run_oracle import row_id
from tests.packing_oracle import Piece

Rows = list[list[Piece]]


def encode(rows: Rows, *, widths: tuple[int, int, int, int] | None = None) -> bytes:
    """The bytes of rows; `widths` of the four columns are the fewest where they are not given."""
    pieces = [piece for row in rows for piece in row]
    columns = [
        [len(row) - 1 for row in rows],
        [document for document, _, _ in pieces],
        [start for _, start, _ in pieces],
        [stop - start - 1 for _, start, stop in pieces],
    ]
    if widths is None:
        fewest = [next(n for n in range(9) if all(value < 256**n for value in column)) for column in columns]
        widths = (fewest[0], max(fewest[1], 1), fewest[2], fewest[3])
    data = bytes([widths[0] + 16 * widths[1], widths[2] + 16 * widths[3]])
    for column, width in zip(columns, widths, strict=True):
        for value in column:
            data += value.to_bytes(width, "little")
    return data


def decode(data: bytes, num_rows: int) -> Rows | None:
    """The rows of some bytes; None where they are none."""
    if len(data) < 2:
        return None
    widths = [data[0] % 16, data[0] // 16, data[1] % 16, data[1] // 16]
    rest = data[2:]
    if max(widths) > 8 or widths[1] == 0 or num_rows > len(rest):
        return None

    def take(count: int, width: int) -> list[int] | None:
        nonlocal rest
        part, rest = rest[: count * width], rest[count * width :]
        if len(part) < count * width:
            return None
        return [int.from_bytes(part[n * width : (n + 1) * width], "little") for n in range(count)]

    sizes = take(num_rows, widths[0])
    if sizes is None or sum(sizes) + num_rows > len(rest):
        return None
    columns = [take(sum(sizes) + num_rows, width) for width in widths[1:]]
    if rest or None in columns:
        return None
    documents, starts, tokens = (column or [] for column in columns)
    if any(value >= 2**60 for value in documents + starts) or any(value >= 2**40 for value in tokens):
        return None
    pieces = [(d, start, start + more + 1) for d, start, more in zip(documents, starts, tokens, strict=True)]
    rows, first = [], 0
    for size in sizes:
        rows.append(pieces[first : first + size + 1])
        first += size + 1
    return rows


def digest_of(rows: Rows) -> int:
    """The digest of a record that holds these rows."""
    return xxhash.xxh3_64_intdigest(b"".join(row_id(row).to_bytes(8, "little") for row in rows))
