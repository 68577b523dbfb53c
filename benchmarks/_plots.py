"""The page's figures."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from statistics import median
from typing import Any

import matplotlib

from benchmarks._comparisons import Results

matplotlib.use("svg")
from matplotlib import pyplot  # after the choice of what it draws with

SIZE_INCHES = (9.0, 3.4)


def draw(results: Results, folder: Path) -> None:
    """Write a figure for each question that has one and was measured."""
    matplotlib.rcParams.update({"svg.hashsalt": "benchmarks", "svg.fonttype": "none", "font.size": 8})
    folder.mkdir(exist_ok=True)
    for question, name, plot in (
        ("remap_cost", "remap.svg", remap),
        ("loader_overhead", "loader.svg", loader),
        ("packed_loader", "packed.svg", packed),
    ):
        if question in results:
            figure, axes = pyplot.subplots(figsize=SIZE_INCHES, layout="constrained")
            plot(axes, results[question])
            figure.savefig(folder / name, metadata={"Date": None})
            pyplot.close(figure)


def remap(axes: Any, results: Mapping[str, Any]) -> None:
    """Seconds to the first IDs over the number of samples: a line for each loader, the median over moves."""
    lines: dict[str, dict[int, list[float]]] = {}
    for case, loaders in results["moves"].items():
        length = int(case.split()[0])
        for name, entry in loaders.items():
            if "s" in entry:
                lines.setdefault(name, {}).setdefault(length, []).append(entry["s"])
    for name, line in lines.items():
        is_ours = name == "resumable_data"
        axes.plot(
            list(line),
            [median(one) for one in line.values()],
            marker="o",
            markersize=3,
            linewidth=2.5 if is_ours else 1,
            label=name,
        )
    axes.set(xscale="log", yscale="log", xlabel="samples", ylabel="seconds to the first IDs after a move")
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))


def loader(axes: Any, results: Mapping[str, Any]) -> None:
    """Time of a batch over that of a plain DataLoader."""
    _bars(axes, results, lambda entry: entry["ratio"])
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set(ylabel="time of a batch, times a plain DataLoader's")


def packed(axes: Any, results: Mapping[str, Any]) -> None:
    """Tokens per second, with the copy's as a line of its own."""
    shown = {
        case: {name: one for name, one in loaders.items() if name != "memcpy"} for case, loaders in results.items()
    }
    _bars(axes, shown, lambda entry: entry["units_per_s"] / 1e6)
    axes.axhline(
        next(iter(results.values()))["memcpy"]["units_per_s"] / 1e6, color="black", linewidth=0.8, linestyle=":"
    )
    axes.set(yscale="log", ylabel="million tokens per second (dotted: memcpy)")


def _bars(axes: Any, results: Mapping[str, Any], value: Any) -> None:
    names = list(dict.fromkeys(name for one in results.values() for name, entry in one.items() if "median_s" in entry))
    width = 0.8 / len(names)
    for number, name in enumerate(names):
        places = [
            (at, loaders[name]) for at, loaders in enumerate(results.values()) if "median_s" in loaders.get(name, {})
        ]
        axes.bar([at + number * width for at, _ in places], [value(entry) for _, entry in places], width, label=name)
    axes.set_xticks([at + 0.4 - width / 2 for at in range(len(results))], list(results))
    axes.legend(loc="center left", bbox_to_anchor=(1.01, 0.5))
