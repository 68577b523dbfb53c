"""Where documents begin and end in one long array of tokens, by what the caller knows of it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import SourceError, UsageError
from resumable_data.sources.arguments import checked_integer
from resumable_data.sources.files import StoredArray, bad_source
from resumable_data.sources.npy import map_npy

if TYPE_CHECKING:
    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenArray

_CHUNK_TOKENS = 1 << 22


def find_boundaries(
    tokens: TokenArray, place: str, *, lengths: Any = None, end_token: Any = None, offsets: Any = None
) -> tuple[StoredArray, str]:
    """The offsets of documents in `tokens`: ``(documents + 1,)``, and what they were taken from.

    Exactly one of the three must be given.

    Args:
        tokens: All tokens.
        place: Where they live, for messages.
        lengths: Tokens of each document, an array of integers.
        end_token: The token that ends a document, and belongs to it. What follows the last one is a document too.
        offsets: An array of integers, or the path of one in an ``.npy`` file, which is mapped: where each document
            begins, and after them the number of tokens.

    Raises:
        UsageError: None of them is given, or several, or one is of another type.
        SourceError: They do not fit the tokens.
    """
    given = {"lengths": lengths, "end_token": end_token, "offsets": offsets}
    names = [name for name, value in given.items() if value is not None]
    if len(names) != 1:
        found = " and ".join(f"{name}=" for name in names) or "none of them"
        raise UsageError(
            f"{place}: expected one of lengths=, end_token= and offsets= to say where documents end, found {found}. A "
            "document's tokens would be taken for another's. Give one of them; lengths=[n] makes all n tokens one "
            "document."
        )
    if end_token is not None:
        return StoredArray(_scan(tokens, end_token, place)), f"end_token={int(end_token)}"
    if lengths is not None:
        return StoredArray(_accumulate(_integers("lengths", lengths), tokens.size, place)), "lengths"
    if isinstance(offsets, (str, os.PathLike)):
        path = Path(os.path.abspath(offsets))
        return map_npy(path), path.name
    return StoredArray(_integers("offsets", offsets).copy()), "offsets"


def _scan(tokens: TokenArray, end_token: Any, place: str) -> Int64Array:
    """One pass over the tokens, a chunk at a time: beside the offsets it takes a few megabytes."""
    limits = np.iinfo(tokens.dtype)
    end_token = checked_integer(f"end_token, a {tokens.dtype.name},", end_token, int(limits.min), int(limits.max))
    found = [np.zeros(1, np.int64)]
    for at in range(0, tokens.size, _CHUNK_TOKENS):
        ends = np.flatnonzero(tokens[at : at + _CHUNK_TOKENS] == end_token)
        found.append(ends + (at + 1))
    offsets = np.concatenate(found)
    if offsets.size == 1:
        raise SourceError(
            f"{place}: expected documents that end with the token {end_token}, found no such token among "
            f"{tokens.size}. All would be one document. Check end_token and dtype, or pass lengths=[n] if it is one."
        )
    return offsets if int(offsets[-1]) == tokens.size else np.append(offsets, tokens.size)


def _accumulate(lengths: np.ndarray[Any, Any], num_tokens: int, place: str) -> Int64Array:
    remedy = "Pass the number of tokens of each document, in order."
    wrong = (lengths < 0) | (lengths > num_tokens)
    if wrong.any():
        at = int(np.flatnonzero(wrong)[0])
        raise bad_source(place, f"lengths[{at}]", f"0 to {num_tokens} tokens", str(lengths[at]), remedy)
    offsets = np.zeros(lengths.size + 1, np.int64)
    np.cumsum(lengths, dtype=np.int64, out=offsets[1:])
    if int(offsets[-1]) != num_tokens or (np.diff(offsets) < 0).any():
        raise bad_source(place, "the sum of lengths", f"all {num_tokens} tokens", str(offsets[-1]), remedy)
    return offsets


def _integers(name: str, values: Any) -> np.ndarray[Any, Any]:
    array = np.asarray(values) if isinstance(values, (np.ndarray, list, tuple)) else None
    if array is None or array.ndim != 1 or array.dtype.kind not in "iu" or not array.size:
        found = type(values).__name__ if array is None else f"{array.dtype} of shape {array.shape}"
        raise UsageError(
            f"{name} must be a 1-D array of at least one integer{', or a path' * (name == 'offsets')}; found {found}. "
            f"Documents would begin elsewhere. Pass np.asarray({name}, dtype=np.int64)."
        )
    return array
