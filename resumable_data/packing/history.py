"""All rows of a run over packed tokens, from its beginning: what an audit holds a ledger and cursors against."""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.errors import LedgerCorruptError, UsageError
from resumable_data.packing.coverage import find_gap
from resumable_data.packing.run import PackedRun
from resumable_data.packing.run_window import RunWindow
from resumable_data.plan.packed_place import PACKED_LENGTH, PackedPlace

if TYPE_CHECKING:
    from resumable_data.order import Int64Array
    from resumable_data.packing.packed_tokens import PackedTokens


class PackedHistory:
    """Rows by their position in the run, as far as they are asked for. Stands where an `Order` does.

    Each window is planned once, its rows are checked to hold every token of its documents once, and 16 bytes of each
    row are kept.

    Args:
        packed: Documents and how they are packed.

    Attributes:
        gaps: What is wrong with windows, a line each.
        has_own_truncation: Whether some window left tokens out by a rule that is the policy's own.
        limit: The position beyond which nothing is planned, None for any: numbers from a file alone must not decide how
            much is.
    """

    def __init__(self, packed: PackedTokens) -> None:
        self.gaps: list[str] = []
        self.has_own_truncation = False
        self.limit: int | None = None
        self._packed = packed
        self._windows = PackedRun(packed).windows()
        self._places: list[PackedPlace] = []
        self._starts = [0]  # of each window, and of the next one
        self._ids: list[Int64Array] = []
        self._tokens: list[Int64Array] = []  # of the run, before each row of a window and after its last
        self._ends: list[int] = []  # of epochs
        self._updates: dict[tuple[int, int, int | None], list[int]] = {}
        self._newest: tuple[int, RunWindow] | None = None  # planned again for its places

    @property
    def epoch_tokens(self) -> int:
        """Tokens of all documents."""
        return self._packed.source.num_tokens

    @property
    def num_documents(self) -> int:
        """Documents of an epoch."""
        return len(self._packed.source)

    @property
    def row_length(self) -> int:
        """Tokens of a full row."""
        return self._packed.sequence_length

    def kept_lengths(self, documents: Int64Array) -> Int64Array:
        """How many of its tokens, from the first on, an epoch holds of each document: ``(k,)`` int64 to the same."""
        lengths = np.asarray(self._packed.source.lengths(documents)).astype(np.int64, copy=False)
        return np.minimum(lengths, self.row_length) if self._packed.truncates else lengths

    def documents(self, epoch: int, places: Int64Array) -> Int64Array:
        """The documents at places in the order of an epoch: ``(k,)`` int64 to ``(k,)`` int64."""
        return self._packed.order.ids(epoch, places)

    def window_stop(self, window: int) -> int:
        """The place in an epoch's order after the last document that rows of a window may hold."""
        return self._packed.window_places(window)[1]

    def __len__(self) -> int:
        """See `PACKED_LENGTH`."""
        return PACKED_LENGTH

    def describe(self) -> dict[str, int | str]:
        """What the rows depend on."""
        return self._packed.describe()

    def ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """IDs of the rows at positions: ``(k,)`` int64 to ``(k,)`` int64. `epoch` is 0."""
        if not offsets.size:
            return np.empty(0, np.int64)
        low, high = int(offsets.min()), int(offsets.max())
        self._reach(high + 1)
        first, last = (bisect_right(self._starts, position) - 1 for position in (low, high))
        together = self._ids[first] if first == last else np.concatenate(self._ids[first : last + 1])
        return together[offsets - self._starts[first]]

    def offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        """Refused: an ID is a hash of a row, which does not tell where it is.

        Raises:
            UsageError: Always.
        """
        raise UsageError("packed rows have no inverse order: a row's ID is a hash. Look rows up by their position.")

    def place(self, position: int) -> PackedPlace:
        """The place at a position, with the counts of all that is behind it; that of the run's beginning at 0."""
        if position == 0:
            return PackedPlace()
        window, first = self._window_at(position - 1)
        return window.place_of(position - first)

    def pieces(self, position: int) -> list[tuple[int, int, int]]:
        """``(document, start, stop)`` of the pieces of the row at a position."""
        window, first = self._window_at(position)
        return window.rows.pieces(position - first)

    def rows_of(self, document: int, stop: int) -> list[int]:
        """Positions before `stop` of the rows that hold something of a document, ascending.

        Raises:
            UsageError: There is no such document.
        """
        if not 0 <= document < len(self._packed.source):
            raise UsageError(f"the run has documents 0 to {len(self._packed.source) - 1}, and no document {document}")
        self._reach(stop)
        found = []
        for number, place in enumerate(self._places):
            after = self._places[number + 1] if number + 1 < len(self._places) else None
            if self._may_hold(document, place, after) and self._starts[number] < stop:
                window, first = self._window_at_number(number)
                pieces = np.flatnonzero(window.rows.document == document)
                rows = np.unique(np.searchsorted(window.rows.edges, pieces, side="right") - 1)
                found += [position for position in (rows + first).tolist() if position < stop]
        return found

    def _may_hold(self, document: int, place: PackedPlace, after: PackedPlace | None) -> bool:
        """Whether a window may have tokens of a document: its place in the epoch's order tells."""
        at = int(self._packed.order.offsets(place.epoch, np.array([document], np.int64))[0])
        stop = len(self._packed.source) if after is None or after.epoch != place.epoch else after.carry_document
        return place.carry_document <= at <= stop

    def _window_at(self, position: int) -> tuple[RunWindow, int]:
        """The window that holds a position, planned again, and the position of its first row."""
        self._reach(position + 1)
        return self._window_at_number(bisect_right(self._starts, position) - 1)

    def _window_at_number(self, number: int) -> tuple[RunWindow, int]:
        if self._newest is None or self._newest[0] != number:
            self._newest = number, RunWindow(self._packed, self._places[number])
        return self._newest[1], self._starts[number]

    def end_of(self, epochs: int, *, at_most: int) -> int | None:
        """The position at the end of so many epochs; None where it is beyond `at_most`."""
        while not self._has_ended(epochs) and self._starts[-1] <= at_most:
            self._plan_next()
        return self._ends[epochs - 1] if self._has_ended(epochs) and self._ends[epochs - 1] <= at_most else None

    def ends_up_to(self, position: int) -> Int64Array:
        """The positions at ends of epochs, up to a position: ``(k,)`` int64, ascending."""
        self._reach(position)
        return np.array(self._ends[: bisect_right(self._ends, position)], np.int64)

    def update_starts(self, first: int, tokens: int, count: int, *, epochs: int | None = None) -> Int64Array:
        """Where updates by tokens start, from a position on, the last one's end included.

        Args:
            first: Where the first one starts.
            tokens: An update takes rows until they have so many.
            count: How many updates.
            epochs: Of the run; endless when None.

        Returns:
            ``(count + 1,)`` int64; fewer where the run ends, or they reach beyond the limit: this is then the last one.
        """
        starts = self._updates.setdefault((first, tokens, epochs), [first])
        while len(starts) <= count and starts[-2:-1] != starts[-1:] and not self._is_beyond(starts[-1]):
            starts.append(self._after(starts[-1], tokens, epochs))
        return np.array(starts[: count + 1], np.int64)

    def _after(self, position: int, tokens: int, epochs: int | None) -> int:
        """The position after the first rows from a position on that together have so many tokens, or the run's end."""
        self._reach(position + 1, epochs)
        if self._starts[-1] <= position:
            return position
        number = bisect_right(self._starts, position) - 1
        reached = int(self._tokens[number][position - self._starts[number]]) + tokens
        while True:
            row = int(np.searchsorted(self._tokens[number], reached))
            if row < self._tokens[number].size:
                return self._starts[number] + row
            number += 1
            if number == len(self._ids):
                if self._has_ended(epochs):
                    return self._starts[-1]
                if self._is_beyond(self._starts[-1]):
                    return self._starts[-1] + 1
                self._plan_next()

    def _is_beyond(self, position: int) -> bool:
        return self.limit is not None and position > self.limit

    def _has_ended(self, epochs: int | None) -> bool:
        """Whether all of so many epochs is planned."""
        return epochs is not None and len(self._ends) >= epochs

    def _reach(self, position: int, epochs: int | None = None) -> None:
        """Plan windows until all rows before a position are known, or all of so many epochs."""
        while self._starts[-1] < position and not self._has_ended(epochs):
            self._plan_next()

    def _plan_next(self) -> None:
        """Plan one more window, and keep what is asked for.

        Raises:
            LedgerCorruptError: All up to the limit is planned.
        """
        if self._is_beyond(self._starts[-1]):
            raise LedgerCorruptError(
                f"expected a run of at most {self.limit} packed rows, of which a cursor or files can tell; found "
                "numbers that lead further. Nothing was audited; restore the files from a copy."
            )
        start, window = next(self._windows)
        self._places.append(window.place)
        self._ids.append(window.ids)
        self._tokens.append(window.tokens + window.place.tokens)
        self._starts.append(start + len(window))
        if window.next.epoch != window.place.epoch:
            self._ends.append(start + len(window))
        self.has_own_truncation |= bool(window.rows.num_truncated_tokens) and not self._packed.truncates
        gap = find_gap(self._packed, window)
        if gap:
            self.gaps.append(f"epoch {window.place.epoch}, window {window.place.window}: {gap}")

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what it is of: windows are planned again where they are needed."""
        return PackedHistory, (self._packed,)
