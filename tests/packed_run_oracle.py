"""What a run over packed rows must do, one token at a time in plain Python; see `tests/oracle.py` for the rules.

The rows of one window before they are shuffled are those of `tests/packing_oracle.py`. What the orders of documents and
of a window's rows are is given from outside, as lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TYPE_CHECKING

from tests.oracle import _fmix64, _fraction_bits
from tests.packing_oracle import Piece, chunk, size

if TYPE_CHECKING:
    from collections.abc import Callable

    Pack = Callable[[list[int]], list[list[Piece]]]
    Shuffled = Callable[[int, int, int], list[int]]

MASK = (1 << 64) - 1
IGNORED = -100
PLACE = ("epoch", "window", "row", "carry_document", "carry_offset")
COUNTS = ("documents", "tokens", "target_tokens", "truncated_tokens")


@dataclass(frozen=True)
class RunRow:
    """One row of the global sequence, and where it is."""

    epoch: int
    window: int
    row: int
    is_last_of_window: bool
    carry: tuple[int, int]
    pieces: list[Piece]

    @property
    def num_tokens(self) -> int:
        """Tokens of documents."""
        return size(self.pieces)

    @property
    def num_targets(self) -> int:
        """Tokens whose next one is in the same piece."""
        return sum(stop - 1 - start for _, start, stop in self.pieces)


@dataclass(eq=False)
class Packing:
    """Documents and how they are packed.

    Attributes:
        lengths: Tokens of each document.
        order: ``order[epoch][place]`` is a document.
        row_length: Tokens of a row.
        window: Documents of a window.
        pack: Packs the lengths of one window's documents; None where an epoch's documents are one long text.
        shuffled: Given a number of rows, an epoch and a window, the place in the window of each of the packed rows.
        truncates: Whether documents end with their first row.
    """

    lengths: list[int]
    order: list[list[int]]
    row_length: int
    window: int
    pack: Pack | None
    shuffled: Shuffled
    truncates: bool = False
    _epochs: dict[int, list[RunRow]] = field(default_factory=dict)
    _carries: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)

    @property
    def num_windows(self) -> int:
        """Windows of an epoch."""
        return len(range(0, len(self.lengths), self.window))

    def epoch(self, epoch: int) -> list[RunRow]:
        """The rows of an epoch."""
        if epoch not in self._epochs:
            packed = self._concatenated(epoch) if self.pack is None else self._packed(epoch, self.pack)
            self._epochs[epoch] = [
                row for window, rows in enumerate(packed) for row in self._shuffle(epoch, window, rows)
            ]
        return self._epochs[epoch]

    def run(self, epochs: int) -> list[RunRow]:
        """The rows of so many epochs."""
        return [row for epoch in range(epochs) for row in self.epoch(epoch)]

    def carry(self, epoch: int, window: int) -> tuple[int, int]:
        """Where a window begins: the first token of the epoch, as place and index, that no earlier row holds."""
        if (epoch, window) not in self._carries:
            self._carries[epoch, window] = self._find_carry(epoch, window)
        return self._carries[epoch, window]

    def _find_carry(self, epoch: int, window: int) -> tuple[int, int]:
        if self.pack is None:
            held = sum(self.row_length for rows in self._concatenated(epoch)[:window] for _ in rows)
            for place, document in enumerate(self.order[epoch][: window * self.window]):
                if held < self.lengths[document]:
                    return place, held
                held -= self.lengths[document]
        return window * self.window, 0

    def _parts(self, epoch: int) -> list[list[int]]:
        documents = self.order[epoch]
        return [documents[first : first + self.window] for first in range(0, len(documents), self.window)]

    def _packed(self, epoch: int, pack: Pack) -> list[list[list[Piece]]]:
        return [
            [
                [(part[index], start, stop) for index, start, stop in row]
                for row in pack([self.lengths[document] for document in part])
            ]
            for part in self._parts(epoch)
        ]

    def _concatenated(self, epoch: int) -> list[list[list[Piece]]]:
        """A full row is of the window that its last token lies in, what is left over at the end of the last one."""
        windows: list[list[list[Piece]]] = []
        row: list[tuple[int, int]] = []
        for part in self._parts(epoch):
            windows.append([])
            for document in part:
                for token in range(self.lengths[document]):
                    row.append((document, token))
                    if len(row) == self.row_length:
                        windows[-1] += chunk(row, self.row_length)
                        row = []
        windows[-1] += chunk(row, self.row_length)
        return windows

    def _shuffle(self, epoch: int, window: int, rows: list[list[Piece]]) -> list[RunRow]:
        places = self.shuffled(len(rows), epoch, window)
        assert sorted(places) == list(range(len(rows)))
        carry = self.carry(epoch, window)
        return [
            RunRow(epoch, window, place, place == len(rows) - 1, carry, rows[places.index(place)])
            for place in range(len(rows))
        ]

    def place_after(self, rows: list[RunRow]) -> dict[str, int]:
        """What a cursor tells after the first rows of a run."""
        place = dict.fromkeys(PLACE, 0)
        if rows:
            last = rows[-1]
            epoch, window, row = last.epoch, last.window, last.row + 1
            if last.is_last_of_window:
                window, row = window + 1, 0
            if window == self.num_windows:
                epoch, window = epoch + 1, 0
            carry = (0, 0) if window == 0 else self.carry(epoch, window)
            place = dict(zip(PLACE, (epoch, window, row, *carry), strict=True))
        return place | self.counts(rows)

    def counts(self, rows: list[RunRow]) -> dict[str, int]:
        """What is in some rows."""
        counts = dict.fromkeys(COUNTS, 0)
        for row in rows:
            counts["tokens"] += row.num_tokens
            counts["target_tokens"] += row.num_targets
            for document, _, stop in row.pieces:
                length = self.lengths[document]
                kept = min(length, self.row_length) if self.truncates else length
                if stop == kept:
                    counts["documents"] += 1
                    counts["truncated_tokens"] += length - kept
        return counts


def cut_by_rows(rows: list[RunRow], start: int, num_rows: int) -> list[tuple[int, int]]:
    """Updates of so many rows from a position on; the last one has what is left."""
    updates = []
    while start < len(rows):
        stop = start
        while stop < len(rows) and stop - start < num_rows:
            stop += 1
        updates.append((start, stop))
        start = stop
    return updates


def cut_by_tokens(rows: list[RunRow], start: int, num_tokens: int) -> list[tuple[int, int]]:
    """Updates that take rows until they have so many tokens; the last one has what is left."""
    updates = []
    while start < len(rows):
        stop, tokens = start, 0
        while stop < len(rows) and tokens < num_tokens:
            tokens += rows[stop].num_tokens
            stop += 1
        updates.append((start, stop))
        start = stop
    return updates


@cache
def _constants() -> tuple[int, ...]:
    """The fractions of the square roots of four primes, with the lowest bit set."""
    return tuple(_fraction_bits(prime) | 1 for prime in (7, 11, 13, 17))


def row_id(pieces: list[Piece]) -> int:
    """The 61-bit hash that a row goes by."""
    total = 0
    for place, piece in enumerate(pieces):
        values = (*piece, place)
        mixed = sum(value * constant for value, constant in zip(values, _constants(), strict=True))
        total += _fmix64(mixed & MASK)
    return _fmix64(total & MASK) >> 3


def token_of(document: int, index: int) -> int:
    """The token at an index of a document, in the sources that tests make: it tells both."""
    return 1000 * document + index + 1


@dataclass
class Arrays:
    """What a model is handed for some rows, as lists."""

    tokens: list[list[int]]
    labels: list[list[int]]
    position_ids: list[list[int]]
    cu_seqlens: list[int]
    max_seqlen: int


def arrays_of(rows: list[list[Piece]], row_length: int, *, pad_token: int = 0, num_filler: int = 0) -> Arrays:
    """Rows token by token; the last `num_filler` of them have no labels."""
    arrays = Arrays([], [], [], [0], 0)
    for number, pieces in enumerate(rows):
        tokens: list[int] = []
        labels: list[int] = []
        positions: list[int] = []
        sequences = [stop - start for _, start, stop in pieces]
        for document, start, stop in pieces:
            for index in range(start, stop):
                tokens.append(token_of(document, index))
                labels.append(token_of(document, index + 1) if index + 1 < stop else IGNORED)
                positions.append(index - start)
        num_padding = row_length - len(tokens)
        if num_padding:
            sequences.append(num_padding)
        if number >= len(rows) - num_filler:
            labels = [IGNORED] * len(labels)
        arrays.tokens.append(tokens + [pad_token] * num_padding)
        arrays.labels.append(labels + [IGNORED] * num_padding)
        arrays.position_ids.append(positions + list(range(num_padding)))
        for sequence in sequences:
            arrays.cu_seqlens.append(arrays.cu_seqlens[-1] + sequence)
            arrays.max_seqlen = max(arrays.max_seqlen, sequence)
    return arrays
