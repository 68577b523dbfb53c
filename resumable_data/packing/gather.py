"""From packed rows and a source to the arrays that a model takes: no object per token, one cast per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array
from resumable_data.packing.arguments import checked_int
from resumable_data.packing.batch import IGNORED_LABEL, Int32Array, RowBatch, RowBuffers
from resumable_data.packing.checked_rows import CheckedRows
from resumable_data.packing.reading import MAX_TOKEN, read_tokens
from resumable_data.packing.rows import PackedRows
from resumable_data.packing.sequences import Sequences

if TYPE_CHECKING:
    from resumable_data.sources import FlatTokens, TokenArray, TokenSource

_MAX_PLACES = 2**31 - 1
"""Of a batch: ``cu_seqlens`` is int32, because the kernels take it so."""


def gather(source: TokenSource, rows: PackedRows, *, pad_token: int = 0, out: RowBuffers | None = None) -> RowBatch:
    """Write rows as arrays.

    A label is the next token of the same piece. Where a document goes on in another row, its piece's last token has no
    label, as at a document's end: a piece of n tokens has n - 1 targets, whatever the source, so that `target_tokens`
    knows their number without reading a token.

    Args:
        source: of the documents.
        rows: ``k`` rows of length ``L``, ``k * L`` below 2**31; ``rows.document`` holds the source's documents.
        pad_token: for the places that a row lacks, from 0 to 2**63 - 1.
        out: memory to write to, of at least ``k`` rows of length ``L``; new memory by default. It is
            as it was when an error is raised.

    Returns:
        The arrays; where ``out`` is given, of its first ``k`` rows.

    Raises:
        UsageError: when an argument is not as described, or rows name documents or tokens that the source does not
            have.
        SourceError: when the source gives something else than integers for a range, or a token above 2**63 - 1.

    Example:
        >>> import numpy as np
        >>> from resumable_data import BestFit, open_tokens
        >>> source = open_tokens(np.array([11, 12, 13, 21, 22, 31]), lengths=np.array([3, 2, 1]))
        >>> rows = BestFit().pack(source.lengths(np.arange(3)), 4)
        >>> [rows.pieces(row) for row in range(2)]
        [[(0, 0, 3), (2, 0, 1)], [(1, 0, 2)]]
        >>> batch = gather(source, rows)
        >>> batch.tokens
        array([[11, 12, 13, 31],
               [21, 22,  0,  0]])
        >>> batch.labels
        array([[  12,   13, -100, -100],
               [  22, -100, -100, -100]])
        >>> batch.position_ids.tolist()
        [[0, 1, 2, 0], [0, 1, 0, 1]]
        >>> batch.cu_seqlens.tolist(), batch.max_seqlen
        ([0, 3, 4, 6, 8], 3)
    """
    pad_token = checked_int("pad_token", pad_token, 0, MAX_TOKEN, "Pass the token that the model has for padding.")
    return gather_checked(source, CheckedRows.of(source, rows), pad_token=pad_token, out=out)


def gather_checked(
    source: TokenSource, checked: CheckedRows, *, pad_token: int, out: RowBuffers | None = None
) -> RowBatch:
    """As `gather`, of rows that were checked against this source, and with a pad token that was."""
    rows = checked.rows
    _check_size(rows)
    tokens, labels, position_ids = _memory(len(rows), rows.row_length, out)
    sequences = Sequences.of(rows, checked.used)
    stored = read_tokens(source, rows, checked.begins, sequences.padding)
    _write_tokens(stored, sequences.edges, tokens.reshape(-1), labels.reshape(-1))
    for row, _, size in sequences.padding:
        tokens[row, -size:] = pad_token
        labels[row, -size:] = IGNORED_LABEL
    sequences.write_positions(position_ids.reshape(-1))
    return RowBatch(tokens, labels, position_ids, sequences.edges.astype(np.int32), sequences.longest())


def prefetch(source: TokenSource, rows: PackedRows) -> None:
    """Ask the operating system for the tokens of rows that are gathered soon, without waiting for them.

    Does nothing where the source is no `FlatTokens`.

    Raises:
        UsageError: when rows name documents or tokens that the source does not have.
    """
    prefetch_checked(source, CheckedRows.of(source, rows))


def prefetch_checked(source: TokenSource, checked: CheckedRows) -> None:
    """As `prefetch`, of rows that were checked against this source."""
    if checked.begins is not None:
        cast("FlatTokens", source).prefetch(checked.begins, checked.rows.stop - checked.rows.start)


def target_tokens(rows: PackedRows) -> Int64Array:
    """``(k,)`` int64, the labels of each row that are a token: of each piece one less than its tokens."""
    return rows.tokens_per_row() - np.diff(rows.edges)


def _memory(num_rows: int, row_length: int, out: RowBuffers | None) -> tuple[Int64Array, Int64Array, Int32Array]:
    """``(num_rows, row_length)`` tokens, labels and positions to write to."""
    if out is not None:
        return out.first(num_rows, row_length)
    shape = (num_rows, row_length)
    return np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int32)


def _check_size(rows: PackedRows) -> None:
    num_places = len(rows) * rows.row_length
    if num_places > _MAX_PLACES:
        raise UsageError(
            f"a batch must have fewer than 2**31 places; found {num_places}, {len(rows)} rows of {rows.row_length}."
            " cu_seqlens, which kernels take as int32, would wrap around. Gather fewer rows at a time."
        )


def _write_tokens(stored: TokenArray, edges: Int64Array, tokens: Int64Array, labels: Int64Array) -> None:
    """Cast ``(n,)`` tokens, and as labels the next of each; at a sequence's end there is none."""
    tokens[:] = stored
    labels[:-1] = stored[1:]
    labels[edges[1:] - 1] = IGNORED_LABEL
