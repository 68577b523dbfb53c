"""What the orders of this package share: validation, and identity by what they describe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar

import numpy as np

from resumable_data.order.arguments import check_values, checked_epoch
from resumable_data.order.protocol import Int64Array


class DescribedOrder(ABC):
    """An `Order` that is equal to, hashes like and pickles as what its `describe` says.

    A subclass sets ``kind`` and ``version``, and implements `_ids`, `_offsets` and `_arguments`.
    """

    kind: ClassVar[str]
    """Name of the algorithm in descriptions."""

    version: ClassVar[int]
    """Raised whenever the same arguments would give another order."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        """Number of samples in an epoch."""
        return self._length

    def ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """Sample IDs at offsets of an epoch.

        Args:
            epoch: at least 0.
            offsets: ``(k,)`` int64 in ``[0, n)``, in any arrangement.

        Returns:
            ids: ``(k,)`` int64 in ``[0, n)``, a new array.

        Raises:
            UsageError: when an argument is not as described.
        """
        check_values("offsets", offsets, self._length)
        return self._ids(checked_epoch(epoch), offsets)

    def offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        """Offsets of sample IDs in an epoch: the inverse of `ids`.

        Args:
            epoch: at least 0.
            ids: ``(k,)`` int64 in ``[0, n)``, in any arrangement.

        Returns:
            offsets: ``(k,)`` int64 in ``[0, n)``, a new array.

        Raises:
            UsageError: when an argument is not as described.
        """
        check_values("ids", ids, self._length)
        return self._offsets(checked_epoch(epoch), ids)

    def describe(self) -> dict[str, int | str]:
        """Kind, version, length and whatever else the order depends on."""
        return {"kind": self.kind, "version": self.version, "length": self._length, **self._arguments()}

    @abstractmethod
    def _ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """`ids` of checked arguments."""

    @abstractmethod
    def _offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        """`offsets` of checked arguments."""

    @abstractmethod
    def _arguments(self) -> dict[str, int | str]:
        """Keyword arguments of the constructor, the length apart."""

    def __eq__(self, other: object) -> bool:
        """Whether both give the same IDs everywhere."""
        if not isinstance(other, DescribedOrder):
            return NotImplemented
        return self.describe() == other.describe()

    def __hash__(self) -> int:
        """Hash of the description."""
        return hash(tuple(self.describe().items()))

    def __repr__(self) -> str:
        """The call that makes an equal order."""
        arguments = "".join(f", {name}={value!r}" for name, value in self._arguments().items())
        return f"{type(self).__name__}({self._length}{arguments})"

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the arguments only: tables and caches are made again where they are needed."""
        return _rebuild, (type(self), self._length, self._arguments())


def _rebuild(cls: type[DescribedOrder], length: int, arguments: dict[str, int | str]) -> DescribedOrder:
    return cls(length, **arguments)


def copied(values: Int64Array) -> Int64Array:
    """A new, contiguous ``(k,)`` int64 array with the same values."""
    return np.array(values, dtype=np.int64, order="C")
