"""Blocks of consecutive IDs in shuffled order, their samples shuffled within windows: for data read in runs."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np

from resumable_data.order.arguments import checked_length, checked_name, checked_seed, checked_size
from resumable_data.order.base import DescribedOrder
from resumable_data.order.feistel import MAX_LENGTH
from resumable_data.order.keys import key_message
from resumable_data.order.permutation import keyed_permutation
from resumable_data.order.protocol import Int64Array
from resumable_data.order.windows import MAX_WINDOW, keyed_windows

_VERSION = 1
_NUM_CACHED_EPOCHS = 4
_NUM_VALUES_AT_ONCE = 32_768
"""Few enough for the second-level cache, enough to hide the cost of about a hundred numpy calls."""


class BlockShuffle(DescribedOrder):
    """Each epoch shuffles blocks of consecutive IDs, then the samples within windows of consecutive offsets.

    For data that is cheap to read in runs and dear to read at random: compressed shards, network file systems, row
    groups. IDs ``[k * block, (k + 1) * block)`` are one block (the last may be shorter), and each epoch puts the
    blocks in an order of its own. That sequence is cut into windows of ``window`` offsets, as a shuffle buffer of
    that size would, and each window of each epoch is shuffled by a key of its own. So ``window`` consecutive samples
    come from ``window / block`` blocks, one or two more where blocks lie across the window's ends, and a reader that
    keeps that many blocks at hand reads each block about once.

    What is given up against `Shuffle`: samples of one block are always trained on close together, in every epoch.
    Where neighbours are alike (one speaker, one source, one day), updates are less diverse than a random draw and
    their gradients noisier; ``window`` much larger than ``block`` mixes more blocks, and smaller blocks mix better
    than larger ones. Windows do not slide: the two sides of a window's end never mix. With ``window=1`` blocks are
    read in their stored order; with ``block=1``, or a window of n or more, nothing is given up and nothing gained.

    Like `Shuffle` it is computed where it is asked for, in any place, in memory that does not grow with n: up to
    65,536 blocks, and for a shorter last window of up to 65,536 samples, a table of 2 bytes each is kept. A window
    of up to 64 samples is computed whole for a single one of its samples.

    Args:
        n: number of samples, from 1 to 2**62.
        block: samples of a block, from 1 to 2**62. Best a divisor, or a multiple, of the samples in a shard.
        window: samples of a window, from 1 to 2**32; independent of ``block``, usually a few times as large.
        seed: from 0 to 2**63 - 1.
        name: of the random stream, at most 255 bytes; orders with different names are unrelated.

    Raises:
        UsageError: when an argument is not as described.

    Example:
        >>> import numpy as np
        >>> order = BlockShuffle(1000, block=10, window=20, seed=7)
        >>> ids = order.ids(0, np.arange(20))  # the first window
        >>> len(set((ids // 10).tolist()))  # blocks in it
        2
        >>> np.array_equal(order.offsets(0, ids), np.arange(20))
        True
    """

    kind: ClassVar[str] = "block-shuffle"
    version: ClassVar[int] = _VERSION

    def __init__(self, n: int, block: int = 256, window: int = 512, seed: int = 0, name: str = "") -> None:
        super().__init__(checked_length(n, MAX_LENGTH))
        self._block = checked_size("block", block, MAX_LENGTH)
        self._window = checked_size("window", window, MAX_WINDOW)
        self._seed = checked_seed(seed)
        self._name = checked_name(name)
        # A function of the arguments, not a method of self: a cached method would keep the order alive in a cycle.
        arrangement = partial(
            _arrangement, length=self._length, block=self._block, window=self._window, seed=self._seed, name=self._name
        )
        self._arrangement_of = lru_cache(maxsize=_NUM_CACHED_EPOCHS)(arrangement)

    @property
    def block(self) -> int:
        """Samples of a block."""
        return self._block

    @property
    def window(self) -> int:
        """Samples of a window."""
        return self._window

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self._seed

    @property
    def name(self) -> str:
        """Name of the random stream."""
        return self._name

    def _ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        return _in_parts(self._arrangement_of(epoch).ids, offsets)

    def _offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        return _in_parts(self._arrangement_of(epoch).offsets, ids)

    def _arguments(self) -> dict[str, int | str]:
        return {"block": self._block, "window": self._window, "seed": self._seed, "name": self._name}


class _Arrangement:
    """One epoch: offset -> slot (shuffled within the window) -> ID (of the slot's block). Never changes.

    A slot is a place in the sequence of whole blocks. The block that is shorter leaves a gap behind it: where its place
    in the sequence is known, adding the gap's size to every slot behind it makes all blocks equally long.

    Args:
        length: n.
        block: samples of a block.
        window: samples of a window.
        message_for: from a purpose to the message of its keys.
    """

    def __init__(self, length: int, block: int, window: int, message_for: Callable[[str], bytes]) -> None:
        self._block, self._window = block, window
        last_block, rest = divmod(length - 1, block)  # the last block has rest + 1 samples
        self._blocks = keyed_permutation(last_block + 1, message_for("blocks"))
        self._gap = block - (rest + 1)
        self._short_place = int(self._blocks.offsets(np.array([last_block], dtype=np.int64))[0])
        self._gap_start = self._short_place * block + rest + 1
        self._num_windows, self._num_last = divmod(length, window)
        self._windows = keyed_windows(window, message_for("windows"))
        self._last = keyed_permutation(self._num_last, message_for("last window")) if self._num_last else None

    def ids(self, offsets: Int64Array) -> Int64Array:
        slots = self._within_windows(offsets, inverse=False)
        if self._gap:
            slots += self._gap * (slots >= self._gap_start)
        places = slots // self._block
        slots -= places * self._block
        slots += self._blocks.ids(places) * self._block
        return slots

    def offsets(self, ids: Int64Array) -> Int64Array:
        blocks = ids // self._block
        places = self._blocks.offsets(blocks)
        slots = ids + (places - blocks) * self._block
        if self._gap:
            slots -= self._gap * (places > self._short_place)
        return self._within_windows(slots, inverse=True)

    def _within_windows(self, values: Int64Array, *, inverse: bool) -> Int64Array:
        """Shuffle ``(k,)`` values within their windows, or undo it; a new array."""
        windows = values // self._window
        starts = windows * self._window
        places = values - starts
        permute = self._windows.inverse if inverse else self._windows.forward
        in_last = np.flatnonzero(windows == self._num_windows) if self._last else _NONE
        if self._last is None or not in_last.size:
            starts += permute(windows, places)
            return starts
        permute_last = self._last.offsets if inverse else self._last.ids
        starts[in_last] += permute_last(places[in_last])
        in_whole = np.flatnonzero(windows < self._num_windows)
        if in_whole.size:
            starts[in_whole] += permute(windows[in_whole], places[in_whole])
        return starts


_NONE = np.empty(0, dtype=np.intp)


def _arrangement(epoch: int, *, length: int, block: int, window: int, seed: int, name: str) -> _Arrangement:
    """The arrangement of one epoch, its keys derived from everything that tells it from others."""

    def message_for(purpose: str) -> bytes:
        purpose = f"order.block_shuffle.{purpose}, block {block}, window {window}"
        return key_message(version=_VERSION, purpose=purpose, seed=seed, epoch=epoch, length=length, name=name)

    return _Arrangement(length, block, window, message_for)


def _in_parts(function: Callable[[Int64Array], Int64Array], values: Int64Array) -> Int64Array:
    """Apply a function of ``(k,)`` int64 to parts of bounded size."""
    if values.size <= _NUM_VALUES_AT_ONCE:
        return function(values)
    result = np.empty(values.shape, dtype=np.int64)
    for start in range(0, values.size, _NUM_VALUES_AT_ONCE):
        part = slice(start, start + _NUM_VALUES_AT_ONCE)
        result[part] = function(values[part])
    return result
