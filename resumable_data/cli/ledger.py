"""``resumable-data ledger show|export|diff``: questions to a ledger."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from resumable_data.cli.packed_rows import add_packed_options, open_packed, recipe_of_ledger
from resumable_data.errors import CheckpointError, TraceError
from resumable_data.ledger.frames import shown
from resumable_data.ledger.layout import WATCH_NAME
from resumable_data.lookup import Walk, diff_ledgers, export_rows, find_document, find_sample, find_update
from resumable_data.validation.watch_report import WatchReport

if TYPE_CHECKING:
    from resumable_data.lookup import Delivery

SCHEMA_VERSION = 1
_SHOWN = 200


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "ledger",
        help="look into a ledger: its launches, a sample, an update; export it; compare two",
        description="Questions to a ledger. Nothing in it is changed; whether it is right, `audit` says.",
        epilog="exit codes: 0 good (diff: the same data), 1 diff: other data, 2 usage, 3 a file cannot be read",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    show = actions.add_parser("show", help="its launches; or who got a sample, or what an update held")
    show.add_argument("ledger", type=Path, metavar="PATH", help="the ledger's directory")
    which = show.add_mutually_exclusive_group()
    which.add_argument("--sample", type=int, metavar="ID", help="every delivery of this sample")
    which.add_argument("--document", type=int, metavar="ID", help="every packed row that held some of this document")
    which.add_argument("--update", type=int, metavar="INDEX", help="every row of this update, counted from 0")
    show.add_argument("--json", action="store_true", help="print JSON")
    add_packed_options(show)
    export = actions.add_parser("export", help="write its rows to a .jsonl, .npy or .parquet file")
    export.add_argument("ledger", type=Path, metavar="PATH", help="the ledger's directory")
    export.add_argument(
        "-o", "--output", type=Path, required=True, metavar="FILE", help="a new file; its ending counts"
    )
    export.add_argument("--all", action="store_true", help="discarded rows and those in flight too")
    add_packed_options(export)
    diff = actions.add_parser("diff", help="whether two runs were trained on the same data")
    diff.add_argument("a", type=Path, metavar="A", help="a ledger's directory")
    diff.add_argument("b", type=Path, metavar="B", help="another's")
    diff.add_argument("--json", action="store_true", help="print JSON")
    add_packed_options(diff)


def run(args: argparse.Namespace) -> int:
    """Answer, and return the exit code."""
    actions = {"show": _show, "export": _export, "diff": _diff}
    return actions[args.action](args)


def _show(args: argparse.Namespace) -> int:
    walk = _open(args.ledger, args)
    questions = {"sample": find_sample, "document": find_document, "update": find_update}
    asked = next((name for name in questions if getattr(args, name) is not None), None)
    if asked is None:
        _print_attempts(walk, args.json)
        return 0
    number = getattr(args, asked)
    found = questions[asked](walk, number)
    if args.json:
        _print_json({"deliveries": found})
        return 0
    what = f"{asked} {number}"
    print(f"{what}: {len(found)} rows" if found else f"{what}: nothing was delivered")
    for delivery in found[:_SHOWN]:
        print(f"  {_line(delivery)}")
    if len(found) > _SHOWN:
        print(f"  and {len(found) - _SHOWN} more; --json gives all")
    return 0


def _open(path: Path, args: argparse.Namespace) -> Walk:
    return Walk(path, open_packed(args, recipe_of_ledger(path) if args.tokens else None))


def _line(one: Delivery) -> str:
    padding = ", padding" if one.is_padding else ""
    epoch = "" if one.epoch is None else f" (epoch {one.epoch})"
    what = f"sample {one.id}" if one.pieces is msgspec.UNSET else _pieces(one.pieces)
    return (
        f"attempt {one.attempt}, rank {one.rank}, update {one.update}, microbatch {one.microbatch}: {what}, "
        f"position {one.position}{epoch}{padding}, {one.status}"
    )


def _pieces(pieces: tuple[tuple[int, int, int], ...]) -> str:
    return "row of " + " ".join(f"{document}[{start}:{stop}]" for document, start, stop in pieces)


def _print_attempts(walk: Walk, as_json: bool) -> None:
    history = walk.history
    rows: list[dict[str, Any]] = []
    for number, attempt in sorted(history.attempts.items()):
        claim = attempt.claim
        rows.append(
            {
                "attempt": number,
                "parent": claim.parent,
                "survives": number in history.chain,
                "num_replicas": claim.num_replicas,
                "microbatch": claim.microbatch,
                "mesh": [list(axis) for axis in claim.mesh.axes],
                "data_axes": list(claim.mesh.data_axes),
                "start_update": claim.start.updates,
                "start_position": claim.start.position,
                "migrations": [
                    {"field": shown(change.field), "saved": change.saved, "now": change.now}
                    for migration in claim.start.migrations
                    if migration.update == claim.start.updates
                    for change in migration.changes
                ],
                "taken_over": claim.inside.samples if claim.inside else 0,
                "files": len(attempt.files.ranks) + len(attempt.files.peers),
                "package_version": shown(claim.package_version),
                "watch": _watch_of(attempt.files.path / WATCH_NAME),
            }
        )
    if as_json:
        _print_json({"run_id": shown(history.newest.claim.run_id), "attempts": rows})
        return
    order = f"packed rows {walk.recipe.order}" if walk.recipe.is_packed else repr(walk.order)
    print(f"run {shown(history.newest.claim.run_id)}, order {shown(order)}")
    for row in rows:
        mesh = " x ".join(f"{shown(name)} {size}" for name, size in row["mesh"])
        inside = f" after {row['taken_over']} rows of it" if row["taken_over"] else ""
        branch = "" if row["survives"] else ", not in the surviving history"
        watched = f", watch: {row['watch']}" if row["watch"] else ""
        print(
            f"  attempt {row['attempt']} (after {row['parent'] or '-'}): from update {row['start_update']}{inside}, "
            f"position {row['start_position']}, {row['num_replicas']} ranks of {mesh}, microbatch {row['microbatch']}, "
            f"{row['files']} files{branch}{watched}"
        )
        for change in row["migrations"]:
            values = " to ".join(shown(repr(change[key])) for key in ("saved", "now"))
            print(f"    declared there: {change['field']} {values}")


def _watch_of(path: Path) -> str | None:
    """What the watch over the first updates of an attempt says; None where there was none."""
    try:
        report = WatchReport.read(path)
    except (CheckpointError, TraceError):
        return "not readable"
    if report is None:
        return None
    return f"{shown(report.verdict)} after {report.updates} of {report.wanted_updates} updates"


def _export(args: argparse.Namespace) -> int:
    num_rows = export_rows(_open(args.ledger, args), args.output, everything=args.all)
    print(f"{num_rows} rows in {shown(args.output)}")
    return 0


def _diff(args: argparse.Namespace) -> int:
    found = diff_ledgers(_open(args.a, args), _open(args.b, args))
    if args.json:
        print(msgspec.json.encode(found).decode())
        return int(not found.is_same)
    if found.is_same:
        print(f"the same: {found.num_a} samples at the same positions")
        return 0
    print(f"{shown(args.a)} committed {found.num_a} samples, {shown(args.b)} {found.num_b}")
    print(f"  the first {found.num_common_positions} are the same")
    if found.first_difference is not None:
        samples = [f"sample {one}" if one is not None else "nothing" for one in (found.sample_a, found.sample_b)]
        print(f"  at position {found.first_difference} the one has {samples[0]}, the other {samples[1]}")
    print(
        f"  wherever they were: {found.only_in_a} only in the first or more often there, {found.only_in_b} in the other"
    )
    return 1


def _print_json(fields: dict[str, Any]) -> None:
    print(msgspec.json.encode({"schema_version": SCHEMA_VERSION, **fields}).decode())
