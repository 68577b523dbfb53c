"""The packed rows of a run, as commands are told of them: the source alone, as the recipe tells how it was packed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.cli.token_source import add_source_options, open_source
from resumable_data.errors import UsageError
from resumable_data.ledger import Ledger
from resumable_data.packing import PackedTokens

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from resumable_data.cursor import Recipe


def add_packed_options(parser: argparse.ArgumentParser) -> None:
    """Add ``--tokens`` and what goes with it."""
    parser.add_argument(
        "--tokens", metavar="SOURCE", help="of a run over packed rows: the documents that it read, see `tokens show`"
    )
    add_source_options(parser)


def open_packed(args: argparse.Namespace, recipe: Recipe | None) -> PackedTokens | None:
    """The rows of a run with this recipe; None where no tokens are given.

    Raises:
        UsageError: The run read no packed rows, or its order or policy is a user's own.
        SourceError: The tokens cannot be read.
    """
    given = [name for name in ("dtype", "end_token", "offsets", "lengths_file", "column") if getattr(args, name)]
    if args.tokens is None:
        if given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} says how tokens lie in a SOURCE; give --tokens SOURCE too"
            )
        return None
    return None if recipe is None else PackedTokens.from_description(open_source(args.tokens, args), recipe.order)


def recipe_of_ledger(path: Path) -> Recipe | None:
    """The recipe of a ledger's newest attempt; None where there is none, which whoever reads it will say."""
    newest = Ledger(path, on_error="raise").newest() if path.is_dir() else None
    return None if newest is None else newest.start.recipe
