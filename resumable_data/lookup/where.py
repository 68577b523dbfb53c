"""Where a sample, or an update, is found in a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.errors import UsageError
from resumable_data.lookup.walk import STATUSES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.lookup.walk import Part, Rows, Walk


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that was handed to a training loop.

    Attributes:
        id: The sample's ID.
        position: Its place in the run's global sequence.
        epoch: The epoch of that place.
        is_padding: Whether it filled up an update, as a repeat.
        update: Index of the update; where the run is counted by batches, of the batch.
        microbatch: Index of the microbatch in it; of the first one, where several were recorded together.
        rank: The data-parallel rank.
        attempt: The launch of the job.
        status: ``"committed"``, ``"rewound"``, ``"rolled back"`` by a restart, or ``"in flight"``.
    """

    id: int
    position: int
    epoch: int
    is_padding: bool
    update: int
    microbatch: int
    rank: int
    attempt: int
    status: str


def find_sample(walk: Walk, sample_id: int) -> list[Delivery]:
    """Every delivery of a sample, in the order of attempts, ranks and records.

    Raises:
        UsageError: The run has no such sample.
    """
    length = len(walk.order)
    if not 0 <= sample_id < length:
        raise UsageError(f"the run has samples 0 to {length - 1}, and no sample {sample_id}")
    found = []
    for part in walk.parts():
        records = part.records
        if not len(records):
            continue
        last = records.start + records.stride * np.maximum(records.count - 1, 0)
        epochs = np.arange(int(records.start.min()) // length, int(last.max()) // length + 1)
        offsets = [int(walk.order.offsets(int(epoch), np.array([sample_id], np.int64))[0]) for epoch in epochs]
        may_hold = records.padding > 0
        for position in (epochs * length + np.array(offsets, np.int64)).tolist():
            ahead = position - records.start
            may_hold |= (ahead >= 0) & (position <= last) & (ahead % records.stride == 0)
        chosen = part._replace(records=records.take(may_hold), status=part.status[may_hold])
        rows = walk.rows(chosen)
        found += _deliveries(chosen, rows, np.flatnonzero(rows.id == sample_id), length)
    return found


def find_update(walk: Walk, update: int) -> list[Delivery]:
    """Every row that was delivered for an update, or batch, in the order of attempts, ranks and records.

    Raises:
        UsageError: The index is negative.
    """
    if update < 0:
        raise UsageError(f"updates are counted from 0, got {update}")
    found = []
    for part in walk.parts():
        held = part.records.update == update
        chosen = part._replace(records=part.records.take(held), status=part.status[held])
        rows = walk.rows(chosen)
        found += _deliveries(chosen, rows, np.arange(rows.id.size), len(walk.order))
    return found


def _deliveries(part: Part, rows: Rows, which: NDArray[np.int64], length: int) -> list[Delivery]:
    record = rows.record[which]
    columns = (
        rows.id[which].tolist(),
        rows.position[which].tolist(),
        rows.is_padding[which].tolist(),
        part.records.update[record].tolist(),
        part.records.index[record].tolist(),
        part.status[record].tolist(),
    )
    return [
        Delivery(
            id=sample_id,
            position=position,
            epoch=position // length,
            is_padding=is_padding,
            update=update,
            microbatch=index,
            rank=part.rank,
            attempt=part.branch.claim.attempt,
            status=STATUSES[status],
        )
        for sample_id, position, is_padding, update, index, status in zip(*columns, strict=True)
    ]
