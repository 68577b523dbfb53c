"""Markdown of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks._store import NOT_INSTALLED


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table; all columns but the first are numbers, and to the right."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in lines)


def seconds(value: float) -> str:
    """With the unit that suits it."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if value >= size:
            return f"{value / size:.3g} {unit}"
    return f"{value * 1e6:.3g} µs"


def count(value: float) -> str:
    """Of something, in thousands, millions or billions."""
    for unit, size in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if value >= size:
            return f"{value / size:.3g}{unit}"
    return f"{value:.3g}"


def times(value: float) -> str:
    """How many times as much."""
    return f"{value:,.0f} x" if value >= 10 else f"{value:.2f} x"


def large(value: int) -> str:
    """A number of samples or ranks, as a power of ten where it is one."""
    power = len(str(value)) - 1
    return f"10^{power}" if value == 10**power and power > 3 else f"{value:,}".replace(",", " ")


def outcome(entry: Mapping[str, Any] | None) -> str | None:
    """Why there is no figure; None where there is one."""
    if entry is None:
        return "not measured"
    found = entry.get("outcome", "read")
    if found == "read":
        return None
    return {NOT_INSTALLED: "not installed", "failed": "fails", "refused": "refuses"}.get(str(found), str(found))
