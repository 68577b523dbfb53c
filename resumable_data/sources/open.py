"""One way in: the source that a path or an array is, by what it says of itself and what the caller says of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sources import arrow, megatron, npy, parquet
from resumable_data.sources.files import read_head
from resumable_data.sources.flat import open_array, open_npy, open_raw

if TYPE_CHECKING:
    from resumable_data.sources.protocol import TokenArray, TokenSource

    _Named: TypeAlias = dict[str, Any]

_HEAD_BYTES = 16


def open_tokens(
    path_or_array: str | os.PathLike[str] | TokenArray,
    /,
    *,
    lengths: Any = None,
    dtype: Any = None,
    end_token: int | None = None,
    offsets: Any = None,
    column: str | None = None,
) -> TokenSource:
    """Open documents of tokens, read-only.

    What is opened:

    * a Megatron dataset, by its ``.idx``, by its ``.bin`` with the ``.idx`` beside it, or by their common name;
    * a raw file without a header, with `dtype` and one of `lengths`, `end_token` and `offsets`;
    * an ``.npy`` file of a 1-D integer array, or such an array in memory, with one of the same three;
    * a Parquet file, an Arrow file, or a folder that Hugging Face's ``save_to_disk`` wrote (extra ``arrow``).

    Files are known by their first bytes, not by their names; types are never guessed.

    Args:
        path_or_array: Where the tokens live, or the tokens.
        lengths: Tokens of each document, in order: ``(documents,)`` integers.
        dtype: Integer type in which a raw file was written.
        end_token: The token that ends a document, and belongs to it. What follows the last one is a document too.
        offsets: Where each document begins, and after them the number of tokens: ``(documents + 1,)`` integers, or
            the path of an ``.npy`` file of them.
        column: Name of the column in a Parquet or Arrow file; ``input_ids``, or the only one with lists of integers.

    Raises:
        UsageError: An argument is wrong, missing, or one that what is opened has no use for.
        SourceError: A file cannot be read or is damaged, or does not fit the arguments.

    Example:
        >>> import numpy as np
        >>> tokens = open_tokens(np.array([5, 6, 0, 7, 0], np.uint16), end_token=0)
        >>> len(tokens), tokens.lengths(np.arange(2)).tolist(), tokens.read(1, 0, 2).tolist()
        (2, [3, 2], [7, 0])
    """
    given = {"lengths": lengths, "dtype": dtype, "end_token": end_token, "offsets": offsets, "column": column}
    named = {name: value for name, value in given.items() if value is not None}
    if isinstance(path_or_array, np.ndarray):
        _refuse(named, {"column"}, "an array in memory")
        return open_array(path_or_array, **named)
    if not isinstance(path_or_array, (str, os.PathLike)):
        raise UsageError(
            f"expected a path or a numpy array of tokens, found {type(path_or_array).__name__}. It would have to be "
            "copied to be sure of its contents. Pass np.asarray(...) of all tokens, or the path of a file."
        )
    return _open_path(Path(path_or_array), named)


def _open_path(path: Path, named: _Named) -> TokenSource:
    if path.is_dir():
        return _open_folder(path, named)
    flat = set(named) - {"column"}
    if _is_megatron(path):
        _refuse(
            named,
            set(named),
            f"the Megatron dataset {shown(megatron.megatron_paths(path)[0])}, whose index says it",
            "; to read the .bin file as raw tokens all the same, use resumable_data.sources.open_raw()" if flat else "",
        )
        return megatron.MegatronTokens(path)
    head, _ = read_head(path, _HEAD_BYTES)
    if head.startswith(npy.MAGIC):
        _refuse(named, {"column"}, f"the array in {shown(path)}")
        return open_npy(path, **named)
    if head.startswith(megatron.MAGIC):
        raise UsageError(
            f"{shown(path)}: expected tokens, found the index of a Megatron dataset under another name. Its counts "
            "would be read as tokens. Name it NAME.idx, beside NAME.bin."
        )
    # Any bytes may be tokens: what a caller describes as raw is, unless it has the whole name of another format.
    is_stream = head.startswith(arrow.STREAM_MAGIC) and "dtype" not in named
    if head.startswith(parquet.MAGIC) or head.startswith(arrow.FILE_MAGIC) or is_stream:
        _refuse(named, flat, f"{shown(path)}, a file of columns, which says it")
        kind = parquet.ParquetTokens if head.startswith(parquet.MAGIC) else arrow.ArrowTokens
        return kind(path, **named)
    return _open_raw(path, named)


def _open_folder(path: Path, named: _Named) -> TokenSource:
    _refuse(named, set(named) - {"column"}, f"the folder {shown(path)}, whose files say it")
    if (path / arrow.SPLITS_NAME).exists():
        splits = sorted(part.name for part in path.iterdir() if (part / arrow.STATE_NAME).exists())
        raise UsageError(
            f"{shown(path)}: expected one dataset, found one with the splits {splits}. Training and test documents "
            "would be mixed. Pass the folder of the split that is meant."
        )
    if not (path / arrow.STATE_NAME).exists():
        raise UsageError(
            f"{shown(path)}: expected a file, or a folder that save_to_disk() wrote, found a folder without "
            f"{arrow.STATE_NAME}. Which of its files are meant, and in what order, cannot be known. Pass a file."
        )
    return arrow.ArrowTokens(path, **named)


def _open_raw(path: Path, named: _Named) -> TokenSource:
    _refuse(named, {"column"}, f"{shown(path)}, which is none of the formats that have columns")
    if "dtype" not in named:
        raise UsageError(
            f"{shown(path)}: expected a Megatron dataset, an .npy, Parquet or Arrow file, or dtype= of a raw file; "
            "found a file of none of these formats, and no dtype=. Bytes read as a guessed type are other tokens. Give "
            "dtype=np.uint16 or what else it was written as, and one of lengths=, end_token= and offsets=."
        )
    return open_raw(path, **named)


def _is_megatron(path: Path) -> bool:
    index, tokens = megatron.megatron_paths(path)
    if path.suffix == ".idx":
        return True
    if path.suffix == ".bin":
        return index.exists()
    return not path.exists() and (index.exists() or tokens.exists())


def _refuse(named: _Named, useless: set[str], what: str, way_out: str = "") -> None:
    """Refuse arguments that would be passed over."""
    found = [f"{name}=" for name in named if name in useless]
    if found:
        raise UsageError(
            f"{' and '.join(found)} cannot be given for {what}. Two answers to where documents are would be one too "
            f"many. Leave {'it' if len(found) == 1 else 'them'} out{way_out}."
        )
