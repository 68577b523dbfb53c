"""What loaders do to the data of a move, as tables for the README and the page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks._tables import outcome, table

LONGEST = 240
README_COLUMNS = {
    "4 to 2 ranks": "4→2",
    "2 to 4 ranks": "2→4",
    "4 to 3 ranks": "4→3",
    "16 to 10 ranks": "16→10",
    "saved after an epoch": "end of epoch",
    "1 to 3 workers": "workers 1→3",
    "another seed": "other seed",
}
COLUMNS = {**README_COLUMNS, "saved after its last step": "last step"}
SHORT_NAMES = {
    "DistributedSampler, epoch restarted": "DistributedSampler, restarted",
    "DistributedSampler, batches skipped": "DistributedSampler, skipped",
    "torchdata StatefulDataLoader": "StatefulDataLoader",
    "Accelerate skip_first_batches": "Accelerate, skip_first_batches",
}


def cell(entry: Mapping[str, Any] | None) -> str:
    """What happened, in a word or two counts."""
    why = outcome(entry)
    if entry is None or why is not None:
        return why or ""
    counts = [f"+{entry['replayed']}"] if entry["replayed"] else []
    counts += [f"-{entry['omitted']}"] if entry["omitted"] else []
    if entry.get("empty_passes"):
        counts.append("empty pass")
    return " ".join(counts) or "exact"


def moves_table(results: Mapping[str, Any], columns: Mapping[str, str]) -> str:
    """A row for each loader that was measured."""
    rows = [
        [f"{SHORT_NAMES.get(name, name)}{_release(loader)}", *(cell(loader.get(scenario)) for scenario in columns)]
        for name, loader in results.items()
        if "version" in loader
    ]
    return table(["", *columns.values()], rows)


def _release(loader: Mapping[str, Any]) -> str:
    return f" {loader['version']}" if loader["package"] else ""


def reasons(results: Mapping[str, Any]) -> list[str]:
    """What those that refused said, each once."""
    lines: dict[str, None] = {}
    for name, loader in results.items():
        for entry in loader.values():
            if isinstance(entry, dict) and entry.get("outcome") in ("refused", "failed"):
                lines[f"* {name}: {_sentence(entry['why'])}"] = None
    return list(lines)


def _sentence(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = " ".join(lines[-1:] if "Traceback" in text else lines).replace("`", "'")
    return f"`{said if len(said) <= LONGEST else said[:LONGEST] + ' ...'}`"


def readme_table(results: Mapping[str, Any]) -> str:
    """The table of the README's first screen."""
    return moves_table(results, README_COLUMNS)
