"""One window of a run, planned, with what is behind each of its rows."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.ledger.row_ids import row_ids
from resumable_data.packing.checked_rows import CheckedRows
from resumable_data.packing.policies import Carry
from resumable_data.packing.rows import PackedRows, running_sum
from resumable_data.plan.packed_place import PackedPlace

if TYPE_CHECKING:
    from resumable_data.order import Int64Array
    from resumable_data.packing.packed_tokens import PackedTokens

_COUNTS = ("documents", "tokens", "target_tokens", "truncated_tokens")


class RunWindow:
    """One window of a run.

    Args:
        packed: Plans it.
        place: Its beginning: a place with ``row`` 0.

    Attributes:
        place: Its beginning.
        next: The beginning of the next window, in this epoch or the next one.
        rows: Its rows.
        ids: ``(num_rows,)`` int64, see `row_ids`.
        targets: ``(num_rows,)`` int64, target tokens of each row.
        tokens: ``(num_rows + 1,)`` int64, tokens of documents in the rows before each.
    """

    def __init__(self, packed: PackedTokens, place: PackedPlace) -> None:
        planned = packed.plan(place.epoch, place.window, Carry(place.carry_document, place.carry_offset))
        self.rows = rows = planned.rows
        self._source = packed.source
        self.ids = row_ids(rows)
        num_tokens = rows.tokens_per_row()
        self.targets = num_tokens - np.diff(rows.edges)  # the last token of a piece has no next one
        self.tokens = running_sum(num_tokens)
        ends, left_out = _document_ends(rows, packed.source.lengths(rows.document))
        of_pieces = {"documents": ends, "truncated_tokens": left_out}
        # (num_rows + 1,) int64 each, what is in the rows before each
        self._behind = {name: running_sum(values)[rows.edges] for name, values in of_pieces.items()}
        self._behind |= {"tokens": self.tokens, "target_tokens": running_sum(self.targets)}
        self.place = place
        carry, is_last = planned.carry, place.window + 1 == packed.num_windows
        self._after = {
            "epoch": place.epoch + is_last,
            "window": 0 if is_last else place.window + 1,
            "carry_document": 0 if is_last else carry.document,
            "carry_offset": 0 if is_last else carry.offset,
        }

    def __len__(self) -> int:
        """Number of rows."""
        return len(self.rows)

    @cached_property
    def checked(self) -> CheckedRows:
        """Its rows, as they are read.

        Raises:
            UsageError: See `CheckedRows.of`, as for the next one.
            SourceError: See there.
        """
        return CheckedRows.of(self._source, self.rows)

    @property
    def next(self) -> PackedPlace:
        """The beginning of the next window."""
        return self.place_of(len(self))

    def place_of(self, row: int) -> PackedPlace:
        """The place of a row; of the next window after the last."""
        counts = {name: getattr(self.place, name) + int(self._behind[name][row]) for name in _COUNTS}
        if row == len(self):
            return PackedPlace(**self._after, **counts)
        return msgspec.structs.replace(self.place, row=row, **counts)

    def count_from(self, place: PackedPlace) -> None:
        """Make the counts behind ``place.row`` those of `place`, so that all others go on from them."""
        counts = {name: getattr(place, name) - int(self._behind[name][place.row]) for name in _COUNTS}
        self.place = msgspec.structs.replace(self.place, **counts)


def begin_of_window(place: PackedPlace) -> PackedPlace:
    """Where a place's window begins; its counts are not known before the window is planned."""
    return msgspec.structs.replace(place, row=0, **dict.fromkeys(_COUNTS, 0))


def _document_ends(rows: PackedRows, lengths: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Which pieces are the last of their documents, and the tokens left out after each: two ``(m,)`` int64."""
    missing = lengths - rows.stop
    if not rows.num_truncated_tokens:
        return (missing == 0).astype(np.int64), np.zeros_like(missing)
    # A truncated document is whole in its window, so its last piece is the one that goes furthest.
    documents, which = np.unique(rows.document, return_inverse=True)
    least = np.full(documents.size, np.iinfo(np.int64).max)
    np.minimum.at(least, which, missing)
    ends = (missing == least[which]).astype(np.int64)
    return ends, ends * missing
