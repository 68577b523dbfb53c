"""How far two traces may be apart: what the control's own variation allows, and which faults that would hide.

The rule, for each of loss, gradient norm and update norm:

* noise: the largest relative deviation between any two of the control and its repeats, over the compared updates;
* limit: 4 times that, at least the floor of the dtype that the model computes in, at most 1 %.

A limit that is given takes its place. A fault is hidden where neither the loss nor the gradient norm would leave its
limit by as much again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

LOSS = "loss"
GRADIENT_NORM = "gradient_norm"
UPDATE_NORM = "update_norm"
QUANTITIES = (LOSS, GRADIENT_NORM, UPDATE_NORM)

CEILING = 0.01
MULTIPLE = 4.0
SEEN_FACTOR = 2.0
MIN_UPDATES = 20

GIVEN, REPEATS, ROUNDING = "given", "repeats", "rounding"

FLOORS = {
    "float64": 2.0**-46,
    "float32": 2.0**-17,
    "tf32": 2.0**-11,
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
}
"""What another order of summation may do to 20 updates. float64 and float32: 64 steps of the last bit; a small model in
float32 moved by 2 from 4 ranks to 3 and 2, and larger ones sum over more. Narrower dtypes: one step of what a single
number is rounded to, which is assumed and was not measured."""


class Fault(NamedTuple):
    """What a fault did to 20 updates: largest relative deviations.

    Attributes:
        name: The fault.
        loss: Of the loss.
        gradient_norm: Of the gradient norm.
    """

    name: str
    loss: float
    gradient_norm: float


FAULTS = (
    Fault("weight decay dropped", 1e-4, 4e-4),
    Fault("one mantissa bit (20) of one weight", 1e-4, 5e-4),
    Fault("weights rounded to bfloat16", 9e-4, 1.5e-3),
    Fault("a moment of one bias zeroed", 1.4e-3, 1.4e-3),
    Fault("step counter off by one", 2.7e-3, 1e-3),
    Fault("all moments lost", 5e-2, 1e-2),
    Fault("data one sample late", 2.6e-2, 2.5e-2),
)
"""Measured on a small language model in float32, with AdamW, from a checkpoint of 4 ranks."""


class Limit(NamedTuple):
    """How far one quantity may be apart.

    Attributes:
        value: The largest relative deviation that is taken for none.
        source: ``"given"``, ``"repeats"`` or ``"rounding"``.
    """

    value: float
    source: str


def deviations(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """How far values are apart, relative to the larger one: (n,), (n,) -> (n,), infinite where one is not finite."""
    finite = np.isfinite(a) & np.isfinite(b)
    largest = np.maximum(np.abs(a), np.abs(b))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(a / 2 - b / 2) / np.where(finite & (largest > 0), largest / 2, 1.0)
    same_kind = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(finite, apart, np.where(same_kind, 0.0, np.inf))


def noise_of(values: Sequence[NDArray[np.float64]]) -> float:
    """The largest deviation between any two of several traces of one quantity: each (n,)."""
    pairs = [deviations(a, b).max(initial=0.0) for at, a in enumerate(values) for b in values[:at]]
    return float(max(pairs, default=0.0))


def floor_of(dtypes: Sequence[str]) -> float:
    """The floor of the widest rounding; that of float32 for a dtype that is not known."""
    return max(FLOORS.get(dtype, FLOORS["float32"]) for dtype in dtypes)


def limit_of(given: float | None, noise: float | None, floor: float) -> Limit:
    """The limit of one quantity.

    Args:
        given: What was declared, if it was.
        noise: Of the control against its repeats; None without any.
        floor: Of the dtype.
    """
    if given is not None:
        return Limit(given, GIVEN)
    if noise is None or MULTIPLE * noise <= floor:
        return Limit(min(floor, CEILING), ROUNDING if noise is None else REPEATS)
    return Limit(min(MULTIPLE * noise, CEILING), REPEATS)


def hidden_faults(limits: Mapping[str, float]) -> tuple[str, ...]:
    """Names of the faults that limits would hide, given for the quantities that were compared."""
    return tuple(
        fault.name
        for fault in FAULTS
        if not any(
            SEEN_FACTOR * limits[name] <= size
            for name, size in ((LOSS, fault.loss), (GRADIENT_NORM, fault.gradient_norm))
            if name in limits
        )
    )


def check_limits(limits: Mapping[str, float]) -> None:
    """Make sure that limits are of known quantities, and not wider than 1 %.

    Raises:
        UsageError: One is not.
    """
    for name, value in limits.items():
        if name not in QUANTITIES:
            raise UsageError(
                f"expected limits of {', '.join(QUANTITIES)}; found one of {name!r}. Nothing was compared."
            )
        if not 0 < value <= CEILING:
            raise UsageError(
                f"expected a limit of {name} above 0 and at most {CEILING:g}, found {value:g}: a wider one would pass "
                "faults that matter. Nothing was compared; record repeats of the control and derive it from them."
            )
