"""The loader: samples in the global order, split over any rank set, with a cursor that counts commits."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Self

from resumable_data.errors import UsageError
from resumable_data.ledger import Ledger
from resumable_data.loader.content import content_of
from resumable_data.loader.reading import Reader
from resumable_data.loader.remap import Placement, check_remap, remap_settings
from resumable_data.loader.session import JobSettings, Session
from resumable_data.loader.starting import find_start, microbatches_left
from resumable_data.loader.unreadable import make_unreadable
from resumable_data.loader.updates import Update, group_updates
from resumable_data.sampler import LossWeight, RankLayout
from resumable_data.sampler.state import make_state, tell_unchecked

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Sequence

    import torch
    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.checkpoint.migration.carried import Carried
    from resumable_data.cursor import Cursor, Phase, RecipeChange
    from resumable_data.loader.content import Content
    from resumable_data.loader.microbatch import Microbatch
    from resumable_data.order import Order
    from resumable_data.sampler import MicrobatchRows, RankRows, Topology
    from resumable_data.sampler.state import State
    from resumable_data.sampler.targets import NumTargetTokens


class ResumableLoader:
    """Gives each rank its microbatches of a global order, and keeps the cursor of what was committed.

    Args:
        dataset: Map-style; ``__getitems__`` is used where it exists. Or a `PackedTokens`, whose rows then take the
            place of samples, see below.
        order: What is at each position; a `Shuffle` of the dataset by `seed` when None.
        global_batch: Samples per optimizer update, over all ranks.
        global_batch_tokens: In its place for packed rows: an update takes rows until they hold so many tokens.
        microbatch: The largest number of samples a rank holds at once.
        mesh: The job's device mesh. Rank and size come from the arguments, else the mesh, else the process group.
        data_axes: Names of the mesh's data-parallel axes; a one-dimensional mesh needs none.
        rank: Data-parallel rank, together with `num_replicas`.
        num_replicas: Number of data-parallel ranks.
        epochs: Epochs of the whole run; endless when None.
        tail: What happens at the end of an epoch: ``"carry"``, ``"short"``, ``"drop"`` or ``"pad"``, see `Schedule`.
        normalize: What the gradient is a mean over, ``"samples"``, ``"tokens"``, or ``"targets"``, see
            `Update.set_targets`. ``"samples"`` when None; with packed rows ``"tokens"``, the tokens with a label.
        num_target_tokens: Target tokens of each sample, (N,) integers or a vectorised function of IDs.
        gradient_reduction: What is done to gradients across ranks, ``"mean"`` (as DDP and FSDP do) or ``"sum"``.
        reduction_size: Ranks that gradients are reduced over; `num_replicas` when None. With context-parallel ranks in
            the FSDP mesh it is their product.
        pad_microbatches: Bring every microbatch to exactly `microbatch` rows with filler of weight zero.
        fingerprint: What identifies the dataset's contents; a resume under another one is refused.
        seed: Seeds the default order, the workers' random generators and those of samples, see
            `resumable_data.rng.sample_generator`.
        seed_samples: Seed `random`, `numpy.random` and torch's CPU generator before each sample is read, by `seed` and
            the sample's position. Reads row by row, even where the dataset has ``__getitems__``.
        ledger: A `Ledger`, or the path of one, to record what is delivered.
        on_unreadable: What a sample that cannot be read does: ``"raise"``, or ``"filler"``: another row's data takes
            its place with weight 0, it is logged, and recorded in the ledger, which is needed then.
        max_unreadable: Samples that each rank may so replace in one launch; the next one raises. Needed with
            ``"filler"``.
        num_workers: As for torch's DataLoader, like `collate_fn`, `pin_memory` and the options below. Tensors of a
            microbatch of up to 256 KiB come through a worker's pipe, and lie in this process's own memory.
        collate_fn: Makes a batch of a list of samples. With packed rows it is given their tensors instead.
        pin_memory: Whether batches are copied to pinned memory.
        **options: `prefetch_factor`, `persistent_workers`, `timeout`, `worker_init_fn`, `multiprocessing_context`,
            `pin_memory_device`, `generator`.

    With packed rows a microbatch's `data` is a dictionary of tensors: ``tokens``, ``labels`` (-100 where there is no
    target, and in filler rows), ``position_ids``, ``cu_seqlens``, and the integer ``max_seqlen``. `order`,
    `num_target_tokens`, `seed_samples` and `on_unreadable` are for samples; `tail` is ``"carry"``; the fingerprint is
    that of the source where none is given.

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
        microbatch: int,
        global_batch: int | None = None,
        global_batch_tokens: int | None = None,
        order: Order | None = None,
        mesh: DeviceMesh | None = None,
        data_axes: str | Sequence[str] | None = None,
        rank: int | None = None,
        num_replicas: int | None = None,
        epochs: int | None = None,
        tail: str = "carry",
        normalize: str | None = None,
        num_target_tokens: NumTargetTokens | None = None,
        gradient_reduction: str = "mean",
        reduction_size: int | None = None,
        pad_microbatches: bool = False,
        fingerprint: str | None = None,
        seed: int = 0,
        seed_samples: bool = False,
        ledger: Ledger | str | os.PathLike[str] | None = None,
        on_unreadable: str = "raise",
        max_unreadable: int | None = None,
        num_workers: int = 0,
        collate_fn: Callable[[list[Any]], Any] | None = None,
        pin_memory: bool = False,
        **options: Any,
    ) -> None:
        self._placement = Placement(
            rank=rank,
            num_replicas=num_replicas,
            mesh=mesh,
            data_axes=data_axes,
            gradient_reduction=gradient_reduction,
            reduction_size=reduction_size,
        )
        here = self._placement.resolve()
        layout = RankLayout(
            rank=here.rank, num_replicas=here.num_replicas, microbatch=microbatch, pad_microbatches=pad_microbatches
        )
        factor = self._placement.loss_factor(here.num_replicas)
        replaced = make_unreadable(on_unreadable, max_unreadable, has_ledger=ledger is not None)
        self._content = content_of(
            dataset,
            order=order,
            seed=seed,
            num_target_tokens=num_target_tokens,
            collate_fn=collate_fn,
            seed_samples=seed_samples,
            on_unreadable=None if replaced is None else on_unreadable,
        )
        normalize = normalize or self._content.default_normalize
        self._weight = LossWeight(normalize=normalize, factor=factor, targets=self._content.targets(normalize))
        start = self._content.first_cursor(
            global_batch=global_batch,
            global_batch_tokens=global_batch_tokens,
            tail=tail,
            normalize=normalize,
            fingerprint=fingerprint,
        )
        self._settings = JobSettings(
            topology=here,
            layout=layout,
            epochs=epochs,
            loss_factor=factor,
            sample_seeds=(seed, seed_samples),
            ledger=Ledger(ledger) if isinstance(ledger, (str, os.PathLike)) else ledger,
            max_unreadable=max_unreadable,
            schedule=self._content.schedule(start, epochs),
        )
        self._session = Session(start, self._settings)
        self.carried: Carried | None = None
        """What `load_checkpoint` leaves for the next `save_checkpoint`; nothing where the state came otherwise."""
        options |= {"num_workers": num_workers, "pin_memory": pin_memory}
        content = self._content
        self._reader = Reader(content.fetcher, content.requests, seed=seed, replaced=replaced, **options)

    def __iter__(self) -> Iterator[Microbatch]:
        """This rank's microbatches, from the cursor to the end of the run.

        Iterators made before become invalid: what they delivered beyond the cursor is read again.

        Raises:
            UsageError: With ``normalize="targets"``, which needs `updates()`.
            StaleIteratorError: From an older iterator, at its next use.
            DisagreementError: At the first microbatch, where ranks do not start at the same place.
            SampleReadError: The dataset could not give a sample.
            CommitError: Many updates were delivered and none committed.
        """
        if self.cursor.recipe.normalize == "targets":
            raise UsageError(
                'normalize="targets" needs the target tokens of a whole update before its first backward; iterating '
                "the loader gives one microbatch at a time. Nothing was read; write `for update in loader.updates():`, "
                "call update.set_targets(count), then loop over the update's microbatches."
            )
        return self._start()

    def _start(self, *, by_update: bool = False) -> Iterator[Microbatch]:
        self._reader.require_open()
        self._reader.stop()
        self._session.rewind(by_update=by_update)
        return self._reader.read(self._rows(), self._session, rank=self._settings.layout.rank)

    def _rows(self) -> Iterator[MicrobatchRows]:
        """This rank's rows from the cursor on."""
        return self.rank_rows(self._settings.layout).from_place(**self._session.place)

    def rank_rows(self, layout: RankLayout) -> RankRows:
        """The rows that a rank of another layout would read of this run; nothing is read."""
        return self._content.rank_rows(self._settings.schedule, layout, self._weight)

    def updates(self) -> Iterator[Update]:
        """The same as iterating the loader, an update at a time, its microbatches already fetched."""
        count_targets = self._count_targets if self.cursor.recipe.normalize == "targets" else None
        return group_updates(self._start(by_update=True), self, self._session.hand_out, count_targets)

    def commit(self, applied: bool = True) -> None:
        """Move the cursor to the end of the update at the cursor. Call it after the optimizer step.

        Args:
            applied: False where the step was skipped, say by a loss scaler; the samples are consumed all the same.

        Raises:
            CommitError: The update's last microbatch was not delivered.
            UsageError: The loader is closed.
        """
        self._reader.require_open()
        self._session.commit(applied=applied)

    def _count_targets(self, update: int, local_count: Any, global_count: Any) -> float:
        self._reader.require_open()
        return self._session.count_targets(update, local_count, global_count)

    @property
    def cursor(self) -> Cursor:
        """Committed progress."""
        return self._session.cursor

    @property
    def run_id(self) -> str:
        """The run that this loader reads for; empty before the first microbatch of a new one."""
        return self._session.run_id

    @property
    def content(self) -> Content:
        """What is read: samples in an order, or packed rows."""
        return self._content

    @property
    def epochs(self) -> int | None:
        """Epochs of the run, None without an end."""
        return self._settings.epochs

    @property
    def ledger(self) -> Ledger | None:
        """Where deliveries are recorded, if anywhere."""
        return self._settings.ledger

    @property
    def topology(self) -> Topology:
        """This process among the others, as the loader found it."""
        return self._settings.topology

    @property
    def layout(self) -> RankLayout:
        """How rows fall on ranks, and how many a rank holds at once."""
        return self._settings.layout

    @property
    def gradient_reduction(self) -> str:
        """What is done to gradients across ranks, ``"mean"`` or ``"sum"``."""
        return self._placement.gradient_reduction

    @property
    def reduction_size(self) -> int:
        """Ranks that gradients are reduced over."""
        return self._placement.reduction_size or self._settings.layout.num_replicas

    @property
    def seed(self) -> int:
        """The seed of the run's random numbers, as it was given."""
        return self._settings.sample_seeds[0]

    @property
    def num_updates(self) -> int | None:
        """Updates of the whole run; None where it is endless."""
        left = self._settings.schedule.updates_left(self.cursor.epoch, self.cursor.offset)
        return None if left is None else self.cursor.updates + left

    def __len__(self) -> int:
        """Microbatches from the cursor to the end of the run, the same on all ranks.

        Raises:
            TypeError: The run is endless.
        """
        schedule, layout = self._settings.schedule, self._settings.layout
        left = microbatches_left(schedule, self.cursor, layout, num_behind=self._session.num_behind)
        if left is None:
            raise TypeError("a loader with epochs=None never ends and has no len()")
        return left

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The committed cursor as one uint8 tensor of fixed size. Not collective, no side effect.

        The coverage digest in it is as of the last `check_agreement()`; call that before saving.
        """
        return make_state(self.cursor)

    def load_state_dict(self, state: State, allow: Collection[str] = ()) -> None:
        """Go on from a saved cursor. Iterators made before become invalid.

        Args:
            state: What `state_dict()` gave, on any number of ranks; or a `Cursor`, say of a run that is taken over.
            allow: Names of recipe fields that may differ (``"global_batch"``, ``"batch_unit"``, ``"tail"``,
                ``"normalize"``, ``"fingerprint"``), recorded in the cursor; and ``"fresh_start"``, to start at position
                0 where `state` is empty or None.

        What of a checkpoint is not checked here is logged, for information: its files, model and optimizer.

        Raises:
            UsageError: `state` is neither, or `allow` names what cannot be allowed.
            MissingStateError: `state` has no cursor, and a fresh start is not allowed.
            CorruptStateError: The cursor is damaged.
            OtherRunError: It belongs to another run than this loader or its ledger.
            RecipeMismatchError: It was counted under another recipe.
            StateError: A later state of the run would not fit its tensor, say for one migration too many.
        """
        self.go_on_from(state, allow)

    def go_on_from(self, state: State, allow: Collection[str] = (), declared: Sequence[RecipeChange] = ()) -> None:
        """As `load_state_dict`, for `load_checkpoint`.

        Args:
            state: See there.
            allow: See there.
            declared: Changes of what is not in the recipe, which are recorded in the cursor with those of the recipe.
        """
        start = self._find_start(state, allow, declared)
        self._session.check_run(start)
        self.carried = None
        self._reader.stop()
        self._session.close()
        self._settings = replace(self._settings, schedule=self._content.schedule(start, self._settings.epochs))
        self._session = Session(start, self._settings)
        tell_unchecked(state, start)

    def check_state(self, state: State, allow: Collection[str] = (), declared: Sequence[RecipeChange] = ()) -> None:
        """Make sure that `go_on_from` would take a state, and load nothing; for arguments and errors see there."""
        self._session.check_run(self._find_start(state, allow, declared))

    def _find_start(self, state: State, allow: Collection[str], declared: Sequence[RecipeChange]) -> Cursor:
        return find_start(state, self.cursor.recipe, self._content, allow=allow, declared=declared)

    def remap(
        self,
        *,
        rank: int | None = None,
        num_replicas: int | None = None,
        microbatch: int | None = None,
        mesh: DeviceMesh | None = None,
        data_axes: str | Sequence[str] | None = None,
        reduction_size: int | None = None,
        rollback: bool = False,
    ) -> None:
        """Go on from the cursor as another rank of another rank set, in this process. Iterators become invalid.

        The dataset and persistent workers are kept; what was fetched ahead is dropped. In the ledger a new attempt
        begins. Arguments that are not given stay as they were; ranks are found again where they come from the process
        group. Call `check_agreement()` on all ranks of the old set before, where it still exists: without it the
        cursor's coverage digest lacks what was committed since the last one.

        Args:
            rank: Data-parallel rank from now on, together with `num_replicas`.
            num_replicas: Number of data-parallel ranks from now on.
            microbatch: The largest number of samples a rank holds at once.
            mesh: The job's device mesh.
            data_axes: Names of the mesh's data-parallel axes.
            reduction_size: Ranks that gradients are reduced over; needed where it was given and `num_replicas` changes.
            rollback: Allow it where something was delivered and not committed: it is read again, and discarded in the
                ledger. Gradients accumulated from it must be cleared.

        Raises:
            CommitError: Something was delivered and not committed, without `rollback`.
            UsageError: An argument is outside what is accepted, or the loader is closed.
            TopologyError: Rank and size are not known.
        """
        self._reader.require_open()
        placement = self._placement.moved(
            rank=rank, num_replicas=num_replicas, mesh=mesh, data_axes=data_axes, reduction_size=reduction_size
        )
        settings = remap_settings(
            self._settings, placement, microbatch=microbatch, has_new_size=reduction_size is not None
        )
        check_remap(self._session, rollback=rollback)
        self._reader.stop()
        self._session.rewind()
        self._session.close()
        self._placement, self._settings = placement, settings
        self._weight = replace(self._weight, factor=settings.loss_factor)
        self._session = Session(self._session.cursor, settings)

    def check_agreement(self, peers: Sequence[ResumableLoader] | None = None) -> Cursor:
        """Make sure that all ranks hold the same cursor, and put the digest of what they read into it. Collective.

        Call it on every rank right before a checkpoint is saved. The ledger is on the disk afterwards, up to here.

        Args:
            peers: The loaders of all ranks, this one among them, where ranks are simulated in one process.

        Returns:
            The cursor, with the coverage digest up to its position.

        Raises:
            DisagreementError: Ranks hold different cursors; names ranks and fields.
            FencedError: Another launch claimed a newer attempt in the ledger, so the run goes on there.
            UsageError: The ranks were given as arguments, no process group has them, and there are no `peers`.
        """
        return self._session.agree(None if peers is None else [peer._session for peer in peers])

    @property
    def phase(self) -> int:
        """Rows of the update at the cursor that all ranks together were handed so far; 0 at an update's border."""
        return self._session.phase

    def gather_phase(self, peers: Sequence[ResumableLoader] | None = None) -> Phase:
        """What all ranks were handed of the unfinished update, for whoever saves its gradient. Collective.

        Call it on all ranks after the backward of the same microbatch. The ledger is on the disk up to here.

        Args:
            peers: As for `check_agreement`.

        Raises:
            DisagreementError: Ranks were handed different microbatches; names ranks and counts.
            CommitError: All of the update was delivered: step and commit first.
        """
        return self._session.gather_phase(None if peers is None else [peer._session for peer in peers])

    def start_inside(self, phase: Phase) -> None:
        """Go on in the middle of the update at the cursor, whose first part is accumulated already.

        Call it on all ranks after `load_state_dict`, before iterating, with what `gather_phase` gave on any number of
        ranks. Only the rest is read then, with the weights of the whole update; the commit counts all of it.

        Raises:
            OtherRunError: It is of another run.
            StateError: It is of another update or recipe, or something was read already.
        """
        self._session.start_inside(phase)

    def mark_saved(self) -> None:
        """Record in the ledger that the checkpoint of the cursor is complete on the disk. Call it after the save."""
        self._session.mark_saved()

    def saved_mark(self) -> Callable[[], None]:
        """What `mark_saved` would do now, to be called later, in the loop's thread: for a save that runs beside it."""
        return partial(self._session.mark_saved, self.cursor.next_index)

    def close(self) -> None:
        """Stop the workers and end the ledger's file. The cursor stays readable."""
        self._reader.close()
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
