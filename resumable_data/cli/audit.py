"""``resumable-data audit``: what a run was really trained on."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.cli.cursor_file import read_cursor
from resumable_data.cli.packed_rows import add_packed_options, open_packed, recipe_of_ledger
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from resumable_data.audit import AuditReport


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
    if (args.ledger is None) == (args.cursor is None):
        raise UsageError("audit takes either the PATH of a ledger or --cursor FILE, and not both")
    report = _audit(args)
    print(report.to_json().decode() if args.json else report.to_text())
    return report.exit_code


def _audit(args: argparse.Namespace) -> AuditReport:
    if args.cursor is not None:
        cursor = read_cursor(args.cursor)
        packed = open_packed(args, cursor.recipe)
        return audit_cursor(cursor, path=str(args.cursor), since_take_over=args.since_take_over, packed=packed)
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
