"""Rows of an update that are no samples of their own: what ``tail="pad"`` repeats."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable_data.order import ids_at

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.order import Order
    from resumable_data.plan import UpdateSpan
    from resumable_data.sampler.rank_rows import MicrobatchRows


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
    return ids_at(order, sample_positions(rows, span, len(order)))


def sample_positions(rows: NDArray[np.int64], span: UpdateSpan, length: int) -> NDArray[np.int64]:
    """Positions of the samples that rows are, or repeat where they are padding.

    Args:
        rows: (k,) int64, as for `row_ids`.
        span: As for `row_ids`.
        length: Samples of one epoch.

    Returns:
        (k,) int64.
    """
    if not span.padding:
        return rows
    stop = span.start + span.num_samples
    epoch_start = span.start // length * length
    return np.where(rows < stop, rows, epoch_start + (rows - stop) % length)


def repeated_positions(rows: MicrobatchRows, length: int) -> NDArray[np.int64]:
    """Positions of the samples that a microbatch's padding rows, then its filler rows, repeat.

    Args:
        rows: The microbatch.
        length: Samples of one epoch.

    Returns:
        (num_padding + num_filler,) int64.
    """
    shape, stride = rows.shape, rows.shape.stride
    padding = rows.start + stride * np.arange(rows.num_samples, rows.num_rows, dtype=np.int64)
    stretch_start = rows.start - (rows.start - rows.update_start - shape.phase) % stride  # what filler repeats
    filler = np.full(rows.num_filler, stretch_start, np.int64)
    return sample_positions(np.concatenate((padding, filler)), rows.span, length)
