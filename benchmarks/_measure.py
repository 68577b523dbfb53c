"""How every benchmark here measures and reports: interleaved repeats, medians, the machine, JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmarks._store import merge, rounded

SCHEMA_VERSION = 1
PACKAGES = (
    "torch",
    "numpy",
    "msgspec",
    "xxhash",
    "torchdata",
    "accelerate",
    "mosaicml-streaming",
    "grain",
    "ai2-olmo-core",
    "litdata",
    "trl",
    "datasets",
)
"""Distributions whose releases a report names, where they are installed: what we stand on, and other loaders."""


def interleave(
    cases: Mapping[str, Callable[[], object]], repeats: int, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Time each case ``repeats`` times, in turns, so that a slow minute of the machine meets all of them.

    Args:
        cases: name to callable. One that returns a float has measured itself: seconds per unit of its own. Of any
            other the call is timed. Each is called once before, untimed, to warm up.
        repeats: number of rounds, at least 1.
        clock: seconds; ``time.thread_time`` counts the calling thread's own work, whatever else the machine does.

    Returns:
        Name to the seconds of each round.
    """
    for run in cases.values():
        run()
    seconds: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats):
        names = list(cases)
        for name in names if turn % 2 == 0 else reversed(names):
            started = clock()
            measured = cases[name]()
            elapsed = clock() - started
            seconds[name].append(measured if isinstance(measured, float) else elapsed)
            del measured  # here, not when the next case's answer takes its place: freeing may take long
    return seconds


def summarise(
    seconds: Mapping[str, list[float]], *, reference: str | None = None, units: Mapping[str, int] | None = None
) -> dict[str, dict[str, float]]:
    """Median, best and worst of each case.

    Args:
        seconds: as `interleave` returns them.
        reference: a case; each gets ``ratio``, the median over rounds of its seconds per unit over the reference's
            of the same round.
        units: how many units (IDs, say) a run of each case handles, 1 where not given; adds ``units_per_s``.
    """
    result: dict[str, dict[str, float]] = {}
    counts = units or {}
    for name, rounds in seconds.items():
        per_unit = [value / counts.get(name, 1) for value in rounds]
        result[name] = {"median_s": statistics.median(rounds), "best_s": min(rounds), "worst_s": max(rounds)}
        if units is not None:
            result[name]["units_per_s"] = 1 / statistics.median(per_unit)
        if reference is not None:
            others = [value / counts.get(reference, 1) for value in seconds[reference]]
            result[name]["ratio"] = statistics.median(a / b for a, b in zip(per_unit, others, strict=True))
    return result


def machine() -> dict[str, Any]:
    """What the numbers were measured on."""
    versions = {name: found for name in PACKAGES if (found := _installed(name)) is not None}
    return {
        "cpu": _cpu_name(),
        "num_cpus": os.cpu_count(),
        "load_average": list(os.getloadavg()),
        "python": platform.python_version(),
        "system": platform.platform(),
        "versions": versions,
    }


def _installed(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def add_output_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--output FILE``, where `report` writes its JSON as well, and ``--merge``."""
    parser.add_argument("--output", type=Path, default=None, metavar="FILE", help="write the JSON to FILE as well")
    parser.add_argument(
        "--merge",
        action="store_true",
        help="keep what FILE has of loaders that are not installed here, or not asked for",
    )


def report(question: str, results: Mapping[str, Any], arguments: argparse.Namespace) -> None:
    """Print the results as JSON on standard output, and write them where ``--output`` says."""
    document = {
        "schema_version": SCHEMA_VERSION,
        "question": question,
        "command": f"python -m benchmarks.{question}{_options(sys.argv[1:])}",
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "machine": machine(),
        "results": results,
    }
    output: Path | None = arguments.output
    if output is not None and arguments.merge and output.exists():
        document = merge(json.loads(output.read_text()), document)
    text = json.dumps(rounded(document), indent=1) + "\n"
    sys.stdout.write(text)
    if output is not None:
        output.write_text(text)


def _options(arguments: Sequence[str]) -> str:
    """Those that say what was measured, not where it was written."""
    kept = list(arguments)
    if "--output" in kept:
        at = kept.index("--output")
        del kept[at : at + 2]
    return "".join(f" {shlex.quote(one)}" for one in kept if one != "--merge")


def add_only_argument(parser: argparse.ArgumentParser) -> None:
    """Add ``--only``: ours is measured all the same, as the reference, and not reported."""
    parser.add_argument("--only", default="", help="report loaders whose name contains it")
