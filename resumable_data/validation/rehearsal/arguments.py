"""The arguments of ``python -m resumable_data.rehearse``."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from resumable_data.checkpoint.migration.declaration import Continuity, Declaration
from resumable_data.checkpoint.migration.migration_file import read_migration
from resumable_data.errors import UsageError
from resumable_data.validation.limits import MIN_UPDATES, QUANTITIES
from resumable_data.validation.rehearsal.options import Options

EXIT_CODES = (
    "exit codes: 0 promote, or passed of a part; 1 reject, warm start or unproven; 2 usage; 3 something cannot be read"
)
CONTROL, REPEAT, CHECKPOINT = "control.jsonl", "repeat-{}.jsonl", "checkpoint"
"""What an exercise has in its directory."""


def make_parser() -> argparse.ArgumentParser:
    """The parser."""
    parser = argparse.ArgumentParser(
        prog="python -m resumable_data.rehearse",
        allow_abbrev=False,
        description="Try a move on the ranks that a run is to move to, under torchrun, with a job that is thrown away.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("build", metavar="MODULE:BUILD", help="what makes the job's parts; or FILE.py:BUILD")
    parser.add_argument("--checkpoint", type=Path, metavar="DIR", help="the checkpoint; of an exercise, its directory")
    parser.add_argument("--control", type=Path, metavar="TRACE", help="the updates after it, on the ranks that saved")
    _many(parser, "--repeat", "TRACE", "the control once more; tolerances are derived from it", Path)
    parser.add_argument("--record", type=Path, metavar="TRACE", help="leave the window's trace there, as a control")
    _many(parser, "--limit", "NAME=VALUE", f"a tolerance, at most 0.01, of {', '.join(QUANTITIES)}", _limit)
    _many(parser, "--allow", "NAME", "what may differ, as for load_checkpoint; global_batch is one", str)
    _many(parser, "--untouched", "PATH", "more of the run's files that must stay as they are", Path)
    parser.add_argument("--updates", type=int, default=MIN_UPDATES, help="of the window (default: %(default)s)")
    parser.add_argument(
        "--migration",
        type=Path,
        metavar="FILE",
        help="the move, as `resumable-data plan` declared it; also what survives",
    )
    parser.add_argument("--continuity", choices=("exact", "bounded", "none"), help="of the data (default: exact)")
    parser.add_argument("--max-replayed", type=int, metavar="N", help="samples, with --continuity bounded")
    parser.add_argument("--max-omitted", type=int, metavar="N", help="samples, with --continuity bounded")
    parser.add_argument("--invariant", choices=("samples", "tokens", "schedule"), help="(default: samples)")
    parser.add_argument("--scratch", type=Path, metavar="DIR", help="where to work; all processes must share it")
    parser.add_argument("--timeout", type=float, default=3600.0, metavar="SECONDS", help="of a collective call")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")
    exercise = parser.add_argument_group("exercise", "the same on a small checkpoint that is made for it")
    exercise.add_argument("--synthetic", action="store_true", help="build() makes a small job")
    exercise.add_argument("--save", type=Path, metavar="DIR", help="on the ranks of the source: make it in DIR")
    exercise.add_argument("--from-replicas", type=int, metavar="N", help="on this machine: make it on N processes,")
    exercise.add_argument("--to-replicas", type=int, metavar="N", help="and rehearse it on N")
    return parser


def parse(argv: Sequence[str]) -> argparse.Namespace:
    """The arguments; what follows ``--`` is the job's.

    Raises:
        UsageError: They contradict each other.
    """
    argv = list(argv)
    at = argv.index("--") if "--" in argv else len(argv)
    args = make_parser().parse_args(argv[:at])
    args.arguments = tuple(argv[at + 1 :])
    if (args.checkpoint is None) == (args.save is None):
        raise UsageError("give --checkpoint DIR; or, to make an exercise, --synthetic --save DIR")
    if args.save is not None and not args.synthetic:
        raise UsageError("--save makes an exercise: give --synthetic too")
    if (args.from_replicas is None) != (args.to_replicas is None):
        raise UsageError("--from-replicas and --to-replicas go together")
    if args.from_replicas is not None and args.save is None:
        raise UsageError("--from-replicas makes an exercise: give --synthetic --save DIR too")
    if args.migration is not None and args.save is not None:
        raise UsageError("--migration is of one checkpoint, and --save makes another; plan a move of that one first")
    return args


def options_of(args: argparse.Namespace) -> Options:
    """What is asked for. Of an exercise, control and repeats are those in its directory."""
    checkpoint, control, repeats = args.checkpoint, args.control, tuple(args.repeat)
    if args.synthetic and (checkpoint / CHECKPOINT).is_dir():
        if control is None and args.record is None:
            control, repeats = checkpoint / CONTROL, tuple(sorted(checkpoint.glob(REPEAT.format("*"))))
        checkpoint = checkpoint / CHECKPOINT
    migration = None if args.migration is None else read_migration(args.migration)
    return Options(
        checkpoint=checkpoint,
        control=control,
        repeats=repeats,
        record=args.record,
        declaration=_declared(args, Declaration() if migration is None else migration.declaration),
        allow=tuple(args.allow),
        migration=migration,
        updates=args.updates,
        untouched=tuple(args.untouched),
        is_synthetic=args.synthetic,
        arguments=args.arguments,
        scratch=args.scratch,
    )


def _declared(args: argparse.Namespace, default: Declaration) -> Declaration:
    """What must survive: the default, but for what options say."""
    continuity = default.continuity
    given = {"kind": args.continuity, "replayed": args.max_replayed, "omitted": args.max_omitted}
    if any(value is not None for value in given.values()):
        plain = {"kind": continuity.kind, "replayed": continuity.replayed, "omitted": continuity.omitted}
        continuity = Continuity(**plain | {name: value for name, value in given.items() if value is not None})
    return msgspec.structs.replace(
        default,
        continuity=continuity,
        invariant=args.invariant or default.invariant,
        tolerances={**default.tolerances, **dict(args.limit)},
    )


def _many(parser: argparse.ArgumentParser, name: str, metavar: str, text: str, kind: Callable[[str], object]) -> None:
    text = f"{text}; may be given several times"
    parser.add_argument(name, action="append", default=[], type=kind, metavar=metavar, help=text)


def _limit(text: str) -> tuple[str, float]:
    name, _, value = text.partition("=")
    try:
        return name, float(value)
    except ValueError:
        raise argparse.ArgumentTypeError(f"expected NAME=VALUE, say loss=1e-5, got {text!r}") from None
