"""A permutation held in memory, with its inverse made when first asked for; and the keyed table of a small n.

Below 65,537 samples a table is used instead of a Feistel network: a network of few cells makes only even
permutations, and a table of this size is built faster than one sample is read.
"""

from __future__ import annotations

from threading import Lock
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from resumable_data.order.protocol import Int64Array

MAX_TABLE_LENGTH = 2**16
"""Largest n for `keyed_table`: the index takes the low 16 bits below 48 bits of hash."""

NUM_KEY_WORDS = 8

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
    start, step, first, second = words.astype(np.uint64).reshape(4, 2) @ np.array([2**32, 1], dtype=np.uint64)
    index = np.arange(length, dtype=np.uint64)
    mixed = index * (step | np.uint64(1)) + start
    for multiplier, shift in ((first, 32), (second, 29)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= multiplier | np.uint64(1)
    mixed ^= mixed >> np.uint64(32)
    mixed &= np.uint64(2**64 - 2**16)
    mixed |= index
    mixed.sort()
    return TablePermutation(mixed.astype(np.uint16))
