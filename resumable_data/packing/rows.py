"""What packing gives: rows, as arrays of the pieces of documents that lie in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array


@dataclass(frozen=True, eq=False)
class PackedRows:
    """Rows of at most ``row_length`` tokens, each a run of pieces of documents.

    The pieces ``[edges[i], edges[i + 1])`` are row i's, in the order in which they lie in it. A row has at least one
    piece and a piece at least one token; what a row lacks is padding at its end.

    Args:
        row_length: tokens of a full row.
        document: ``(m,)`` int64, whose piece it is: an index into the lengths that were packed, or a document's ID
            where a `WindowPlan` made the rows.
        start: ``(m,)`` int64, first token of the piece in its document.
        stop: ``(m,)`` int64, the token after its last.
        edges: ``(num_rows + 1,)`` int64, ascending from 0 to m.
        num_truncated_documents: documents whose end was left out, because truncation was asked for.
        num_truncated_tokens: tokens left out of them.
    """

    row_length: int
    document: Int64Array
    start: Int64Array
    stop: Int64Array
    edges: Int64Array
    num_truncated_documents: int = 0
    num_truncated_tokens: int = 0

    def __len__(self) -> int:
        """Number of rows."""
        return self.edges.size - 1

    @property
    def num_pieces(self) -> int:
        """Pieces in all rows."""
        return self.document.size

    @cached_property
    def num_tokens(self) -> int:
        """Tokens of documents in all rows."""
        return int((self.stop - self.start).sum())

    @property
    def num_padding(self) -> int:
        """Places of rows that hold no token of a document."""
        return len(self) * self.row_length - self.num_tokens

    @property
    def fill(self) -> float:
        """Share of places that hold a token of a document, from 0 to 1; 1 where there are no rows."""
        return self.num_tokens / (len(self) * self.row_length) if len(self) else 1.0

    def tokens_per_row(self) -> Int64Array:
        """``(num_rows,)`` int64, the tokens of documents in each row."""
        ends = running_sum(self.stop - self.start)[self.edges]
        return ends[1:] - ends[:-1]

    def pieces(self, row: int) -> list[tuple[int, int, int]]:
        """``(document, start, stop)`` of each piece of a row, in the order in which they lie in it."""
        if not 0 <= row < len(self):
            raise UsageError(
                f"row must be in [0, {len(self)}); found {row}. There is no such row. Count a window's rows from 0."
            )
        these = slice(int(self.edges[row]), int(self.edges[row + 1]))
        columns = (self.document[these], self.start[these], self.stop[these])
        return list(zip(*(column.tolist() for column in columns), strict=True))

    def take(self, rows: Int64Array) -> PackedRows:
        """These rows, in this order.

        Args:
            rows: ``(k,)`` int64 in ``[0, num_rows)``.
        """
        return self.of_pieces(*self.pieces_of(rows))

    def pieces_of(self, rows: Int64Array) -> tuple[Int64Array, Int64Array]:
        """Which pieces rows have, ``(m,)`` int64, and the ``(k + 1,)`` edges between these; for `rows` see `take`."""
        begins = self.edges[rows]
        sizes = self.edges[rows + 1] - begins  # (k,) pieces of each row
        edges = running_sum(sizes)
        pieces = np.repeat(begins - edges[:-1], sizes)  # (m,) how far each piece moves
        pieces += np.arange(pieces.size)
        return pieces, edges

    def of_pieces(self, pieces: Int64Array, edges: Int64Array) -> PackedRows:
        """Rows of these pieces, with these edges between them."""
        document, start, stop = (column.take(pieces) for column in (self.document, self.start, self.stop))
        return PackedRows(
            self.row_length, document, start, stop, edges, self.num_truncated_documents, self.num_truncated_tokens
        )

    def stretch(self, first: int, stop: int) -> PackedRows:
        """The rows ``[first, stop)``. Their pieces share memory with these, which takes a tenth of copying them."""
        edges = self.edges[first : stop + 1]
        these = slice(edges[0], edges[-1])
        columns = (self.document[these], self.start[these], self.stop[these])
        truncated = (self.num_truncated_documents, self.num_truncated_tokens)
        return PackedRows(self.row_length, *columns, edges - edges[0], *truncated)

    def of_documents(self, documents: Int64Array) -> PackedRows:
        """The same rows, with ``documents[i]`` for what was document i."""
        return replace(self, document=documents.take(self.document))

    def check(self, lengths: Int64Array, *, consumed: int = 0) -> None:
        """Refuse rows that do not hold every token of these documents once, truncation apart.

        For policies of your own. Document indices must be those of ``lengths``.

        Args:
            lengths: ``(k,)`` int64, tokens of each document.
            consumed: tokens of the first document that earlier rows hold.

        Raises:
            UsageError: with the first property that fails.
        """
        check_structure(self, lengths.size)
        expected = lengths.copy()
        expected[:1] -= consumed
        self._check_tokens(lengths, expected)

    def _check_tokens(self, lengths: Int64Array, expected: Int64Array) -> None:
        """Each document's pieces, sorted by their start, must follow each other to its end."""
        arrangement = np.lexsort((self.start, self.document))  # (m,) documents ascending, then their tokens
        document, start, stop = (column[arrangement] for column in (self.document, self.start, self.stop))
        is_first = np.diff(document, prepend=-1) != 0
        first_token = np.where(document == 0, lengths[:1].sum() - expected[:1].sum(), 0)
        due = np.where(is_first, first_token, np.concatenate([[0], stop[:-1]]))
        _require(
            np.array_equal(start, due), "each document's pieces to follow each other", "pieces that repeat or skip"
        )
        held = np.bincount(document, weights=stop - start, minlength=lengths.size).astype(np.int64)
        missing = expected - held
        _require(bool((missing >= 0).all()), "pieces inside their documents", "tokens beyond a document's end")
        counts = (int(np.count_nonzero(missing)), int(missing.sum()))
        told = (self.num_truncated_documents, self.num_truncated_tokens)
        _require(counts == told, f"{told[1]} truncated tokens in {told[0]} documents", f"{counts[1]} in {counts[0]}")


def concatenate(parts: Sequence[PackedRows], row_length: int) -> PackedRows:
    """The rows of some parts, one after another; what was truncated is not counted."""
    nothing = np.empty(0, np.int64)
    edges = running_sum(np.concatenate([nothing, *(np.diff(part.edges) for part in parts)]))
    document, start, stop = (
        np.concatenate([nothing, *(getattr(part, name) for part in parts)]) for name in ("document", "start", "stop")
    )
    return PackedRows(row_length, document, start, stop, edges)


def check_structure(rows: PackedRows, num_documents: int) -> Int64Array:
    """Refuse rows whose arrays do not fit each other: shapes, ranges and the size of each row.

    Whether a piece lies inside its document is for the caller, who knows the lengths.

    Returns:
        ``(num_rows,)`` int64, the tokens of documents in each row.

    Raises:
        UsageError: with the first property that fails.
    """
    _require(_are_arrays(rows), "int64 arrays of one length and int64 edges", "other arrays")
    ends = [int(rows.edges[0]), int(rows.edges[-1])] if rows.edges.size else []
    _require(ends == [0, rows.num_pieces], f"edges from 0 to {rows.num_pieces}", f"{ends}")
    num_pieces, sizes = rows.edges[1:] - rows.edges[:-1], rows.stop - rows.start
    # The sign of all combined tells whether any is below zero, in a quarter of the time of looking at each by itself.
    signs = rows.document | (num_documents - 1 - rows.document) | rows.start | rows.stop
    signs |= (sizes - 1) | (rows.row_length - sizes)
    if num_pieces.min(initial=1) < 1 or signs.min(initial=0) < 0:
        _name_the_fault(rows, num_documents)
    tokens = rows.tokens_per_row()
    longest = int(tokens.max(initial=0))
    _require(longest <= rows.row_length, f"at most {rows.row_length} tokens in a row", f"{longest}")
    return tokens


def _are_arrays(rows: PackedRows) -> bool:
    columns = (rows.document, rows.start, rows.stop)
    is_int64 = all(column.dtype == np.int64 for column in (*columns, rows.edges))
    return is_int64 and all(column.shape == (rows.num_pieces,) for column in columns) and rows.edges.ndim == 1


def _name_the_fault(rows: PackedRows, num_documents: int) -> None:
    _require(bool((np.diff(rows.edges) > 0).all()), "at least one piece in each row", "a row without any")
    known = (rows.document >= 0) & (rows.document < num_documents)
    _require(bool(known.all()), f"documents in [0, {num_documents})", "others")
    _require(bool((rows.start >= 0).all()), "tokens counted from 0", "a piece that starts before")
    _require(bool((rows.start < rows.stop).all()), "at least one token in each piece", "an empty piece")
    _require(False, f"at most {rows.row_length} tokens in a row", "a longer piece")


def _require(holds: bool, expected: str, found: str) -> None:
    if not holds:
        raise UsageError(
            f"packed rows must have {expected}; found {found}. Tokens would be lost or trained on twice. Correct the"
            " policy that made these rows."
        )


def running_sum(sizes: Int64Array) -> Int64Array:
    """``(k,)`` sizes to the ``(k + 1,)`` edges between them, from 0 on."""
    edges = np.zeros(sizes.size + 1, dtype=np.int64)
    sizes.cumsum(out=edges[1:])
    return edges
