"""Who reads what in one update: the rule that splits its rows over any number of ranks."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.plan.alternatives import Alternatives

GRADIENT_REDUCTIONS = ("mean", "sum")


class BatchPlan(msgspec.Struct, frozen=True, kw_only=True, dict=True):
    """The rows of one update, split over `num_replicas` data-parallel ranks.

    Rows are numbered 0 .. global_batch - 1 from the update's start; `phase` of them are already
    accumulated. The rest is cut into `accumulation_steps` stretches, one microbatch of each rank;
    row ``p + j`` of a stretch that starts at ``p`` belongs to rank ``j mod num_replicas``. All
    stretches but the last are whole multiples of the rank count, so one rank's share of the update is
    every `num_replicas`-th row. Nothing has to divide anything::

        12 rows, 5 ranks, microbatch 1         rank 0   1   2   3   4
        stretch 0 = rows [0, 5)                     0   1   2   3   4
        stretch 1 = rows [5, 10)                    5   6   7   8   9
        stretch 2 = rows [10, 12)                  10  11   -   -   -     (ranks 2-4 run a filler row)

    Args:
        global_batch: Rows of the whole update, at least 1.
        microbatch: The largest number of rows a rank can hold at once, at least 1.
        num_replicas: Number of data-parallel ranks, at least 1.
        phase: Rows already accumulated, in [0, global_batch).

    Raises:
        UsageError: An argument is outside its range.

    >>> plan = BatchPlan(global_batch=256, microbatch=2, num_replicas=10)
    >>> plan.accumulation_steps, plan.rows_per_replica
    (13, 26)
    >>> plan.stretches[-1].tolist()
    [240, 256]
    """

    global_batch: int
    microbatch: int
    num_replicas: int
    phase: int = 0

    def __post_init__(self) -> None:
        for name in ("global_batch", "microbatch", "num_replicas"):
            require_count(name, getattr(self, name))
        if type(self.phase) is not int or not 0 <= self.phase < self.global_batch:
            raise UsageError(
                f"phase must be an integer in [0, {self.global_batch}), the rows of the update; got {self.phase!r}. "
                "An update whose rows are all accumulated has nothing left to plan: commit it."
            )

    @property
    def rows_left(self) -> int:
        """Rows of the update that are still to be read."""
        return self.global_batch - self.phase

    @property
    def rows_per_replica(self) -> int:
        """Rows that the busiest rank still reads in this update."""
        return -(-self.rows_left // self.num_replicas)

    @property
    def accumulation_steps(self) -> int:
        """Microbatches of every rank that are left in this update."""
        return -(-self.rows_per_replica // self.microbatch)

    def cut(self, index: int) -> int:
        """Rows of the busiest rank before microbatch `index`, in [0, rows_per_replica]."""
        shortest, longer = divmod(self.rows_per_replica, self.accumulation_steps)
        return index * shortest + min(index, longer)

    @cached_property
    def row_cuts(self) -> NDArray[np.int64]:
        """`cut(index)` for every index: (accumulation_steps + 1,) int64."""
        shortest, longer = divmod(self.rows_per_replica, self.accumulation_steps)
        index = np.arange(self.accumulation_steps + 1, dtype=np.int64)
        return index * shortest + np.minimum(index, longer)

    @cached_property
    def stretches(self) -> NDArray[np.int64]:
        """Half-open row ranges of the microbatches over all ranks: (accumulation_steps, 2) int64."""
        edges = np.minimum(self.phase + self.row_cuts * self.num_replicas, self.global_batch)
        return np.stack((edges[:-1], edges[1:]), axis=1)

    def num_rows(self, rank: int) -> int:
        """Rows that `rank` still reads in this update; ranks differ by at most one."""
        self._check_rank(rank)
        return max(0, -(-(self.rows_left - rank) // self.num_replicas))

    def share(self, rank: int) -> NDArray[np.int64]:
        """Rows that `rank` still reads in this update, in order: (num_rows(rank),) int64."""
        self._check_rank(rank)
        return np.arange(self.phase + rank, self.global_batch, self.num_replicas, dtype=np.int64)

    def shares(self) -> NDArray[np.int64]:
        """All ranks' shares, -1 where a rank has no row: (num_replicas, rows_per_replica) int64."""
        slots = self.num_replicas * self.rows_per_replica
        rows = np.arange(self.phase, self.phase + slots, dtype=np.int64)
        rows[self.rows_left :] = -1
        return np.ascontiguousarray(rows.reshape(self.rows_per_replica, self.num_replicas).T)

    def microbatch_rows(self, rank: int, index: int) -> NDArray[np.int64]:
        """Rows of `rank` in microbatch `index`, perhaps none: (k,) int64, k <= microbatch."""
        self._check_rank(rank)
        if not 0 <= index < self.accumulation_steps:
            raise UsageError(f"index must be in [0, {self.accumulation_steps}), got {index}")
        first = self.phase + rank + self.cut(index) * self.num_replicas
        stop = min(self.phase + self.cut(index + 1) * self.num_replicas, self.global_batch)
        return np.arange(first, stop, self.num_replicas, dtype=np.int64)

    def filler_row(self, index: int) -> int:
        """The row that a rank repeats, with weight zero, where it has no row in microbatch `index`."""
        return self.phase + self.cut(index) * self.num_replicas

    @property
    def num_idle(self) -> int:
        """Ranks that have no row of their own in the last microbatch, and run a filler row there."""
        last = self.rows_left - self.cut(self.accumulation_steps - 1) * self.num_replicas
        return max(0, self.num_replicas - last)

    @property
    def is_even(self) -> bool:
        """Whether every rank has the same number of rows in every microbatch."""
        return self.rows_left % self.num_replicas == 0

    def loss_scale(self, *, gradient_reduction: str = "mean", reduction_size: int | None = None) -> float:
        """The factor for the *sum* of a microbatch's per-sample losses.

        With it, the accumulated gradient, after the averaging (``"mean"``) or summing (``"sum"``) that the
        parallelism does over `reduction_size` ranks, is the mean over the update's `global_batch` rows,
        those before `phase` included.

        Args:
            gradient_reduction: What is done to gradients across ranks, ``"mean"`` (DDP, FSDP) or ``"sum"``.
            reduction_size: Ranks that gradients are reduced over; `num_replicas` when None.

        Raises:
            UsageError: An unknown reduction, or a size below 1.
        """
        size = self.num_replicas if reduction_size is None else reduction_size
        return loss_factor(gradient_reduction, size) / self.global_batch

    def alternatives(self) -> Alternatives:
        """Global batches and rank counts near this one for which nothing is uneven."""
        from resumable_data.plan.alternatives import find_alternatives

        return find_alternatives(self)

    def _check_rank(self, rank: int) -> None:
        if not 0 <= rank < self.num_replicas:
            raise UsageError(f"rank must be in [0, {self.num_replicas}), got {rank}")


def loss_factor(gradient_reduction: str, reduction_size: int) -> float:
    """What a sum of losses is multiplied by so that reducing it over the ranks gives the plain sum."""
    if gradient_reduction not in GRADIENT_REDUCTIONS:
        raise UsageError(f"gradient_reduction must be one of {GRADIENT_REDUCTIONS}, got {gradient_reduction!r}")
    require_count("reduction_size", reduction_size)
    return float(reduction_size) if gradient_reduction == "mean" else 1.0


def require_count(name: str, value: object) -> int:
    """Return `value` if it is an integer of at least 1.

    Raises:
        UsageError: It is not.
    """
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"{name} must be an integer of at least 1, got {value!r}")
    return value
