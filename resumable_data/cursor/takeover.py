"""Where another data loader's run stands, in the numbers of a cursor, so that it can be continued in mid-epoch."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import UsageError
from resumable_data.plan.batch_plan import require_count
from resumable_data.plan.schedule import Schedule

if TYPE_CHECKING:
    from resumable_data.cursor.recipe import Recipe


class TakeOver(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run had consumed under another loader: as somebody declared it, and recorded nowhere.

    Attributes:
        source: What it ran on, ``"distributed_sampler"`` or ``"consumed_samples"``.
        epoch: Epoch of the first sample that is read under a cursor.
        offset: Its place in that epoch.
        applied: Updates whose optimizer step was taken.
        skipped: Updates whose optimizer step was skipped.
        samples: Samples consumed.
        padding: Rows that repeated a sample.
        dropped: Samples before the take-over that were never read.
    """

    source: str
    epoch: int
    offset: int
    applied: int
    skipped: int = 0
    samples: int
    padding: int = 0
    dropped: int = 0

    @property
    def updates(self) -> int:
        """Updates before the take-over."""
        return self.applied + self.skipped

    def is_possible(self, length: int) -> bool:
        """Whether the numbers agree with each other, for epochs of `length` samples."""
        numbers = (self.epoch, self.offset, self.applied, self.skipped, self.samples, self.padding, self.dropped)
        position = self.epoch * length + self.offset
        return min(numbers) >= 0 and self.offset < length and self.samples + self.dropped == position

    def settled(self, recipe: Recipe) -> TakeOver:
        """The same at the place where the first update of the new run starts."""
        schedule = Schedule(length=recipe.length, global_batch=recipe.global_batch, tail=recipe.tail)
        place = schedule.settle(self.epoch, self.offset)
        return msgspec.structs.replace(
            self, epoch=place.epoch, offset=place.offset, dropped=self.dropped + place.dropped
        )


class SamplerRun(msgspec.Struct, frozen=True, kw_only=True):
    """A run on torch's DistributedSampler and DataLoader.

    Rank r of W reads entries r, r + W, r + 2W, ... of the epoch's permutation, which was cut or filled up to a multiple
    of W. So m rows of every rank are, together, the first m * W entries.

    Attributes:
        length: Samples of the dataset.
        num_replicas: Ranks, W.
        batch_size: Samples of one batch of one rank.
        drop_last: As the sampler had it.
        dataloader_drop_last: As the DataLoader had it.
        accumulation_steps: Batches of each rank in one optimizer step.

    Raises:
        UsageError: An argument is outside its range, or such a run has no batch.
    """

    length: int
    num_replicas: int
    batch_size: int
    drop_last: bool = False
    dataloader_drop_last: bool = False
    accumulation_steps: int = 1

    def __post_init__(self) -> None:
        for name in ("length", "num_replicas", "batch_size", "accumulation_steps"):
            require_count(name, getattr(self, name))
        for name in ("drop_last", "dataloader_drop_last"):
            _require_flag(name, getattr(self, name))
        if not self.batches_per_epoch:
            raise UsageError(
                f"{self.length} samples on {self.num_replicas} ranks in batches of {self.batch_size}, the rest "
                "dropped, make no batch at all: a run with these numbers never read a sample. Give those of the run "
                "that is to be continued."
            )

    @property
    def rows_per_rank(self) -> int:
        """Rows that the sampler gives each rank in an epoch."""
        return self.length // self.num_replicas if self.drop_last else -(-self.length // self.num_replicas)

    @property
    def batches_per_epoch(self) -> int:
        """Batches of each rank in an epoch."""
        if self.dataloader_drop_last:
            return self.rows_per_rank // self.batch_size
        return -(-self.rows_per_rank // self.batch_size)

    def consumed(self, batches: int) -> tuple[int, int]:
        """Samples and padding rows in the first `batches` batches of all ranks in an epoch.

        The samples are those at the first offsets of the epoch.
        """
        rows = min(batches * self.batch_size, self.rows_per_rank) * self.num_replicas
        return min(rows, self.length), max(0, rows - self.length)

    def updates(self, batches: int) -> int:
        """Optimizer steps after so many batches of an epoch, a shorter one at the epoch's end included."""
        if batches == self.batches_per_epoch:
            return -(-batches // self.accumulation_steps)
        return batches // self.accumulation_steps

    def committed(self, batches: int) -> int:
        """Batches of an epoch that were in an optimizer step after so many batches were read."""
        if batches == self.batches_per_epoch:
            return batches
        return self.updates(batches) * self.accumulation_steps

    def take_over(
        self, *, epoch: int, batches_per_rank: int, first_epoch: int, updates: int | None, skipped: int
    ) -> TakeOver:
        """Where the run stands in `epoch`; for the arguments see `Cursor.from_distributed_sampler`."""
        for name, value in (("epoch", epoch), ("batches_per_rank", batches_per_rank), ("first_epoch", first_epoch)):
            _require_number(name, value)
        if first_epoch > epoch:
            raise UsageError(
                f"first_epoch must be at most epoch={epoch}, the one under way; got {first_epoch}. It is the first "
                "number that set_epoch() was called with."
            )
        self._check_batches(batches_per_rank)
        is_over = batches_per_rank == self.batches_per_epoch
        samples, padding = self.consumed(self.committed(batches_per_rank))
        whole_samples, whole_padding = self.consumed(self.batches_per_epoch)
        num_epochs = epoch - first_epoch
        counted = num_epochs * self.updates(self.batches_per_epoch) + self.updates(batches_per_rank)
        num_updates = counted if updates is None else updates
        all_samples = num_epochs * whole_samples + samples
        position = (epoch + 1) * self.length if is_over else epoch * self.length + samples
        return TakeOver(
            source="distributed_sampler",
            epoch=position // self.length,
            offset=position % self.length,
            applied=_applied(num_updates, skipped),
            skipped=skipped,
            samples=all_samples,
            padding=num_epochs * whole_padding + padding,
            dropped=position - all_samples,
        )

    def _check_batches(self, batches_per_rank: int) -> None:
        if batches_per_rank > self.batches_per_epoch:
            raise UsageError(
                f"batches_per_rank must be at most {self.batches_per_epoch}, the batches that each rank gets in one "
                f"epoch of {self.length} samples on {self.num_replicas} ranks in batches of {self.batch_size}; got "
                f"{batches_per_rank}. With a wrong count samples would be repeated or skipped. Count the batches of "
                "the epoch under way, on one rank, and give its number as epoch=."
            )


def take_over_consumed(
    *,
    length: int,
    consumed_samples: int,
    global_batch: int,
    samples_per_epoch: int | None,
    updates: int | None,
    skipped: int,
) -> TakeOver:
    """Where a run stands that counted the samples it consumed; see `Cursor.from_consumed_samples`.

    Raises:
        UsageError: An argument is outside its range, or `updates` is needed.
    """
    _require_number("consumed_samples", consumed_samples)
    require_count("global_batch", global_batch)
    kept = require_count("samples_per_epoch", length if samples_per_epoch is None else samples_per_epoch)
    if kept > length:
        raise UsageError(
            f"samples_per_epoch must be at most {length}, the samples of the order; got {kept}. Samples would be "
            "skipped; where an epoch repeated some, give their number before repetition."
        )
    if updates is None:
        updates, rest = divmod(consumed_samples, global_batch)
        if rest:
            raise UsageError(
                f"{consumed_samples} consumed samples are no whole number of updates of global_batch={global_batch}, "
                "so the updates taken are not known. Give updates=, the optimizer steps of the old run."
            )
    epoch, offset = divmod(consumed_samples, kept)
    return TakeOver(
        source="consumed_samples",
        epoch=epoch,
        offset=offset,
        applied=_applied(updates, skipped),
        skipped=skipped,
        samples=consumed_samples,
        dropped=epoch * (length - kept),
    )


def _applied(updates: int, skipped: int) -> int:
    _require_number("updates", updates)
    _require_number("skipped", skipped)
    if skipped > updates:
        raise UsageError(f"skipped must be at most the {updates} updates of the old run, got {skipped}")
    return updates - skipped


def _require_number(name: str, value: object) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise UsageError(f"{name} must be an integer of at least 0, got {value!r}")


def _require_flag(name: str, value: object) -> None:
    if not isinstance(value, bool):
        raise UsageError(f"{name} must be True or False, got {value!r}")
