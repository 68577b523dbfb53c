"""The keyed permutation of ``[0, n)`` for any n: a table where that is cheap, a Feistel network above."""

from __future__ import annotations

from typing import TypeAlias

from resumable_data.order import feistel, table
from resumable_data.order.keys import key_words

Permutation: TypeAlias = table.TablePermutation | feistel.FeistelPermutation


def keyed_permutation(length: int, message: bytes) -> Permutation:
    """A pseudo-random permutation of ``[0, length)``; never changes, safe to share between threads.

    Args:
        length: from 1 to ``feistel.MAX_LENGTH``.
        message: everything that must make two permutations unrelated, from ``key_message``.
    """
    if length <= table.MAX_TABLE_LENGTH:
        return table.keyed_table(length, key_words(message, table.NUM_KEY_WORDS))
    return feistel.FeistelPermutation(length, key_words(message, feistel.NUM_KEY_WORDS))
