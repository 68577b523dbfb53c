"""``torchrun ... -m resumable_data.rehearse MODULE:BUILD --checkpoint DIR``: try a move before it is made.

The first process checks the checkpoint's files before torch is imported, and before there is a process group.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from resumable_data.errors import ResumableDataError
from resumable_data.validation.rehearsal.arguments import options_of, parse
from resumable_data.validation.rehearsal.files import check_files
from resumable_data.validation.rehearsal.launch import run_exercise

if TYPE_CHECKING:
    import argparse

    from resumable_data.validation.checks import Check


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code.

    Args:
        argv: Arguments after the program's name; those of the process when None.
    """
    try:
        arguments = sys.argv[1:] if argv is None else list(argv)
        args = parse(arguments)
        if args.from_replicas is not None:
            return run_exercise(args, arguments)
        files = _check_files(args)
        from resumable_data.validation.rehearsal.command import run_command

        return run_command(args, files)
    except ResumableDataError as error:
        if os.environ.get("RANK", "0") == "0":
            sys.stderr.write(f"error: {error}\n")
        return error.exit_code


def _check_files(args: argparse.Namespace) -> list[Check] | ResumableDataError | None:
    """The first stage, on the first process; an error in it is for all of them."""
    if args.save is not None or os.environ.get("RANK", "0") != "0":
        return None
    try:
        options = options_of(args)
        return check_files(options.checkpoint, options.level, options.migration)
    except ResumableDataError as error:
        return error


if __name__ == "__main__":
    sys.exit(main())
