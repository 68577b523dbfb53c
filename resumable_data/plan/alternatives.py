"""Layouts near a given one in which every microbatch is full and every rank has the same share."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.plan.batch_plan import BatchPlan

NUM_NEAREST = 3
"""How many rank counts are given below the plan's own, and how many above it."""

MAX_NUM_REPLICAS = 2**20
"""Rank counts above this are not looked for: the search takes the same few milliseconds for any global batch."""

_CHUNK = 2**16


class Alternatives(msgspec.Struct, frozen=True, kw_only=True):
    """What a person may prefer to an uneven layout.

    Rank counts are the nearest to the plan's own: at most `NUM_NEAREST` below it, itself where it qualifies, and at
    most `NUM_NEAREST` above it, up to `MAX_NUM_REPLICAS`.

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
        num_replicas=() if not_full else nearest_divisors(full, plan.num_replicas),
        num_replicas_equal=nearest_divisors(plan.global_batch, plan.num_replicas),
    )


def nearest_divisors(number: int, near: int) -> tuple[int, ...]:
    """Divisors of `number` nearest to `near`, ascending, those above `MAX_NUM_REPLICAS` not considered.

    Args:
        number: From 1 to 2**63 - 1.
        near: At least 1.

    Returns:
        At most `NUM_NEAREST` below `near`, `near` where it divides, and at most `NUM_NEAREST` above it.

    >>> nearest_divisors(256, 10)
    (2, 4, 8, 16, 32, 64)
    """
    last = min(number, MAX_NUM_REPLICAS)
    below = islice(_divisors_down(number, min(near - 1, last)), NUM_NEAREST)
    above = islice(_divisors_up(number, near + 1, last), NUM_NEAREST)
    itself = (near,) if number % near == 0 else ()
    return (*reversed(tuple(below)), *itself, *above)


def _divisors_down(number: int, first: int) -> Iterator[int]:
    """Divisors of `number` from `first` down to 1."""
    for stop in range(first + 1, 1, -_CHUNK):
        yield from reversed(_divisors_between(number, max(1, stop - _CHUNK), stop))


def _divisors_up(number: int, first: int, last: int) -> Iterator[int]:
    """Divisors of `number` from `first` up to `last`."""
    for start in range(first, last + 1, _CHUNK):
        yield from _divisors_between(number, start, min(start + _CHUNK, last + 1))


def _divisors_between(number: int, start: int, stop: int) -> list[int]:
    candidates = np.arange(start, stop, dtype=np.int64)
    found: list[int] = candidates[number % candidates == 0].tolist()
    return found
