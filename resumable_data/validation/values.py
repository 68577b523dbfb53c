"""How far loss and norms of two traces are apart, and what that says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable_data.validation.comparison import Compared
from resumable_data.validation.findings import TraceFinding
from resumable_data.validation.limits import (
    CEILING,
    QUANTITIES,
    ROUNDING,
    deviations,
    limit_of,
    noise_of,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from resumable_data.validation.trace import UpdateRecord

    Records = Sequence[UpdateRecord]

_CODES = dict(zip(QUANTITIES, ("RD911", "RD912", "RD913"), strict=True))


def compare_values(
    ours: Records, theirs: Records, repeats: Sequence[Records], given: Mapping[str, float], floor: float
) -> tuple[Compared, ...]:
    """Each quantity that two records of the same updates have.

    Args:
        ours: The control's.
        theirs: The candidate's.
        repeats: Of the control.
        given: Limits that were declared, by quantity.
        floor: See `floor_of`.
    """
    found = []
    for name in QUANTITIES if ours else ():
        a, b = _values(ours, name), _values(theirs, name)
        if a is not None and b is not None:
            repeated = [values for one in repeats if (values := _values(one, name)) is not None]
            noise = noise_of([a, *repeated]) if repeated else None
            found.append(_compare(name, ours[0].update, deviations(a, b), given.get(name), noise, floor))
    return tuple(found)


def _compare(
    name: str, first_update: int, apart: NDArray[np.float64], given: float | None, noise: float | None, floor: float
) -> Compared:
    limit = limit_of(given, noise, floor)
    at = int(apart.argmax())
    beyond = np.flatnonzero(apart > limit.value)
    return Compared(
        name=name,
        largest=float(apart[at]) if np.isfinite(apart[at]) else None,
        at_update=first_update + at,
        first=float(apart[0]) if np.isfinite(apart[0]) else None,
        limit=limit.value,
        limit_source=limit.source,
        noise=noise,
        first_excess=first_update + int(beyond[0]) if beyond.size else None,
        excesses=int(beyond.size),
    )


def _values(records: Records, quantity: str) -> NDArray[np.float64] | None:
    """A quantity of each update: (n,) float64; None where one of them does not have it."""
    values = [getattr(record, quantity) for record in records]
    return None if None in values else np.array(values, np.float64)


def judge_values(quantities: Sequence[Compared], ours: Records, theirs: Records) -> list[TraceFinding]:
    """What is missing of loss and norms, and what is beyond its limit."""
    names = {one.name for one in quantities}
    found = [
        TraceFinding.about("RD924", name, expected="a value at each update", found="none in one of the traces")
        for name in QUANTITIES
        if ours and name not in names and any(getattr(r, name) is not None for r in (*ours, *theirs))
    ]
    for one in quantities:
        if one.first_excess is not None:
            at = one.first_excess - ours[0].update
            found.append(_excess(one, getattr(ours[at], one.name), getattr(theirs[at], one.name)))
    return found


def _excess(one: Compared, ours: float, theirs: float) -> TraceFinding:
    """The finding for a quantity beyond its limit; without repeats it may be noise, up to 1 %."""
    may_be_noise = one.limit_source == ROUNDING and one.largest is not None and one.largest <= CEILING
    apart = float(deviations(np.array([ours]), np.array([theirs]))[0])
    return TraceFinding.about(
        "RD922" if may_be_noise else _CODES[one.name],
        f"{one.name} of update {one.first_excess}",
        expected=f"{ours:.9g}, within {one.limit:.2g}",
        found=f"{theirs:.9g}, {apart:.2g} away",
        count=one.excesses,
        first_update=one.first_excess,
    )


def judge_limits(quantities: Sequence[Compared], hidden: Sequence[str]) -> list[TraceFinding]:
    """What the limits themselves leave open."""
    found = []
    if any(one.limit_source == ROUNDING for one in quantities):
        found.append(TraceFinding.about("RD931", "repeats", expected="2 or more", found="none"))
    if hidden and quantities:
        limits = ", ".join(f"{one.name} {one.limit:.2g}" for one in quantities)
        more = f", and {len(hidden) - 1} more" if len(hidden) > 1 else ""
        expected = "limits of at most half of what a fault does"
        found.append(
            TraceFinding.about("RD921", "limits", expected=expected, found=f"{limits}; may hide: {hidden[0]}{more}")
        )
    return found
