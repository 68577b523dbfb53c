"""How one update lies over one rank set, in closed form: as cheap for a million ranks as for two."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from resumable_data.plan.batch_plan import BatchPlan


class Repeat(msgspec.Struct, frozen=True, kw_only=True):
    """`count` equal things of `size` rows, one after another."""

    count: int
    size: int


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """What a `BatchPlan` means for the ranks that run it.

    Attributes:
        num_replicas: Data-parallel ranks.
        microbatch: The largest number of rows that a rank holds at once.
        num_rows: Rows of the update that are still to be read.
        accumulation_steps: Microbatches of every rank.
        stretches: Rows of each microbatch over all ranks.
        microbatches: Rows of each microbatch on the busiest rank.
        smallest_microbatch: Rows of the last microbatch on the least busy rank; 0 where it has only filler.
        max_rows: Rows on the busiest rank.
        min_rows: Rows on the least busy rank.
        num_idle: Ranks that have only filler in the last microbatch.
        num_empty: Ranks that have only filler in all of them.
        num_filler: Filler rows of all ranks.
        idle_percent: Share of the ranks' time in which they compute no sample, where a row takes the same time
            everywhere and ranks wait for the busiest one.
        loss_scale: The factor for a microbatch's summed loss; None where it depends on each update's tokens.
        is_even: Whether every rank has the same number of rows in every microbatch.
    """

    num_replicas: int
    microbatch: int
    num_rows: int
    accumulation_steps: int
    stretches: tuple[Repeat, ...]
    microbatches: tuple[Repeat, ...]
    smallest_microbatch: int
    max_rows: int
    min_rows: int
    num_idle: int
    num_empty: int
    num_filler: int
    idle_percent: float
    loss_scale: float | None
    is_even: bool

    @property
    def largest_microbatch(self) -> int:
        """Rows of the first microbatch on the busiest rank."""
        return self.microbatches[0].size


def lay_out(plan: BatchPlan, *, pad_microbatches: bool, loss_scale: float | None) -> Layout:
    """The layout of the rows that `plan` has left.

    Args:
        plan: The update and the rank set.
        pad_microbatches: Whether filler rows bring every microbatch to exactly `plan.microbatch` rows.
        loss_scale: What `Layout.loss_scale` is to be.
    """
    ranks, steps, max_rows = plan.num_replicas, plan.accumulation_steps, plan.rows_per_replica
    shortest, longer = divmod(max_rows, steps)
    last_stretch = plan.rows_left - plan.cut(steps - 1) * ranks
    slots = ranks * (steps * plan.microbatch if pad_microbatches else max_rows)
    return Layout(
        num_replicas=ranks,
        microbatch=plan.microbatch,
        num_rows=plan.rows_left,
        accumulation_steps=steps,
        stretches=_joined((longer, (shortest + 1) * ranks), (steps - longer - 1, shortest * ranks), (1, last_stretch)),
        microbatches=_joined((longer, shortest + 1), (steps - longer, shortest)),
        smallest_microbatch=last_stretch // ranks,
        max_rows=max_rows,
        min_rows=plan.num_rows(ranks - 1),
        num_idle=plan.num_idle,
        num_empty=max(0, ranks - plan.rows_left),
        num_filler=slots - plan.rows_left if pad_microbatches else plan.num_idle,
        idle_percent=100 * (slots - plan.rows_left) / slots,
        loss_scale=loss_scale,
        is_even=plan.is_even,
    )


def _joined(*repeats: tuple[int, int]) -> tuple[Repeat, ...]:
    """(count, size) pairs without empty ones, and with neighbours of equal size made one."""
    joined: list[Repeat] = []
    for count, size in repeats:
        if joined and joined[-1].size == size:
            joined[-1] = Repeat(count=joined[-1].count + count, size=size)
        elif count:
            joined.append(Repeat(count=count, size=size))
    return tuple(joined)


def boundaries_around(plan: BatchPlan, row: int) -> tuple[int, int]:
    """The microbatch boundaries at or below, and above, row `row` of the update that `plan` splits.

    Args:
        plan: The whole update.
        row: In [0, plan.global_batch).

    Returns:
        Rows accumulated after some microbatch, and after the one that follows it; the second is at most
        `plan.global_batch`.
    """
    shortest, longer = divmod(plan.rows_per_replica, plan.accumulation_steps)
    rows = (row - plan.phase) // plan.num_replicas  # complete rows of every rank
    in_longer = longer * (shortest + 1)
    index = rows // (shortest + 1) if rows < in_longer else longer + (rows - in_longer) // shortest
    below = plan.phase + plan.cut(index) * plan.num_replicas
    above = plan.phase + plan.cut(index + 1) * plan.num_replicas
    return below, min(above, plan.global_batch)
