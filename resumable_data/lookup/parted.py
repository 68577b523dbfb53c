"""Records within which the next launch took over: what of them is committed, and what was rolled back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.audit.inside import rows_before

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.audit.inside import HandedOn
    from resumable_data.ledger.columns import Deliveries


def hand_on(
    records: Deliveries, status: NDArray[np.int8], taken: NDArray[np.bool_], part: HandedOn, handed_on: int
) -> tuple[Deliveries, NDArray[np.int8]]:
    """The records, each within which the part ends as two, and what became of each.

    Args:
        records: (n,) deliveries.
        status: (n,) int8, what became of each but for the part.
        taken: (n,) bool, those that hold some of the part.
        part: What the next launch took over.
        handed_on: What became of it.
    """
    before = np.where(taken, rows_before(part.start + part.stop_row, records, records.count), records.count)
    owner = np.repeat(np.arange(len(records)), 1 + (before < records.count))
    is_rest = np.diff(owner, prepend=-1) == 0
    whole, before = records.take(owner), before[owner]
    count = np.where(is_rest, whole.count - before, before)
    after = whole.count - np.where(is_rest, whole.count, before)  # rows of the whole record that follow
    parted = msgspec.structs.replace(
        whole,
        start=whole.start + np.where(is_rest, before * whole.stride, 0),
        count=count,
        padding=np.clip(whole.padding - after, 0, count),
        index=np.where(is_rest, part.num_microbatches, whole.index),
    )
    return parted, np.where(taken[owner] & ~is_rest, np.int8(handed_on), status[owner])
