"""A DataLoader whose progress is counted by what the training loop was handed and the optimizer's steps."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, Self

import torch.utils.data
import xxhash

from resumable_data.cursor import Cursor, Recipe
from resumable_data.errors import CommitError, SampleReadError, StaleIteratorError, UsageError
from resumable_data.loader.session import JobSettings, Session
from resumable_data.plan import Place, require_count
from resumable_data.sampler import LossWeight, RankLayout, RankRows, resolve_topology
from resumable_data.sampler.state import make_state, start_cursor
from resumable_data.tracking.distributed_sampler import DistributedSampler, sampler_schedule
from resumable_data.tracking.steps import StepWatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    from torch.optim import Optimizer

    from resumable_data.sampler import MicrobatchRows

_MAX_WINDOWS = 64


def track(
    dataloader: torch.utils.data.DataLoader[Any],
    *,
    optimizer: Optimizer | None = None,
    accumulation_steps: int = 1,
    scaler: Any = None,
    fingerprint: str | None = None,
) -> TrackedLoader:
    """Count what a training loop is handed by `dataloader`, so that it can be resumed exactly on any number of ranks.

    The loop stays as it is. Each step of the optimizer commits the batches that the loop was handed since the last
    one; ``state_dict()`` of what this returns goes into the checkpoint.

    Args:
        dataloader: torch's own DataLoader over a `resumable_data.DistributedSampler`, with a ``batch_size``.
        optimizer: The optimizer whose steps commit; without one, call ``commit()`` after each step.
        accumulation_steps: Batches that the loop accumulates for one step.
        scaler: The loop's GradScaler, where it has one: a step that it skips consumes its batches, and is counted
        apart.
        fingerprint: What identifies the dataset's contents; a resume under another one is refused.

    Raises:
        UsageError: `dataloader` is something that cannot be counted exactly; says what to use.

    >>> import torch
    >>> dataset = torch.utils.data.TensorDataset(torch.arange(10.0))
    >>> sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    >>> loader = track(torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler))
    >>> for batch in loader:
    ...     loader.commit()
    >>> loader.cursor.samples, loader.cursor.epoch, loader.cursor.applied
    (10, 1, 3)
    """
    sampler = _check_dataloader(dataloader)
    return TrackedLoader(
        dataloader,
        sampler,
        optimizer=optimizer,
        accumulation_steps=require_count("accumulation_steps", accumulation_steps),
        scaler=scaler,
        fingerprint=fingerprint,
    )


class TrackedLoader:
    """What `track` returns: iterate it in place of the DataLoader.

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
    ) -> None:
        assert dataloader.batch_size is not None
        self._dataloader = dataloader
        self._sampler = sampler
        self._accumulation_steps = accumulation_steps
        self._batch_size = dataloader.batch_size
        schedule = self._schedule(epochs=None)
        topology = resolve_topology(rank=sampler.rank, num_replicas=sampler.num_replicas)
        self._recipe = Recipe(
            order=sampler.order.describe(),
            global_batch=schedule.global_batch * accumulation_steps,
            tail=schedule.tail,
            fingerprint=fingerprint,
        )
        self._settings = JobSettings(
            topology=topology,
            layout=RankLayout(rank=sampler.rank, num_replicas=sampler.num_replicas, microbatch=self._batch_size),
            epochs=None,
            loss_factor=1.0,
            ledger=None,
            schedule=schedule,
            max_uncommitted=_MAX_WINDOWS * accumulation_steps,
        )
        self._iteration = 0
        self._place = Place(0, 0)
        self._start_session(Cursor(recipe=self._recipe))
        sampler.follow(self._set_epoch)
        self._steps = None if optimizer is None else StepWatch(optimizer, scaler, self._commit_step)

    def __iter__(self) -> Iterator[Any]:
        """The batches that are left in the epoch at hand. Iterators made before become invalid."""
        self._iteration += 1
        if self._is_running:
            self._rewind()
        return self._iterate(self._iteration)

    def _iterate(self, iteration: int) -> Iterator[Any]:
        self._check_current(iteration)
        self._is_running = True
        self._session.begin()
        epoch, offset = self._place.epoch, self._place.offset
        self._sampler.start_at(epoch, offset)
        expected, batches = self._expected_rows(epoch, offset), iter(self._dataloader)
        while True:
            self._check_current(iteration)
            rows, batch = next(expected, None), next(batches, _END)
            if rows is None and batch is _END:
                break
            if rows is None or batch is _END:
                raise _other_number(rows is None, epoch)
            self._session.deliver(rows, xxhash.xxh3_64_intdigest(rows.ids_bytes))
            self._pending.append(rows)
            yield batch
        self._is_running = False
        self._place = Place(epoch + 1, 0)
        self._num_carried = len(self._pending)

    def _expected_rows(self, epoch: int, offset: int) -> Iterator[MicrobatchRows]:
        """What this rank's batches hold from `offset` to the end of `epoch`."""
        rows = RankRows(
            self._sampler.order,
            schedule=self._schedule(epochs=epoch + 1),
            layout=self._settings.layout,
            weight=LossWeight(normalize="samples", factor=1.0),
        )
        return rows.from_place(update=self.cursor.batches + len(self._pending), epoch=epoch, offset=offset)

    def commit(self, applied: bool = True) -> None:
        """Commit all batches that the loop was handed since the last commit, as one step of the optimizer.

        Args:
            applied: False where the step was skipped.

        Raises:
            CommitError: There are none, or `track` was given an optimizer, whose steps commit.
        """
        if self._steps is not None:
            raise CommitError("the optimizer given to track() commits with each of its steps; do not call commit() too")
        self._commit_pending(len(self._pending), applied=applied)

    @property
    def cursor(self) -> Cursor:
        """Committed progress."""
        return self._session.cursor

    @property
    def sampler(self) -> DistributedSampler:
        """The sampler underneath; its `set_epoch` is to be called as always."""
        return self._sampler

    def __len__(self) -> int:
        """Batches of this rank that are left in the epoch, from where the next iteration starts."""
        if not self._is_running:
            self._sampler.start_at(self._place.epoch, self._place.offset)
        return len(self._dataloader)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a script asks a DataLoader for."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataloader, name)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The committed cursor as one uint8 tensor of fixed size. Not collective, no side effect."""
        return make_state(self.cursor)

    def load_state_dict(self, state: Mapping[str, Any] | None, allow: Collection[str] = ()) -> None:
        """Go on from a saved cursor; see `ResumableLoader.load_state_dict` for arguments and errors."""
        start = start_cursor(state, self._recipe, allow=allow, schedule=self._settings.schedule)
        self._session.check_run(start)
        self._session.close()
        self._start_session(start)

    def check_agreement(self, peers: Sequence[TrackedLoader] | None = None) -> Cursor:
        """As `ResumableLoader.check_agreement`: call it on every rank right before a save. Collective."""
        return self._session.agree(None if peers is None else [peer._session for peer in peers])

    def close(self) -> None:
        """Stop watching the optimizer. The cursor stays readable."""
        self._iteration += 1
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_session(self, start: Cursor) -> None:
        self._session = Session(start, self._settings)
        self._iteration += 1
        self._is_running = False
        self._pending: deque[MicrobatchRows] = deque()
        self._num_carried = 0
        self._place = Place(start.epoch, start.offset)
        self._sampler.start_at(start.epoch, start.offset)

    def _rewind(self) -> None:
        """After a loop that broke off: what it was handed and did not step is read again."""
        self._session.rewind()
        self._pending.clear()
        self._num_carried = 0
        self._is_running = False
        self._place = Place(self.cursor.epoch, self.cursor.offset)

    def _set_epoch(self, epoch: int) -> None:
        if self._is_running:
            self._rewind()
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

    def _commit_step(self, applied: bool) -> None:
        """Commit the batches of one step of the optimizer."""
        pending, steps = len(self._pending), self._accumulation_steps
        is_at_end = bool(pending) and self._ends_epoch(self._pending[-1])
        if pending in (steps, self._num_carried + steps) or (is_at_end and 0 < pending < self._num_carried + steps):
            self._commit_pending(pending, applied=applied)
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

    def _commit_pending(self, num_batches: int, *, applied: bool) -> None:
        if not num_batches:
            raise CommitError("there is no batch to commit: the loop was handed none since the last commit")
        for left in range(num_batches, 0, -1):
            self._session.commit(applied=applied, ends_step=left == 1)
            self._pending.popleft()
        self._num_carried = 0

    def _schedule(self, *, epochs: int | None) -> Any:
        return sampler_schedule(
            self._sampler, batch_size=self._batch_size, drop_last=self._dataloader.drop_last, epochs=epochs
        )

    def _check_current(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise StaleIteratorError(
                "this iterator was made before the loader was iterated again, loaded or closed; what it would give is "
                "not what comes next. Use the iterator of a new iter(loader)."
            )


_END = object()


def _other_number(has_more: bool, epoch: int) -> SampleReadError:
    found = "more" if has_more else "fewer"
    return SampleReadError(
        f"the DataLoader gave {found} batches in epoch {epoch} than its sampler, batch_size and drop_last make: what "
        f"they "
        "hold cannot be counted. The cursor did not move. Give track() torch's own DataLoader, with no sampler in "
        "between."
    )


def _check_dataloader(dataloader: Any) -> DistributedSampler:
    """The sampler of a DataLoader that can be counted exactly.

    Raises:
        UsageError: It cannot; says what to use.
    """
    kind: str = f"{type(dataloader).__module__}.{type(dataloader).__qualname__}"
    if type(dataloader) is not torch.utils.data.DataLoader:
        raise UsageError(
            f"track() counts the batches of torch.utils.data.DataLoader, got {kind}. A loader that restores its own "
            f"place, "
            "or shards again, would be counted wrongly: give torch's own DataLoader over a "
            "resumable_data.DistributedSampler."
        )
    sampler = dataloader.sampler
    if not isinstance(sampler, DistributedSampler):
        raise UsageError(
            f"track() needs a DataLoader over a resumable_data.DistributedSampler, got one over "
            f"{type(sampler).__module__}.{type(sampler).__qualname__}, whose order cannot be entered in the middle. "
            f"Replace "
            "torch.utils.data.DistributedSampler by resumable_data.DistributedSampler: the indices are the same."
        )
    if type(dataloader.batch_sampler) is not torch.utils.data.BatchSampler or dataloader.batch_size is None:
        raise UsageError("track() needs a DataLoader with batch_size=, got one with batch_size=None or a batch_sampler")
    if not getattr(dataloader, "in_order", True):
        raise UsageError("track() needs a DataLoader with in_order=True: batches out of order cannot be counted")
    dataset: Any = dataloader.dataset
    length = len(dataset)
    if length != len(sampler.order):
        raise UsageError(
            f"the sampler has {len(sampler.order)} samples and the DataLoader's dataset {length}; "
            f"make the "
            "sampler with the same dataset"
        )
    return sampler
