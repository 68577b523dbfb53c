"""A permutation held in memory, with its inverse made when first asked for; and the keyed table of a small n.

Below 65,537 samples a table is used instead of a Feistel network: a network of few cells makes only even
permutations, and a table of this size is built faster than one sample is read.
"""

from __future__ import annotations

from collections.abc import Iterable
from threading import Lock
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resumable_data.order.protocol import Int64Array

MAX_TABLE_LENGTH = 2**16
"""Largest n for `keyed_table`: the index takes the low 16 bits below 48 bits of hash."""

NUM_KEY_WORDS = 8

_BLOCK_SIZE = 8192
"""Indices hashed at a time: whole arrays of 2^16 would cost more in page faults than in arithmetic."""

_Table: TypeAlias = npt.NDArray[np.uint16] | npt.NDArray[np.int32] | npt.NDArray[np.int64]


class TablePermutation:
    """A stored permutation of ``[0, n)``; safe to share between threads.

    Args:
        table: ``(n,)`` integers, a permutation of ``[0, n)``. It must not be changed afterwards.
    """

    def __init__(self, table: _Table) -> None:
        self._table = table
        self._inverse: _Table | None = None
        self._lock = Lock()

    def ids(self, offsets: Int64Array) -> Int64Array:
        """Map ``(k,)`` int64 in ``[0, n)`` to ``(k,)`` int64 in ``[0, n)``, a new array."""
        return self._table[offsets].astype(np.int64, copy=False)

    def offsets(self, ids: Int64Array) -> Int64Array:
        """Undo `ids`; the first call builds the inverse table, as large as the table."""
        with self._lock:
            if self._inverse is None:
                self._inverse = np.empty_like(self._table)
                self._inverse[self._table] = np.arange(self._table.size, dtype=self._table.dtype)
        return self._inverse[ids].astype(np.int64, copy=False)


def keyed_table(length: int, words: npt.NDArray[np.uint32]) -> TablePermutation:
    """Sort the indices ``0 .. n-1`` by 48 bits of a keyed hash.

    The index is the low part of each sorted number, so no two are equal and every sorting algorithm, on every
    machine, gives the same table.

    Args:
        length: n, from 1 to `MAX_TABLE_LENGTH`.
        words: ``(NUM_KEY_WORDS,)`` uint32 key words.
    """
    assert 1 <= length <= MAX_TABLE_LENGTH
    assert words.shape == (NUM_KEY_WORDS,)
    sortable = np.empty(length, dtype=np.uint64)
    keys = wide_words(words)
    scratch = np.empty(min(length, _BLOCK_SIZE), dtype=np.uint64)
    for first in range(0, length, _BLOCK_SIZE):
        _hash_indices(sortable[first : first + _BLOCK_SIZE], first, keys, scratch)
    sortable.sort()
    return TablePermutation(sortable.astype(np.uint16))


def _hash_indices(
    target: npt.NDArray[np.uint64], first: int, keys: npt.NDArray[np.uint64], scratch: npt.NDArray[np.uint64]
) -> None:
    """Write 48 hash bits above the index into ``target``, for the indices from ``first`` on."""
    start, step, *multipliers = keys
    spare = scratch[: target.size]
    index = np.arange(first, first + target.size, dtype=np.uint64)
    np.multiply(index, step | np.uint64(1), out=target)
    np.add(target, start, out=target)
    mix(target, multipliers, spare)
    np.bitwise_and(target, np.uint64(2**64 - 2**16), out=target)
    np.bitwise_or(target, index, out=target)


def wide_words(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint64]:
    """Join ``(2k,)`` uint32 key words to ``(k,)`` uint64, the high half first."""
    return words.astype(np.uint64).reshape(-1, 2) @ np.array([2**32, 1], dtype=np.uint64)


def mix(target: npt.NDArray[np.uint64], multipliers: Iterable[np.uint64], spare: npt.NDArray[np.uint64]) -> None:
    """Hash uint64 values in place by two keyed multipliers; a bijection. ``spare`` has their shape."""
    for multiplier, shift in zip(multipliers, (32, 29), strict=True):
        np.right_shift(target, np.uint64(shift), out=spare)
        np.bitwise_xor(target, spare, out=target)
        np.multiply(target, multiplier | np.uint64(1), out=target)
    np.right_shift(target, np.uint64(32), out=spare)
    np.bitwise_xor(target, spare, out=target)
