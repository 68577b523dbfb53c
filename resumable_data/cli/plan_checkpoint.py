"""``resumable-data plan CHECKPOINT``: a move of a run from a checkpoint, looked at and declared before it is made."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec

from resumable_data.checkpoint.migration.declaration import Continuity, Declaration
from resumable_data.checkpoint.migration.destination import Destination
from resumable_data.checkpoint.migration.migration_file import INTERVAL_UPDATES, plan_migration
from resumable_data.checkpoint.migration.source import read_source
from resumable_data.checkpoint.run_manifest import RUN_MANIFEST_NAME, Invariant, ScheduleUnit
from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Callable

TOLERANCES = ("loss", "gradient_norm", "update_norm")
_MAX_INTERVAL = 2**40
_PLAIN_CONTINUITY = {"exact": Continuity(), "none": Continuity(kind="none")}
_ONLY_HERE = (
    *("batch_unit", "normalize", "fingerprint", "mesh", "data_axes", "precision", "scheduler", "schedule_unit"),
    *("continuity", "invariant", "tolerance", "why", "interval", "output"),
)
_NOT_HERE = ("samples", "epochs", "cursor", "phase", "to", "to_microbatch", "pad_microbatches")


def add_options(parser: argparse.ArgumentParser, integer: Callable[[int, int], Callable[[str], int]]) -> None:
    """Add what is of use with a checkpoint only; `integer` makes a converter of numbers within bounds."""
    parser.add_argument(
        "checkpoint",
        type=Path,
        nargs="?",
        metavar="CHECKPOINT",
        help="declare a move from this checkpoint: it tells all of today, and the other options what is new",
    )
    to = parser.add_argument_group("the program that goes on, with CHECKPOINT: what is not given stays as it is")
    to.add_argument("--batch-unit", choices=("samples", "tokens"), help="what the global batch counts")
    to.add_argument("--normalize", choices=("samples", "tokens", "targets"), help="what the gradient is a mean over")
    to.add_argument("--fingerprint", metavar="TEXT", help="what identifies the dataset's contents; empty for none")
    to.add_argument("--mesh", type=_axes, metavar="AXIS=N,...", help="all axes of the device mesh")
    to.add_argument("--data-axes", type=_names, metavar="AXIS,...", help="those that are data-parallel")
    to.add_argument(
        "--precision",
        type=_pair,
        action="append",
        metavar="NAME=DTYPE",
        help="say model.parameters=bfloat16; as often as needed",
    )
    to.add_argument("--scheduler", type=_pair, action="append", metavar="NAME=CLASS", help="its class, by full name")
    to.add_argument("--schedule-unit", choices=get_args(ScheduleUnit), help="what the schedule's steps count")
    must = parser.add_argument_group("what must survive, and why the rest may change, with CHECKPOINT")
    must.add_argument(
        "--continuity",
        type=_continuity,
        metavar="HOW",
        help="of the data: exact (default), bounded:REPLAYED,OMITTED, or none",
    )
    must.add_argument("--invariant", choices=get_args(Invariant), help="what stays the same (default: samples)")
    must.add_argument(
        "--tolerance",
        type=_tolerance,
        action="append",
        metavar="NAME=LIMIT",
        help=f"relative, of {', '.join(TOLERANCES)}; as often as needed",
    )
    must.add_argument("--why", metavar="TEXT", help="why the changes are allowed")
    must.add_argument(
        "--interval",
        type=integer(1, _MAX_INTERVAL),
        metavar="K",
        help=f"an interval in updates, say between evaluations, to show (default: {INTERVAL_UPDATES})",
    )
    must.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help="write the migration there, for load_checkpoint"
    )


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that are of use only with, or only without a checkpoint.

    Raises:
        UsageError: There is one.
    """
    names = _NOT_HERE if args.checkpoint else _ONLY_HERE
    given = [name for name in names if getattr(args, name) not in (None, False, 0)]
    if args.checkpoint and args.gradient_reduction is not None:
        given.append("gradient_reduction")
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        how = "without a CHECKPOINT, which tells these things" if args.checkpoint else "with a CHECKPOINT"
        raise UsageError(f"{flags}: of use only {how}. Nothing was planned.")


def run_with_checkpoint(args: argparse.Namespace) -> int:
    """Print the migration, write it where asked for, and return the exit code.

    Raises:
        UsageError: Arguments contradict each other or the checkpoint.
        MigrationError: The move contradicts what must survive.
        CheckpointError: The checkpoint cannot be read.
    """
    source = read_source(args.checkpoint)
    destination = _destination(args).apply(source.run)
    declaration = Declaration(
        continuity=args.continuity or Continuity(),
        invariant=args.invariant or "samples",
        tolerances=dict(args.tolerance or ()),
    )
    migration = plan_migration(
        args.checkpoint,
        destination,
        declaration=declaration,
        why=args.why or "",
        interval_updates=args.interval or INTERVAL_UPDATES,
    )
    if args.output:
        migration.write(args.output)
    print(migration.to_json().decode() if args.json else migration.to_text())
    if source.is_adopted and not args.json:
        print(
            f"\n{shown(args.checkpoint)} has no {RUN_MANIFEST_NAME}: what is not known above is not compared at a "
            "load. `resumable-data manifest adopt` makes one, to be completed by hand."
        )
    return 0


def _destination(args: argparse.Namespace) -> Destination:
    recipe = {
        name: getattr(args, name)
        for name in ("global_batch", "batch_unit", "tail", "normalize", "fingerprint")
        if getattr(args, name) is not None
    }
    if recipe.get("fingerprint") == "":
        recipe["fingerprint"] = None
    return Destination(
        num_replicas=args.num_replicas,
        microbatch=args.microbatch,
        axes=args.mesh or (),
        data_axes=args.data_axes or (),
        recipe=recipe,
        precision=dict(args.precision or ()),
        schedulers=dict(args.scheduler or ()),
        schedule_unit=args.schedule_unit,
    )


def _pair(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not (name and sign and value):
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, got {text!r}")
    return name, value


def _axes(text: str) -> tuple[tuple[str, int], ...]:
    pairs = [_pair(part) for part in text.split(",")]
    if not all(size.isdecimal() and size.isascii() and 1 <= int(size) <= 2**24 for _, size in pairs):
        raise argparse.ArgumentTypeError(f"expected axes as dp=2,tp=4 with sizes of at least 1, got {text!r}")
    return tuple((name, int(size)) for name, size in pairs)


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if not all(names):
        raise argparse.ArgumentTypeError(f"expected names of axes as dp_replicate,dp_shard, got {text!r}")
    return names


def _continuity(text: str) -> Continuity:
    kind, _, bounds = text.partition(":")
    counts = bounds.split(",") if bounds else []
    if kind == "bounded" and len(counts) == 2 and all(one.isdecimal() and one.isascii() for one in counts):
        return Continuity(kind="bounded", replayed=int(counts[0]), omitted=int(counts[1]))
    if text in _PLAIN_CONTINUITY:
        return _PLAIN_CONTINUITY[text]
    raise argparse.ArgumentTypeError(f"expected exact, none or bounded:REPLAYED,OMITTED, got {text!r}")


def _tolerance(text: str) -> tuple[str, float]:
    name, value = _pair(text)
    try:
        limit = msgspec.convert(value, float, strict=False)
    except msgspec.ValidationError:
        limit = -1.0
    if name not in TOLERANCES or not 0 < limit < 1:
        raise argparse.ArgumentTypeError(f"expected one of {', '.join(TOLERANCES)} = above 0, below 1, got {text!r}")
    return name, limit
