"""A keyed permutation of ``[0, n)`` that is computed, not stored: memory and start-up do not depend on n.

The values are cells of a grid of ``rows`` x 2^bits, just above n, its two sides nearly equal. A value is (left, right)
with left < rows and right < 2^bits. Three times over, a keyed hash of right is added to left modulo ``rows``, then a keyed
hash of left is xored into right. Each step can be undone, so the whole is a bijection of the grid. The few values
that end at or above n ("strays") are sent through again until they fall below n (cycle walking), which makes it a
bijection of ``[0, n)``. A hash is multiply-add, shift-xor, multiply, and only its *high* bits are used: the low bits of a
product never see the high bits of its factor.

All arithmetic is on unsigned integers that wrap around, so the results are the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resumable_data.order.protocol import Int64Array

MAX_LENGTH = 2**62
"""Largest n. Both sides of the grid are then at most 2^31, so that their sums fit 32 bits."""

NUM_ROUND_PAIRS = 3
NUM_KEY_WORDS = NUM_ROUND_PAIRS * 6

BLOCK_SIZE = 16_384
"""Values worked on at a time: their scratch (24 bytes each) stays in the second-level cache."""

SMALL_SIZE = 16
"""Up to this many values, Python integers beat the fixed cost of about seventy numpy calls."""

_HASH_SHIFT = 15
_MASK_32 = 0xFFFF_FFFF

_Vector32: TypeAlias = npt.NDArray[np.uint32]
_Vector64: TypeAlias = npt.NDArray[np.uint64]
_BlockFunction: TypeAlias = "Callable[[_Vector64, _Vector64, _Scratch], None]"


class _Scratch:
    """Working memory for one block of values; each call has its own, so threads do not meet."""

    __slots__ = ("hashed", "left", "right", "spare", "wide")

    def __init__(self, size: int) -> None:
        self.left, self.right, self.hashed, self.spare = np.empty((4, size), dtype=np.uint32)
        self.wide = np.empty(size, dtype=np.uint64)


class FeistelPermutation:
    """One epoch's permutation of ``[0, n)``; never changes, safe to share between threads.

    Args:
        length: n, from 1 to `MAX_LENGTH`.
        words: ``(NUM_KEY_WORDS,)`` uint32 key words; the same words give the same permutation.
    """

    def __init__(self, length: int, words: _Vector32) -> None:
        assert 1 <= length <= MAX_LENGTH and words.shape == (NUM_KEY_WORDS,)
        self._length = length
        self._bits = max(1, (length - 1).bit_length() // 2)
        self._rows = -(-length >> self._bits)
        keys = words.reshape(2 * NUM_ROUND_PAIRS, 3).copy()
        keys[:, [0, 2]] |= np.uint32(1)  # an odd multiplier loses nothing
        self._keys = [tuple(key) for key in keys.tolist()]
        # For numpy, as arrays without dimensions: it takes them in about half the time that a scalar costs.
        self._vector_keys = [tuple(np.array(word) for word in key) for key in keys]
        self._num_strays = (self._rows << self._bits) - length
        self._length_64 = np.array(length, dtype=np.uint64)
        self._rows_64 = np.array(self._rows, dtype=np.uint64)
        self._rows_32 = np.array(self._rows, dtype=np.uint32)
        self._bits_64 = np.array(self._bits, dtype=np.uint64)
        self._mask_32 = np.array((1 << self._bits) - 1, dtype=np.uint32)
        self._keep_32 = np.array(32 - self._bits, dtype=np.uint32)

    def ids(self, offsets: Int64Array) -> Int64Array:
        """Map ``(k,)`` int64 in ``[0, n)`` to ``(k,)`` int64 in ``[0, n)``, a new array."""
        return self._permute(offsets, self._forward_one, self._forward_block)

    def offsets(self, ids: Int64Array) -> Int64Array:
        """Undo `ids`: ``(k,)`` int64 in ``[0, n)`` to ``(k,)`` int64 in ``[0, n)``, a new array."""
        return self._permute(ids, self._inverse_one, self._inverse_block)

    def _permute(self, values: Int64Array, one: Callable[[int], int], block: _BlockFunction) -> Int64Array:
        """Apply a bijection of the grid to ``(k,)`` values, again for each that is not yet below n."""
        if values.size <= SMALL_SIZE:
            return np.array([self._walk(value, one) for value in values.tolist()], dtype=np.int64)
        result = np.empty(values.shape, dtype=np.int64)
        source, target = values.view(np.uint64), result.view(np.uint64)
        scratch = _Scratch(min(values.size, BLOCK_SIZE))
        strays = [np.empty(0, dtype=np.intp)]
        for start in range(0, values.size, BLOCK_SIZE):
            cells = target[start : start + BLOCK_SIZE]
            if cells.size < scratch.wide.size:
                scratch = _Scratch(cells.size)
            block(source[start : start + BLOCK_SIZE], cells, scratch)
            if self._num_strays:
                strays.append(np.flatnonzero(cells >= self._length_64) + start)
        again = np.concatenate(strays)
        if again.size:
            result[again] = self._permute(result[again], one, block)
        return result

    def _walk(self, value: int, one: Callable[[int], int]) -> int:
        value = one(value)
        while value >= self._length:
            value = one(value)
        return value

    def _forward_one(self, value: int) -> int:
        left, right = value >> self._bits, value & ((1 << self._bits) - 1)
        for left_key, right_key in zip(self._keys[::2], self._keys[1::2], strict=True):
            left = (left + (_hash_one(right, left_key) * self._rows >> 32)) % self._rows
            right ^= _hash_one(left, right_key) >> 32 - self._bits
        return left << self._bits | right

    def _inverse_one(self, value: int) -> int:
        left, right = value >> self._bits, value & ((1 << self._bits) - 1)
        for right_key, left_key in zip(self._keys[::-2], self._keys[-2::-2], strict=True):
            right ^= _hash_one(left, right_key) >> 32 - self._bits
            left = (left - (_hash_one(right, left_key) * self._rows >> 32)) % self._rows
        return left << self._bits | right

    def _forward_block(self, source: _Vector64, target: _Vector64, scratch: _Scratch) -> None:
        left, hashed, spare = scratch.left, scratch.hashed, scratch.spare
        self._split(source, scratch)
        for left_key, right_key in zip(self._vector_keys[::2], self._vector_keys[1::2], strict=True):
            self._hash_to_row(left_key, scratch)
            np.add(left, hashed, left)
            np.subtract(left, self._rows_32, spare)  # wraps to a large number where left < rows
            np.minimum(left, spare, left)
            self._mix_right(right_key, scratch)
        self._join(scratch, target)

    def _inverse_block(self, source: _Vector64, target: _Vector64, scratch: _Scratch) -> None:
        left, hashed, spare = scratch.left, scratch.hashed, scratch.spare
        self._split(source, scratch)
        for right_key, left_key in zip(self._vector_keys[::-2], self._vector_keys[-2::-2], strict=True):
            self._mix_right(right_key, scratch)
            self._hash_to_row(left_key, scratch)
            np.subtract(left, hashed, left)  # wraps to a large number where left < hashed
            np.add(left, self._rows_32, spare)
            np.minimum(left, spare, left)
        self._join(scratch, target)

    def _split(self, source: _Vector64, scratch: _Scratch) -> None:
        np.right_shift(source, self._bits_64, scratch.wide)
        np.copyto(scratch.left, scratch.wide, casting="unsafe")
        np.copyto(scratch.right, source, casting="unsafe")
        np.bitwise_and(scratch.right, self._mask_32, scratch.right)

    def _join(self, scratch: _Scratch, target: _Vector64) -> None:
        np.copyto(target, scratch.left)
        np.left_shift(target, self._bits_64, target)
        np.copyto(scratch.wide, scratch.right)
        np.bitwise_or(target, scratch.wide, target)

    def _hash_to_row(self, key: tuple[_Vector32, ...], scratch: _Scratch) -> None:
        """Hash right to a row: the high half of the 64-bit product of hash and ``rows``."""
        hashed, wide = scratch.hashed, scratch.wide
        _hash_block(scratch.right, key, hashed, scratch.spare)
        np.copyto(wide, hashed)
        np.multiply(wide, self._rows_64, wide)
        np.right_shift(wide, _SHIFT_32, wide)
        np.copyto(hashed, wide, casting="unsafe")

    def _mix_right(self, key: tuple[_Vector32, ...], scratch: _Scratch) -> None:
        """Xor the high bits of the hash of left into right."""
        _hash_block(scratch.left, key, scratch.hashed, scratch.spare)
        np.right_shift(scratch.hashed, self._keep_32, scratch.hashed)
        np.bitwise_xor(scratch.right, scratch.hashed, scratch.right)


_SHIFT_32 = np.array(32, dtype=np.uint64)
_SHIFT_HASH = np.array(_HASH_SHIFT, dtype=np.uint32)


def _hash_one(value: int, key: tuple[int, ...]) -> int:
    """Keyed 32-bit hash of a value below 2^32; its high bits are the good ones."""
    multiplier, addend, finisher = key
    mixed = value * multiplier + addend & _MASK_32
    return (mixed ^ mixed >> _HASH_SHIFT) * finisher & _MASK_32


def _hash_block(values: _Vector32, key: tuple[_Vector32, ...], hashed: _Vector32, spare: _Vector32) -> None:
    """`_hash_one` of ``(k,)`` uint32 values into ``hashed``; ``spare`` is overwritten."""
    multiplier, addend, finisher = key
    np.multiply(values, multiplier, hashed)
    np.add(hashed, addend, hashed)
    np.right_shift(hashed, _SHIFT_HASH, spare)
    np.bitwise_xor(hashed, spare, hashed)
    np.multiply(hashed, finisher, hashed)
