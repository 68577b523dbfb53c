"""A new pseudo-random arrangement in every epoch, in O(1) memory and entered anywhere at once."""

from __future__ import annotations

from functools import lru_cache, partial
from typing import ClassVar

from resumable_data.order import feistel, table
from resumable_data.order.arguments import checked_length, checked_name, checked_seed
from resumable_data.order.base import DescribedOrder
from resumable_data.order.keys import key_message
from resumable_data.order.permutation import Permutation, keyed_permutation
from resumable_data.order.protocol import Int64Array

_VERSION = 1
_NUM_CACHED_EPOCHS = 4


class Shuffle(DescribedOrder):
    """Each epoch is its own pseudo-random permutation of the sample IDs, computed where it is asked for.

    Above 65,536 samples nothing is stored: the order of 10^12 samples costs what that of 10^5 does. Up to
    65,536, an epoch's table (2 bytes per sample, its inverse as much again) is built at the first question, and
    those of the last four epochs are kept. Seed, epoch, name and n are hashed together: change any of them and
    the order is unrelated. It is not cryptography.

    Args:
        n: number of samples, from 1 to 2**62.
        seed: from 0 to 2**63 - 1.
        name: of the random stream, at most 255 bytes; orders with different names are unrelated.

    Raises:
        UsageError: when an argument is not as described.

    Example:
        >>> import numpy as np
        >>> order = Shuffle(10, seed=7)
        >>> ids = order.ids(0, np.arange(10))
        >>> sorted(ids.tolist())
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
        >>> order.offsets(0, ids).tolist()
        [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    kind: ClassVar[str] = "shuffle"
    version: ClassVar[int] = _VERSION

    def __init__(self, n: int, seed: int = 0, name: str = "") -> None:
        super().__init__(checked_length(n, feistel.MAX_LENGTH))
        self._seed = checked_seed(seed)
        self._name = checked_name(name)
        # A function of the arguments, not a method of self: a cached method would keep the order alive in a cycle.
        permutation = partial(_permutation, length=self._length, seed=self._seed, name=self._name)
        self._permutation_of = lru_cache(maxsize=_NUM_CACHED_EPOCHS)(permutation)

    @property
    def seed(self) -> int:
        """Seed of the order."""
        return self._seed

    @property
    def name(self) -> str:
        """Name of the random stream."""
        return self._name

    def _ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        return self._permutation_of(epoch).ids(offsets)

    def _offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        return self._permutation_of(epoch).offsets(ids)

    def _arguments(self) -> dict[str, int | str]:
        return {"seed": self._seed, "name": self._name}


def _permutation(epoch: int, *, length: int, seed: int, name: str) -> Permutation:
    """The permutation of one epoch, its key derived from everything that tells it from others."""
    purpose = "order.shuffle.table" if length <= table.MAX_TABLE_LENGTH else "order.shuffle.feistel"
    message = key_message(version=_VERSION, purpose=purpose, seed=seed, epoch=epoch, length=length, name=name)
    return keyed_permutation(length, message)
