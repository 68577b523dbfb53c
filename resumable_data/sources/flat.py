"""Opening one long array of tokens: a raw file, an ``.npy`` file, or an array in memory."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import SourceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sources.arguments import checked_dtype
from resumable_data.sources.boundaries import find_boundaries
from resumable_data.sources.files import StoredArray, bad_source, read_head
from resumable_data.sources.npy import map_npy
from resumable_data.sources.offsets import OffsetTokens

if TYPE_CHECKING:
    from resumable_data.sources.protocol import TokenArray


def open_raw(
    path: str | os.PathLike[str], *, dtype: Any, lengths: Any = None, end_token: Any = None, offsets: Any = None
) -> OffsetTokens:
    """Tokens in a file without a header, whatever its name: what nanoGPT writes as ``.bin``, and OLMo as ``.npy``.

    Args:
        path: The file.
        dtype: The integer type in which tokens were written.
        lengths: See `find_boundaries`, as the next two.
        end_token: The token that ends a document.
        offsets: Where documents begin.

    Raises:
        UsageError: An argument is wrong or missing.
        SourceError: The file cannot be read, or does not fit the arguments.
    """
    kind = checked_dtype(dtype)
    path = Path(os.path.abspath(path))
    _, size = read_head(path, 1)
    if size % kind.itemsize:
        raise bad_source(
            path,
            "its size",
            f"a multiple of {kind.itemsize} bytes, as tokens are {kind.name}",
            f"{size} bytes",
            "Check dtype; if it is right, the file was cut: write it again.",
        )
    tokens = StoredArray.in_file(path, size, kind.str, 0, size // kind.itemsize)
    return _with_boundaries(tokens, "raw", shown(path), lengths, end_token, offsets)


def open_npy(
    path: str | os.PathLike[str], *, dtype: Any = None, lengths: Any = None, end_token: Any = None, offsets: Any = None
) -> OffsetTokens:
    """Tokens in numpy's ``.npy`` format, whose header says the integer type.

    Args:
        path: The file.
        dtype: The type that its header must say; any integer type by default.
        lengths: See `find_boundaries`, as the next two.
        end_token: The token that ends a document.
        offsets: Where documents begin.

    Raises:
        UsageError: An argument is wrong or missing.
        SourceError: The file cannot be read, or does not fit the arguments.
    """
    path = Path(os.path.abspath(path))
    tokens = map_npy(path)
    if dtype is not None and checked_dtype(dtype) != tokens.array.dtype:
        raise bad_source(
            path,
            "its header",
            f"dtype {checked_dtype(dtype).name}, as was asked for",
            tokens.array.dtype.name,
            "Leave out dtype=, as the header says it.",
        )
    return _with_boundaries(tokens, "npy", shown(path), lengths, end_token, offsets)


def open_array(
    tokens: TokenArray, *, dtype: Any = None, lengths: Any = None, end_token: Any = None, offsets: Any = None
) -> OffsetTokens:
    """Tokens in memory. The array is not copied: whoever writes to it changes the documents.

    Args:
        tokens: ``(n,)`` of any integer type, contiguous.
        dtype: The type that it must have; any integer type by default.
        lengths: See `find_boundaries`, as the next two.
        end_token: The token that ends a document.
        offsets: Where documents begin.

    Raises:
        UsageError: An argument is wrong or missing.
        SourceError: The boundaries do not fit the tokens.
    """
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu" or not tokens.dtype.isnative or not tokens.flags.c_contiguous:
        raise UsageError(
            "tokens must be a 1-D contiguous array of integers in this machine's byte order; found "
            f"{tokens.dtype} of shape {tokens.shape}. Documents are slices of it. Pass np.ascontiguousarray(tokens) of "
            "all documents one after another."
        )
    if dtype is not None and checked_dtype(dtype) != tokens.dtype:
        raise UsageError(f"dtype={checked_dtype(dtype).name} was asked for, found an array of {tokens.dtype}.")
    if not tokens.size:
        raise SourceError("expected tokens, found an array without any. A run would have nothing to read.")
    plain = tokens.view(np.ndarray)  # slices of a subclass, say np.memmap, cost more than what they read
    return _with_boundaries(StoredArray(plain), "memory", "an array in memory", lengths, end_token, offsets)


def _with_boundaries(
    tokens: StoredArray, kind: str, place: str, lengths: Any, end_token: Any, offsets: Any
) -> OffsetTokens:
    found, boundaries = find_boundaries(tokens.array, place, lengths=lengths, end_token=end_token, offsets=offsets)
    return OffsetTokens(tokens, found, kind=kind, place=place, boundaries=boundaries)
