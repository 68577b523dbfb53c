"""``resumable-data manifest show|adopt``: what a checkpoint's program was made of."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.checkpoint.files.adopt import adopt_checkpoint
from resumable_data.checkpoint.manifest import write_whole
from resumable_data.checkpoint.run_manifest import RUN_MANIFEST_NAME, read_run_manifest
from resumable_data.checkpoint.run_text import run_manifest_text
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "manifest",
        help="say what the program of a checkpoint was made of; make a manifest for one that has none",
        description="The run manifest of a checkpoint: models, optimizers by names of parameters, schedule, precision, "
        "batch, topology, versions. It is read without torch.",
        epilog="exit codes: 0 good, 2 usage, 3 nothing there, or it cannot be read",
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    show = actions.add_parser("show", help="what is in it")
    adopt = actions.add_parser("adopt", help="make one from the files of a checkpoint that was saved without")
    for action in (show, adopt):
        action.add_argument("path", type=Path, metavar="DIR", help="the directory of a checkpoint")
        action.add_argument("--json", action="store_true", help="print JSON")
    adopt.add_argument(
        "-o", "--output", type=Path, metavar="FILE", help=f"write it there, in place of {RUN_MANIFEST_NAME} in DIR"
    )


def run(args: argparse.Namespace) -> int:
    """Answer, and return the exit code."""
    if args.action == "show":
        manifest = read_run_manifest(args.path)
        if manifest is None:
            raise CheckpointError(
                f"expected {RUN_MANIFEST_NAME} in {shown(args.path)}, found none. What the program was made of is not "
                "known; `resumable-data manifest adopt` makes one of what the files tell."
            )
    else:
        output = args.output or args.path / RUN_MANIFEST_NAME
        if output.exists():
            raise UsageError(f"{shown(output)} is there already and was left as it is; name another file with -o")
        manifest = adopt_checkpoint(args.path)
        write_whole(output.parent, output.name, manifest.to_json())
    print(manifest.to_json().decode() if args.json else run_manifest_text(manifest))
    return 0
