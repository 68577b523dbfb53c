"""A keyed permutation of ``[0, size)`` for each window number: window 7 is shuffled unlike window 8.

No window is stored and no line of Python runs per window, so a question about a million scattered windows is
answered as fast as arithmetic goes:

* Windows of few places are ranked: all places of every window asked for are sorted by a keyed hash. Every
  arrangement is equally likely, at the price of one window for each place asked, at the worst.
* Larger ones go through one Feistel network whose round keys differ from window to window: the price of a place is
  that of a place, wherever it is. A rank that reads every 64th place does not compute the other 63.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resumable_data.order import feistel, table
from resumable_data.order.keys import key_words
from resumable_data.order.protocol import Int64Array

MAX_WINDOW = 2**32
"""Largest size: the network's 32-bit form holds it."""

MAX_RANKED_WINDOW = 64
"""Up to this size windows are ranked: a network of so few cells does not reach all their arrangements."""

_MAX_SMALL_WINDOW = 1024
_NUM_ROUND_PAIRS = {True: 5, False: 4}
"""Of a small window and of others; a whole epoch takes 3. The sides of a small grid have few values to hash: with 3
pairs, distances between neighbours show in 10^7 samples of windows of 512, with 4 pairs in those of 128."""

_NUM_CELLS_AT_ONCE = 32_768
_PLACE_BITS = 6
_HIGH_HALF = np.uint64(32)

_Vector32: TypeAlias = npt.NDArray[np.uint32]


class RankedWindows:
    """Permutations of small windows, by sorting keyed hashes of all their places.

    Args:
        size: places of a window, from 1 to `MAX_RANKED_WINDOW`.
        message: what must make two families of windows unrelated, from ``key_message``.
    """

    def __init__(self, size: int, message: bytes) -> None:
        assert 1 <= size <= MAX_RANKED_WINDOW
        self._start, self._step, self._window_step, *self._multipliers = table.wide_words(key_words(message, 10))
        self._places = np.arange(size, dtype=np.uint64)
        self._tables_at_once = _NUM_CELLS_AT_ONCE // size

    def forward(self, windows: Int64Array, places: Int64Array) -> Int64Array:
        """Map ``(k,)`` int64 places, each in the window beside it, to ``(k,)`` int64 places of the same window."""
        return self._look_up(windows, places, inverse=False)

    def inverse(self, windows: Int64Array, places: Int64Array) -> Int64Array:
        """Undo `forward`."""
        return self._look_up(windows, places, inverse=True)

    def _look_up(self, windows: Int64Array, places: Int64Array, *, inverse: bool) -> Int64Array:
        """Make the table of each run of equal windows once, a bounded number of tables at a time."""
        result = np.empty_like(places)
        edges = np.append(np.flatnonzero(np.diff(windows, prepend=-1)), windows.size)  # (num_runs + 1,)
        for first in range(0, edges.size - 1, self._tables_at_once):
            runs = edges[first : first + self._tables_at_once + 1]
            tables = self._tables(windows[runs[:-1]])  # (num_tables, size)
            if inverse:
                tables = np.argsort(tables, axis=1)  # the inverse of a permutation; nothing is equal in it
            rows = np.repeat(np.arange(runs.size - 1), np.diff(runs))
            asked = slice(runs[0], runs[-1])
            result[asked] = tables[rows, places[asked]]
        return result

    def _tables(self, windows: Int64Array) -> Int64Array:
        """``(num_tables, size)`` int64: row i is the permutation of the i-th window."""
        mixed = windows.view(np.uint64) * (self._window_step | np.uint64(1)) + self._start
        table.mix(mixed, self._multipliers, np.empty_like(mixed))
        cells: npt.NDArray[np.uint64] = mixed[:, None] + self._places * (self._step | np.uint64(1))
        table.mix(cells, self._multipliers, np.empty_like(cells))
        # The place is the low part of each number, so no two are equal and every sorting algorithm does the same.
        mask = np.uint64((1 << _PLACE_BITS) - 1)
        cells &= ~mask
        cells |= self._places
        cells.sort(axis=1)
        cells &= mask
        return cells.view(np.int64)


class NetworkWindows:
    """Permutations of larger windows: one Feistel network, to whose round keys a hash of the window is added.

    Args:
        size: places of a window, from 2 to `MAX_WINDOW`.
        message: what must make two families of windows unrelated, from ``key_message``.
        num_round_pairs: other than the default; fewer let tests show that they would notice.
    """

    def __init__(self, size: int, message: bytes, *, num_round_pairs: int | None = None) -> None:
        assert 2 <= size <= MAX_WINDOW
        num_network_words = 6 * (num_round_pairs or _NUM_ROUND_PAIRS[size <= _MAX_SMALL_WINDOW])
        words = key_words(message, num_network_words + 8)
        self._size = size
        self._network = feistel.FeistelPermutation(size, words[:num_network_words])
        self._start, self._step, *self._multipliers = table.wide_words(words[num_network_words:])

    def forward(self, windows: Int64Array, places: Int64Array) -> Int64Array:
        """Map ``(k,)`` int64 places, each in the window beside it, to ``(k,)`` int64 places of the same window."""
        return self._permute(self._window_keys(windows), places, inverse=False)

    def inverse(self, windows: Int64Array, places: Int64Array) -> Int64Array:
        """Undo `forward`."""
        return self._permute(self._window_keys(windows), places, inverse=True)

    def _window_keys(self, windows: Int64Array) -> npt.NDArray[np.uint32]:
        """Two key words of each value's window: ``(2, k)`` uint32."""
        mixed = windows.view(np.uint64) * (self._step | np.uint64(1))
        mixed += self._start
        spare = np.empty_like(mixed)
        table.mix(mixed, self._multipliers, spare)
        words = np.empty((2, windows.size), dtype=np.uint32)
        np.copyto(words[0], mixed, casting="unsafe")  # the low half
        np.right_shift(mixed, _HIGH_HALF, out=spare)
        np.copyto(words[1], spare, casting="unsafe")
        return words

    def _permute(self, window_keys: npt.NDArray[np.uint32], values: Int64Array, *, inverse: bool) -> Int64Array:
        """Once through the network, and again for each value that is not yet below the window's size."""
        result = np.empty(values.shape, dtype=np.int64)
        run = self._network.inverse_block if inverse else self._network.forward_block
        keys = self._round_keys(window_keys, inverse=inverse)
        run(values.view(np.uint64), result.view(np.uint64), self._network.scratch(values.size), keys)
        if self._network.num_cells > self._size:
            again = np.flatnonzero(result >= self._size)
            if again.size:
                result[again] = self._permute(window_keys[:, again], result[again], inverse=inverse)
        return result

    def _round_keys(self, window_keys: npt.NDArray[np.uint32], *, inverse: bool) -> Iterator[tuple[_Vector32, ...]]:
        """The network's keys with the window's words in the addends; the buffers are used again for each pair."""
        addend, addend_left = np.empty_like(window_keys)
        for multiply, add, finish, multiply_left, add_left, finish_left in self._network.keys(inverse=inverse):
            np.add(window_keys[0], add, out=addend)
            np.add(window_keys[1], add_left, out=addend_left)
            yield multiply, addend, finish, multiply_left, addend_left, finish_left


KeyedWindows: TypeAlias = RankedWindows | NetworkWindows


def keyed_windows(size: int, message: bytes) -> KeyedWindows:
    """Permutations of ``[0, size)`` for every window number from 0 to 2**63 - 1; safe to share between threads.

    Args:
        size: places of a window, from 1 to `MAX_WINDOW`.
        message: what must make two families of windows unrelated, from ``key_message``.
    """
    return RankedWindows(size, message) if size <= MAX_RANKED_WINDOW else NetworkWindows(size, message)
