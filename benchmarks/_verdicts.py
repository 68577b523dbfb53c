"""Whether a figure is still what it was: ratios compared with committed ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

LARGEST_LOSS = 0.25
"""Of speed, compared with the committed ratio."""

Ratios = Mapping[str, float]


def losses(committed: Ratios, measured: Ratios) -> dict[str, float]:
    """The share of its speed that each case lost; negative where it gained.

    A ratio is the time of the case over that of its reference in the same run, so a slow machine changes both.

    Raises:
        KeyError: A committed case was not measured, or the other way round: then nothing guards it.
    """
    if committed.keys() != measured.keys():
        raise KeyError(f"committed and measured cases differ: {sorted(committed.keys() ^ measured.keys())}")
    return {name: 1 - committed[name] / measured[name] for name in committed}


def failing(committed: Ratios, measure: Callable[[Sequence[str]], Ratios]) -> dict[str, float]:
    """The cases that lost too much, twice: what fails is measured again before it is believed.

    Args:
        committed: Ratios of all cases.
        measure: Gives the ratios of the cases named.

    Returns:
        Case to the smaller of its two losses.
    """
    first = losses(committed, measure(list(committed)))
    suspects = {name: loss for name, loss in first.items() if loss > LARGEST_LOSS}
    if not suspects:
        return {}
    again = losses({name: committed[name] for name in suspects}, measure(list(suspects)))
    smaller = {name: min(loss, again[name]) for name, loss in suspects.items()}
    return {name: loss for name, loss in smaller.items() if loss > LARGEST_LOSS}
