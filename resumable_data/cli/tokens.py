"""``resumable-data tokens build|show``: make a dataset of tokens, and look into one."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from resumable_data.cli.progress import ProgressBar
from resumable_data.cli.signals import ENDED_BY_USER, signals_interrupt
from resumable_data.cli.token_source import add_source_options, open_source
from resumable_data.errors import UsageError
from resumable_data.sources.summary import summarize
from resumable_data.tokenizing import ByteTokenizer, HuggingFaceTokenizer, build_tokens, parse_separator
from resumable_data.tokenizing.build import DEFAULT_FIELD
from resumable_data.tokenizing.inputs import FORMATS
from resumable_data.tokenizing.splitting import BLANK_LINES

if TYPE_CHECKING:
    from resumable_data.tokenizing import Tokenizer

_EPILOG = """\
examples:
  resumable-data tokens build book.txt -o book --split-on blank-lines
  resumable-data tokens build part-*.jsonl -o corpus --tokenizer tokenizer.json --end-token '<|endoftext|>' --jobs 8
  resumable-data tokens show corpus
  resumable-data tokens show train.bin --dtype uint16 --end-token 50256
"""
_CODES = "exit codes: 0 good, 2 usage, 3 a file cannot be read or written"


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "tokens",
        help="turn texts into a dataset of tokens; describe one",
        description="Datasets of tokens: documents in the files that training reads.",
        epilog=f"{_EPILOG}\n{_CODES}\n",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = parser.add_subparsers(dest="action", required=True, metavar="action")
    _add_build(actions)
    _add_show(actions)


def run(args: argparse.Namespace) -> int:
    """Do it, print the report, and return the exit code."""
    return {"build": _build, "show": _show}[args.action](args)


def _add_build(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    build = actions.add_parser(
        "build",
        help="text files or JSON lines to Megatron's .bin and .idx",
        description="Writes the tokens of texts as PREFIX.bin and PREFIX.idx, both whole or none.",
        epilog=_CODES,
    )
    build.add_argument(
        "inputs", nargs="+", type=Path, metavar="INPUT", help="a text file, or .jsonl with one object a line"
    )
    build.add_argument("-o", "--output", required=True, metavar="PREFIX", help="the files' name without .bin and .idx")
    build.add_argument("--format", choices=FORMATS, help="of all inputs (default: by their names, else text)")
    build.add_argument(
        "--split-on",
        metavar="SEPARATOR",
        help=rf"where documents of a text file end: {BLANK_LINES}, or a text in which \n, \t and the like have their "
        "meaning (default: each file is one document)",
    )
    build.add_argument("--field", metavar="NAME", help=f"the field of JSON lines to take (default: {DEFAULT_FIELD})")
    build.add_argument(
        "--tokenizer", type=Path, metavar="FILE", help="a tokenizer.json (default: each byte is a token)"
    )
    end = build.add_mutually_exclusive_group()
    end.add_argument(
        "--end-token",
        metavar="TOKEN",
        help="after each document: a number, or a name that the tokenizer knows (default: 256 for bytes, else none)",
    )
    end.add_argument("--no-end-token", action="store_true", help="none, also for bytes")
    build.add_argument(
        "--jobs", type=_jobs, default=1, metavar="N", help="processes; the files stay the same (default: 1)"
    )
    build.add_argument("--force", action="store_true", help="replace files that exist")
    build.add_argument("--json", action="store_true", help="print the report as JSON")


def _add_show(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    show = actions.add_parser(
        "show",
        help="documents, tokens, lengths and fingerprint of a dataset",
        description="Describes whatever open_tokens opens: Megatron, raw, .npy, Parquet and Arrow files.",
        epilog=_CODES,
    )
    show.add_argument(
        "source", metavar="SOURCE", help="a file or folder, or the name of .bin and .idx without the ending"
    )
    show.add_argument("--full", action="store_true", help="take the fingerprint of all tokens, not of a sample")
    show.add_argument("--json", action="store_true", help="print JSON")
    add_source_options(show)


def _build(args: argparse.Namespace) -> int:
    try:
        with signals_interrupt(), ProgressBar() as progress:
            report = build_tokens(
                args.inputs,
                _prefix(args.output),
                tokenizer=_tokenizer(args),
                format=args.format,
                split_on=_split_on(args.split_on),
                field=args.field,
                jobs=args.jobs,
                force=args.force,
                progress=progress,
            )
    except KeyboardInterrupt:
        print("stopped; nothing was written", file=sys.stderr)
        return ENDED_BY_USER
    print(report.to_json().decode() if args.json else report.to_text())
    return 0


def _prefix(text: str) -> str:
    if text.endswith(os.sep) or os.path.basename(text) in ("", ".", ".."):
        raise UsageError(f"--output: expected the files' name without .bin and .idx, found the folder {text!r}.")
    return text


def _tokenizer(args: argparse.Namespace) -> Tokenizer:
    end = args.end_token
    number = int(end) if end is not None and end.isascii() and end.isdigit() else None
    if args.tokenizer is not None:
        return HuggingFaceTokenizer(args.tokenizer, end if number is None else number)
    if end is not None and number is None:
        raise UsageError(
            f"--end-token: bytes have no names, found {end!r}. Give a number, or a --tokenizer that knows it."
        )
    if args.no_end_token:
        return ByteTokenizer(None)
    return ByteTokenizer() if number is None else ByteTokenizer(number)


def _split_on(text: str | None) -> str | bytes | None:
    return text if text in (None, BLANK_LINES) else parse_separator(text)


def _show(args: argparse.Namespace) -> int:
    source = open_source(args.source, args)
    summary = summarize(source, full=args.full)
    print(summary.to_json().decode() if args.json else summary.to_text())
    return 0


def _jobs(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value
