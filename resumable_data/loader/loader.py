"""The loader: samples in the global order, split over any rank set, with a cursor that counts commits."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import torch
import torch.utils.data

from resumable_data.cursor import Cursor, Recipe, check_allowed, encode_cursor, resume_cursor
from resumable_data.errors import CommitError, SampleReadError, StaleIteratorError, UsageError
from resumable_data.ledger import Ledger
from resumable_data.loader.dataloader import WorkerSeeds, fetch_all, make_dataloader
from resumable_data.loader.fetch import (
    FetchDataset,
    ReadFailure,
    RequestQueue,
    check_dataset,
    unreadable,
)
from resumable_data.loader.microbatch import Microbatch
from resumable_data.loader.session import JobSettings, Session
from resumable_data.loader.state import FRESH_START, make_state, read_state
from resumable_data.loader.topology import resolve_topology
from resumable_data.loader.updates import Update, group_updates
from resumable_data.order import Shuffle, check_order
from resumable_data.plan import loss_factor, require_count
from resumable_data.sampler import LossWeight, RankLayout, RankRows, TargetTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.loader.fetch import Fetched
    from resumable_data.order import Order
    from resumable_data.sampler import MicrobatchRows
    from resumable_data.sampler.targets import NumTargetTokens


class ResumableLoader:
    """Gives each rank its microbatches of a global order, and keeps the cursor of what was committed.

    Args:
        dataset: Map-style; ``__getitems__`` is used where it exists.
        order: What is at each position; a `Shuffle` of the dataset by `seed` when None.
        global_batch: Samples per optimizer update, over all ranks.
        microbatch: The largest number of samples a rank holds at once.
        mesh: The job's device mesh. Rank and size come from the arguments, else the mesh, else the process group.
        data_axes: Names of the mesh's data-parallel axes; a one-dimensional mesh needs none.
        rank: Data-parallel rank, together with `num_replicas`.
        num_replicas: Number of data-parallel ranks.
        epochs: Epochs of the whole run; endless when None.
        tail: What happens at the end of an epoch: ``"carry"``, ``"short"``, ``"drop"`` or ``"pad"``, see `Schedule`.
        normalize: What the gradient is a mean over, ``"samples"`` or ``"tokens"``.
        num_target_tokens: Target tokens of each sample, (N,) integers or a vectorised function of IDs.
        gradient_reduction: What is done to gradients across ranks, ``"mean"`` (as DDP and FSDP do) or ``"sum"``.
        reduction_size: Ranks that gradients are reduced over; `num_replicas` when None. With context-parallel ranks in
            the FSDP mesh it is their product.
        pad_microbatches: Bring every microbatch to exactly `microbatch` rows with filler of weight zero.
        fingerprint: What identifies the dataset's contents; a resume under another one is refused.
        seed: Seeds the default order and the workers' random generators.
        ledger: A `Ledger`, or the path of one, to record what is delivered.
        num_workers: As for torch's DataLoader, like `collate_fn`, `pin_memory` and the options below.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: Whether batches are copied to pinned memory.
        **options: `prefetch_factor`, `persistent_workers`, `timeout`, `worker_init_fn`, `multiprocessing_context`,
            `pin_memory_device`, `generator`.

    Raises:
        UsageError: An argument is outside what is accepted, or order and dataset differ in length.
        TopologyError: Rank and size are not known.

    >>> import torch
    >>> data = torch.utils.data.TensorDataset(torch.arange(10))
    >>> loader = ResumableLoader(data, global_batch=4, microbatch=2, epochs=1, rank=0, num_replicas=2)
    >>> for microbatch in loader:
    ...     if microbatch.is_last:
    ...         loader.commit()
    >>> loader.cursor.samples, loader.cursor.updates
    (10, 3)
    """

    def __init__(
        self,
        dataset: Any,
        /,
        *,
        global_batch: int,
        microbatch: int,
        order: Order | None = None,
        mesh: DeviceMesh | None = None,
        data_axes: str | Sequence[str] | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
        epochs: int | None = None,
        tail: str = "carry",
        normalize: str = "samples",
        num_target_tokens: NumTargetTokens | None = None,
        gradient_reduction: str = "mean",
        reduction_size: int | None = None,
        pad_microbatches: bool = False,
        fingerprint: str | None = None,
        seed: int = 0,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        length = check_dataset(dataset)
        self._order = _choose_order(order, length, seed)
        topology = resolve_topology(rank=rank, num_replicas=num_replicas, mesh=mesh, data_axes=data_axes)
        layout = RankLayout(
            rank=topology.rank,
            num_replicas=topology.num_replicas,
            microbatch=microbatch,
            pad_microbatches=pad_microbatches,
        )
        self._weight = LossWeight(
            normalize=normalize,
            factor=loss_factor(gradient_reduction, _default(reduction_size, topology.num_replicas)),
            targets=None if num_target_tokens is None else TargetTokens(num_target_tokens, length=length),
        )
        self._recipe = Recipe(
            order=self._order.describe(),
            global_batch=require_count("global_batch", global_batch),
            tail=tail,
            normalize=normalize,
            fingerprint=fingerprint,
        )
        start = Cursor(recipe=self._recipe)
        encode_cursor(start)  # what a checkpoint cannot hold is better found now than at the first save
        self._schedule = start.schedule(epochs)
        self._settings = JobSettings(
            topology=topology,
            layout=layout,
            epochs=epochs,
            loss_factor=self._weight.factor,
            ledger=Ledger(ledger) if isinstance(ledger, (str, os.PathLike)) else ledger,
            schedule=self._schedule,
        )
        self._session = Session(start, self._settings)
        self._iteration = 0
        self._requests = RequestQueue()
        self._fetched: Iterator[Fetched] | None = None
        self._seed_workers = WorkerSeeds(seed, topology.rank) if options.get("generator") is None else None
        if self._seed_workers is not None:
            options["generator"] = self._seed_workers.generator
        self._dataloader: torch.utils.data.DataLoader[Fetched] | None = make_dataloader(
            FetchDataset(dataset, collate_fn or torch.utils.data.default_collate),
            self._requests,
            num_workers=num_workers,
            pin_memory=pin_memory,
            **options,
        )

    def __iter__(self) -> Iterator[Microbatch]:
        """This rank's microbatches, from the cursor to the end of the run.

        Iterators made before become invalid: what they delivered beyond the cursor is read again.

        Raises:
            StaleIteratorError: From an older iterator, at its next use.
            DisagreementError: At the first microbatch, where ranks do not start at the same place.
            SampleReadError: The dataset could not give a sample.
            CommitError: Many updates were delivered and none committed.
        """
        self._check_open()
        self._make_stale()
        self._session.rewind()
        return self._iterate(self._iteration)

    def _iterate(self, iteration: int) -> Iterator[Microbatch]:
        if iteration != self._iteration:
            raise _stale()
        session, pending = self._session, self._requests.start(self._rows())
        session.begin()
        # kept by the loader, not by this generator: to let go of it ends the workers, whoever holds this generator
        self._fetched = fetch_all(self._check_open(), self._requests)
        try:
            while True:
                if iteration != self._iteration:
                    raise _stale()
                fetched = next(self._fetched, None)
                if fetched is None:
                    if pending:
                        raise _ended_early(pending[0][0])
                    return
                (rows, expected), (data, digest) = pending.popleft(), fetched
                if digest != expected:
                    raise _other_samples(rows)
                if type(data) is ReadFailure:
                    raise unreadable(rows, data)
                session.deliver(rows, digest)
                yield Microbatch(data, rows)
        finally:
            if iteration == self._iteration:
                self._fetched = None

    def _make_stale(self) -> None:
        """Make all iterators invalid, and end their workers where these are not persistent."""
        self._iteration += 1
        self._fetched = None

    def _rows(self) -> Iterator[MicrobatchRows]:
        """This rank's rows from the cursor on."""
        cursor = self.cursor
        if self._seed_workers is not None:
            self._seed_workers.restart(cursor.position)
        rows = RankRows(self._order, schedule=self._schedule, layout=self._settings.layout, weight=self._weight)
        return rows.from_place(update=cursor.updates, epoch=cursor.epoch, offset=cursor.offset)

    def updates(self) -> Iterator[Update]:
        """The same as iterating the loader, an update at a time, its microbatches already fetched."""
        return group_updates(iter(self), self._commit_update)

    def commit(self, applied: bool = True) -> None:
        """Move the cursor to the end of the update at the cursor. Call it after the optimizer step.

        Args:
            applied: False where the step was skipped, say by a loss scaler; the samples are consumed all the same.

        Raises:
            CommitError: The update's last microbatch was not delivered.
            UsageError: The loader is closed.
        """
        self._check_open()
        self._session.commit(applied=applied)

    def _commit_update(self, *, update: int, applied: bool) -> None:
        if update != self.cursor.updates:
            raise CommitError(
                f"update {update} is to be committed, the cursor is at update {self.cursor.updates}. Updates are "
                "committed once each, in order; the cursor did not move."
            )
        self.commit(applied)

    @property
    def cursor(self) -> Cursor:
        """Committed progress."""
        return self._session.cursor

    @property
    def num_updates(self) -> int | None:
        """Updates of the whole run; None where it is endless."""
        left = self._schedule.updates_left(self.cursor.epoch, self.cursor.offset)
        return None if left is None else self.cursor.updates + left

    def __len__(self) -> int:
        """Microbatches from the cursor to the end of the run, the same on all ranks.

        Raises:
            TypeError: The run is endless.
        """
        layout = self._settings.layout
        left = self._schedule.microbatches_left(
            self.cursor.epoch, self.cursor.offset, microbatch=layout.microbatch, num_replicas=layout.num_replicas
        )
        if left is None:
            raise TypeError("a loader with epochs=None never ends and has no len()")
        return left

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The committed cursor as one uint8 tensor of fixed size. Not collective, no side effect.

        The coverage digest in it is as of the last `check_agreement()`; call that before saving.
        """
        return make_state(self.cursor)

    def load_state_dict(self, state: Mapping[str, Any] | None, allow: Collection[str] = ()) -> None:
        """Go on from a saved cursor. Iterators made before become invalid.

        Args:
            state: What `state_dict()` gave, on any number of ranks.
            allow: Names of recipe fields that may differ (``"global_batch"``, ``"tail"``, ``"normalize"``,
                ``"fingerprint"``), recorded in the cursor; and ``"fresh_start"``, to start at position 0 where `state`
                is empty or None.

        Raises:
            UsageError: `state` is no mapping, or `allow` names what cannot be allowed.
            MissingStateError: `state` has no cursor, and a fresh start is not allowed.
            CorruptStateError: The cursor is damaged.
            OtherRunError: It belongs to another run than this loader or its ledger.
            RecipeMismatchError: It was counted under another recipe.
        """
        names = {allow} if isinstance(allow, str) else set(allow)
        allowed = check_allowed(names - {FRESH_START})
        saved = read_state(state, fresh_start=FRESH_START in names)
        start = Cursor(recipe=self._recipe) if saved is None else resume_cursor(saved, self._recipe, allow=allowed)
        self._session.check_run(start)
        self._make_stale()
        self._session.close()
        self._session = Session(start, self._settings)

    def check_agreement(self, peers: Sequence[ResumableLoader] | None = None) -> Cursor:
        """Make sure that all ranks hold the same cursor, and put the digest of what they read into it. Collective.

        Call it on every rank right before a checkpoint is saved.

        Args:
            peers: The loaders of all ranks, this one among them, where ranks are simulated in one process.

        Returns:
            The cursor, with the coverage digest up to its position.

        Raises:
            DisagreementError: Ranks hold different cursors; names ranks and fields.
            UsageError: The ranks were given as arguments, no process group has them, and there are no `peers`.
        """
        return self._session.agree(None if peers is None else [peer._session for peer in peers])

    def close(self) -> None:
        """Stop the workers and end the ledger's file. The cursor stays readable."""
        self._make_stale()
        self._session.close()
        self._dataloader = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_open(self) -> torch.utils.data.DataLoader[Fetched]:
        if self._dataloader is None:
            raise UsageError("this loader is closed; make a new one and load the state to go on")
        return self._dataloader


def _stale() -> StaleIteratorError:
    return StaleIteratorError(
        "this iterator was made before the loader was iterated again, loaded or closed; what it would give is not what "
        "comes next. Use the iterator of a new iter(loader)."
    )


def _ended_early(rows: MicrobatchRows) -> SampleReadError:
    return SampleReadError(
        f"expected the data of update {rows.update}, microbatch {rows.microbatch}; found that the DataLoader had "
        "ended, because collate_fn raised StopIteration. The cursor did not move; mend collate_fn and resume from the "
        "last checkpoint, nothing is skipped."
    )


def _other_samples(rows: MicrobatchRows) -> SampleReadError:
    return SampleReadError(
        f"a worker read other samples than the {rows.num_rows} it was asked for in update {rows.update}, microbatch "
        f"{rows.microbatch}. The cursor did not move; this machine's memory may be at fault."
    )


def _default(value: int | None, default: int) -> int:
    """`default` where nothing was given; 0 was, and is for others to refuse."""
    return default if value is None else value


def _choose_order(order: Order | None, length: int, seed: int) -> Order:
    if order is None:
        return Shuffle(length, seed=seed)
    check_order(order)
    if len(order) != length:
        raise UsageError(
            f"the order has {len(order)} samples and the dataset {length}: samples would never be seen, or asked for "
            "and not there. Make the order with the length of the dataset."
        )
    return order
