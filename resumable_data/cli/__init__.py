"""The command line: one module per command, each with ``add_parser(subparsers)`` and ``run(args)``.

Exit codes: 0 good, 1 findings, 2 usage, 3 unreadable input, 4 internal error.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from typing import TYPE_CHECKING

from resumable_data import __version__
from resumable_data.errors import ResumableDataError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType

COMMANDS = ("plan", "audit", "audit-ids", "ledger", "checkpoint", "manifest", "tokens", "compare", "rehearse", "demo")
INTERNAL_ERROR = 4
DEBUG_VARIABLE = "RESUMABLE_DATA_DEBUG"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code.

    Args:
        argv: Arguments after the program's name; those of the process when None.
    """
    arguments = sys.argv[1:] if argv is None else list(argv)
    try:
        modules = {name: importlib.import_module(f"{__name__}.{name.replace('-', '_')}") for name in _needed(arguments)}
        args = _parser(modules).parse_args(arguments)
        code: int = modules[args.command].run(args)
        sys.stdout.flush()
        return code
    except SystemExit as exit_request:  # argparse: 2 for a wrong argument, 0 for --help
        return exit_request.code if isinstance(exit_request.code, int) else INTERNAL_ERROR
    except BrokenPipeError:
        return _end_of_reader()
    except ResumableDataError as error:
        return _fail(error, error.exit_code)
    except Exception as error:
        return _fail(error, INTERNAL_ERROR)


def _needed(arguments: list[str]) -> Sequence[str]:
    """The commands whose modules are imported: the one that is called, or all where help lists them."""
    if arguments[:1] == ["--version"]:
        return ()
    return arguments[:1] if arguments[:1] and arguments[0] in COMMANDS else COMMANDS


def _parser(modules: dict[str, ModuleType]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="resumable-data",
        description="Plan, audit and demonstrate exact data resume on any number of ranks.",
        epilog="exit codes: 0 good, 1 findings, 2 usage, 3 unreadable input, 4 internal error",
    )
    parser.add_argument("--version", action="version", version=f"resumable-data {__version__}")
    subparsers = parser.add_subparsers(dest="command", required=True, metavar="command")
    for module in modules.values():
        module.add_parser(subparsers)
    return parser


def _fail(error: Exception, code: int) -> int:
    if os.environ.get(DEBUG_VARIABLE):
        raise error
    if code == INTERNAL_ERROR and not isinstance(error, ResumableDataError):
        text = " ".join(f"{type(error).__name__}: {error}".split())
        print(f"error: unexpected {text} (set {DEBUG_VARIABLE}=1 for the traceback)", file=sys.stderr)
    else:
        print(f"error: {error}", file=sys.stderr)
    return code


def _end_of_reader() -> int:
    """Whoever read our output has gone, say ``| head``: end without a word, also at the interpreter's last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0
