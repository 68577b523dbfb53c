"""Updates that one launch began and a later one finished: who delivered which part, by the files of both."""

from __future__ import annotations

from bisect import bisect_left
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.audit.findings import finding

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.audit.branch import Branch
    from resumable_data.audit.history import History
    from resumable_data.audit.updates import Course, Spans
    from resumable_data.findings import Finding
    from resumable_data.ledger import Claim
    from resumable_data.ledger.columns import Deliveries

    Mask = NDArray[np.bool_]
    Vector = NDArray[np.int64]


class HandedOn(msgspec.Struct, frozen=True):
    """What an attempt delivered of the update after its last one, and the next attempt took over.

    Attributes:
        update: The update.
        first_row: The row of the update at which this attempt began; 0 unless it took over a part itself.
        stop_row: The row up to which the next one took over.
        start: The position at which the update starts.
        num_samples: The update's samples up to `stop_row`.
        num_microbatches: Microbatches of each rank that begin before it.
        of_microbatches: Microbatches of each rank to the end of the update, as this attempt split it.
        ends_microbatch: Whether the last of these ends there.
    """

    update: int
    first_row: int
    stop_row: int
    start: int
    num_samples: int
    num_microbatches: int
    of_microbatches: int
    ends_microbatch: bool

    @property
    def stop_position(self) -> int:
        """The position after the last sample that was taken over."""
        return self.start + self.num_samples


def rows_behind(claim: Claim, course: Course) -> int:
    """Rows of an attempt's first update that it took over; at most all of them, whatever its claim says."""
    if claim.inside is None or course.recipe.counts_batches:
        return 0
    return min(claim.inside.samples, _num_rows(_span(course, course.first_update)))


def samples_behind(branch: Branch) -> int:
    """Samples among the rows that an attempt took over, padding left out."""
    return min(branch.behind, int(_span(branch.course, branch.course.first_update).num_samples[0]))


def find_handed_on(history: History, number: int, course: Course, *, stop_update: int, behind: int) -> HandedOn | None:
    """What attempt `number` handed on of the update `stop_update`; None where that is nothing.

    Args:
        history: The ledger's attempts.
        number: The attempt.
        course: Its updates.
        stop_update: Where its part of the surviving history ends.
        behind: Rows of its first update that it took over itself.
    """
    stop_row = history.taken_over_after(number)
    if not stop_row or course.recipe.counts_batches:
        return None
    span, claim = _span(course, stop_update), history.attempts[number].claim
    first_row = behind if stop_update == course.first_update else 0
    stop_row = min(stop_row, _num_rows(span))
    if stop_row <= first_row:
        return None
    split = {
        "num_rows": _num_rows(span) - first_row,
        "num_replicas": claim.num_replicas,
        "microbatch": claim.microbatch,
    }
    num_microbatches, ends = microbatches_before(stop_row - first_row, **split)
    num_samples, start = min(stop_row, int(span.num_samples[0])), int(span.start[0])
    return HandedOn(
        update=stop_update,
        first_row=first_row,
        stop_row=stop_row,
        start=start,
        num_samples=num_samples,
        num_microbatches=num_microbatches,
        of_microbatches=microbatches_before(split["num_rows"], **split)[0],
        ends_microbatch=ends,
    )


def microbatches_before(row: int, *, num_rows: int, num_replicas: int, microbatch: int) -> tuple[int, bool]:
    """How many microbatches of each rank begin before a row, and whether one ends there.

    Args:
        row: The row, above 0 and at most `num_rows`.
        num_rows: Rows that are split.
        num_replicas: Ranks.
        microbatch: The most rows that a rank holds at once.
    """
    busiest = -(-num_rows // num_replicas)
    steps = -(-busiest // microbatch)
    shorter, longer = divmod(busiest, steps)

    def end(count: int) -> int:
        return min(num_replicas * (count * shorter + min(count, longer)), num_rows)

    count = bisect_left(range(steps), row, key=end)
    return count, end(count) == row


def check_inside(branch: Branch, *, is_provided: bool) -> list[Finding]:
    """What is wrong with the places inside updates at which an attempt begins and ends.

    Args:
        branch: The attempt.
        is_provided: Whether an attempt of the surviving history delivered the part that it took over.
    """
    findings, claim = [], branch.claim
    if claim.inside is not None:
        where = f"attempt {claim.attempt}, {branch.word} {branch.course.first_update}"
        rows = _num_rows(_span(branch.course, branch.course.first_update))
        taken_over = f"{claim.inside.samples} rows"
        if branch.counts_batches or claim.inside.samples >= rows:
            expected = f"a part of the update's {rows} rows to be taken over"
            findings.append(finding("RD401", where, expected=expected, found=taken_over, attempt=claim.attempt))
        elif not is_provided:
            expected = "an attempt of this ledger that delivered the rows taken over"
            findings.append(finding("RD118", where, expected=expected, found=taken_over, attempt=claim.attempt))
    part = branch.handed_on
    if part is not None and not part.ends_microbatch:
        where = f"attempt {claim.attempt}, {branch.word} {part.update}"
        found = f"{part.stop_row} rows taken over, within microbatch {part.num_microbatches - 1}"
        expected = "a part that ends with a microbatch"
        findings.append(finding("RD306", where, expected=expected, found=found, attempt=claim.attempt))
    return findings


class Taken(NamedTuple):
    """Which of some records the next attempt took over.

    Attributes:
        first: (n,) bool, those that were the first to deliver their microbatches.
        again: (n,) bool, those that delivered them again without a rewind in between, which no run does.
    """

    first: Mask
    again: Mask


class TakenPart:
    """Finds what the next attempt took over among one file's deliveries, block after block.

    What was delivered before a save is taken over even where the loop rewound afterwards, before it was killed; what it
    delivered again is discarded then.

    Args:
        rank: The rank.
        branch: The attempt.

    Attributes:
        reached: Microbatches of the update, from the first on, of which the file tells for sure.
    """

    def __init__(self, rank: int, branch: Branch) -> None:
        self._rank = rank
        self._branch = branch
        part = branch.handed_on
        self._found = np.zeros(0 if part is None else part.num_microbatches, np.int8)  # 1 before a rewind, else 2
        self.reached = 0

    def find(self, records: Deliveries, rewound: Mask) -> Taken:
        """Which of the next deliveries were taken over; `rewound` (n,) bool are those before a rewind."""
        taken = Taken(np.zeros(len(records), np.bool_), np.zeros(len(records), np.bool_))
        part = self._branch.handed_on
        if part is None:
            return taken
        if (records.update > part.update).any():
            self.reached = part.num_microbatches
        held = np.flatnonzero(records.update == part.update)
        held = held[self._branch.is_possible(records.take(held))]
        if not held.size:
            return taken
        ends = records.index[held] + records.parts[held]
        self.reached = max(self.reached, int(ends.max()))
        # folded, a record may go on beyond the part
        held = held[(records.index[held] < part.num_microbatches) & (ends <= part.of_microbatches)]
        some = records.take(held)
        held = held[self._branch.fits(some, self._branch.shares(self._rank, some.update, some.index, some.parts))]
        for number in held.tolist():
            index = int(records.index[number])
            found = self._found[index : index + int(records.parts[number])]
            if not found.any():
                taken.first[number] = True
                found[:] = 1 if rewound[number] else 2
            elif not rewound[number]:
                taken.again[number] = bool((found == 2).any())
        return taken

    def num_samples(self, records: Deliveries, taken: Mask) -> int:
        """Samples of the records that were `taken` over: of one within which the part ends, those before its end."""
        part = self._branch.handed_on
        if part is None:
            return 0
        held = records.take(taken)
        return int(rows_before(part.stop_position, held, held.count - held.padding).sum())


def rows_before(position: int, records: Deliveries, count: Vector) -> Vector:
    """How many of the first `count` rows of each record are before a position: (n,) int64 to (n,) int64."""
    rows: Vector = np.clip(-(-(position - records.start) // records.stride), 0, count)
    return rows


def _span(course: Course, update: int) -> Spans:
    return course.spans(np.array([update], np.int64))


def _num_rows(span: Spans) -> int:
    return int(span.num_samples[0] + span.padding[0])
