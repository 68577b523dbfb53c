"""Rows of an update that are no samples of their own: what ``tail="pad"`` repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable_data.order import ids_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.order import Order
    from resumable_data.plan import UpdateSpan


def row_ids(order: Order, rows: NDArray[np.int64], span: UpdateSpan) -> NDArray[np.int64]:
    """Sample IDs of rows given by position, those past the update's samples being padding.

    Padding repeats the offsets 0, 1, ... of the update's own epoch.

    Args:
        order: The run's order.
        rows: (k,) int64. Without padding in `span`, any positions.
        span: The update, or one of the equal updates without padding, that the rows are of.

    Returns:
        (k,) int64.
    """
    if not span.padding:
        return ids_at(order, rows)
    length = len(order)
    stop = span.start + span.num_samples
    epoch_start = span.start // length * length
    return ids_at(order, np.where(rows < stop, rows, epoch_start + (rows - stop) % length))
