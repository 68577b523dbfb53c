"""``resumable-data checkpoint verify|show|latest|diff|prune``: questions to checkpoints' files; old ones deleted."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from resumable_data.checkpoint.files.diff import diff_checkpoints
from resumable_data.checkpoint.files.latest import find_latest
from resumable_data.checkpoint.files.report import LEVELS
from resumable_data.checkpoint.files.show import summarize_checkpoint
from resumable_data.checkpoint.files.sums import hash_checkpoint
from resumable_data.checkpoint.files.verify import verify_checkpoint
from resumable_data.checkpoint.retention import prune_checkpoints
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    import argparse

    from resumable_data.checkpoint.files.diff import CheckpointDiff, KeyDifference
    from resumable_data.checkpoint.manifest import Topology
    from resumable_data.checkpoint.retention import PruneReport

_SHOWN = 200


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "checkpoint",
        help="check a checkpoint's files; say what is in it; find the newest good one; compare two; delete old ones",
        description="Checkpoints of torch.distributed.checkpoint, read without torch and without running anything in "
        "them. Only prune changes anything.",
        epilog="exit codes: 0 good (latest: one was found; diff: the same), 1 verify: damaged or unproven, latest: "
        "none, diff: different, prune: none verifies or one could not be deleted, 2 usage, 3 nothing there, or it "
        "cannot be read",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    verify = actions.add_parser("verify", help="whether it is whole and unchanged")
    verify.add_argument("path", type=Path, metavar="PATH", help="its directory, or a file of torch.save")
    verify.add_argument(
        "--sha256",
        type=Path,
        metavar="FILE",
        help="also compare all files with this list of SHA-256, as sha256sum and show --sha256 make them",
    )
    latest = actions.add_parser("latest", help="the newest in a directory that verifies, and why newer ones do not")
    latest.add_argument(
        "root", type=Path, metavar="ROOT", help="a directory of checkpoints with numbers in their names"
    )
    prune = actions.add_parser("prune", help="delete all but the newest that verifies and those right before it")
    prune.add_argument(
        "root", type=Path, metavar="ROOT", help="a directory of checkpoints of one run, with numbers in their names"
    )
    prune.add_argument("--keep", type=int, required=True, metavar="N", help="how many to keep, at least 1")
    prune.add_argument("--dry-run", action="store_true", help="delete nothing; say what would be deleted")
    for action in (verify, latest, prune):
        action.add_argument(
            "--level",
            choices=LEVELS,
            default=LEVELS[-1],
            help="look at metadata and sizes of files; also at the directory of each item; also at all contents "
            "(default: payload, all of it)",
        )
    show = actions.add_parser("show", help="its keys, sizes, cursor and manifest")
    show.add_argument("path", type=Path, metavar="DIR", help="its directory")
    show.add_argument(
        "--sha256", action="store_true", help="print the SHA-256 of every file instead, as sha256sum -c reads them"
    )
    diff = actions.add_parser("diff", help="whether two hold the same, on whatever ranks they were saved")
    diff.add_argument("a", type=Path, metavar="A", help="the directory of a checkpoint")
    diff.add_argument("b", type=Path, metavar="B", help="another's")
    for action in (verify, latest, show, diff, prune):
        action.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Answer, and return the exit code."""
    return {"verify": _verify, "latest": _latest, "show": _show, "diff": _diff, "prune": _prune}[args.action](args)


def _verify(args: argparse.Namespace) -> int:
    report = verify_checkpoint(args.path, args.level, sha256=args.sha256)
    print(report.to_json().decode() if args.json else report.to_text())
    return report.exit_code


def _show(args: argparse.Namespace) -> int:
    if args.sha256:
        return _show_sums(args)
    summary = summarize_checkpoint(args.path)
    print(summary.to_json().decode() if args.json else summary.to_text())
    return 0


def _show_sums(args: argparse.Namespace) -> int:
    # The list may be redirected into the directory that it is of.
    sums = hash_checkpoint(args.path, without=_standard_output())
    sys.stdout.buffer.write(sums.to_json() + b"\n" if args.json else sums.to_list())
    return 0


def _standard_output() -> list[os.stat_result]:
    try:
        return [os.fstat(sys.stdout.fileno())]
    except (OSError, ValueError):
        return []


def _latest(args: argparse.Namespace) -> int:
    report = find_latest(args.root, args.level)
    if args.json:
        print(msgspec.json.encode(report).decode())
        return int(report.path is None)
    print(f"none of the checkpoints in {report.root} verifies" if report.path is None else report.path)
    for one in report.passed_over:
        print(f"  passed over {one.path}: {one.verdict}: {one.reason}")
    return int(report.path is None)


def _prune(args: argparse.Namespace) -> int:
    report = prune_checkpoints(args.root, keep=args.keep, dry_run=args.dry_run, level=args.level)
    print(msgspec.json.encode(report).decode() if args.json else "\n".join(_prune_lines(report)))
    return int(report.newest is None or bool(report.not_deleted))


def _prune_lines(report: PruneReport) -> list[str]:
    if report.newest is None:
        lines = [f"none of the checkpoints in {report.root} verifies and has a manifest; none was deleted for its age"]
    else:
        lines = [f"kept {shown(name)}" for name in report.kept]
    lines += [f"{'would delete' if report.is_dry else 'deleted'} {shown(name)}" for name in report.deleted]
    return [*lines, *(f"could not delete {one.path}: {one.reason}" for one in report.not_deleted)]


def _diff(args: argparse.Namespace) -> int:
    found = diff_checkpoints(args.a, args.b)
    if args.json:
        print(msgspec.json.encode(found).decode())
    else:
        print("\n".join(_diff_lines(found, shown(args.a), shown(args.b))))
    return int(not found.is_same)


def _diff_lines(found: CheckpointDiff, a: str, b: str) -> list[str]:
    lines = [f"the same: {found.same} keys" if found.is_same else f"{found.same} keys are the same"]
    for name, keys in ((f"only in {a}", found.only_in_a), (f"only in {b}", found.only_in_b)):
        lines += [f"  {name}: {key}" for key in keys[:_SHOWN]]
    for one in (*found.manifests, *found.cursors, *found.differ)[:_SHOWN]:
        lines += _difference_lines(one, a, b)
    lines += [f"  contents not compared: {key}" for key in found.not_compared[:_SHOWN]]
    left = sum(
        max(0, len(keys) - _SHOWN) for keys in (found.only_in_a, found.only_in_b, found.differ, found.not_compared)
    )
    if left:
        lines.append(f"  and {left} more; --json gives all")
    if found.topology_a != found.topology_b and found.topology_a and found.topology_b:
        lines.append(f"  saved on {_ranks(found.topology_a)} and on {_ranks(found.topology_b)}")
    for one in found.origins:
        lines += _difference_lines(one, a, b)
    return lines


def _difference_lines(one: KeyDifference, a: str, b: str) -> list[str]:
    return [f"  {one.key}", f"    {a}: {shown(one.a)}", f"    {b}: {shown(one.b)}"]


def _ranks(topology: Topology) -> str:
    return f"{topology.world_size} ranks ({topology.dp_size} data-parallel)"
