"""``resumable-data rehearse``: the first stage of a rehearsal, which needs neither torch nor a device."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.checkpoint.migration.migration_file import read_migration
from resumable_data.checkpoint.run_manifest import read_run_manifest
from resumable_data.validation.checks import FAILED
from resumable_data.validation.rehearsal.files import check_files
from resumable_data.validation.verdict import make_verdict

if TYPE_CHECKING:
    import argparse


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "rehearse",
        help="the first stage of a rehearsal: whether a checkpoint is complete",
        description="Checks a checkpoint's files and what is known of its run. The whole rehearsal is for the ranks "
        "that the run is to move to: torchrun ... -m resumable_data.rehearse MODULE:BUILD --checkpoint DIR",
        epilog="exit codes: 0 passed, 1 rejected or unproven, 2 usage, 3 it cannot be read",
    )
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="the checkpoint")
    parser.add_argument("--migration", type=Path, metavar="FILE", help="the move that `resumable-data plan` declared")
    parser.add_argument("--json", action="store_true", help="print the verdict as JSON")


def run(args: argparse.Namespace) -> int:
    """Check, print the verdict, and return the exit code."""
    migration = None if args.migration is None else read_migration(args.migration)
    checks = check_files(args.checkpoint, migration=migration)
    is_damaged = any(check.status == FAILED for check in checks)
    saved = None if is_damaged else read_run_manifest(args.checkpoint)
    declaration = Declaration() if migration is None else migration.declaration
    verdict = make_verdict(
        str(args.checkpoint), checks, declaration=declaration, saved=saved, migration=migration, is_part=True
    )
    print(verdict.to_json().decode() if args.json else verdict.to_text())
    return verdict.exit_code
