"""Epoch by epoch over a DistributedSampler: the unit of counting is one batch of all ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.cursor import new_cursor
from resumable_data.errors import CommitError, SampleReadError, UsageError
from resumable_data.loader.session import JobSettings
from resumable_data.plan import Place
from resumable_data.sampler import LossWeight, RankLayout, RankRows, resolve_topology
from resumable_data.tracking.distributed_sampler import sampler_schedule
from resumable_data.tracking.tracked_loader import TrackedLoader

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Iterator

    import torch.utils.data
    from numpy.typing import NDArray
    from torch.optim import Optimizer

    from resumable_data.cursor import Cursor
    from resumable_data.ledger import Ledger
    from resumable_data.sampler import MicrobatchRows
    from resumable_data.tracking.distributed_sampler import DistributedSampler

_MAX_WINDOWS = 64


class TrackedEpochs(TrackedLoader):
    """A tracked DataLoader over a `DistributedSampler`.

    One iteration gives the rest of an epoch, from the cursor on. ``sampler.set_epoch(e)`` goes on where e is the
    epoch at hand, drops and counts the epoch's rest where it is the next one, and is refused for any other once
    something was committed; without it the next iteration is the next epoch.
    """

    def __init__(
        self,
        dataloader: torch.utils.data.DataLoader[Any],
        sampler: DistributedSampler,
        *,
        optimizer: Optimizer | None,
        accumulation_steps: int,
        scaler: Any,
        fingerprint: str | None,
        ledger: Ledger | None,
    ) -> None:
        assert dataloader.batch_size is not None
        self._sampler = sampler
        self._batch_size = dataloader.batch_size
        self._drop_last = dataloader.drop_last
        self._accumulation_steps = accumulation_steps
        self._num_carried = 0  # batches of the last epoch that no step took yet
        self._place = Place(0, 0)  # where the next iteration starts
        schedule = self._schedule(epochs=None)
        super().__init__(
            dataloader,
            start=new_cursor(
                sampler.order,
                global_batch=schedule.global_batch * accumulation_steps,
                tail=schedule.tail,
                normalize="samples",
                fingerprint=fingerprint,
            ),
            settings=JobSettings(
                topology=resolve_topology(rank=sampler.rank, num_replicas=sampler.num_replicas),
                layout=RankLayout(rank=sampler.rank, num_replicas=sampler.num_replicas, microbatch=self._batch_size),
                epochs=None,
                loss_factor=1.0,
                ledger=ledger,
                schedule=schedule,
                max_uncommitted=_MAX_WINDOWS * accumulation_steps,
            ),
            optimizer=optimizer,
            scaler=scaler,
        )
        sampler.follow(self._set_epoch)

    def _check_start(self, start: Cursor) -> None:
        """A rest of an epoch fits any number of ranks."""

    @property
    def sampler(self) -> DistributedSampler:
        """The sampler underneath; its `set_epoch` is to be called as always."""
        return self._sampler

    def __len__(self) -> int:
        """Batches of this rank that are left in the epoch, from where the next iteration starts."""
        if not self._is_running:
            self._sampler.start_at(self._place.epoch, self._place.offset)
        return super().__len__()

    def _begin_iteration(self) -> None:
        epoch, offset = self._place.epoch, self._place.offset
        index, natural = self._end_of_pending()
        schedule = self._settings.schedule
        if schedule.settle(epoch, offset)[:2] != schedule.settle(natural.epoch, natural.offset)[:2]:
            self._session.jump(index, epoch * len(self._sampler.order) + offset)
        self._sampler.start_at(epoch, offset)
        self._expected = self._expected_rows(index, epoch, offset)
        self._given = _GivenOut(self._sampler)

    def _next_rows(self) -> MicrobatchRows | None:
        rows = next(self._expected, None)
        if rows is not None and not np.array_equal(self._given.take(rows.num_rows), rows.ids):
            raise SampleReadError(
                f"the sampler gave out other samples than those of rank {self._settings.layout.rank} in epoch "
                f"{self._sampler.epoch}: it was changed while the DataLoader ran. The cursor did not move. Leave "
                "rank, num_replicas and epoch of the sampler alone, but for set_epoch() before an iteration."
            )
        return rows

    def _end_iteration(self) -> None:
        self._place = Place(self._place.epoch + 1, 0)
        self._num_carried = len(self._pending)

    def _expected_rows(self, index: int, epoch: int, offset: int) -> Iterator[MicrobatchRows]:
        """What this rank's batches hold from `offset` to the end of `epoch`, numbered from `index` on."""
        rows = RankRows(
            self._sampler.order,
            schedule=self._schedule(epochs=epoch + 1),
            layout=self._settings.layout,
            weight=LossWeight(normalize="samples", factor=1.0),
        )
        return rows.from_place(update=index, epoch=epoch, offset=offset)

    def _end_of_pending(self) -> tuple[int, Place]:
        """Index and place of the batch that comes after all that were handed out, if no epoch is left early."""
        cursor = self.cursor
        if not self._pending:
            return cursor.batches, Place(cursor.epoch, cursor.offset)
        stop = self._pending[-1].update_start + self._pending[-1].shape.num_samples
        return cursor.batches + len(self._pending), Place(*divmod(stop, len(self._sampler.order)))

    def _start_session(self, start: Cursor) -> None:
        super()._start_session(start)
        self._num_carried = 0
        self._place = Place(start.epoch, start.offset)
        self._sampler.start_at(start.epoch, start.offset)

    def _rewind_if_running(self) -> None:
        if self._is_running:
            super()._rewind_if_running()
            self._num_carried = 0
            self._place = Place(self.cursor.epoch, self.cursor.offset)

    def _set_epoch(self, epoch: int) -> None:
        self._rewind_if_running()
        at_hand = self._place.epoch
        if epoch != at_hand:
            if epoch != at_hand + 1 and self.cursor.updates:
                raise UsageError(
                    f"set_epoch({epoch}) does not fit the cursor, which is in epoch {at_hand}: expected {at_hand}, to "
                    f"go on, or {at_hand + 1}, to drop its rest. Samples would be repeated or left out unseen. After a "
                    "resume begin the loop at loader.cursor.epoch."
                )
            self._place = Place(epoch, 0)
        self._sampler.start_at(self._place.epoch, self._place.offset)

    def _commit_by_hand(self, applied: bool) -> None:
        self._commit_pending(applied=applied)
        self._num_carried = 0

    def _commit_step(self, applied: bool) -> None:
        pending, steps = len(self._pending), self._accumulation_steps
        is_at_end = bool(pending) and self._ends_epoch(self._pending[-1])
        if pending in (steps, self._num_carried + steps) or (is_at_end and 0 < pending < self._num_carried + steps):
            self._commit_by_hand(applied)
            return
        raise CommitError(
            f"the optimizer took a step after {pending} batches, where accumulation_steps={steps} was declared"
            f"{f' and {self._num_carried} were left over from the last epoch' if self._num_carried else ''}. Which of "
            "them were trained on is unknown, so nothing was committed. If a GradScaler skipped a step, give it to "
            "track(scaler=); if the loop fetches a batch ahead, call loader.commit() yourself and give no optimizer; "
            "else declare the accumulation_steps that the loop has."
        )

    def _ends_epoch(self, rows: MicrobatchRows) -> bool:
        stop = rows.update_start + rows.shape.num_samples
        return self._settings.schedule.settle(*divmod(stop, len(self._sampler.order))).offset == 0

    def _schedule(self, *, epochs: int | None) -> Any:
        return sampler_schedule(self._sampler, batch_size=self._batch_size, drop_last=self._drop_last, epochs=epochs)


class _GivenOut:
    """The indices that a sampler gives out in its next iteration, taken one batch after another."""

    def __init__(self, sampler: DistributedSampler) -> None:
        self._sampler = sampler
        self._chunks: deque[NDArray[np.int64]] | None = None
        self._rest = np.empty(0, np.int64)

    def take(self, count: int) -> NDArray[np.int64]:
        """The next `count`, fewer where it gave out fewer: (k,) int64."""
        if self._chunks is None:
            self._chunks = self._sampler.given_out  # of the iteration that the DataLoader began by now
        while self._rest.size < count and self._chunks:
            self._rest = np.concatenate((self._rest, self._chunks.popleft()))
        taken, self._rest = self._rest[:count], self._rest[count:]
        return taken
