"""One rank's microbatches, one after another from any place in the run: order and plan brought together.

Everything is a pure function of the order, the schedule and the rank, so it is computed for many microbatches at
once, ahead of their use: a first block of a single microbatch, so that a resumed job starts at once, then blocks that
double up to `BLOCK_ROWS` rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain, repeat
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.cursor import row_hashes
from resumable_data.errors import TopologyError
from resumable_data.plan import BatchPlan, Segment, UpdateSpan, require_count
from resumable_data.sampler.padding import row_ids
from resumable_data.sampler.targets import LossWeight, UpdateWeights

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.order import Order
    from resumable_data.plan import RunSchedule

BLOCK_ROWS = 16_384


@dataclass(frozen=True, kw_only=True)
class RankLayout:
    """What may differ from one launch of a job to the next.

    Attributes:
        rank: The data-parallel rank, in [0, num_replicas).
        num_replicas: Number of data-parallel ranks.
        microbatch: The largest number of rows that a rank holds at once.
        pad_microbatches: Whether filler rows bring every microbatch to exactly `microbatch` rows.
    """

    rank: int
    num_replicas: int
    microbatch: int
    pad_microbatches: bool = False

    def __post_init__(self) -> None:
        require_count("num_replicas", self.num_replicas)
        require_count("microbatch", self.microbatch)
        if isinstance(self.rank, bool) or not isinstance(self.rank, int) or not 0 <= self.rank < self.num_replicas:
            raise TopologyError(f"rank must be an integer in [0, {self.num_replicas}), got {self.rank!r}")


class UpdateShape(NamedTuple):
    """What equal updates, one after another, have in common.

    Attributes:
        num_microbatches: Microbatches of each update, on every rank; of the rest of it, where `phase` rows are behind.
        num_samples: Samples of each update.
        padding: Padding rows of each update.
        stride: Distance between rows of one rank, the number of ranks.
        phase: Rows of each update that another rank set read before.
    """

    num_microbatches: int
    num_samples: int
    padding: int
    stride: int
    phase: int = 0

    def rows_up_to(self, microbatch: int) -> int:
        """Rows of the update, over all ranks, up to the end of a microbatch, those of the phase among them."""
        num_rows = self.num_samples + self.padding
        shortest, longer = divmod(-(-(num_rows - self.phase) // self.stride), self.num_microbatches)
        of_rank = (microbatch + 1) * shortest + min(microbatch + 1, longer)
        return min(self.phase + of_rank * self.stride, num_rows)


# gc=False: thousands of these are made at once, none is in a cycle, and the collector would look through all of them
class MicrobatchRows(msgspec.Struct, frozen=True, gc=False):
    """What one rank reads in one microbatch.

    Attributes:
        update: Index of the update in the run.
        update_start: Position where the update starts.
        microbatch: Index of the microbatch in its update.
        start: Position of the first row; row k is at ``start + shape.stride * k``.
        ids_bytes: `ids` as bytes; slices of bytes cost a fifth of slices of an array.
        num_padding: How many of `ids` are padding rows.
        num_filler: Filler rows to add after them.
        filler_id: The ID that filler rows repeat.
        lane_0: What the rows that are no padding add to the first lane of the coverage digest.
        lane_1: And to the second.
        loss_scale: The factor for the sum of the microbatch's losses.
        tokens: Target tokens of the update's samples, 0 where not known.
        is_last: Whether the update is complete with this microbatch.
        shape: What all updates of this size have in common.
    """

    update: int
    update_start: int
    microbatch: int
    start: int
    ids_bytes: bytes
    num_padding: int
    num_filler: int
    filler_id: int
    lane_0: int
    lane_1: int
    loss_scale: float
    tokens: int
    is_last: bool
    shape: UpdateShape

    @property
    def ids(self) -> NDArray[np.int64]:
        """IDs of the rows, padding rows last, filler rows not among them: (k,) int64, read-only."""
        return np.frombuffer(self.ids_bytes, np.int64)

    @property
    def num_rows(self) -> int:
        """Rows without filler."""
        return len(self.ids_bytes) // 8

    @property
    def span(self) -> UpdateSpan:
        """The update's positions."""
        return UpdateSpan(self.update_start, self.shape.num_samples, self.shape.padding)

    @property
    def rows_so_far(self) -> int:
        """Rows of the update, over all ranks, up to the end of this microbatch."""
        return self.shape.rows_up_to(self.microbatch)

    @property
    def lanes(self) -> tuple[int, int]:
        """What the rows that are no padding add to the coverage digest."""
        return self.lane_0, self.lane_1

    @property
    def num_samples(self) -> int:
        """Rows that are neither padding nor filler."""
        return self.num_rows - self.num_padding

    def positions(self) -> NDArray[np.int64]:
        """Positions of the rows that are neither padding nor filler: (num_samples,) int64."""
        return self.start + self.shape.stride * np.arange(self.num_samples, dtype=np.int64)


class RankRows:
    """The microbatches of one rank from a place in the run to its end.

    Args:
        order: The run's order.
        schedule: Where its updates begin and end.
        layout: The rank and the rank set.
        weight: What the gradient is a mean over.
    """

    def __init__(self, order: Order, *, schedule: RunSchedule, layout: RankLayout, weight: LossWeight) -> None:
        self._order = order
        self._schedule = schedule
        self._layout = layout
        self._weight = weight

    def from_place(self, *, update: int, epoch: int, offset: int, phase: int = 0) -> Iterator[MicrobatchRows]:
        """Microbatches from `offset` samples into `epoch`, where update number `update` starts.

        Of that update the first `phase` rows are left out; its other microbatches are weighed as parts of all of it.
        """
        return chain.from_iterable(self._blocks(update, epoch, offset, phase))

    def _blocks(self, update: int, epoch: int, offset: int, phase: int) -> Iterator[Iterator[MicrobatchRows]]:
        """The microbatches in blocks that grow from a single one to about `BLOCK_ROWS` rows."""
        layout, block_rows = self._layout, 1
        for segment, behind in _with_phase(self._schedule.segments(epoch, offset), phase):
            plan = BatchPlan(
                global_batch=segment.span.num_rows,
                microbatch=layout.microbatch,
                num_replicas=layout.num_replicas,
                phase=behind,
            )
            weights = UpdateWeights(self._weight, self._order, segment)
            rows_of_one = -(-plan.rows_per_replica // plan.accumulation_steps)
            first, stop = 0, segment.num_updates * plan.accumulation_steps
            while first < stop:
                size = min(max(1, block_rows // rows_of_one), stop - first)
                yield self._block(_Places(segment.span, plan, layout.rank, first, size), update, weights)
                first += size
                block_rows = min(2 * max(block_rows, rows_of_one), BLOCK_ROWS)
            update += segment.num_updates

    def _block(self, places: _Places, update: int, weights: UpdateWeights) -> Iterator[MicrobatchRows]:
        """The microbatches at `places`; the segment's first update has index `update`."""
        rows_held = self._layout.microbatch if self._layout.pad_microbatches else 1
        num_filler = np.maximum(rows_held - np.diff(places.edges), 0)
        ids, filler_ids = self._lookup(places, num_filler)
        lanes, num_padding = _sum_lanes(places, ids)
        loss_scales, tokens = weights.of(places.number.tolist())
        byte_edges = (8 * places.edges).tolist()
        # column by column, in the order of the fields, so that no line of Python runs per microbatch
        return map(
            MicrobatchRows,
            (update + places.number).tolist(),
            places.update_starts.tolist(),
            places.index.tolist(),
            places.starts.tolist(),
            map(ids.tobytes().__getitem__, map(slice, byte_edges[:-1], byte_edges[1:])),
            num_padding.tolist(),
            num_filler.tolist(),
            filler_ids.tolist(),
            *lanes.tolist(),
            loss_scales,
            tokens,
            (places.index == places.num_microbatches - 1).tolist(),
            repeat(places.shape),
        )

    def _lookup(self, places: _Places, num_filler: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """IDs of the rows, and of each microbatch's filler (0 where it has none)."""
        rows, with_filler = places.rows, np.flatnonzero(num_filler)
        filler_ids = np.zeros_like(num_filler)
        if with_filler.size:
            rows = np.concatenate((rows, places.stretch_starts[with_filler]))
        ids = row_ids(self._order, rows, places.span)
        filler_ids[with_filler] = ids[places.rows.size :]
        return ids[: places.rows.size], filler_ids


def _with_phase(segments: Iterator[Segment], phase: int) -> Iterator[tuple[Segment, int]]:
    """Segments, and the rows of their updates that are behind: `phase` in the first update, none later."""
    if phase:
        span, num_updates = next(segments)
        yield Segment(span, 1), phase
        if num_updates > 1:
            yield Segment(span._replace(start=span.start + span.num_samples), num_updates - 1), 0
    for segment in segments:
        yield segment, 0


class _Places:
    """Where the rows of one rank are, for microbatches [first, first + size) counted over equal updates.

    Args:
        span: The first of the equal updates.
        plan: How each of them is split.
        rank: The data-parallel rank.
        first: Number of the first microbatch.
        size: Number of microbatches.

    Attributes:
        shape: What the updates have in common.
        number: The update of each microbatch, counted from `span`: (size,) int64.
        index: The microbatch's place in its update: (size,) int64.
        update_starts: Position where its update starts: (size,) int64.
        stretch_starts: Position where the stretch of all ranks' rows starts: (size,) int64.
        starts: Position of the rank's first row in it: (size,) int64.
        edges: Where the microbatches' rows begin and end in `rows`: (size + 1,) int64.
        rows: Positions of all rows, those past the end of an update with padding included: (edges[-1],) int64.
    """

    def __init__(self, span: UpdateSpan, plan: BatchPlan, rank: int, first: int, size: int) -> None:
        self.span = span
        self.stride = plan.num_replicas
        self.num_microbatches = plan.accumulation_steps
        self.shape = UpdateShape(self.num_microbatches, span.num_samples, span.padding, self.stride, plan.phase)
        microbatches = np.arange(first, first + size, dtype=np.int64)
        self.number, self.index = np.divmod(microbatches, self.num_microbatches)
        shortest, longer = divmod(plan.rows_per_replica, self.num_microbatches)
        cuts = self.index * shortest + np.minimum(self.index, longer)
        num_own = plan.num_rows(rank)
        counts = np.minimum(cuts + shortest + (self.index < longer), num_own) - np.minimum(cuts, num_own)
        self.update_starts = span.start + self.number * span.num_samples
        self.stretch_starts = self.update_starts + plan.phase + cuts * self.stride
        self.starts = self.stretch_starts + rank
        self.edges = np.zeros(size + 1, np.int64)
        np.cumsum(counts, out=self.edges[1:])
        self.rows = np.repeat(self.starts - self.stride * self.edges[:-1], counts)
        self.rows += self.stride * np.arange(self.rows.size, dtype=np.int64)


def _sum_lanes(places: _Places, ids: NDArray[np.int64]) -> tuple[NDArray[np.uint64], NDArray[np.int64]]:
    """Each microbatch's part of the coverage digest, (2, size) uint64, and its padding rows, (size,) int64."""
    rows, edges, span = places.rows, places.edges, places.span
    sums = np.zeros((2, rows.size + 1), np.uint64)
    np.cumsum(row_hashes(rows, ids), axis=1, out=sums[:, 1:])
    if not span.padding:
        return sums[:, edges[1:]] - sums[:, edges[:-1]], np.zeros(edges.size - 1, np.int64)
    # rows ascend within the one update of a segment with padding, so its padding rows are the last ones
    real = np.minimum(edges, np.searchsorted(rows, span.start + span.num_samples))
    return sums[:, real[1:]] - sums[:, real[:-1]], np.diff(edges) - np.diff(real)
