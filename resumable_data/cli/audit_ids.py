"""``resumable-data audit-ids``: what logs of sample IDs, from any script, contain."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.errors import UsageError
from resumable_data.logs import FORMATS, Fields, audit_ids
from resumable_data.order import Sequential, Shuffle, TorchShuffle
from resumable_data.shadowing import audit_shadow

if TYPE_CHECKING:
    from resumable_data.logs import IdsReport
    from resumable_data.order import Order
    from resumable_data.shadowing import ShadowReport

ORDERS = ("sequential", "shuffle", "torch-shuffle")

_EPILOG = """\
examples:
  resumable-data audit-ids --samples 50000 ids.txt
  resumable-data audit-ids --samples 50000 --order torch-shuffle --seed 0 --num-replicas 8 --rank-per-file rank*.npy
  resumable-data audit-ids --columns epoch,step,rank,ids log.txt
  resumable-data audit-ids --shadow run/shadow

In text, all integers of a line are IDs, unless --columns says what they are. CSV, JSONL, Parquet and structured arrays
have names: id, rank, step and epoch, or those given. Give older logs first.

exit codes: 0 clean, 1 something differs from the plan or could not be checked, 2 usage, 3 a log cannot be read
"""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command and its arguments."""
    summary = "count the samples in logs that any training script printed"
    parser = subparsers.add_parser(
        "audit-ids",
        help=summary,
        description=summary[0].upper() + summary[1:] + ": repeated, missing, and out of order.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="text, CSV, JSONL, .npy or Parquet")
    plan = parser.add_argument_group("the plan")
    plan.add_argument("--samples", type=int, metavar="N", help="samples of one epoch; IDs are 0 to N - 1")
    plan.add_argument("--order", choices=ORDERS, help="torch-shuffle is that of torch's DistributedSampler")
    plan.add_argument("--seed", type=int, metavar="S", help="of the order (default: 0)")
    plan.add_argument("--name", help="of a shuffle")
    plan.add_argument("--num-replicas", type=int, metavar="W", help="data-parallel ranks; leave out where they changed")
    plan.add_argument("--drop-last", action="store_true", help="what W does not divide is dropped, not filled up")
    plan.add_argument("--epochs", type=int, metavar="E", help="epochs (default: one, or those that the log names)")
    plan.add_argument("--first-epoch", type=int, default=0, metavar="F", help="the first of them (default: 0)")
    plan.add_argument("--unfinished", action="store_true", help="the run stopped before the end of its last epoch")
    log = parser.add_argument_group("the logs")
    log.add_argument("--format", choices=FORMATS, help="of all files (default: by their names, else text)")
    log.add_argument("--columns", metavar="C,...", help="of logs without names: id or ids, rank, step, epoch, _")
    for role in ("id", "rank", "step", "epoch"):
        log.add_argument(f"--{role}", metavar="NAME", help=f"column or field with the {role} (default: {role})")
    log.add_argument("--rank-per-file", action="store_true", help="the first file is rank 0's, and so on")
    parser.add_argument("--shadow", type=Path, metavar="DIR", help="what rd.shadow noted, instead of logs")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")


def run(args: argparse.Namespace) -> int:
    """Count, print the report, and return the exit code.

    Raises:
        UsageError: Arguments have no meaning together.
        LogError: A log cannot be read.
        LedgerError: What rd.shadow noted cannot be read.
    """
    report = _shadow(args) if args.shadow is not None else _logs(args)
    print(report.to_json().decode() if args.json else report.to_text())
    return report.exit_code


def _shadow(args: argparse.Namespace) -> ShadowReport:
    given = [name for name, value in vars(args).items() if value not in (None, False, [], 0)]
    others = sorted(set(given) - {"command", "shadow", "json"})
    if others:
        names = ", ".join(name if name == "files" else f"--{name.replace('_', '-')}" for name in others)
        raise UsageError(f"--shadow is audited alone, as it knows its IDs itself; leave out {names}")
    return audit_shadow(args.shadow)


def _logs(args: argparse.Namespace) -> IdsReport:
    if not args.files:
        raise UsageError("audit-ids takes at least one FILE with sample IDs, or --shadow DIR")
    return audit_ids(
        args.files,
        num_samples=args.samples,
        order=_order(args),
        num_replicas=args.num_replicas,
        drop_last=args.drop_last,
        epochs=args.epochs,
        first_epoch=args.first_epoch,
        unfinished=args.unfinished,
        format=args.format,
        fields=_fields(args),
        rank_per_file=args.rank_per_file,
    )


def _fields(args: argparse.Namespace) -> Fields:
    columns = None if args.columns is None else tuple(name.strip() for name in args.columns.split(","))
    return Fields(columns=columns, id=args.id, rank=args.rank, step=args.step, epoch=args.epoch)


def _order(args: argparse.Namespace) -> Order | None:
    if args.name is not None and args.order != "shuffle":
        raise UsageError("--name is part of --order shuffle alone")
    if args.seed is not None and args.order not in ("shuffle", "torch-shuffle"):
        raise UsageError("--seed is of --order shuffle or torch-shuffle; say which")
    if args.order is None:
        return None
    if args.samples is None:
        raise UsageError("--order needs --samples N: another number of samples is another order")
    if args.order == "sequential":
        return Sequential(args.samples)
    seed = args.seed or 0
    return (
        TorchShuffle(args.samples, seed)
        if args.order == "torch-shuffle"
        else Shuffle(args.samples, seed, args.name or "")
    )
