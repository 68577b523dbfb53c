"""``resumable-data audit``: what a run was really trained on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.audit import audit_checkpoints, audit_cursor, audit_ledger
from resumable_data.audit.report import PROVEN, SCHEMA_VERSION, UNPROVEN, VIOLATED
from resumable_data.checkpoint.files.verify import read_checkpoint_cursors
from resumable_data.cli.cursor_file import read_cursor
from resumable_data.cli.packed_rows import add_packed_options, open_packed, recipe_of_ledger
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from resumable_data.audit import AuditReport
    from resumable_data.cursor import Cursor

_WORST_FIRST = (VIOLATED, UNPROVEN, PROVEN)


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "audit",
        help="prove from a ledger, or from a cursor alone, what a run was trained on",
        description="Says proven, violated or unproven, with the samples replayed, omitted and discarded.",
        epilog="exit codes: 0 proven, 1 violated or unproven, 2 usage, 3 a file is damaged or cannot be read",
    )
    parser.add_argument("ledger", nargs="?", type=Path, metavar="PATH", help="the ledger's directory")
    parser.add_argument("--cursor", type=Path, metavar="FILE", help="a cursor as JSON, instead of a ledger")
    parser.add_argument(
        "--checkpoint",
        type=Path,
        action="append",
        metavar="DIR",
        help="a checkpoint whose cursors are audited, instead of a ledger; given several times, checkpoints of one run",
    )
    parser.add_argument(
        "--since-take-over",
        action="store_true",
        help="judge a run that was taken over from another loader by what came after alone",
    )
    parser.add_argument("--key", default="", help="the secret that the ledger's digests are keyed with")
    parser.add_argument("--salvage", action="store_true", help="read damaged files up to the damage; never proven then")
    parser.add_argument("--jobs", type=_jobs, default=1, metavar="N", help="processes that read files (default: 1)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    add_packed_options(parser)
    for name, default, meaning in (
        ("replayed", 0, "in the surviving history more than once"),
        ("omitted", 0, "missing from the surviving history"),
        ("discarded", None, "delivered and rolled back (default: any number)"),
        ("unreadable", None, "replaced because they could not be read (default: what the launches allowed)"),
    ):
        help_text = f"allow N samples to be {meaning}"
        parser.add_argument(f"--max-{name}", type=_count, default=default, metavar="N", help=help_text)


def run(args: argparse.Namespace) -> int:
    """Audit, print the report, and return the exit code."""
    if sum(given is not None for given in (args.ledger, args.cursor, args.checkpoint)) != 1:
        raise UsageError("audit takes one of the PATH of a ledger, --cursor FILE and --checkpoint DIR")
    reports = _audit_checkpoints(args) if args.checkpoint else [_audit(args)]
    if not args.json:
        print("\n\n".join(report.to_text() for report in reports))
    elif len(reports) == 1:
        print(reports[0].to_json().decode())
    else:
        verdict = next(name for name in _WORST_FIRST if any(report.verdict == name for report in reports))
        several = {"schema_version": SCHEMA_VERSION, "verdict": verdict, "reports": reports}
        print(msgspec.json.encode(several).decode())
    return max(report.exit_code for report in reports)


def _audit_checkpoints(args: argparse.Namespace) -> list[AuditReport]:
    """A report for each key that a cursor has; of several checkpoints they must be of one run."""
    by_key: dict[str, dict[str, Cursor]] = {}
    for path in args.checkpoint:
        for key, cursor in read_checkpoint_cursors(path).items():
            by_key.setdefault(key, {})[str(path)] = cursor
    if len(args.checkpoint) == 1:
        return [
            _audit_cursor(args, cursor, f"{path}: {key}")
            for key, cursors in sorted(by_key.items())
            for path, cursor in cursors.items()
        ]
    return [_audit_one_run(args, cursors) for _, cursors in sorted(by_key.items())]


def _audit_one_run(args: argparse.Namespace, cursors: dict[str, Cursor]) -> AuditReport:
    newest = max(cursors.values(), key=lambda cursor: cursor.updates)
    return audit_checkpoints(
        list(cursors.items()),
        lacking=[str(path) for path in args.checkpoint if str(path) not in cursors],
        since_take_over=args.since_take_over,
        packed=open_packed(args, newest.recipe),
    )


def _audit_cursor(args: argparse.Namespace, cursor: Cursor, path: str) -> AuditReport:
    packed = open_packed(args, cursor.recipe)
    return audit_cursor(cursor, path=path, since_take_over=args.since_take_over, packed=packed)


def _audit(args: argparse.Namespace) -> AuditReport:
    if args.cursor is not None:
        return _audit_cursor(args, read_cursor(args.cursor), str(args.cursor))
    return audit_ledger(
        args.ledger,
        max_replayed=args.max_replayed,
        max_omitted=args.max_omitted,
        max_discarded=args.max_discarded,
        since_take_over=args.since_take_over,
        max_unreadable=args.max_unreadable,
        key=args.key,
        salvage=args.salvage,
        jobs=args.jobs,
        packed=open_packed(args, recipe_of_ledger(args.ledger) if args.tokens else None),
    )


def _jobs(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _count(text: str) -> int:
    value = int(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be at least 0, got {value}")
    return value
