"""Layouts near a given one in which every microbatch is full and every rank has the same share."""

from __future__ import annotations

from dataclasses import dataclass
from math import isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.plan.batch_plan import BatchPlan


@dataclass(frozen=True, kw_only=True)
class Alternatives:
    """What a person may prefer to an uneven layout.

    Attributes:
        global_batches: The nearest global batches, below and above (one value where it divides
            already), that fill every microbatch of every rank.
        num_replicas: Rank counts that divide the global batch into full microbatches, ascending.
        num_replicas_equal: Rank counts that give every rank the same number of rows, ascending.
    """

    global_batches: tuple[int, ...]
    num_replicas: tuple[int, ...]
    num_replicas_equal: tuple[int, ...]


def find_alternatives(plan: BatchPlan) -> Alternatives:
    """The alternatives to `plan`, from its global batch, microbatch and number of ranks."""
    step = plan.num_replicas * plan.microbatch
    below, rest = divmod(plan.global_batch, step)
    batches = (below,) if rest == 0 else (below, below + 1)
    full, not_full = divmod(plan.global_batch, plan.microbatch)
    return Alternatives(
        global_batches=tuple(count * step for count in batches if count),
        num_replicas=() if not_full else divisors(full),
        num_replicas_equal=divisors(plan.global_batch),
    )


def divisors(number: int) -> tuple[int, ...]:
    """All divisors of `number`, ascending; takes the square root of it in steps."""
    small = [d for d in range(1, isqrt(number) + 1) if number % d == 0]
    large = [number // d for d in reversed(small) if d * d != number]
    return (*small, *large)
