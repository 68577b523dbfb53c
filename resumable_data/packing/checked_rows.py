"""Rows that were checked against the source of their tokens: once for a whole window, not for each batch of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.packing.reading import begins_in_source, check_pieces, is_flat
from resumable_data.packing.rows import PackedRows, concatenate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.order import Int64Array
    from resumable_data.sources import TokenSource


class CheckedRows(NamedTuple):
    """Rows whose documents and tokens a source has, and where it has them.

    Attributes:
        rows: The rows.
        used: ``(k,)`` int64, the tokens of each row.
        begins: ``(m,)`` int64, where each piece begins in ``source.tokens``; None where the source is no `FlatTokens`.
    """

    rows: PackedRows
    used: Int64Array
    begins: Int64Array | None

    @classmethod
    def of(cls, source: TokenSource, rows: PackedRows) -> CheckedRows:
        """Rows of which nothing is known yet.

        Raises:
            UsageError: They name documents or tokens that the source does not have.
            SourceError: The source does not tell lengths or places of documents.
        """
        used = check_pieces(source, rows)
        return cls(rows, used, begins_in_source(source, rows) if is_flat(source) else None)

    @classmethod
    def of_all(cls, parts: Sequence[CheckedRows], row_length: int) -> CheckedRows:
        """The rows of some parts of one source, one after another."""
        nothing = np.empty(0, np.int64)
        rows = concatenate([part.rows for part in parts], row_length)
        used = np.concatenate([nothing, *(part.used for part in parts)])
        begins = [part.begins for part in parts if part.begins is not None]
        return cls(rows, used, np.concatenate([nothing, *begins]) if len(begins) == len(parts) else None)

    def stretch(self, first: int, stop: int) -> CheckedRows:
        """The rows ``[first, stop)``, which share memory with these."""
        rows, edges = self.rows.stretch(first, stop), self.rows.edges
        begins = None if self.begins is None else self.begins[edges[first] : edges[stop]]
        return CheckedRows(rows, self.used[first:stop], begins)

    def take(self, which: Int64Array) -> CheckedRows:
        """These rows, in this order: ``(k,)`` int64 in ``[0, num_rows)``."""
        pieces, edges = self.rows.pieces_of(which)
        begins = None if self.begins is None else self.begins.take(pieces)
        return CheckedRows(self.rows.of_pieces(pieces, edges), self.used.take(which), begins)
