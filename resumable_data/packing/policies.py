"""Policies: how the documents of a window become rows of one length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array
from resumable_data.packing.arguments import check_lengths, checked_int, checked_row_length
from resumable_data.packing.best_fit import best_fit
from resumable_data.packing.pieces import Pieces, Placement, chunk, split, split_off_full
from resumable_data.packing.rows import PackedRows, running_sum


@runtime_checkable
class Policy(Protocol):
    """Turns documents into rows.

    A policy of your own needs these two methods and must be

    * complete: every token of every document lies in one row, once (`PackedRows.check` holds you to it);
    * deterministic: a pure function of what `describe` tells and of the arguments, the same on every machine. An
      ``np.argsort`` without ``kind="stable"`` is not: it arranges ties as the processor's instructions happen to do;
    * free of torch at import time, so that an audit can use it without torch.
    """

    def pack(self, lengths: Int64Array, row_length: int, /) -> PackedRows:
        """Pack ``(k,)`` int64 lengths in tokens, at least 0, into rows of ``row_length`` tokens."""
        ...

    def describe(self) -> dict[str, int | str]:
        """``"kind"`` (str), ``"version"`` (int) and whatever else the rows depend on, as JSON can hold it."""
        ...


class Carry(NamedTuple):
    """The first token that no row holds yet."""

    document: int
    """Its document: an index into the lengths that were packed, or a place in the epoch's order."""

    offset: int
    """Its index in the document."""


class PlacingPolicy(ABC):
    """A `Policy` of this package: it tells the row of each piece, and `pack` puts the rows together.

    A `WindowPlan` shuffles them in the same pass over the pieces.
    """

    @abstractmethod
    def place(self, lengths: Int64Array, row_length: int, /) -> Placement:
        """Place ``(k,)`` int64 lengths in tokens, at least 0, into rows of ``row_length`` tokens."""

    @abstractmethod
    def describe(self) -> dict[str, int | str]:
        """Kind, version and arguments."""

    def pack(self, lengths: Int64Array, row_length: int, /) -> PackedRows:
        """Pack ``(k,)`` int64 lengths in tokens, at least 0, into rows of ``row_length`` tokens.

        Raises:
            UsageError: when an argument is not as described, or there would be more rows than memory holds.
        """
        return self.place(lengths, row_length).rows(row_length)


@dataclass(frozen=True)
class BestFit(PlacingPolicy):
    """Whole documents, each in the row where it leaves the least space, the longest first.

    A document longer than a row becomes full rows and a rest, which is packed like a document. With many documents
    shorter than half a row, fill is above 99.9 %; with documents of 0.6 rows it is 60 %: see `Fill`.

    Args:
        truncate: keep only the first row of a longer document, and count the tokens that are left out.

    Example:
        >>> import numpy as np
        >>> rows = BestFit().pack(np.array([5, 3, 11, 5]), 8)
        >>> [rows.pieces(row) for row in range(len(rows))]
        [[(2, 0, 8)], [(0, 0, 5), (1, 0, 3)], [(3, 0, 5), (2, 8, 11)]]
    """

    kind: ClassVar[str] = "best-fit"
    version: ClassVar[int] = 1

    truncate: bool = False

    def place(self, lengths: Int64Array, row_length: int, /) -> Placement:
        """Place ``(k,)`` int64 lengths in tokens, at least 0, into rows of ``row_length`` tokens."""
        row_length = _checked(lengths, row_length)
        kept, truncated = _truncated(lengths, row_length) if self.truncate else (lengths, (0, 0))
        return _place_best(kept, row_length)._replace(truncated=truncated)

    def describe(self) -> dict[str, int | str]:
        """Kind, version and arguments."""
        return {"kind": self.kind, "version": self.version, "truncate": int(self.truncate)}


@dataclass(frozen=True)
class Fill(PlacingPolicy):
    """As `BestFit`, but what lies in badly filled rows is laid end to end instead and cut wherever a row is full.

    Fill is at least the threshold on any lengths, the last row apart, at the price of cut documents where whole ones
    do not fit together.

    Args:
        threshold: share of a row, above 0 and at most 1, that must be filled for the row to stay.

    Example:
        >>> import numpy as np
        >>> rows = Fill().pack(np.array([6, 6, 6, 4, 6]), 10)
        >>> [rows.pieces(row) for row in range(len(rows))]
        [[(0, 0, 6), (3, 0, 4)], [(1, 0, 6), (2, 0, 4)], [(2, 4, 6), (4, 0, 6)]]
    """

    kind: ClassVar[str] = "fill"
    version: ClassVar[int] = 1

    threshold: float = 0.996

    def __post_init__(self) -> None:
        is_number = isinstance(self.threshold, (int, float)) and not isinstance(self.threshold, bool)
        if not is_number or not 0 < self.threshold <= 1:
            raise UsageError(
                f"threshold must be above 0 and at most 1, a share of a row; found {self.threshold!r}. Rows cannot be"
                " kept or dissolved by it. Pass a number like 0.996."
            )
        object.__setattr__(self, "threshold", float(self.threshold))

    def place(self, lengths: Int64Array, row_length: int, /) -> Placement:
        """Place ``(k,)`` int64 lengths in tokens, at least 0, into rows of ``row_length`` tokens."""
        row_length = _checked(lengths, row_length)
        pieces, row, num_rows, _ = _place_best(lengths, row_length)
        # Sums of tokens are exact in floating point: a window has fewer than 2**53.
        tokens = np.bincount(row, weights=pieces.stop - pieces.start, minlength=num_rows)
        keep = tokens >= self._least_tokens(row_length)
        stays = keep[row]
        kept, kept_row = pieces.take(np.flatnonzero(stays)), (np.cumsum(keep) - 1)[row[stays]]
        # Full rows stay, so that of each document no more than one piece is left over.
        left = np.flatnonzero(~stays)
        left = left[np.argsort(pieces.document[left], kind="stable")]
        cut, cut_row = _end_to_end(pieces.take(left), row_length)
        num_kept = int(np.count_nonzero(keep))
        together = Pieces(*(np.concatenate(columns) for columns in zip(kept, cut, strict=True)))
        num_cut = int(cut_row[-1]) + 1 if cut_row.size else 0
        return Placement(together, np.concatenate([kept_row, cut_row + num_kept]), num_kept + num_cut)

    def describe(self) -> dict[str, int | str]:
        """Kind, version and arguments; the threshold as the shortest decimal number that tells it from others."""
        return {"kind": self.kind, "version": self.version, "threshold": repr(self.threshold)}

    def _least_tokens(self, row_length: int) -> int:
        """Tokens of a row that stays: the threshold taken as the decimal number that was written, without rounding."""
        return -(-Fraction(repr(self.threshold)) * row_length // 1)


@dataclass(frozen=True)
class Concat(PlacingPolicy):
    """Documents end to end in the given order, cut wherever a row is full: what most language models are trained on.

    Every row is full but the very last. In a `WindowPlan` the rest of a window goes on into the next one.

    Example:
        >>> import numpy as np
        >>> rows = Concat().pack(np.array([5, 5, 5]), 8)
        >>> [rows.pieces(row) for row in range(len(rows))]
        [[(0, 0, 5), (1, 0, 3)], [(1, 3, 5), (2, 0, 5)]]
        >>> full, carry = Concat().place_full(np.array([5, 5]), 8)
        >>> full.num_rows, carry
        (1, Carry(document=1, offset=3))
        >>> full, carry = Concat().place_full(np.array([5, 5, 7]), 8, consumed=3)
        >>> full.rows(8).pieces(0), carry
        ([(0, 3, 5), (1, 0, 5), (2, 0, 1)], Carry(document=2, offset=1))
    """

    kind: ClassVar[str] = "concat"
    version: ClassVar[int] = 1

    def place(self, lengths: Int64Array, row_length: int, /, *, consumed: int = 0) -> Placement:
        """Place documents to their end; only the last row may be short.

        Args:
            lengths: ``(k,)`` int64, tokens of each document, at least 0.
            row_length: tokens of a row.
            consumed: tokens at the start of the first document that earlier rows hold.
        """
        row_length, consumed = _checked(lengths, row_length), _checked_consumed(lengths, consumed)
        return self._place(lengths, row_length, consumed, -(-_num_tokens(lengths, consumed) // row_length))

    def place_full(self, lengths: Int64Array, row_length: int, /, *, consumed: int = 0) -> tuple[Placement, Carry]:
        """Make full rows only, and tell where the rest begins.

        Go on with ``lengths[carry.document:]`` and what follows, and with ``consumed=carry.offset``.

        Args:
            lengths: ``(k,)`` int64, tokens of each document, at least 0.
            row_length: tokens of a row.
            consumed: tokens at the start of the first document that earlier rows hold.

        Returns:
            The rows, all full, and the first token in none of them; ``(k, 0)`` where there is none.
        """
        row_length, consumed = _checked(lengths, row_length), _checked_consumed(lengths, consumed)
        num_rows, num_left = divmod(_num_tokens(lengths, consumed), row_length)
        placement = self._place(lengths, row_length, consumed, num_rows)
        if not num_left:
            return placement, Carry(lengths.size, 0)
        edges = running_sum(lengths)
        token = int(edges[-1]) - num_left
        document = int(np.searchsorted(edges, token, side="right")) - 1
        return placement, Carry(document, token - int(edges[document]))

    def describe(self) -> dict[str, int | str]:
        """Kind and version."""
        return {"kind": self.kind, "version": self.version}

    def _place(self, lengths: Int64Array, row_length: int, consumed: int, num_rows: int) -> Placement:
        left = lengths.copy()
        left[:1] -= consumed
        pieces, row = chunk(left, row_length, num_rows)
        if consumed:
            shift = np.where(pieces.document == 0, consumed, 0)
            pieces = Pieces(pieces.document, pieces.start + shift, pieces.stop + shift)
        return Placement(pieces, row, num_rows)


@dataclass(frozen=True)
class NoPacking(PlacingPolicy):
    """One document per row, padded; a longer one takes several rows.

    Args:
        truncate: keep only the first row of a longer document, and count the tokens that are left out.

    Example:
        >>> import numpy as np
        >>> rows = NoPacking().pack(np.array([5, 0, 9]), 8)
        >>> [rows.pieces(row) for row in range(len(rows))]
        [[(0, 0, 5)], [(2, 0, 8)], [(2, 8, 9)]]
    """

    kind: ClassVar[str] = "no-packing"
    version: ClassVar[int] = 1

    truncate: bool = False

    def place(self, lengths: Int64Array, row_length: int, /) -> Placement:
        """Place ``(k,)`` int64 lengths in tokens, at least 0, into rows of ``row_length`` tokens."""
        row_length = _checked(lengths, row_length)
        kept, truncated = _truncated(lengths, row_length) if self.truncate else (lengths, (0, 0))
        pieces = split(kept, row_length)
        num_rows = pieces.document.size
        return Placement(pieces, np.arange(num_rows), num_rows, truncated)

    def describe(self) -> dict[str, int | str]:
        """Kind, version and arguments."""
        return {"kind": self.kind, "version": self.version, "truncate": int(self.truncate)}


def _checked(lengths: Int64Array, row_length: int) -> int:
    row_length = checked_row_length(row_length)
    check_lengths(lengths, row_length)
    return row_length


def _checked_consumed(lengths: Int64Array, consumed: int) -> int:
    maximum = int(lengths[0]) if lengths.size else 0
    remedy = "It counts the tokens of the first document that earlier rows hold: pass the offset of their carry."
    return checked_int("consumed", consumed, 0, maximum, remedy)


def _num_tokens(lengths: Int64Array, consumed: int) -> int:
    return int(lengths.sum()) - consumed


def _truncated(lengths: Int64Array, row_length: int) -> tuple[Int64Array, tuple[int, int]]:
    """Lengths up to a row; the documents that are longer and the tokens left out of them."""
    kept = np.minimum(lengths, row_length)
    left_out = lengths - kept
    return kept, (int(np.count_nonzero(left_out)), int(left_out.sum()))


def _place_best(lengths: Int64Array, row_length: int) -> Placement:
    """Full rows first, as nothing fits beside them; then each document's rest, longest first, by best fit."""
    full, rests = split_off_full(lengths, row_length)
    sequence, row, num_rows = best_fit(rests, row_length)
    num_full = full.document.size
    pieces = Pieces.empty(num_full + sequence.size)
    for column, part in zip(pieces, full, strict=True):
        column[:num_full] = part
    document, start, stop = (column[num_full:] for column in pieces)
    document[:] = sequence
    lengths.take(sequence, out=stop, mode="clip")  # any other mode makes a copy first
    np.subtract(stop, rests.take(sequence), out=start)
    return Placement(pieces, np.concatenate([np.arange(num_full), row + num_full]), num_full + num_rows)


def _end_to_end(pieces: Pieces, row_length: int) -> tuple[Pieces, Int64Array]:
    """Lay pieces end to end and cut them into rows; the new pieces and the row of each, from 0 on."""
    sizes = pieces.stop - pieces.start
    cut, row = chunk(sizes, row_length, -(-int(sizes.sum()) // row_length))
    origin = pieces.start[cut.document]
    return Pieces(pieces.document[cut.document], origin + cut.start, origin + cut.stop), row
