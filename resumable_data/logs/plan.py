"""What a log is compared with: how often each ID should be in it, and in which order."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from resumable_data.errors import UsageError
from resumable_data.logs.rows import NUM_IDS_MAX, NUM_RANKS_MAX
from resumable_data.order import Order

if TYPE_CHECKING:
    from resumable_data.order import Int64Array


NUM_EPOCHS_MAX = 1 << 20


class Exceptions(NamedTuple):
    """IDs that are planned more or less often than the others.

    Attributes:
        ids: (k,) int64, sorted, each once.
        times: (k,) int64, how often each is planned.
    """

    ids: Int64Array
    times: Int64Array


NO_EXCEPTIONS = Exceptions(np.empty(0, np.int64), np.empty(0, np.int64))


class LogPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What a run was meant to read; by default, each sample once.

    Attributes:
        num_samples: N: IDs are in [0, N). None where that is unknown.
        order: The order of the samples, of N; None to look at coverage alone.
        num_replicas: W, dp ranks: rank r reads offsets r, r + W, ..., as torch's DistributedSampler has it.
        drop_last: Whether the N mod W last samples of an epoch are left out, as DistributedSampler's argument says;
            else the first offsets are repeated until W divides the rows.
        epochs: Epochs of the log; None for one, or for those that the log names.
        first_epoch: The first of them.
        unfinished: Whether the run stopped before the end of its last epoch.
    """

    num_samples: int | None = None
    order: Order | None = None
    num_replicas: int | None = None
    drop_last: bool = False
    epochs: int | None = None
    first_epoch: int = 0
    unfinished: bool = False

    def check(self) -> None:
        """Refuse a plan that contradicts itself.

        Raises:
            UsageError: Says what.
        """
        bounds = {
            "num_samples": (1, NUM_IDS_MAX),
            "num_replicas": (1, NUM_RANKS_MAX),
            "epochs": (1, NUM_EPOCHS_MAX),
            "first_epoch": (0, 1 << 40),
        }
        for name, (low, high) in bounds.items():
            value = getattr(self, name)
            if value is not None and not (type(value) is int and low <= value <= high):
                raise UsageError(f"{name} must be an integer from {low} to {high}, got {value!r}")
        if self.order is None and (self.num_replicas is not None or self.drop_last or self.unfinished):
            raise UsageError(
                "num_replicas, drop_last and unfinished are about places in an order, and no order was given: which "
                "samples are repeated, dropped or still to come would be a guess. Say the order, or leave them out."
            )
        if self.drop_last and self.num_replicas is None:
            raise UsageError("drop_last drops what num_replicas does not divide; say num_replicas")
        if self.order is not None and len(self.order) != self.num_samples:
            raise UsageError(f"an order of {len(self.order)} samples does not fit num_samples={self.num_samples}")

    @property
    def rows_per_epoch(self) -> int:
        """Rows of all ranks in one epoch, repeats included; needs an order."""
        assert self.num_samples is not None
        ranks = self.num_replicas or 1
        of_a_rank = self.num_samples // ranks if self.drop_last else -(-self.num_samples // ranks)
        return of_a_rank * ranks

    @property
    def planned_samples(self) -> int:
        """Samples of one epoch that are not dropped; needs `num_samples`."""
        assert self.num_samples is not None
        return self.num_samples if self.order is None else min(self.num_samples, self.rows_per_epoch)

    def ids_at(self, epoch: int, rows: Int64Array) -> Int64Array:
        """The IDs of rows (k,) of an epoch, in [0, rows_per_epoch)."""
        assert self.order is not None
        return self.order.ids(epoch, rows % len(self.order))

    def exceptions(self, first_epoch: int, num_epochs: int) -> Exceptions:
        """The IDs that padding repeats or `drop_last` leaves out in some epochs together, where each is read once."""
        if self.order is None or self.rows_per_epoch == self.num_samples:
            return NO_EXCEPTIONS
        length, rows = len(self.order), self.rows_per_epoch
        change = 1 if rows > length else -1
        edges = np.arange(min(rows, length), max(rows, length), dtype=np.int64)
        parts = [self.ids_at(epoch, edges) for epoch in range(first_epoch, first_epoch + num_epochs)]
        ids, counts = np.unique(np.concatenate(parts), return_counts=True)
        return Exceptions(ids, num_epochs + change * counts.astype(np.int64))

    def describe(self) -> str:
        """The plan for people, empty where there is none."""
        if self.order is None:
            return ""
        parts = [repr(self.order)]
        if self.num_replicas is not None:
            parts.append(f"{self.num_replicas} ranks, {'drop_last' if self.drop_last else 'padded'}")
        if self.epochs is not None:
            parts.append(f"epochs {self.first_epoch}-{self.first_epoch + self.epochs - 1}")
        return ", ".join(parts)
