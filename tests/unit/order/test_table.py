"""The stored permutation and the keyed table of a small order."""

from __future__ import annotations

import time

import numpy as np
import pytest

from resumable_data.order.keys import key_words
from resumable_data.order.table import NUM_KEY_WORDS, TablePermutation, keyed_table


@pytest.mark.parametrize("dtype", [np.uint16, np.int32, np.int64])
def test_a_table_and_its_inverse_answer_in_int64(dtype: type[np.signedinteger]) -> None:
    """Whatever the table is stored in, answers are new int64 arrays."""
    table = TablePermutation(np.array([2, 0, 1, 3], dtype=dtype))
    question = np.array([0, 3, 3, 1], dtype=np.int64)
    ids = table.ids(question)
    assert ids.dtype == np.int64
    assert ids.tolist() == [2, 3, 3, 0]
    offsets = table.offsets(ids)
    assert offsets.dtype == np.int64
    assert offsets.tolist() == question.tolist()


def test_the_largest_table_is_built_fast() -> None:
    """65,536 samples, the most a table is used for, are ready within a resume's 5 ms."""
    durations = []
    for seed in range(20):
        words = key_words(b"test %d" % seed, NUM_KEY_WORDS)
        started = time.thread_time()
        keyed_table(65_536, words)
        durations.append(time.thread_time() - started)
    assert min(durations) < 0.005


def test_a_table_sorts_48_bits_of_hash_above_the_index() -> None:
    """The table is the arrangement that Python's own integers and sort give."""
    n, words = 300, key_words(b"test", NUM_KEY_WORDS)
    start, step, first, second = (int(words[2 * i]) << 32 | int(words[2 * i + 1]) for i in range(4))

    def hashed(index: int) -> int:
        mixed = (index * (step | 1) + start) % 2**64
        for multiplier, shift in ((first, 32), (second, 29)):
            mixed = (mixed ^ mixed >> shift) * (multiplier | 1) % 2**64
        return (mixed ^ mixed >> 32) >> 16

    expected = sorted(range(n), key=lambda index: (hashed(index), index))
    assert keyed_table(n, words).ids(np.arange(n, dtype=np.int64)).tolist() == expected
