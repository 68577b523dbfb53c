"""What a loader reads: the samples of a map-style dataset, or the rows of packed tokens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from torch.utils.data import default_collate

from resumable_data.cursor import new_cursor
from resumable_data.errors import UsageError
from resumable_data.loader.fetch import FetchDataset, RequestQueue
from resumable_data.loader.options import check_dataset, choose_order
from resumable_data.loader.packed import PackedFetchDataset, PackedRequests
from resumable_data.loader.seeding import SeededFetchDataset
from resumable_data.packing import PackedSchedule, PackedTokens
from resumable_data.plan import require_count
from resumable_data.sampler import RankRows, TargetTokens

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import torch.utils.data
    from numpy.typing import NDArray

    from resumable_data.cursor import Cursor, Recipe
    from resumable_data.loader.fetch import Fetched
    from resumable_data.order import Order
    from resumable_data.packing import PackedRun
    from resumable_data.plan import RunSchedule, UpdateSpan
    from resumable_data.sampler import LossWeight, RankLayout
    from resumable_data.sampler.targets import NumTargetTokens, TargetCounts
    from resumable_data.sources import TokenSource


class Content(Protocol):
    """What positions of a run are, and how they are read.

    Attributes:
        default_normalize: What the gradient is a mean over where the user does not say.
        order: Of the samples, or of the documents that are packed.
        packed: The packed rows; None where samples are read.
        requests: What it is asked for.
    """

    default_normalize: str
    order: Order
    packed: PackedTokens | None
    requests: RequestQueue

    @property
    def fetcher(self) -> torch.utils.data.Dataset[Fetched]:
        """Reads a microbatch at a time, in a worker or in the training process."""
        ...

    def targets(self, normalize: str) -> TargetCounts | None:
        """What knows the target tokens of rows ahead; None where nothing does."""
        ...

    def first_cursor(
        self,
        *,
        global_batch: int | None,
        global_batch_tokens: int | None,
        tail: str,
        normalize: str,
        fingerprint: str | None,
    ) -> Cursor:
        """The cursor of a run that begins."""
        ...

    def describe_change(self, recipe: Recipe) -> str:
        """What became of the contents since a recipe was made, where that can be told; else empty."""
        ...

    def schedule(self, start: Cursor, epochs: int | None) -> RunSchedule:
        """How the run's positions are cut into updates from a cursor on. Rows are read by the newest one."""
        ...

    def rank_rows(self, schedule: RunSchedule, layout: RankLayout, weight: LossWeight) -> RankRows:
        """One rank's rows."""
        ...


class SampleContent:
    """The samples of a map-style dataset.

    Args:
        dataset: The user's.
        order: What is at each position; a `Shuffle` by `seed` when None.
        seed: See `ResumableLoader`, like all others.
        num_target_tokens: See there.
        collate_fn: See there.
        seed_samples: See there.
        on_unreadable: Where it is ``"filler"``, a sample that can be read stands in for one that cannot.
    """

    default_normalize = "samples"

    def __init__(
        self,
        dataset: Any,
        *,
        order: Order | None,
        seed: int,
        num_target_tokens: NumTargetTokens | None,
        collate_fn: Callable[[Any], Any] | None,
        seed_samples: bool,
        on_unreadable: str | None,
    ) -> None:
        length = check_dataset(dataset)
        self.packed: PackedTokens | None = None
        self.order = choose_order(order, length, seed)
        self._targets = None if num_target_tokens is None else TargetTokens(num_target_tokens, length=length)
        self.fetcher = (SeededFetchDataset if seed_samples else FetchDataset)(
            dataset, collate_fn or default_collate, seed=seed, substitutes=on_unreadable is not None
        )
        self.requests = RequestQueue(length)

    def targets(self, normalize: str) -> TargetCounts | None:
        """What the user gave."""
        return self._targets

    def first_cursor(
        self,
        *,
        global_batch: int | None,
        global_batch_tokens: int | None,
        tail: str,
        normalize: str,
        fingerprint: str | None,
    ) -> Cursor:
        """The cursor of a run that begins.

        Raises:
            UsageError: The batch is not given in samples.
        """
        if global_batch is None or global_batch_tokens is not None:
            raise UsageError(
                "expected global_batch=, the samples of an update; global_batch_tokens= is for PackedTokens, whose "
                "rows have their tokens counted before they are read."
            )
        return new_cursor(
            self.order, global_batch=global_batch, tail=tail, normalize=normalize, fingerprint=fingerprint
        )

    def describe_change(self, recipe: Recipe) -> str:
        """Nothing: a fingerprint is the user's own."""
        return ""

    def schedule(self, start: Cursor, epochs: int | None) -> RunSchedule:
        """How the run's positions are cut into updates."""
        return start.schedule(epochs)

    def rank_rows(self, schedule: RunSchedule, layout: RankLayout, weight: LossWeight) -> RankRows:
        """One rank's rows."""
        return RankRows(self.order, schedule=schedule, layout=layout, weight=weight)


class PackedContent:
    """The rows of packed tokens.

    Args:
        packed: The rows.
        collate_fn: Is given a microbatch's arrays as a dictionary of tensors, and returns its data.
        **unused: What the user gave that is for datasets of samples, or None or False.

    Raises:
        UsageError: Something was given that is for datasets of samples.
    """

    default_normalize = "tokens"

    def __init__(self, packed: PackedTokens, *, collate_fn: Callable[[Any], Any] | None, **unused: Any) -> None:
        for name, value in unused.items():
            if value is not None and value is not False:
                raise UsageError(f"{name}= is for a dataset of samples; packed rows have no use for it. Leave it out.")
        self.order = packed.order
        self.packed: PackedTokens | None = packed
        self._packed = packed
        self._schedule: PackedSchedule | None = None
        self.fetcher = PackedFetchDataset(packed.source, pad_token=packed.pad_token, transform=collate_fn)
        self.requests: RequestQueue = PackedRequests(self)

    @property
    def source(self) -> TokenSource:
        """The documents."""
        return self._packed.source

    @property
    def run(self) -> PackedRun:
        """The rows by position, of the newest schedule."""
        assert self._schedule is not None
        return self._schedule.run

    def targets(self, normalize: str) -> TargetCounts | None:
        """Rows know their labels ahead, unless these are to be counted because `collate_fn` masks some."""
        return None if normalize == "targets" else self

    def first_cursor(
        self,
        *,
        global_batch: int | None,
        global_batch_tokens: int | None,
        tail: str,
        normalize: str,
        fingerprint: str | None,
    ) -> Cursor:
        """The cursor of a run that begins.

        Raises:
            UsageError: The batch is not given in either rows or tokens.
        """
        batch = global_batch if global_batch_tokens is None else global_batch_tokens
        if batch is None or (global_batch is not None and global_batch_tokens is not None):
            raise UsageError(
                "expected either global_batch=, the rows of an update, or global_batch_tokens=, its tokens"
            )
        require_count("global_batch" if global_batch_tokens is None else "global_batch_tokens", batch)
        return new_cursor(
            self._packed,
            global_batch=batch,
            tail=tail,
            normalize=normalize,
            fingerprint=self._packed.fingerprint() if fingerprint is None else fingerprint,
            batch_unit=msgspec.UNSET if global_batch_tokens is None else "tokens",
        )

    def describe_change(self, recipe: Recipe) -> str:
        """What became of the documents since a recipe was made."""
        change = self._packed.describe_change(recipe.fingerprint or "") if recipe.is_packed else ""
        return change and f"The documents are not those of the saved cursor; {change}."

    def schedule(self, start: Cursor, epochs: int | None) -> PackedSchedule:
        """How the rows are cut into updates from a cursor on."""
        assert start.packed
        self._schedule = PackedSchedule(
            self._packed,
            start=start.packed,
            position=start.position,
            global_batch=start.recipe.global_batch,
            by_tokens=bool(start.recipe.batch_unit),
            epochs=epochs,
        )
        return self._schedule

    def rank_rows(self, schedule: RunSchedule, layout: RankLayout, weight: LossWeight) -> RankRows:
        """One rank's rows."""
        return RankRows(self.run, schedule=schedule, layout=layout, weight=weight)

    def count_rows(self, order: object, rows: NDArray[np.int64], span: UpdateSpan) -> NDArray[np.int64]:
        """Target tokens of rows: (k,) int64 to (k,) int64."""
        return self.run.targets(rows)


def content_of(dataset: Any, *, collate_fn: Callable[[Any], Any] | None, seed: int, **options: Any) -> Content:
    """What a loader reads; for the arguments see `SampleContent` and `PackedContent`."""
    if isinstance(dataset, PackedTokens):
        return PackedContent(dataset, collate_fn=collate_fn, **options)
    return SampleContent(dataset, collate_fn=collate_fn, seed=seed, **options)
