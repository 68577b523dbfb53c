"""Where a sample, or an update, is found in a ledger."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.errors import UsageError
from resumable_data.lookup.walk import STATUSES

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from resumable_data.lookup.walk import Part, Rows, Walk


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """A sample that was handed to a training loop.

    Attributes:
        id: The sample's ID.
        position: Its place in the run's global sequence.
        epoch: The epoch of that place; None of a packed row where the documents are not given.
        is_padding: Whether it filled up an update, as a repeat.
        update: Index of the update; where the run is counted by batches, of the batch.
        microbatch: Index of the microbatch in it; of the first one, where several were recorded together.
        rank: The data-parallel rank.
        attempt: The launch of the job.
        status: ``"committed"``, ``"rewound"``, ``"rolled back"`` by a restart, or ``"in flight"``.
        pieces: Of a packed row, ``(document, start, stop)`` of its pieces; `msgspec.UNSET` of a sample.
    """

    id: int
    position: int
    epoch: int | None
    is_padding: bool
    update: int
    microbatch: int
    rank: int
    attempt: int
    status: str
    pieces: tuple[tuple[int, int, int], ...] | msgspec.UnsetType = msgspec.UNSET


def find_sample(walk: Walk, sample_id: int) -> list[Delivery]:
    """Every delivery of a sample, in the order of attempts, ranks and records.

    Raises:
        UsageError: The run has no such sample.
    """
    if walk.recipe.is_packed:
        raise UsageError("this run read packed rows, which have no numbers of their own; look for a document")
    length = len(walk.order)
    if not 0 <= sample_id < length:
        raise UsageError(f"the run has samples 0 to {length - 1}, and no sample {sample_id}")

    def positions_in(low: int, high: int) -> list[int]:
        epochs = np.arange(low // length, high // length + 1)
        offsets = [int(walk.order.offsets(int(epoch), np.array([sample_id], np.int64))[0]) for epoch in epochs]
        positions: list[int] = (epochs * length + np.array(offsets, np.int64)).tolist()
        return positions

    return _find(walk, positions_in, lambda rows: rows.id == sample_id)


def find_document(walk: Walk, document: int) -> list[Delivery]:
    """Every delivery of a packed row that holds something of a document.

    Raises:
        UsageError: The run has no such document, or read samples.
    """
    if not walk.recipe.is_packed:
        raise UsageError("this run read samples, not packed rows of documents; look for a sample")
    num_documents = walk.recipe.order.get("order_length")
    if not isinstance(num_documents, int) or not 0 <= document < num_documents:
        raise UsageError(f"the run has {num_documents} documents, counted from 0, and no document {document}")
    found = []
    for part in walk.parts():
        if part.pieces is None:
            found += _find_planned(walk, part, document)
        else:
            owner = np.repeat(np.arange(len(part.pieces)), np.diff(part.pieces.edges))
            which = np.unique(owner[part.pieces.document == document])
            found += _deliveries(walk, part, walk.rows(part), which) if which.size else []
    return found


def _find_planned(walk: Walk, part: Part, document: int) -> list[Delivery]:
    """Rows of a part that hold something of a document, by the plan."""
    packed = walk.history.rows
    assert packed is not None  # else there is no part without pieces

    def positions_in(low: int, high: int) -> list[int]:
        return [position for position in packed.rows_of(document, high + 1) if position >= low]

    def holds(rows: Rows) -> NDArray[np.bool_]:
        return np.isin(rows.position, packed.rows_of(document, _last(rows) + 1))

    return _find_in(walk, part, positions_in, holds)


def _last(rows: Rows) -> int:
    return int(rows.position.max(initial=-1))


def _find(
    walk: Walk, positions_in: Callable[[int, int], list[int]], holds: Callable[[Rows], NDArray[np.bool_]]
) -> list[Delivery]:
    """Deliveries of what is looked for: at positions in a range, both ends included, or repeated as padding."""
    return [one for part in walk.parts() for one in _find_in(walk, part, positions_in, holds)]


def _find_in(
    walk: Walk, part: Part, positions_in: Callable[[int, int], list[int]], holds: Callable[[Rows], NDArray[np.bool_]]
) -> list[Delivery]:
    records = part.records
    if not len(records):
        return []
    last = records.start + records.stride * np.maximum(records.count - 1, 0)
    may_hold = records.padding > 0
    for position in positions_in(int(records.start.min()), int(last.max())):
        ahead = position - records.start
        may_hold |= (ahead >= 0) & (position <= last) & (ahead % records.stride == 0)
    chosen = part.take(may_hold)
    rows = walk.rows(chosen)
    return _deliveries(walk, chosen, rows, np.flatnonzero(holds(rows)))


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
        chosen = part.take(held)
        rows = walk.rows(chosen)
        found += _deliveries(walk, chosen, rows, np.arange(rows.id.size))
    return found


def _deliveries(walk: Walk, part: Part, rows: Rows, which: NDArray[np.int64]) -> list[Delivery]:
    record = rows.record[which]
    columns = (
        which.tolist(),
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
            epoch=_epoch(walk, position),
            is_padding=is_padding,
            update=update,
            microbatch=index,
            rank=part.rank,
            attempt=part.branch.claim.attempt,
            status=STATUSES[status],
            pieces=_pieces(walk, rows, row, position),
        )
        for row, sample_id, position, is_padding, update, index, status in zip(*columns, strict=True)
    ]


def _epoch(walk: Walk, position: int) -> int | None:
    if not walk.recipe.is_packed:
        return position // walk.recipe.length
    packed = walk.history.rows
    return None if packed is None else packed.place(position).epoch


def _pieces(walk: Walk, rows: Rows, row: int, position: int) -> tuple[tuple[int, int, int], ...] | msgspec.UnsetType:
    """A packed row's pieces: as they were recorded, else by the plan."""
    if rows.pieces is not None:
        return tuple(rows.pieces.of_row(row))
    packed = walk.history.rows
    return msgspec.UNSET if packed is None else tuple(packed.pieces(position))
