"""A keyed permutation of ``[0, n)`` that is computed, not stored: memory and start-up do not depend on n.

The values are the cells of a grid of ``rows`` x 2^bits, just above n, its sides about equal. A value is a pair
(left, right), left < rows and right < 2^bits. Three times over, a keyed hash of right is added to left
modulo ``rows``, then a keyed hash of left is xored into right. Each step can be undone, so the whole is a
bijection of the grid. The few values that end at or above n ("strays") are sent through again until they fall
below n, which makes it a bijection of ``[0, n)``.

A hash is multiply-add, shift-xor, multiply, and only its *high* bits are used: the low bits of a product never
see the high bits of its factors. All arithmetic is on unsigned integers, so every machine gives the same.

Numpy's time goes into moving operands through the cache, so what counts is the bytes of each step:

* Up to 2^32 cells everything is done in 32 bits. The product of hash and ``rows`` that picks a row must then fit
  32 bits as well: ``rows`` stays at or below 2^14, which leaves 18 bits of hash or more. One row can be
  likelier than another by a 16th in one step; three steps with independent keys leave 10^-5 of it.
* Above, that product and the cell numbers take 64 bits, the rest 32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resumable_data.order.protocol import Int64Array

MAX_LENGTH = 2**62
"""Largest n: both sides of the grid are at most 2^31 then, so that a sum of two fits 32 bits."""

NUM_ROUND_PAIRS = 3
_WORDS_PER_PAIR = 6
NUM_KEY_WORDS = NUM_ROUND_PAIRS * _WORDS_PER_PAIR

BLOCK_SIZE = 32_768
"""Values worked on at a time: few enough for the second-level cache, enough to hide the cost of a call."""

SMALL_SIZE = 12
"""Up to this many values, Python integers beat the fixed cost of about sixty numpy calls."""

_NARROW_CELL_BITS = 32
_NARROW_ROW_BITS = 14
_HASH_SHIFT = 15
_MASK_32 = 0xFFFF_FFFF

_Vector32: TypeAlias = npt.NDArray[np.uint32]
_Vector64: TypeAlias = npt.NDArray[np.uint64]
BlockKeys: TypeAlias = Iterable[tuple[_Vector32, ...]]
"""Per pair of rounds: multiplier, addend, finisher of the hash of right, then of left; 0-d, or one for each value."""
_BlockFunction: TypeAlias = "Callable[[_Vector64, _Vector64, Scratch, BlockKeys], None]"


class Scratch:
    """Working memory for one block of values; each call has its own, so threads do not meet."""

    __slots__ = ("hashed", "left", "right", "spare", "wide")

    def __init__(self, size: int, *, narrow: bool) -> None:
        self.left, self.right, self.hashed, self.spare = np.empty((4, size), dtype=np.uint32)
        self.wide = np.empty(0 if narrow else size, dtype=np.uint64)


class FeistelPermutation:
    """One epoch's permutation of ``[0, n)``; never changes, safe to share between threads.

    Args:
        length: n, from 1 to `MAX_LENGTH`.
        words: uint32 key words, 6 per pair of rounds, `NUM_KEY_WORDS` for a good shuffle (fewer let tests show
            that they would notice). The same words give the same permutation.
    """

    def __init__(self, length: int, words: _Vector32) -> None:
        assert 1 <= length <= MAX_LENGTH
        assert words.size % _WORDS_PER_PAIR == 0
        cell_bits = (length - 1).bit_length()
        self._length = length
        self._narrow = cell_bits <= _NARROW_CELL_BITS
        self._bits = max(1, cell_bits // 2, cell_bits - _NARROW_ROW_BITS if self._narrow else 0)
        self._rows = -(-length >> self._bits)
        self.num_cells = self._rows << self._bits
        self._has_strays = self.num_cells > length
        # Low bits of a hash that are dropped before it is multiplied by rows, so that the product fits.
        self._dropped_bits = (self._rows - 1).bit_length() if self._narrow else 0
        # Each row: multiplier, addend, finisher of the hash of right, then of left.
        keys = words.reshape(-1, _WORDS_PER_PAIR).copy()
        keys[:, [0, 2, 3, 5]] |= np.uint32(1)  # an odd multiplier loses nothing
        self._keys: list[tuple[int, ...]] = [tuple(pair) for pair in keys.tolist()]
        self._make_operands(keys)

    def _make_operands(self, keys: _Vector32) -> None:
        """The same numbers for numpy: it takes an array without dimensions in half the time of a scalar."""
        self._vector_keys = [tuple(np.array(word) for word in pair) for pair in keys]
        self._rows_32, self._mask_32, self._bits_32, self._unused_bits_32, self._dropped_32, self._kept_32 = (
            np.array(number, dtype=np.uint32)
            for number in (
                self._rows,
                (1 << self._bits) - 1,
                self._bits,
                32 - self._bits,
                self._dropped_bits,
                32 - self._dropped_bits,
            )
        )
        self._length_64, self._rows_64, self._bits_64 = (
            np.array(number, dtype=np.uint64) for number in (self._length, self._rows, self._bits)
        )

    def keys(self, *, inverse: bool) -> BlockKeys:
        """Keys of the pairs of rounds, in the order of their use."""
        return self._vector_keys[::-1] if inverse else self._vector_keys

    def scratch(self, num_values: int) -> Scratch:
        """Working memory for blocks of ``num_values`` cells."""
        return Scratch(num_values, narrow=self._narrow)

    def ids(self, offsets: Int64Array) -> Int64Array:
        """Map ``(k,)`` int64 in ``[0, n)`` to ``(k,)`` int64 in ``[0, n)``, a new array."""
        return self._permute(offsets, self._forward_one, self.forward_block, self.keys(inverse=False))

    def offsets(self, ids: Int64Array) -> Int64Array:
        """Undo `ids`: ``(k,)`` int64 in ``[0, n)`` to ``(k,)`` int64 in ``[0, n)``, a new array."""
        return self._permute(ids, self._inverse_one, self.inverse_block, self.keys(inverse=True))

    def _permute(
        self, values: Int64Array, one: Callable[[int], int], block: _BlockFunction, keys: BlockKeys
    ) -> Int64Array:
        """Apply a bijection of the grid to ``(k,)`` values, again to each that is not yet below n."""
        if values.size <= SMALL_SIZE:
            return np.array([self._walk(value, one) for value in values.tolist()], dtype=np.int64)
        result = np.empty(values.shape, dtype=np.int64)
        source, target = values.view(np.uint64), result.view(np.uint64)
        scratch = self.scratch(min(values.size, BLOCK_SIZE))
        strays = [np.empty(0, dtype=np.intp)]
        for start in range(0, values.size, BLOCK_SIZE):
            cells = target[start : start + BLOCK_SIZE]
            if cells.size < scratch.left.size:
                scratch = self.scratch(cells.size)
            block(source[start : start + BLOCK_SIZE], cells, scratch, keys)
            if self._has_strays:
                strays.append(np.flatnonzero(cells >= self._length_64) + start)
        again = np.concatenate(strays)
        if again.size:
            result[again] = self._permute(result[again], one, block, keys)
        return result

    def _walk(self, value: int, one: Callable[[int], int]) -> int:
        value = one(value)
        while value >= self._length:
            value = one(value)
        return value

    def _forward_one(self, value: int) -> int:
        rows, dropped = self._rows, self._dropped_bits
        kept, unused = 32 - dropped, 32 - self._bits
        left, right = value >> self._bits, value & ((1 << self._bits) - 1)
        for multiply, add, finish, multiply_left, add_left, finish_left in self._keys:
            mixed = right * multiply + add & _MASK_32
            hashed = (mixed ^ mixed >> _HASH_SHIFT) * finish & _MASK_32
            left = (left + ((hashed >> dropped) * rows >> kept)) % rows
            mixed = left * multiply_left + add_left & _MASK_32
            right ^= ((mixed ^ mixed >> _HASH_SHIFT) * finish_left & _MASK_32) >> unused
        return left << self._bits | right

    def _inverse_one(self, value: int) -> int:
        rows, dropped = self._rows, self._dropped_bits
        kept, unused = 32 - dropped, 32 - self._bits
        left, right = value >> self._bits, value & ((1 << self._bits) - 1)
        for multiply, add, finish, multiply_left, add_left, finish_left in reversed(self._keys):
            mixed = left * multiply_left + add_left & _MASK_32
            right ^= ((mixed ^ mixed >> _HASH_SHIFT) * finish_left & _MASK_32) >> unused
            mixed = right * multiply + add & _MASK_32
            hashed = (mixed ^ mixed >> _HASH_SHIFT) * finish & _MASK_32
            left = (left - ((hashed >> dropped) * rows >> kept)) % rows
        return left << self._bits | right

    def forward_block(self, source: _Vector64, target: _Vector64, scratch: Scratch, keys: BlockKeys) -> None:
        """Send ``(k,)`` cells once through the network, ``keys`` in the order of their use; strays are left."""
        left, hashed, spare = scratch.left, scratch.hashed, scratch.spare
        self._split(source, scratch)
        for key in keys:
            self._hash_right(key[:3], scratch)
            np.add(left, hashed, left)
            np.subtract(left, self._rows_32, spare)  # wraps to a large number where left < rows
            np.minimum(left, spare, out=left)
            self._mix_right(key[3:], scratch)
        self._join(scratch, target)

    def inverse_block(self, source: _Vector64, target: _Vector64, scratch: Scratch, keys: BlockKeys) -> None:
        """Undo `forward_block`; ``keys`` are the same, the last pair first."""
        left, hashed, spare = scratch.left, scratch.hashed, scratch.spare
        self._split(source, scratch)
        for key in keys:
            self._mix_right(key[3:], scratch)
            self._hash_right(key[:3], scratch)
            np.subtract(left, hashed, left)  # wraps to a large number where left < hashed
            np.add(left, self._rows_32, spare)
            np.minimum(left, spare, out=left)
        self._join(scratch, target)

    def _split(self, source: _Vector64, scratch: Scratch) -> None:
        left, right = scratch.left, scratch.right
        np.copyto(right, source, casting="unsafe")
        if self._narrow:
            np.right_shift(right, self._bits_32, left)
        else:
            np.right_shift(source, self._bits_64, scratch.wide)
            np.copyto(left, scratch.wide, casting="unsafe")
        np.bitwise_and(right, self._mask_32, right)

    def _join(self, scratch: Scratch, target: _Vector64) -> None:
        left, right = scratch.left, scratch.right
        if self._narrow:
            np.left_shift(left, self._bits_32, left)
            np.bitwise_or(left, right, left)
            np.copyto(target, left)
        else:
            np.copyto(target, left)
            np.left_shift(target, self._bits_64, target)
            np.copyto(scratch.wide, right)
            np.bitwise_or(target, scratch.wide, target)

    def _hash_right(self, key: tuple[_Vector32, ...], scratch: Scratch) -> None:
        """Hash right to a row, in ``scratch.hashed``: the high bits of the product of hash and ``rows``."""
        hashed, wide = scratch.hashed, scratch.wide
        _hash_block(scratch.right, key, hashed, scratch.spare)
        if self._narrow:
            np.right_shift(hashed, self._dropped_32, hashed)
            np.multiply(hashed, self._rows_32, hashed)
            np.right_shift(hashed, self._kept_32, hashed)
        else:
            np.copyto(wide, hashed)
            np.multiply(wide, self._rows_64, wide)
            np.right_shift(wide, _SHIFT_32, wide)
            np.copyto(hashed, wide, casting="unsafe")

    def _mix_right(self, key: tuple[_Vector32, ...], scratch: Scratch) -> None:
        """Xor the high bits of the hash of left into right."""
        _hash_block(scratch.left, key, scratch.hashed, scratch.spare)
        np.right_shift(scratch.hashed, self._unused_bits_32, scratch.hashed)
        np.bitwise_xor(scratch.right, scratch.hashed, scratch.right)


_SHIFT_32 = np.array(32, dtype=np.uint64)
_SHIFT_HASH = np.array(_HASH_SHIFT, dtype=np.uint32)


def _hash_block(values: _Vector32, key: tuple[_Vector32, ...], hashed: _Vector32, spare: _Vector32) -> None:
    """Keyed hash of ``(k,)`` uint32 values into ``hashed``, good in its high bits; ``spare`` is overwritten."""
    multiplier, addend, finisher = key
    np.multiply(values, multiplier, hashed)
    np.add(hashed, addend, hashed)
    np.right_shift(hashed, _SHIFT_HASH, spare)
    np.bitwise_xor(hashed, spare, hashed)
    np.multiply(hashed, finisher, hashed)
