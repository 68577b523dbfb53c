"""What an order is: the contract between a dataset's IDs and everything else in this package."""

from __future__ import annotations

from typing import Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

Int64Array: TypeAlias = npt.NDArray[np.int64]
"""``(k,)`` int64 array of offsets, positions or sample IDs."""


@runtime_checkable
class Order(Protocol):
    """For each epoch, one arrangement of all sample IDs ``0 .. n-1``, with its inverse.

    The offset is the place in the epoch, the ID is the dataset's index. An implementation must be

    * a bijection: in each epoch the offsets ``0 .. n-1`` map to the IDs ``0 .. n-1``, each once;
    * deterministic: a pure function of what `describe` tells, of the epoch and of the offset, the same in every
      process, on every machine and in every order of calls. A checkpoint holds positions, not IDs: if the
      answer to the same question changes, samples are repeated and lost without a sign;
    * vectorised: it is called with arrays, from one value to millions of them, and with none at all;
    * thread-safe: several threads may call it at once;
    * free of torch at import time, so that an audit can use it without torch.

    Returned arrays belong to the caller. The least that is needed:

    Example:
        >>> import numpy as np
        >>> class Reversed:
        ...     def __init__(self, n):
        ...         self.n = n
        ...     def __len__(self):
        ...         return self.n
        ...     def ids(self, epoch, offsets):
        ...         return self.n - 1 - offsets
        ...     def offsets(self, epoch, ids):
        ...         return self.n - 1 - ids
        ...     def describe(self):
        ...         return {"kind": "example.reversed", "version": 1, "length": self.n}
        >>> Reversed(5).ids(0, np.arange(5, dtype=np.int64)).tolist()
        [4, 3, 2, 1, 0]
        >>> from resumable_data.order import check_order
        >>> check_order(Reversed(5))
    """

    def __len__(self) -> int:
        """Number of samples in an epoch, n, at least 1."""
        ...

    def ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """Sample IDs at offsets of an epoch.

        Args:
            epoch: at least 0.
            offsets: ``(k,)`` int64 in ``[0, n)``, in any arrangement, repeats allowed.

        Returns:
            ids: ``(k,)`` int64 in ``[0, n)``, a new array.
        """
        ...

    def offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        """Offsets of sample IDs in an epoch: the inverse of `ids`.

        Args:
            epoch: at least 0.
            ids: ``(k,)`` int64 in ``[0, n)``, in any arrangement, repeats allowed.

        Returns:
            offsets: ``(k,)`` int64 in ``[0, n)``, a new array.
        """
        ...

    def describe(self) -> dict[str, int | str]:
        """Everything the order depends on, as a flat dict that JSON can hold; it is stored in checkpoints.

        ``"kind"`` (str), ``"version"`` (int, raised whenever the same arguments give another order) and
        ``"length"`` (int, n) are required; seed, name and the like belong here too.
        """
        ...
