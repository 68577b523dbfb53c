"""One attempt's part of the surviving history, by the rules of `updates`."""

from __future__ import annotations

import itertools
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.audit.rows import is_possible
from resumable_data.audit.updates import Course, Shares, num_microbatches, shares

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.audit.inside import HandedOn
    from resumable_data.ledger import Claim
    from resumable_data.ledger.columns import Deliveries
    from resumable_data.order import Order
    from resumable_data.plan import Place

    Vector = NDArray[np.int64]

PARTS_MAX = 1 << 20
_CHUNK_UPDATES = 1 << 17
_REACH_MAX = 1 << 24  # positions from a record's first row to its last, where no update is longer
_PACKED_REACH = 1 << 14


class Totals(NamedTuple):
    """What some updates take together.

    Attributes:
        samples: Their samples.
        padding: Their padding rows.
        kinds: The (rows, padding rows among them, rows taken over) that occur, and in how many updates.
        first_over: The first of them that the run is too short for; None where there is none.
        num_microbatches: Microbatches of each rank in each of them: (n,) int64.
    """

    samples: int
    padding: int
    kinds: dict[tuple[int, int, int], int]
    first_over: int | None
    num_microbatches: Vector


class Branch(msgspec.Struct, frozen=True, dict=True):
    """One attempt's part of the surviving history: its updates [first_update, stop_update).

    Where the run is counted by batches, "update" stands for a batch of all ranks in names, here and in the ledger.

    Attributes:
        claim: The attempt's claim.
        course: Its updates, from the cursor it starts at.
        stop_update: Its updates before this one survived.
        order: The order of the run; None where it cannot be rebuilt.
        key: What keyed digests are keyed with, 0 where that is not known.
        behind: Rows of its first update that an earlier attempt delivered, and that it took over.
        handed_on: The part of the update `stop_update` that the next attempt took over.
    """

    claim: Claim
    course: Course
    stop_update: int
    order: Order | None
    key: int = 0
    behind: int = 0
    handed_on: HandedOn | None = None

    @property
    def counts_batches(self) -> bool:
        """Whether its "updates" are batches."""
        return self.course.recipe.counts_batches

    @property
    def word(self) -> str:
        """What its "updates" are, in messages."""
        return "batch" if self.counts_batches else "update"

    @cached_property
    def totals(self) -> Totals:
        """What its updates take together, found in chunks: there may be millions of them."""
        samples = padding = 0
        kinds: Counter[tuple[int, int, int]] = Counter()
        first_over, sizes = None, [np.empty(0, np.int64)]
        for low in range(self.course.first_update, self.stop_update, _CHUNK_UPDATES):
            updates = np.arange(low, min(low + _CHUNK_UPDATES, self.stop_update), dtype=np.int64)
            spans = self.course.spans(updates)
            rows, behind = spans.num_samples + spans.padding, self._behind_of(updates)
            samples, padding = samples + int(spans.num_samples.sum()), padding + int(spans.padding.sum())
            changes = (rows[1:] != rows[:-1]) | (spans.padding[1:] != spans.padding[:-1])
            changes |= behind[1:] != behind[:-1]
            edges = [0, *(np.flatnonzero(changes) + 1).tolist(), rows.size]
            for n, stop in itertools.pairwise(edges):
                kinds[int(rows[n]), int(spans.padding[n]), int(behind[n])] += stop - n
            if first_over is None and not spans.num_samples.all():
                first_over = int(updates[int(np.argmin(spans.num_samples))])
            sizes.append(self._sizes(rows - behind))
        return Totals(samples, padding, dict(kinds), first_over, np.concatenate(sizes))

    def _sizes(self, num_rows: Vector) -> Vector:
        return num_microbatches(num_rows, num_replicas=self.claim.num_replicas, microbatch=self.claim.microbatch)

    def _behind_of(self, update: Vector) -> Vector:
        """Rows of updates that were taken over: (k,) int64 to (k,) int64."""
        return np.where(update == self.course.first_update, self.behind, 0)

    @property
    def samples(self) -> int:
        """Samples of its updates, those taken over in the first one among them."""
        return self.totals.samples

    @property
    def padding(self) -> int:
        """Padding rows of its updates."""
        return self.totals.padding

    def samples_of(self, rank: int) -> int:
        """Samples that one rank reads of its updates."""
        num_replicas = self.claim.num_replicas
        return sum(
            times * max(-(-(rows - padding - behind - rank) // num_replicas), 0)
            for (rows, padding, behind), times in self.totals.kinds.items()
        )

    def handed_on_by(self, rank: int) -> int:
        """Samples that one rank read of the part that the next attempt took over."""
        part = self.handed_on
        return 0 if part is None else max(-(-(part.num_samples - part.first_row - rank) // self.claim.num_replicas), 0)

    def position_before(self, update: int) -> int:
        """Where an update starts, a later epoch's beginning that is jumped to left out."""
        if update not in self._positions:
            place = self.course.place_before(update)
            self._positions[update] = place.epoch * self.course.recipe.length + place.offset
        return self._positions[update]

    @cached_property
    def _positions(self) -> dict[int, int]:
        return {}

    @cached_property
    def stop_place(self) -> Place:
        """Where the update after its last one starts; `dropped` counts the samples skipped on the way there."""
        place = self.course.place_before(self.stop_update)
        stop = place.epoch * self.course.recipe.length + place.offset
        return place._replace(dropped=stop - self.course.position - self.samples)

    @property
    def stop_position(self) -> int:
        """`stop_place` as a position."""
        return self.stop_place.epoch * self.course.recipe.length + self.stop_place.offset

    def shares(self, rank: int, update: Vector, index: Vector, parts: Vector | int = 1) -> Shares:
        """What microbatches [index, index + parts) of one rank hold: update, index (k,) int64."""
        return shares(
            self.course.spans(update),
            rank,
            index,
            num_replicas=self.claim.num_replicas,
            microbatch=self.claim.microbatch,
            parts=parts,
            behind=self._behind_of(update) if self.behind else 0,
        )

    def fits(self, records: Deliveries, share: Shares) -> NDArray[np.bool_]:
        """Which possible records hold just what the rule gives: (n,) bool, one share each."""
        fits: NDArray[np.bool_] = (records.count == share.num_rows) & (records.padding == share.padding)
        fits &= (records.start == share.start) | (records.count == 0)
        fits &= (records.stride == self.claim.num_replicas) | (records.count <= 1)
        return fits

    def wrap_at(self, update: Vector) -> Vector | None:
        """Where padding of updates goes on from the beginning of their epoch, that is its end: (k,) int64 to the same.

        None where the tail pads nothing.
        """
        length = self.course.recipe.length
        if not self.course.recipe.tail.startswith("pad"):
            return None
        wraps: Vector = (self.course.spans(update).start // length + 1) * length
        return wraps

    def is_possible(self, records: Deliveries) -> NDArray[np.bool_]:
        """Which records hold numbers that a run can reach: (n,) bool. No others may be computed with."""
        microbatch, reach = self.claim.microbatch, max(self.course.batch, _REACH_MAX)
        count_max = np.minimum(records.parts, PARTS_MAX) * microbatch
        possible = is_possible(records.start, records.stride, records.count, records.padding, count_max=count_max)
        possible &= (records.update >= self.course.first_update) & (records.parts <= PARTS_MAX)
        possible &= (records.count <= 1) | (records.stride <= reach // np.maximum(records.count - 1, 1))
        if self.course.recipe.is_packed:  # all rows up to one further on would be planned for its ID
            last = records.start + records.stride * np.maximum(records.count - 1, 0)
            possible &= last < self.stop_position + _PACKED_REACH
        return possible
