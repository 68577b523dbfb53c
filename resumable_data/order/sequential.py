"""Samples in the dataset's own order."""

from __future__ import annotations

from typing import ClassVar

from resumable_data.order.arguments import checked_length
from resumable_data.order.base import DescribedOrder, copied
from resumable_data.order.feistel import MAX_LENGTH
from resumable_data.order.protocol import Int64Array


class Sequential(DescribedOrder):
    """Every epoch visits ``0, 1, .., n-1``; nothing is stored.

    Args:
        n: number of samples, from 1 to 2**62.

    Raises:
        UsageError: when n is not an int in that range.

    Example:
        >>> import numpy as np
        >>> Sequential(10).ids(3, np.array([4, 7])).tolist()
        [4, 7]
    """

    kind: ClassVar[str] = "sequential"
    version: ClassVar[int] = 1

    def __init__(self, n: int) -> None:
        super().__init__(checked_length(n, MAX_LENGTH))

    def _ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        return copied(offsets)

    def _offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        return copied(ids)

    def _arguments(self) -> dict[str, int | str]:
        return {}
