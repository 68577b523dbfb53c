"""What packing must do, in plain Python, one document at a time; see `tests/oracle.py` for the rules of such code.

A row is a list of pieces ``(document, start, stop)``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fractions import Fraction

    from resumable_data.packing import PackedRows

Piece = tuple[int, int, int]

NO_LABEL = -100


def rows_of(packed: PackedRows) -> list[list[Piece]]:
    """The package's rows as the oracle writes them."""
    return [packed.pieces(row) for row in range(len(packed))]


def size(row: list[Piece]) -> int:
    """Tokens in a row."""
    return sum(stop - start for _, start, stop in row)


def cut_long(lengths: list[int], row_length: int, *, truncate: bool = False) -> list[Piece]:
    """Documents as pieces that fit into a row."""
    pieces = []
    for document, length in enumerate(lengths):
        for start in range(0, length, row_length):
            if start == 0 or not truncate:
                pieces.append((document, start, min(start + row_length, length)))
    return pieces


@dataclass
class Bin:
    """A row that is being filled; ``since`` is when it came to have the room it has."""

    room: int
    since: int
    pieces: list[Piece] = field(default_factory=list)


def best_fit(lengths: list[int], row_length: int, *, truncate: bool = False) -> list[list[Piece]]:
    """The longest first, into the least room that holds it; of equal rooms, the one that has been waiting longest."""
    pieces = cut_long(lengths, row_length, truncate=truncate)
    bins: list[Bin] = []
    for moment, (document, start, stop) in enumerate(sorted(pieces, key=lambda piece: piece[1] - piece[2])):
        fitting = [candidate for candidate in bins if candidate.room >= stop - start]
        if fitting:
            chosen = min(fitting, key=lambda candidate: (candidate.room, candidate.since))
        else:
            chosen = Bin(row_length, moment)
            bins.append(chosen)
        chosen.pieces.append((document, start, stop))
        chosen.room -= stop - start
        chosen.since = moment
    return [done.pieces for done in bins]


def fill(lengths: list[int], row_length: int, *, percent: int | Fraction) -> list[list[Piece]]:
    """Best fit, but rows filled to less than so many percent are laid end to end, by document."""
    rows = best_fit(lengths, row_length)
    least = ceil(percent * row_length / 100)
    loose = sorted(piece for row in rows if size(row) < least for piece in row)
    tokens = [(document, token) for document, start, stop in loose for token in range(start, stop)]
    return [row for row in rows if size(row) >= least] + chunk(tokens, row_length)


def concat(lengths: list[int], row_length: int) -> list[list[Piece]]:
    """All tokens in order, cut wherever a row is full."""
    return chunk([(document, token) for document, length in enumerate(lengths) for token in range(length)], row_length)


def chunk(tokens: list[tuple[int, int]], row_length: int) -> list[list[Piece]]:
    """Lay tokens into rows one at a time."""
    rows: list[list[Piece]] = []
    for place, (document, token) in enumerate(tokens):
        if place % row_length == 0:
            rows.append([])
        row = rows[-1]
        if row and row[-1][0] == document and row[-1][2] == token:
            row[-1] = (document, row[-1][1], token + 1)
        else:
            row.append((document, token, token + 1))
    return rows


def no_packing(lengths: list[int], row_length: int, *, truncate: bool = False) -> list[list[Piece]]:
    """Every piece is a row."""
    return [[piece] for piece in cut_long(lengths, row_length, truncate=truncate)]


@dataclass
class Arrays:
    """Rows as a model takes them."""

    tokens: list[list[int]] = field(default_factory=list)
    labels: list[list[int]] = field(default_factory=list)
    position_ids: list[list[int]] = field(default_factory=list)
    sequence_ids: list[list[int]] = field(default_factory=list)
    cu_seqlens: list[int] = field(default_factory=list)


def arrays(documents: list[list[int]], rows: list[list[Piece]], row_length: int, pad_token: int) -> Arrays:
    """Write rows one token at a time; padding is a last sequence of its row, whose tokens have no label."""
    written = Arrays()
    num_places = num_sequences = 0
    for row in rows:
        tokens, labels, position_ids, sequence_ids = [], [], [], []
        sequences = [documents[document][start:stop] for document, start, stop in row]
        padding = [pad_token] * (row_length - size(row))
        for sequence in [*sequences, padding] if padding else sequences:
            written.cu_seqlens.append(num_places)
            for position, token in enumerate(sequence):
                has_next = sequence is not padding and position + 1 < len(sequence)
                tokens.append(token)
                labels.append(sequence[position + 1] if has_next else NO_LABEL)
                position_ids.append(position)
                sequence_ids.append(num_sequences)
                num_places += 1
            num_sequences += 1
        written.tokens.append(tokens)
        written.labels.append(labels)
        written.position_ids.append(position_ids)
        written.sequence_ids.append(sequence_ids)
    written.cu_seqlens.append(num_places)
    return written
