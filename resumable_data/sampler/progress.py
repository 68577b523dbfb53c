"""What was delivered and not yet committed, and how commits move the cursor."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from resumable_data.cursor import NO_ROWS, Committed, CoverageSpan, add_lanes
from resumable_data.errors import CommitError
from resumable_data.sampler.open_part import HandedOut, OpenPart

if TYPE_CHECKING:
    from resumable_data.cursor import Cursor, Lanes, Phase
    from resumable_data.plan import RunSchedule
    from resumable_data.sampler.rank_rows import MicrobatchRows

_SETTLE_EVERY = 64

MAX_UNCOMMITTED = 64
"""Updates that may be delivered ahead of commit(); more than that means that commit() is never called."""


class Progress:
    """The cursor of one rank, and what it was handed beyond it.

    Args:
        cursor: Where the rank starts.
        schedule: How the run's positions are cut.
        is_alone: Whether this rank reads everything, so that its own rows are all rows and the coverage digest
            needs no agreement.
        counts_targets: Whether an update's target tokens must be known before it is committed.
        max_uncommitted: Updates that may be delivered ahead of commit().
    """

    def __init__(
        self,
        cursor: Cursor,
        *,
        schedule: RunSchedule,
        is_alone: bool,
        counts_targets: bool = False,
        max_uncommitted: int = MAX_UNCOMMITTED,
    ) -> None:
        self.run_id = cursor.run_id
        self.attempt = 0
        self._schedule = schedule
        self._is_alone = is_alone
        self._max_uncommitted = max_uncommitted
        self._cursor = cursor
        self._counts_batches = cursor.recipe.counts_batches
        self._next_update = cursor.next_index
        self._committed = Committed()
        self._delivered: deque[tuple[MicrobatchRows, int, int]] = deque()  # complete updates: last microbatch, lanes
        self._open_lanes = [0, 0]  # of the update that is not complete
        self._open: MicrobatchRows | None = None  # its newest microbatch
        self._taken_over: Phase | None = None  # of the update at the cursor, what was read of it before
        self._first_lanes: Lanes = NO_ROWS  # this rank's part of its digest
        self._handed_out: HandedOut | None = None
        self._counts_targets = counts_targets
        self._targets: dict[int, int] = {}  # target tokens of updates that are not committed
        self._own_lanes: Lanes = NO_ROWS
        self._own_start = cursor.position

    @property
    def cursor(self) -> Cursor:
        """The committed cursor."""
        # commit() only counts, on the training loop's path; the frozen value is made when somebody asks for it
        done = self._committed
        if done.applied or done.skipped:
            self._committed = Committed()
            place = self._schedule.settle(*divmod(done.stop, self._schedule.length))
            packed = self._schedule.packed_place(place)
            self._cursor = self._cursor.advance(done, place, run_id=self.run_id, attempt=self.attempt, packed=packed)
            if self._is_alone:
                self.cover(self._own_lanes)
        return self._cursor

    @property
    def has_uncommitted(self) -> bool:
        """Whether something was delivered that is not committed."""
        return self._open is not None or bool(self._delivered)

    @property
    def taken_over(self) -> Phase | None:
        """The part of the update at the cursor that was read before, and is not read again."""
        return self._taken_over

    def start_inside(self, phase: Phase, *, takes_lanes: bool) -> None:
        """Begin after a part of the update at the cursor.

        Args:
            phase: The part.
            takes_lanes: Whether this is the rank that counts its rows in the coverage digest; one does.
        """
        self._taken_over = phase
        self._first_lanes = phase.lanes if takes_lanes else NO_ROWS
        self.run_id = self.run_id or phase.run_id
        self.rewind()

    def rewind(self, *, by_update: bool = False) -> None:
        """Forget what was delivered and not committed: it is read again; `by_update`, where whole updates are fetched.

        What was taken over stays.
        """
        self._delivered.clear()
        self._targets.clear()
        self._open, self._open_lanes = None, list(self._first_lanes)
        self._handed_out = HandedOut() if by_update else None

    def hand_out(self, rows: MicrobatchRows) -> None:
        """Take down that a loop takes `rows` out of an update that was delivered whole."""
        if self._handed_out is not None:
            self._handed_out.add(rows)

    @property
    def open_part(self) -> OpenPart:
        """How far into the update at the cursor this rank is."""
        before = self._taken_over
        start = OpenPart() if before is None else OpenPart(before.samples, self._first_lanes, targets=before.targets)
        targets = self._targets.get(self._next_update, start.targets)
        handed = self._handed_out
        if handed is not None:
            if handed.rows is None or handed.rows.update != self._next_update:
                return start._replace(is_fetched=self.has_uncommitted)
            rows, lanes = handed.rows, add_lanes(start.lanes, handed.lanes)
        elif self._delivered:
            rows, lanes = self._delivered[0][0], (self._delivered[0][1], self._delivered[0][2])
        elif self._open is not None:
            rows, lanes = self._open, (self._open_lanes[0], self._open_lanes[1])
        else:
            return start
        return OpenPart(rows.rows_so_far, add_lanes(lanes, NO_ROWS), rows.is_last, has_own=True, targets=targets)

    def deliver(self, rows: MicrobatchRows) -> None:
        """Take down that `rows` were handed to the training loop.

        Raises:
            CommitError: Too many updates were delivered and none of them committed.
        """
        if len(self._delivered) == self._max_uncommitted:
            raise self._never_committed()
        lanes = self._open_lanes
        lanes[0] += rows.lane_0
        lanes[1] += rows.lane_1
        self._open = None if rows.is_last else rows
        if rows.is_last:
            self._delivered.append((rows, lanes[0], lanes[1]))
            self._open_lanes = [0, 0]

    def require_delivered(self, update: int) -> None:
        """Make sure that all of an update was delivered, and that it is not committed.

        Raises:
            CommitError: It was not, or it is.
        """
        if not self._next_update <= update < self._next_update + len(self._delivered):
            raise CommitError(
                f"expected an update that was delivered and is not committed, found update {update}: the cursor is at "
                f"update {self._next_update}, {len(self._delivered)} are delivered from there on. It was committed "
                "already, or the loader was iterated again, loaded or remapped; use the update that comes next now."
            )

    def count_targets(self, update: int, tokens: int) -> None:
        """Take down the target tokens of an update that was delivered, over all ranks."""
        self.require_delivered(update)
        self._targets[update] = tokens

    def _never_committed(self) -> CommitError:
        return CommitError(
            f"{self._max_uncommitted} updates were delivered since update {self._next_update}, none was committed. A "
            "checkpoint saved now would repeat all of them. Call loader.commit() after each optimizer.step()."
        )

    def commit(self, *, applied: bool, ends_step: bool = True) -> int:
        """Move the cursor to the end of the update, or batch, at the cursor.

        Args:
            applied: Whether the optimizer's step was taken; its samples are consumed all the same.
            ends_step: Whether an optimizer's step ends with it; of several batches that one step took, the last does.

        Returns:
            The index of that update.

        Raises:
            CommitError: That update's last microbatch was not delivered, or its target tokens were not counted.
        """
        if not self._delivered:
            found = "only a part of it was" if self._open is not None else "nothing of it was"
            raise CommitError(
                f"commit() expects that the last microbatch of update {self._next_update} was delivered; {found}. "
                "The cursor did not move. Call commit() once per update, after the microbatch with is_last and the "
                "optimizer step."
            )
        if self._counts_targets and self._next_update not in self._targets:
            raise CommitError(
                f'normalize="targets" expects update.set_targets() before update {self._next_update} is committed; it '
                "was not called, so its gradient had no denominator. The cursor did not move. Count the target tokens "
                "of this rank's rows, call update.set_targets(count), then run backward, step and commit."
            )
        (last, lane_0, lane_1), total = self._delivered.popleft(), self._committed
        num_samples, padding = last.shape.num_samples, last.shape.padding
        total.stop = last.update_start + num_samples
        if ends_step and applied:
            total.applied += 1
        elif ends_step:
            total.skipped += 1
        total.batches += self._counts_batches
        total.samples += num_samples
        total.padding += padding
        total.tokens += self._targets.pop(last.update, last.tokens)
        self._own_lanes = add_lanes(self._own_lanes, (lane_0, lane_1))
        self._next_update += 1
        self._taken_over, self._first_lanes = None, NO_ROWS
        if self._next_update % _SETTLE_EVERY == 0:
            _ = self.cursor  # what is behind it can be let go of, see `PackedSchedule.packed_place`
        return last.update

    @property
    def own_coverage(self) -> CoverageSpan:
        """What this rank was handed of the committed positions since the last agreement."""
        return CoverageSpan(self._own_start, self.cursor.position, self._own_lanes)

    def cover(self, lanes: Lanes) -> None:
        """Record the digest of all ranks' rows since the last agreement in the cursor."""
        cursor = self._cursor
        self._cursor = cursor.with_coverage(CoverageSpan(self._own_start, cursor.position, lanes))
        self._own_lanes = NO_ROWS
        self._own_start = cursor.position
