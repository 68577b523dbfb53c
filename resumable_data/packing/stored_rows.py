"""Packed rows as their source stores them: what is cheap to send from one process to another."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array
from resumable_data.packing.batch import IGNORED_LABEL, Int32Array, RowBatch, RowBuffers
from resumable_data.packing.reading import read_tokens
from resumable_data.packing.sequences import Sequences

if TYPE_CHECKING:
    from resumable_data.packing.checked_rows import CheckedRows
    from resumable_data.packing.rows import PackedRows
    from resumable_data.sources import TokenArray, TokenSource

_MAX_PLACES = 2**31 - 1
"""Of a batch: ``cu_seqlens`` is int32, because the kernels take it so."""


class StoredRows(NamedTuple):
    """Rows that were read, and not yet written as the arrays that a model takes.

    A token takes the bytes that it has in the source, mostly two or four, where those arrays take 20.

    Attributes:
        tokens: ``(num_rows * row_length,)`` in the stored type or int64, zeros in padding.
        sequences: Where pieces and padding lie.
        num_rows: Rows.
        row_length: Places of each.
    """

    tokens: TokenArray
    sequences: Sequences
    num_rows: int
    row_length: int

    @classmethod
    def read(cls, source: TokenSource, checked: CheckedRows) -> StoredRows:
        """Read rows that were checked against this source.

        Raises:
            UsageError: They are too many for one batch.
            SourceError: See `read_tokens`.
        """
        rows = checked.rows
        _check_size(rows)
        sequences = Sequences.of(rows, checked.used)
        tokens = read_tokens(source, rows, checked.begins, sequences.padding)
        return cls(tokens, sequences, len(rows), rows.row_length)

    def write(self, *, pad_token: int, out: RowBuffers | None = None) -> RowBatch:
        """The arrays, with `pad_token` in padding; in `out` where that is given."""
        tokens, labels, position_ids = self._memory(out)
        edges = self.sequences.edges
        _write_tokens(self.tokens, edges, tokens.reshape(-1), labels.reshape(-1))
        for row, _, size in self.sequences.padding:
            tokens[row, -size:] = pad_token
            labels[row, -size:] = IGNORED_LABEL
        self.sequences.write_positions(position_ids.reshape(-1))
        return RowBatch(tokens, labels, position_ids, edges.astype(np.int32), self.sequences.longest())

    def _memory(self, out: RowBuffers | None) -> tuple[Int64Array, Int64Array, Int32Array]:
        """``(num_rows, row_length)`` tokens, labels and positions to write to."""
        if out is not None:
            return out.first(self.num_rows, self.row_length)
        shape = (self.num_rows, self.row_length)
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
