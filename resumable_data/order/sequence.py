"""The run's one global sequence: position = epoch * n + offset, through all epochs."""

from __future__ import annotations

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order.arguments import check_vector
from resumable_data.order.protocol import Int64Array, Order


def ids_at(order: Order, positions: Int64Array) -> Int64Array:
    """Sample IDs at positions of the run.

    The order is asked once per epoch that occurs, in ascending order of epochs, whatever the arrangement.

    Args:
        order: with ``n = len(order)`` samples per epoch.
        positions: ``(k,)`` int64, at least 0, in any arrangement; sorted ones are fastest.

    Returns:
        ids: ``(k,)`` int64, a new array.

    Raises:
        UsageError: when positions are not as described.

    Example:
        >>> import numpy as np
        >>> from resumable_data.order import Sequential
        >>> ids_at(Sequential(4), np.array([2, 3, 4, 5, 9])).tolist()
        [2, 3, 0, 1, 1]
    """
    check_vector("positions", positions)
    if not positions.size:
        return np.empty(0, dtype=np.int64)
    length = len(order)
    first, last = int(positions.min()), int(positions.max())
    if first < 0:
        raise UsageError(
            f"positions must be at least 0; found {first}. A run has no samples before its start."
            " Pass epoch * n + offset."
        )
    epoch = first // length
    if last < (epoch + 1) * length:
        return order.ids(epoch, positions - epoch * length)
    if np.all(positions[1:] >= positions[:-1]):
        return _ids_of_sorted(order, positions)
    arrangement = np.argsort(positions, kind="stable")
    ids = np.empty(positions.shape, dtype=np.int64)
    ids[arrangement] = _ids_of_sorted(order, positions[arrangement])
    return ids


def _ids_of_sorted(order: Order, positions: Int64Array) -> Int64Array:
    """`ids_at` of ``(k,)`` ascending positions: a run of equal epochs is one slice."""
    length = len(order)
    epochs = positions // length
    starts = np.flatnonzero(np.diff(epochs, prepend=-1))  # (num_epochs,)
    stops = np.append(starts[1:], positions.size)
    ids = np.empty(positions.shape, dtype=np.int64)
    for start, stop, epoch in zip(starts.tolist(), stops.tolist(), epochs[starts].tolist(), strict=True):
        ids[start:stop] = order.ids(epoch, positions[start:stop] - epoch * length)
    return ids
