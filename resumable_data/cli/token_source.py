"""A source of tokens, as commands are told of it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable_data.sources import open_tokens
from resumable_data.sources.npy import map_npy

if TYPE_CHECKING:
    import argparse

    from resumable_data.sources import TokenSource


def add_source_options(parser: argparse.ArgumentParser) -> None:
    """Add what `open_tokens` has to be told where a file does not say it."""
    options = parser.add_argument_group("how the tokens lie in SOURCE, where it does not say so itself")
    options.add_argument("--dtype", metavar="TYPE", help="integer type of a raw file, say uint16")
    options.add_argument("--end-token", type=int, metavar="TOKEN", help="the number of the token that ends a document")
    options.add_argument(
        "--offsets", type=Path, metavar="FILE", help="an .npy file: where documents begin, then the end"
    )
    options.add_argument("--lengths-file", type=Path, metavar="FILE", help="an .npy file: the tokens of each document")
    options.add_argument("--column", metavar="NAME", help="the column of a Parquet or Arrow file (default: input_ids)")


def open_source(path: str, args: argparse.Namespace) -> TokenSource:
    """Open what these options describe.

    Raises:
        UsageError: They do not fit the source.
        SourceError: It cannot be read.
    """
    lengths: Any = None if args.lengths_file is None else map_npy(args.lengths_file).array
    return open_tokens(
        path,
        lengths=lengths,
        dtype=args.dtype,
        end_token=args.end_token,
        offsets=args.offsets,
        column=args.column,
    )
