"""``resumable-data plan``: what a run looks like on another rank set, before it is moved there."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.cli.cursor_file import read_cursor
from resumable_data.cli.plan_checkpoint import add_options, check_options, run_with_checkpoint
from resumable_data.errors import UsageError
from resumable_data.plan import GRADIENT_REDUCTIONS, TAILS, Schedule
from resumable_data.plan.report import PlanRequest, RankSet, make_report

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data.cursor import Recipe

MAX_SAMPLES = 2**62
MAX_RANKS = 2**30
MAX_POSITION = 2**63 - 1

_EPILOG = """\
examples:
  resumable-data plan --samples 1000000 --global-batch 256 --microbatch 2 --num-replicas 8 --to 10
  resumable-data plan --cursor cursor.json --microbatch 2 --num-replicas 8 --to 10 --epochs 3
  resumable-data plan run/step-500 --mesh dp=4,tp=2 --why "fewer nodes" -o migration.json

exit codes: 0 the move is exact, or keeps what must survive, 1 not so, 2 wrong arguments, 3 the cursor or checkpoint
cannot be read
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its arguments."""
    summary = "show today's layout beside the one on another rank set, and what the move changes"
    parser = subparsers.add_parser(
        "plan",
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    samples, ranks = _integer(1, MAX_SAMPLES), _integer(1, MAX_RANKS)
    run_of = parser.add_argument_group("the run")
    run_of.add_argument("--samples", type=samples, metavar="N", help="samples of one epoch")
    run_of.add_argument("--global-batch", type=samples, metavar="G", help="samples of one optimizer update")
    run_of.add_argument("--tail", choices=TAILS, help="what happens at the end of an epoch (default: carry)")
    run_of.add_argument("--epochs", type=samples, metavar="E", help="epochs of the whole run (default: no end)")
    run_of.add_argument("--cursor", type=Path, metavar="FILE", help="a cursor: gives N, G, tail and place")
    run_of.add_argument(
        "--phase", type=_integer(0, MAX_SAMPLES), default=0, metavar="P", help="rows of the next update accumulated"
    )
    now = parser.add_argument_group("the ranks")
    now.add_argument(
        "--num-replicas", type=ranks, metavar="W", help="data-parallel ranks today; with CHECKPOINT those to move to"
    )
    now.add_argument(
        "--microbatch", type=ranks, metavar="b", help="largest microbatch of a rank today; with CHECKPOINT there"
    )
    now.add_argument("--to", type=ranks, metavar="W'", help="data-parallel ranks to move to")
    now.add_argument("--to-microbatch", type=ranks, metavar="b'", help="largest microbatch there (default: b)")
    now.add_argument("--pad-microbatches", action="store_true", help="filler makes all microbatches equally large")
    now.add_argument("--gradient-reduction", choices=GRADIENT_REDUCTIONS, help="across ranks (default: mean)")
    add_options(parser, _integer)
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Print the report and return the exit code.

    Raises:
        UsageError: Arguments are missing or contradict the cursor.
        StateError: The cursor's file cannot be read.
        CheckpointError: The checkpoint cannot be read.
    """
    check_options(args)
    if args.checkpoint:
        return run_with_checkpoint(args)
    _require(args, "num_replicas", "microbatch")
    report = make_report(_request(args))
    print(report.to_json().decode() if args.json else report.to_text())
    return report.exit_code


def _integer(low: int, high: int) -> Callable[[str], int]:
    """A converter for argparse."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"expected an integer from {low} to {high:,}, got {text!r}")
        return value

    return convert


def _require(args: argparse.Namespace, *names: str) -> None:
    missing = ["--" + name.replace("_", "-") for name in names if getattr(args, name) is None]
    if missing:
        raise UsageError(f"expected {' and '.join(missing)}, or a CHECKPOINT, which tells it. Nothing was planned.")


class _Run(NamedTuple):
    """What a cursor says, or the arguments in its place."""

    schedule: Schedule
    update: int = 0
    epoch: int = 0
    offset: int = 0
    normalize: str = "samples"


def _request(args: argparse.Namespace) -> PlanRequest:
    of = _run_of_cursor(args) if args.cursor else _run_of_arguments(args)
    to = None
    if args.to or args.to_microbatch:
        to = RankSet(num_replicas=args.to or args.num_replicas, microbatch=args.to_microbatch or args.microbatch)
    num_epochs = max(of.schedule.epochs or 0, of.epoch + 1)
    if max(num_epochs * of.schedule.length, of.schedule.global_batch) > MAX_POSITION:
        raise UsageError(
            f"{num_epochs:,} epochs of {of.schedule.length:,} samples in updates of {of.schedule.global_batch:,} have "
            "more positions than 64 bits count. Use fewer epochs, or a smaller global batch."
        )
    return PlanRequest(
        schedule=of.schedule,
        now=RankSet(num_replicas=args.num_replicas, microbatch=args.microbatch),
        to=to,
        update=of.update,
        epoch=of.epoch,
        offset=of.offset,
        phase=args.phase,
        pad_microbatches=args.pad_microbatches,
        gradient_reduction=args.gradient_reduction or "mean",
        normalize=of.normalize,
    )


def _run_of_arguments(args: argparse.Namespace) -> _Run:
    missing = [flag for flag in ("samples", "global_batch") if getattr(args, flag) is None]
    if missing:
        flags = " and ".join("--" + flag.replace("_", "-") for flag in missing)
        raise UsageError(f"expected {flags}, or --cursor, which gives both; found neither. Nothing was planned.")
    schedule = Schedule(
        length=args.samples, global_batch=args.global_batch, tail=args.tail or "carry", epochs=args.epochs
    )
    return _Run(schedule)


def _run_of_cursor(args: argparse.Namespace) -> _Run:
    cursor = read_cursor(args.cursor)
    recipe = cursor.recipe
    _check_packed(recipe, args)
    for flag, saved in (("samples", recipe.length), ("global_batch", recipe.global_batch), ("tail", recipe.tail)):
        given = getattr(args, flag)
        if given not in (None, saved):
            raise UsageError(
                f"--{flag.replace('_', '-')} {given} contradicts the cursor in {args.cursor}, which has {saved}. "
                "The plan would be of another run. Leave the flag out, or leave out --cursor."
            )
    return _Run(cursor.schedule(args.epochs), cursor.updates, cursor.epoch, cursor.offset, recipe.normalize)


def _check_packed(recipe: Recipe, args: argparse.Namespace) -> None:
    """Refuse what cannot be planned of packed rows without their documents.

    Raises:
        UsageError: Updates are counted by tokens, or the end of the run is asked for.
    """
    if recipe.batch_unit:
        rows = -(-recipe.global_batch // int(recipe.order["row_length"]))
        raise UsageError(
            f"the cursor in {args.cursor} is of packed rows, and each update takes as many as hold "
            f"{recipe.global_batch:,} tokens, which only the documents tell. Rows that are full make {rows:,} of them: "
            f"plan with --samples and --global-batch {rows}."
        )
    if recipe.is_packed and args.epochs is not None:
        raise UsageError(
            "--epochs: how many packed rows an epoch has is not known without the documents. Leave it out."
        )
