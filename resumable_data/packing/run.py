"""The rows of a run over packed tokens, by position: planned window after window, a window ahead of their use."""

from __future__ import annotations

import os
from bisect import bisect_right
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.errors import RecipeMismatchError, UsageError
from resumable_data.packing.checked_rows import CheckedRows
from resumable_data.packing.run_window import RunWindow, begin_of_window
from resumable_data.plan.packed_place import PACKED_LENGTH, PackedPlace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.order import Int64Array
    from resumable_data.packing.packed_tokens import PackedTokens
    from resumable_data.packing.rows import PackedRows


class PackedRun:
    """Rows by their position in the run, from a place on. Stands where an `Order` does, see `PACKED_LENGTH`.

    Windows are planned in turn, the next one in a thread of its own while the one before is read, and kept until
    `forget` is called. To be used by one thread.

    Args:
        packed: Documents and how they are packed.
        start: Where the run goes on.
        position: The position of the row there.
        epochs: Epochs of the whole run; endless when None.

    Raises:
        UsageError: The place is none of these rows.
    """

    def __init__(
        self, packed: PackedTokens, *, start: PackedPlace | None = None, position: int = 0, epochs: int | None = None
    ) -> None:
        self._packed = packed
        self._start = start or PackedPlace()
        self._position = position
        self._epochs = epochs
        self._windows: list[RunWindow] = []
        self._starts: list[int] = []  # the position of each window's first row
        self._next = begin_of_window(self._start)
        self._known_stop = position
        self._ahead: _Ahead | None = None
        self._num_empty = 0

    def __len__(self) -> int:
        """See `PACKED_LENGTH`."""
        return PACKED_LENGTH

    def describe(self) -> dict[str, int | str]:
        """What the rows depend on."""
        return self._packed.describe()

    def ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """IDs of the rows at positions: ``(k,)`` int64 to ``(k,)`` int64. `epoch` is 0."""
        return self._gather("ids", offsets)

    def offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        """Refused: an ID is a hash of a row, which does not tell where it is.

        Raises:
            UsageError: Always.
        """
        raise UsageError("packed rows have no inverse order: a row's ID is a hash. Look rows up by their position.")

    def targets(self, positions: Int64Array) -> Int64Array:
        """Target tokens of the rows at positions: ``(k,)`` int64 to ``(k,)`` int64."""
        return self._gather("targets", positions)

    def rows(self, positions: Int64Array) -> PackedRows:
        """The rows at positions ``(k,)`` int64, in this order."""
        return self.checked(positions).rows

    def checked(self, positions: Int64Array) -> CheckedRows:
        """Likewise, with what is needed to read them.

        Raises:
            UsageError: See `CheckedRows.of`, as for the next one.
            SourceError: See there.
        """
        parts = list(self._parts(positions))
        if len(parts) == 1:
            ((_, window, rows),) = parts
            return window.checked.take(rows)
        arrangement = np.concatenate([np.empty(0, np.int64), *(which for which, _, _ in parts)])
        taken = [window.checked.take(rows) for _, window, rows in parts]
        return CheckedRows.of_all(taken, self._packed.sequence_length).take(np.argsort(arrangement, kind="stable"))

    def stretch(self, positions: range) -> CheckedRows:
        """As `checked`, of at least one position; where they follow each other, without a copy of their pieces."""
        window, first = self._window_at(positions[0])
        if positions.step == 1 and positions[-1] < first + len(window):
            return window.checked.stretch(positions.start - first, positions.stop - first)
        return self.checked(np.arange(positions.start, positions.stop, positions.step))

    def place(self, position: int) -> PackedPlace:
        """The place at a position, with the counts of all that is behind it."""
        if position == self._position:
            return self._start
        # the window that holds the row before it, so that windows without rows are passed in one way only
        window, first = self._window_at(position - 1)
        return window.place_of(position - first)

    def stop(self, at_least: int) -> int:
        """The position after the last planned row, at least so far on; less where the run ends before."""
        while self._known_stop < at_least and self._extend():
            pass
        return self._known_stop

    def next_after(self, position: int, tokens: int, *, before: int | None = None) -> int | None:
        """The position after the first rows from `position` on that together have so many tokens.

        None where the run ends before, or at the rows from `before` on, which are not looked at.
        """
        while position < (self.stop(position + 1) if before is None else before):
            window, first = self._window_at(position)
            reached = int(window.tokens[position - first]) + tokens
            row = int(np.searchsorted(window.tokens, reached))
            if row <= len(window):
                return first + row
            tokens = reached - int(window.tokens[-1])
            position = first + len(window)
        return None

    def windows(self) -> Iterator[tuple[int, RunWindow]]:
        """All windows, each with the position of its first row, and let go of when the next one is asked for."""
        while self._extend():
            del self._windows[:-1], self._starts[:-1]
            yield self._starts[0], self._windows[0]

    def forget(self, position: int) -> None:
        """Let go of windows whose rows are all before a position, but for the last one of them."""
        count = bisect_right(self._starts, position - 1) - 1
        if count > 0:
            del self._windows[:count], self._starts[:count]

    def _extend(self) -> bool:
        """Plan one more window; False where the run is over."""
        if self._is_over:
            return False
        ahead, self._ahead = self._ahead, None  # what failed there, for a while perhaps, is tried again here
        window = RunWindow(self._packed, self._next) if ahead is None else ahead.result()
        first = self._known_stop
        if not self._starts:
            if self._start.row > len(window):
                raise _other_rows(self._start, len(window))
            window.count_from(self._start)
            first -= self._start.row
        self._check_progress(window)
        self._windows.append(window)
        self._starts.append(first)
        self._known_stop = first + len(window)
        self._next = window.next
        self._ahead = None if self._is_over else _Ahead(self._packed, self._next)
        return True

    @property
    def _is_over(self) -> bool:
        return self._epochs is not None and self._next.epoch >= self._epochs

    def _check_progress(self, window: RunWindow) -> None:
        self._num_empty = 0 if len(window) else self._num_empty + 1
        # one epoch may end, and the next begin, with all windows that have no row but one
        if self._num_empty > 2 * self._packed.num_windows:
            raise UsageError(
                f"expected documents with tokens, found {self._num_empty} windows of them without a row: an endless "
                "run would wait for ever. Check the lengths of the source."
            )

    def _window_at(self, position: int) -> tuple[RunWindow, int]:
        """The window that holds a position, and the position of its first row."""
        stop = self.stop(position + 1)
        if not (self._starts and self._starts[0] <= position < stop):
            low = self._starts[0] if self._starts else self._position
            raise UsageError(f"expected a position in [{low}, {stop}), found {position}: what is behind was let go of")
        number = bisect_right(self._starts, position) - 1
        return self._windows[number], self._starts[number]

    def _parts(self, positions: Int64Array) -> Iterator[tuple[Int64Array, RunWindow, Int64Array]]:
        """For each window that has some of the positions: their indices, the window, and their rows in it."""
        if not positions.size:
            return
        low, high = int(positions.min()), int(positions.max())
        window, first = self._window_at(low)
        if high < first + len(window):
            yield np.arange(positions.size), window, positions - first
            return
        self._window_at(high)
        number = np.searchsorted(np.array(self._starts), positions, side="right") - 1
        for n in np.unique(number).tolist():
            which = np.flatnonzero(number == n)
            yield which, self._windows[n], positions[which] - self._starts[n]

    def _gather(self, name: str, positions: Int64Array) -> Int64Array:
        values = np.empty(positions.size, np.int64)
        for which, window, rows in self._parts(positions):
            values[which] = getattr(window, name)[rows]
        return values

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle where it starts: windows are planned again where they are needed."""
        return _rebuild, (self._packed, self._start, self._position, self._epochs)


def _rebuild(packed: PackedTokens, start: PackedPlace, position: int, epochs: int | None) -> PackedRun:
    return PackedRun(packed, start=start, position=position, epochs=epochs)


class _Ahead:
    """A window that is being planned in another thread."""

    def __init__(self, packed: PackedTokens, place: PackedPlace) -> None:
        self._arguments = (packed, place)
        self._process = os.getpid()
        self._future: Future[RunWindow] = _planner().submit(RunWindow, packed, place)

    def result(self) -> RunWindow:
        """The window. A process that was forked meanwhile has no such thread, and plans it itself."""
        return self._future.result() if self._process == os.getpid() else RunWindow(*self._arguments)


_planners: dict[int, ThreadPoolExecutor] = {}


def _planner() -> ThreadPoolExecutor:
    """The thread of this process that plans."""
    if os.getpid() not in _planners:
        _planners[os.getpid()] = ThreadPoolExecutor(1, thread_name_prefix="resumable_data.packing")
    return _planners[os.getpid()]


def _other_rows(place: PackedPlace, num_rows: int) -> RecipeMismatchError:
    return RecipeMismatchError(
        f"expected window {place.window} of epoch {place.epoch} to have at least {place.row} rows, as the saved cursor "
        f"is behind so many of it; found {num_rows}. These are other documents than the run read: some would be "
        "repeated and others never seen. Nothing was read; open the tokens that the run was started with."
    )
