"""A picture of two traces, with matplotlib, which only this module needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import TraceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.validation.limits import deviations

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from resumable_data.validation.comparison import Compared, TraceComparison
    from resumable_data.validation.trace import Trace


def plot_traces(
    path: Path, report: TraceComparison, control: Trace, candidate: Trace, repeats: Sequence[Trace] = ()
) -> None:
    """Draw each compared quantity of both traces, and under it how far they are apart, with the limit.

    Args:
        path: The picture; its name's ending says what kind, ``.png`` or ``.svg``, say.
        report: What the comparison said.
        control: The control.
        candidate: The run that was judged.
        repeats: Further traces of the control.

    Raises:
        UsageError: matplotlib is not installed, cannot write pictures of this kind, or nothing was compared.
        TraceError: The file cannot be written.
    """
    figure_of = _matplotlib()
    if not report.quantities:
        raise UsageError("expected updates that both traces have, found none: there is nothing to draw.")
    figure = figure_of(figsize=(4.5 * len(report.quantities), 6), layout="constrained")
    axes = figure.subplots(2, len(report.quantities), sharex=True, squeeze=False)
    for column, one in enumerate(report.quantities):
        _draw(axes[0][column], axes[1][column], one, report, [control, candidate, *repeats])
    figure.suptitle(report.verdict)
    try:
        figure.savefig(path)
    except OSError as error:
        raise TraceError(
            f"cannot write {shown(path)}: {error.strerror}. The comparison itself is not concerned."
        ) from None
    except ValueError as error:
        raise UsageError(f"cannot draw {shown(path)}: {error}") from None


def _matplotlib() -> Any:
    """Matplotlib's Figure: without pyplot there is no window, and nothing global."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise UsageError(
            "--plot needs matplotlib, which is not installed: install it with pip install 'resumable-data[plot]', or "
            "leave --plot out. Nothing was drawn."
        ) from None
    return Figure


def _draw(values: Any, apart: Any, one: Compared, report: TraceComparison, traces: Sequence[Trace]) -> None:
    """One quantity: its values, and the deviations from the first trace."""
    labels = ["control", "candidate", *(f"repeat {number}" for number in range(1, len(traces) - 1))]
    start, stop = report.first_update, report.first_update + report.updates
    by_update = [
        {r.update: getattr(r, one.name) for r in trace.updates if start <= r.update < stop} for trace in traces
    ]
    for label, found in zip(labels, by_update, strict=True):
        style = "-" if label in ("control", "candidate") else ":"
        values.plot(list(found), list(found.values()), style, label=label)
        both = [update for update in by_update[0] if found.get(update) is not None]
        if label != "control" and both:
            a = np.array([by_update[0][update] for update in both], np.float64)
            b = np.array([found[update] for update in both], np.float64)
            apart.plot(both, deviations(a, b), style, label=label)
    values.set_title(one.name)
    values.legend()
    apart.axhline(one.limit, color="red", linestyle="--", label="limit")
    apart.set_yscale("log")
    apart.set_xlabel("update")
    apart.set_ylabel("relative deviation")
    apart.legend()
