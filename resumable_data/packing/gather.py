"""From packed rows and a source to the arrays that a model takes: no object per token, one cast per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from resumable_data.order import Int64Array
from resumable_data.packing.arguments import checked_int
from resumable_data.packing.batch import RowBatch, RowBuffers
from resumable_data.packing.checked_rows import CheckedRows
from resumable_data.packing.reading import MAX_TOKEN
from resumable_data.packing.rows import PackedRows
from resumable_data.packing.stored_rows import StoredRows

if TYPE_CHECKING:
    from resumable_data.sources import FlatTokens, TokenSource


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
    return StoredRows.read(source, CheckedRows.of(source, rows)).write(pad_token=pad_token, out=out)


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
