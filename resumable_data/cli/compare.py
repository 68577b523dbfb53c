"""``resumable-data compare``: whether a run does after a move what it did before."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.validation.compare import compare_traces
from resumable_data.validation.limits import MIN_UPDATES, QUANTITIES
from resumable_data.validation.trace import Trace

if TYPE_CHECKING:
    from resumable_data.validation.comparison import TraceComparison


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "compare",
        help="compare the trace of a run with that of a control",
        description="Says pass, deviates, not distinguishable or unproven, and where the two first differed.",
        epilog="exit codes: 0 pass, 1 deviates, not distinguishable or unproven, 2 usage, 3 a trace is damaged or "
        "cannot be read",
    )
    parser.add_argument("control", type=Path, metavar="CONTROL", help="the trace of the run that is known to be right")
    parser.add_argument("candidate", type=Path, metavar="CANDIDATE", help="the trace that is judged")
    parser.add_argument(
        "--repeat",
        type=Path,
        action="append",
        default=[],
        metavar="TRACE",
        help="the control's updates once more, on its ranks: limits are derived from it; may be given several times",
    )
    parser.add_argument(
        "--limit",
        type=_limit,
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help=f"a relative deviation that is allowed, at most 0.01, of {', '.join(QUANTITIES)}",
    )
    parser.add_argument(
        "--first-update", type=int, metavar="N", help="where CANDIDATE is meant to start (default: where CONTROL does)"
    )
    parser.add_argument(
        "--min-updates",
        type=int,
        default=MIN_UPDATES,
        metavar="N",
        help="how many updates must be compared (default: %(default)s)",
    )
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw the traces into a picture (needs matplotlib)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Compare, print the report, and return the exit code."""
    control, candidate = Trace.read(args.control), Trace.read(args.candidate)
    repeats = [Trace.read(path) for path in args.repeat]
    report = compare_traces(
        control,
        candidate,
        repeats=repeats,
        limits=dict(args.limit),
        first_update=args.first_update,
        min_updates=args.min_updates,
    )
    if args.plot is not None:
        _plot(args.plot, report, control, candidate, repeats)
    print(report.to_json().decode() if args.json else report.to_text())
    return report.exit_code


def _plot(path: Path, report: TraceComparison, control: Trace, candidate: Trace, repeats: list[Trace]) -> None:
    from resumable_data.validation.plot import plot_traces

    plot_traces(path, report, control, candidate, repeats)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, say loss=1e-5, got {text!r}") from None
