"""The global order for a plain torch DataLoader: a batch sampler with a cursor."""

from __future__ import annotations

from collections import deque
from itertools import islice
from typing import TYPE_CHECKING, Protocol

from torch.utils.data import Sampler

from resumable_data.cursor import Committed, Cursor, new_cursor
from resumable_data.errors import CommitError, StaleIteratorError, UsageError
from resumable_data.order import check_order
from resumable_data.plan import BatchPlan, loss_factor
from resumable_data.sampler.rank_rows import RankLayout, RankRows
from resumable_data.sampler.state import make_state, start_cursor, tell_unchecked
from resumable_data.sampler.targets import LossWeight
from resumable_data.sampler.topology import resolve_topology
from resumable_data.sampler.wrappers import GuardedIterator

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.order import Order
    from resumable_data.plan import UpdateSpan
    from resumable_data.sampler.rank_rows import MicrobatchRows
    from resumable_data.sampler.state import State

MAX_AHEAD = 4096
"""Updates that may be handed out ahead of commit(); no DataLoader fetches so far ahead, so commit() is never called."""


class HasCursor(Protocol):
    """Something that counts what was trained on."""

    @property
    def cursor(self) -> Cursor:
        """Committed progress."""


class ResumableSampler(Sampler[list[int]]):
    """For ``DataLoader(dataset, batch_sampler=sampler)``: this rank's sample IDs, one list for each microbatch.

    Each ``iter()`` starts at the cursor and goes on to the end of the run, through the ends of epochs: one pass over
    the DataLoader is the rest of the whole run, not an epoch. ``for epoch in range(E): for batch in loader`` therefore
    does all of it in its first round, and nothing in the others. What was not committed is read again after an
    ``iter()``, which also makes iterators made before invalid.

    A DataLoader fetches ahead, and a sampler cannot see what was trained on. So the cursor is moved by `commit` alone,
    which counts updates and not fetched batches: call it once after each optimizer step, on every rank, and count the
    batches of an update against `accumulation_steps`. The sampler takes your word for it. It records no deliveries, its
    cursor has no coverage digest of them, and it talks to no other rank: where the run is to be proven, wrap the
    DataLoader in `resumable_data.track`, or use `ResumableLoader`.

    It cannot hand out filler rows. A layout in which a rank would have no row in some microbatch, now or at a short
    update later on, is refused when the sampler is made (for a run from its beginning) and when a state is loaded (from
    there on).

    Args:
        order: What is at each position; its length is that of the dataset, which the sampler does not see.
        global_batch: Samples per optimizer update, over all ranks.
        microbatch: The largest number of samples a rank holds at once.
        rank: Data-parallel rank, together with `num_replicas`.
        num_replicas: Number of data-parallel ranks.
        mesh: The job's device mesh. Rank and size come from the arguments, else the mesh, else the process group.
        data_axes: Names of the mesh's data-parallel axes; a one-dimensional mesh needs none.
        tail: What happens at the end of an epoch: ``"carry"``, ``"short"``, ``"drop"`` or ``"pad"``, see `Schedule`.
        epochs: Epochs of the whole run; endless when None.
        gradient_reduction: What is done to gradients across ranks, ``"mean"`` (as DDP and FSDP do) or ``"sum"``.
        reduction_size: Ranks that gradients are reduced over; `num_replicas` when None.
        fingerprint: What identifies the dataset's contents; a resume under another one is refused.

    Raises:
        UsageError: An argument is outside what is accepted, or a rank's share of a microbatch would be empty.
        TopologyError: Rank and size are not known.
        StateError: The order's name or the fingerprint is too long for a checkpoint.

    >>> from resumable_data.order import Sequential
    >>> sampler = ResumableSampler(Sequential(10), global_batch=4, microbatch=2, epochs=1, rank=1, num_replicas=2)
    >>> for ids in sampler:
    ...     print(ids, sampler.accumulation_steps, sampler.loss_scale)
    ...     sampler.commit()
    [1, 3] 1 0.5
    [5, 7] 1 0.5
    [9] 1 1.0
    >>> sampler.cursor.epoch, sampler.cursor.samples
    (1, 10)
    """

    def __init__(
        self,
        order: Order,
        /,
        *,
        global_batch: int,
        microbatch: int,
        rank: int | None = None,
        num_replicas: int | None = None,
        mesh: DeviceMesh | None = None,
        data_axes: str | Sequence[str] | None = None,
        tail: str = "carry",
        epochs: int | None = None,
        gradient_reduction: str = "mean",
        reduction_size: int | None = None,
        fingerprint: str | None = None,
    ) -> None:
        check_order(order)
        self.topology = resolve_topology(rank=rank, num_replicas=num_replicas, mesh=mesh, data_axes=data_axes)
        rank, num_replicas = self.topology.rank, self.topology.num_replicas
        self.layout = RankLayout(rank=rank, num_replicas=num_replicas, microbatch=microbatch)
        self.loss_factor = loss_factor(gradient_reduction, num_replicas if reduction_size is None else reduction_size)
        self._cursor = new_cursor(
            order, global_batch=global_batch, tail=tail, normalize="samples", fingerprint=fingerprint
        )
        self.schedule = self._cursor.schedule(epochs)
        self._rows = RankRows(
            order,
            schedule=self.schedule,
            layout=self.layout,
            weight=LossWeight(normalize="samples", factor=self.loss_factor),
        )
        self._iteration = 0
        self._given = 0  # updates handed out whole, by their number in the run
        self._tracked_by: HasCursor | None = None
        self._recent: deque[MicrobatchRows] | None = None
        self.check_shares(self._cursor)

    def __iter__(self) -> Iterator[list[int]]:
        """This rank's IDs, a list for each microbatch, from the cursor to the end of the run.

        Raises:
            UsageError: Accelerate deals out this rank's batches once more, at the next one.
            StaleIteratorError: From an older iterator, at its next use.
            CommitError: Thousands of updates were handed out and none committed.
        """
        self._make_stale()
        return GuardedIterator(self._iterate(self._iteration), self)

    def _iterate(self, iteration: int) -> Iterator[list[int]]:
        if iteration != self._iteration:
            raise _stale()
        start = self.cursor
        for rows in self._rows.from_place(update=start.updates, epoch=start.epoch, offset=start.offset):
            if iteration != self._iteration:
                raise _stale()
            if rows.update - self.cursor.updates >= MAX_AHEAD:
                raise _never_committed(self.cursor.updates)
            if rows.is_last:
                self._given = rows.update + 1
            if self._recent is not None:
                self._recent.append(rows)
            yield rows.ids.tolist()

    def _make_stale(self) -> None:
        self._iteration += 1
        self._given = self.cursor.updates

    def __len__(self) -> int:
        """Microbatches from the cursor to the end of the run, the same on all ranks.

        Raises:
            TypeError: The run is endless.
        """
        cursor, layout = self.cursor, self.layout
        left = self.schedule.microbatches_left(
            cursor.epoch, cursor.offset, microbatch=layout.microbatch, num_replicas=layout.num_replicas
        )
        if left is None:
            raise TypeError("a sampler with epochs=None never ends and has no len()")
        return left

    @property
    def num_updates(self) -> int | None:
        """Updates of the whole run; None where it is endless."""
        left = self.schedule.updates_left(self.cursor.epoch, self.cursor.offset)
        return None if left is None else self.cursor.updates + left

    @property
    def accumulation_steps(self) -> int:
        """Microbatches of every rank in the update at the cursor, the same on all ranks.

        Raises:
            CommitError: The run is over.
        """
        return self._plan(self._span().num_rows).accumulation_steps

    @property
    def loss_scale(self) -> float:
        """The factor for the *sum* of the losses of a microbatch of the update at the cursor, the same on all ranks.

        With it the gradient, accumulated over the update and averaged over the ranks (or summed, see
        `gradient_reduction`), is the mean over the update's samples.

        Raises:
            CommitError: The run is over.
        """
        return self.loss_factor / self._span().num_rows

    @property
    def cursor(self) -> Cursor:
        """Committed progress, as far as commit() was told; under `resumable_data.track` that of the tracked loader."""
        return self._cursor if self._tracked_by is None else self._tracked_by.cursor

    def commit(self, applied: bool = True) -> None:
        """Move the cursor past the update at the cursor. Call it on every rank after the optimizer step.

        It cannot be known here whether the update was trained on: that is the caller's word.

        Args:
            applied: False where the step was skipped, say by a loss scaler; the samples are consumed all the same.

        Raises:
            CommitError: The run is over, that update was not even handed out whole, or the DataLoader is tracked.
        """
        if self._tracked_by is not None:
            raise CommitError("what resumable_data.track() returned commits for this sampler; do not commit it as well")
        cursor, span = self._cursor, self._span()
        if self._given <= cursor.updates:
            raise CommitError(
                f"commit() expects that all microbatches of update {cursor.updates} were handed out; they were not. "
                "The cursor did not move, else their samples would be skipped. Call it once per update, after "
                "accumulation_steps batches and the optimizer step."
            )
        done = Committed(
            stop=span.start + span.num_samples,
            applied=int(applied),
            skipped=int(not applied),
            samples=span.num_samples,
            padding=span.padding,
        )
        self._cursor = cursor.advance(done, self.schedule.after(span), run_id=cursor.run_id, attempt=0)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The committed cursor as one uint8 tensor of fixed size, as `ResumableLoader` has it. No side effect."""
        return make_state(self.cursor)

    def load_state_dict(self, state: State, allow: Collection[str] = ()) -> None:
        """Go on from a saved cursor. Iterators made before become invalid; so does a DataLoader's that is under way.

        Args:
            state: What `state_dict()` of a sampler or loader gave, on any number of ranks; or a `Cursor`.
            allow: Names of recipe fields that may differ, and ``"fresh_start"``; see `ResumableLoader`.

        Raises:
            UsageError: `state` is neither, `allow` names what cannot be allowed, a rank's share of a microbatch
                would be empty from there on, or the DataLoader is tracked.
            MissingStateError: `state` has no cursor, and a fresh start is not allowed.
            CorruptStateError: The cursor is damaged.
            RecipeMismatchError: It was counted under another recipe.
        """
        if self._tracked_by is not None:
            raise UsageError("this sampler's cursor is that of what resumable_data.track() returned; load it into that")
        start = start_cursor(state, self._cursor.recipe, allow=allow)
        self.check_shares(start)
        self._cursor = start
        tell_unchecked(state, start)
        self._make_stale()

    def follow(self, loader: HasCursor) -> None:
        """Leave the cursor to `loader`; for `resumable_data.track`.

        Raises:
            UsageError: Another one has it already.
        """
        if self._tracked_by is not None:
            raise UsageError("this sampler is tracked already; make one sampler and one DataLoader for each track()")
        self._tracked_by = loader

    def start_giving(self) -> deque[MicrobatchRows]:
        """A queue that fills with what is handed out from now on; for `resumable_data.track`."""
        self._recent = deque()
        return self._recent

    def _span(self) -> UpdateSpan:
        cursor = self.cursor
        span = self.schedule.update_at(cursor.epoch, cursor.offset)
        if span is None:
            raise CommitError(
                f"expected an update at the cursor, found that the run of {self.schedule.epochs} epochs is over after "
                f"{cursor.updates} updates. The cursor did not move; to train on, give epochs= more."
            )
        return span

    def _plan(self, num_rows: int) -> BatchPlan:
        layout = self.layout
        return BatchPlan(global_batch=num_rows, microbatch=layout.microbatch, num_replicas=layout.num_replicas)

    def check_shares(self, start: Cursor) -> None:
        """Refuse a layout in which a rank has no row in some microbatch from `start` on.

        Raises:
            UsageError: There is one.
        """
        # What is left of the epoch under way, or with tail="carry" of the run, has updates of at most two sizes. Whole
        # epochs after it have those of the first one, which is looked at when the sampler is made.
        for segment in islice(self.schedule.segments(start.epoch, start.offset), 2):
            plan = self._plan(segment.span.num_rows)
            if plan.num_idle:
                raise self._empty_share(segment.span, plan)

    def _empty_share(self, span: UpdateSpan, plan: BatchPlan) -> UsageError:
        global_batch = self.schedule.global_batch
        if plan.global_batch < global_batch:
            remedy = 'use tail="drop" or "pad", which have no short updates, or another global_batch'
        else:
            batches = " or ".join(map(str, plan.alternatives().global_batches))
            remedy = f"a global_batch of {batches} fills every microbatch"
        return UsageError(
            f"the update at position {span.start} has {plan.global_batch} rows for {plan.num_replicas} ranks with "
            f"microbatch={plan.microbatch}: {plan.num_idle} of the ranks would have no row in its last microbatch. A "
            "sampler cannot hand out filler, so their collective calls would be missing and the job would hang. Use "
            f"ResumableLoader, which runs a filler row of weight zero there; or {remedy}."
        )


def _stale() -> StaleIteratorError:
    return StaleIteratorError(
        "this iterator was made before the sampler was iterated again or loaded; what it would give is not what comes "
        "next. Use the batches of a new iter() over the DataLoader."
    )


def _never_committed(update: int) -> CommitError:
    return CommitError(
        f"{MAX_AHEAD} updates were handed out since update {update}, none was committed. A checkpoint saved now would "
        "repeat all of them. Call sampler.commit() after each optimizer.step()."
    )
