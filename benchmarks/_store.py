"""Results of several environments in one file: what one of them cannot run, another has measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

NOT_INSTALLED = "not installed"
"""The outcome of a loader that this environment lacks."""
_DIGITS = 4


def merge(stored: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    """A document with the new results in place of the stored ones, which stay where the new run had none.

    A ratio is always one of a single run: it travels with its loader, and no entry mixes figures of two runs. Each
    run's machine, command and time stay in ``runs``, the newest last, one for each command and set of packages.
    """
    run = _run_of(new)
    older = [one for one in stored.get("runs", [_run_of(stored)]) if _what(one) != _what(run)]
    return {**new, "runs": [*older, run], "results": _merged(stored["results"], new["results"])}


def _run_of(document: Mapping[str, Any]) -> dict[str, Any]:
    return {key: document[key] for key in ("command", "time", "machine")}


def _what(run: Mapping[str, Any]) -> tuple[str, dict[str, str]]:
    """What a later run has to share with a run to take its place."""
    return run["command"], run["machine"]["versions"]


def _merged(old: Any, new: Any) -> Any:
    if not isinstance(old, dict) or not isinstance(new, dict):
        return new
    if new.get("outcome") == NOT_INSTALLED:
        return old
    if is_measured(new):
        return new
    return {**old, **{key: _merged(old[key], value) if key in old else value for key, value in new.items()}}


def is_measured(entry: Mapping[str, Any]) -> bool:
    """Whether these are the figures of one case, all of them from one run."""
    return "outcome" in entry or (bool(entry) and not any(isinstance(value, dict) for value in entry.values()))


def rounded(value: Any) -> Any:
    """The same with four digits that count in each figure: the files are read by people, and compared by git."""
    if isinstance(value, dict):
        return {key: rounded(one) for key, one in value.items()}
    if isinstance(value, list):
        return [rounded(one) for one in value]
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value


def walk(results: Mapping[str, Any], *path: str) -> Iterator[tuple[tuple[str, ...], Mapping[str, Any]]]:
    """Every measured case under its names, the outermost first."""
    for name, entry in results.items():
        if isinstance(entry, dict) and is_measured(entry):
            yield (*path, name), entry
        elif isinstance(entry, dict):
            yield from walk(entry, *path, name)
