"""The tokens of packed rows, read from a source: nothing is read that is not known to be there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeGuard, cast

import numpy as np

from resumable_data.errors import SourceError, UsageError
from resumable_data.order import Int64Array
from resumable_data.packing.arguments import checked_row_length
from resumable_data.packing.rows import PackedRows, check_structure
from resumable_data.packing.sequences import Padding

if TYPE_CHECKING:
    from resumable_data.sources import FlatTokens, TokenArray, TokenSource

MAX_TOKEN = 2**63 - 1


def check_pieces(source: TokenSource, rows: PackedRows) -> Int64Array:
    """Refuse rows with pieces that the source does not have.

    Returns:
        ``(k,)`` int64, the tokens of each row.

    Raises:
        UsageError: when they have one, or their arrays do not fit each other.
        SourceError: when the source does not tell lengths.
    """
    checked_row_length(rows.row_length)
    used = check_structure(rows, len(source))
    lengths = _of_each_piece("lengths", source.lengths(rows.document), rows)
    outside = rows.stop > lengths
    if outside.any():
        at = int(np.argmax(outside))
        raise UsageError(
            f"rows must hold tokens that their documents have; found [{rows.start[at]}, {rows.stop[at]}) of document"
            f" {rows.document[at]}, which has {lengths[at]}. No token was read. Pack the documents of this source, or"
            " open the one that they are from."
        )
    return used


def read_tokens(source: TokenSource, rows: PackedRows, begins: Int64Array | None, padding: list[Padding]) -> TokenArray:
    """``(k * L,)`` in the stored type or int64: the tokens of rows that were checked, and zeros in padding.

    Args:
        source: of the tokens.
        rows: the rows.
        begins: what `begins_in_source` gave for them; None where the source is no `FlatTokens`.
        padding: the ends of rows that are not full.

    Raises:
        SourceError: when the source gives something else than integers for a range, or a token above `MAX_TOKEN`, or
            has fewer tokens than when the rows were checked.
    """
    if begins is not None and _is_joinable(tokens := cast("FlatTokens", source).tokens):
        stored = _joined(tokens, begins, rows, padding)
    else:
        stored = _read_each(source, rows, padding)
    _check_fits(stored)
    return stored


def is_flat(source: TokenSource) -> TypeGuard[FlatTokens]:
    """Whether it is a `FlatTokens`; ``isinstance`` with a Protocol takes as long as copying ten thousand tokens."""
    return all(hasattr(source, name) for name in ("tokens", "starts", "prefetch"))


def begins_in_source(source: FlatTokens, rows: PackedRows) -> Int64Array:
    """``(m,)`` int64, where each piece of rows that were checked begins in ``source.tokens``.

    Raises:
        SourceError: when one would leave them.
    """
    starts = _of_each_piece("starts", source.starts(rows.document), rows)
    outside = (starts < 0) | (starts > source.tokens.size - rows.stop)
    if outside.any():
        at = int(np.argmax(outside))
        raise SourceError(
            f"source.starts() must give places where documents lie in the {source.tokens.size} tokens of"
            f" source.tokens; found {starts[at]} for document {rows.document[at]}, of which tokens [{rows.start[at]},"
            f" {rows.stop[at]}) were to be read. No token was read. Correct the source."
        )
    return starts + rows.start


def _of_each_piece(name: str, answer: Any, rows: PackedRows) -> Int64Array:
    """What a source answered for the document of each piece: ``(m,)`` int64."""
    answer = np.asarray(answer)
    if answer.shape != rows.document.shape or answer.dtype.kind not in "iu":
        raise SourceError(
            f"source.{name}() must give an integer array of shape {rows.document.shape} for as many documents;"
            f" found {answer.dtype} of shape {answer.shape}. No token was read. Correct the source."
        )
    values: Int64Array = answer.astype(np.int64, copy=False)
    return values  # those from 2**63 on are negative now, as no document's are


def _is_joinable(tokens: TokenArray) -> bool:
    return tokens.dtype.kind in "iu" and tokens.ndim == 1 and tokens.flags.c_contiguous


def _joined(tokens: TokenArray, begins: Int64Array, rows: PackedRows, padding: list[Padding]) -> TokenArray:
    """Copy out of ``source.tokens``, in the stored type.

    To join slices of a memoryview takes two thirds of the time of copying slices of an array one by one: no object is
    made for where they go.
    """
    ends = begins + (rows.stop - rows.start)
    view = tokens.data
    parts: list[memoryview | bytes]
    parts = [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    for row_end in padding:
        parts.insert(row_end.after, bytes(row_end.size * view.itemsize))
    stored: TokenArray = np.frombuffer(b"".join(parts), tokens.dtype)
    num_places = len(rows) * rows.row_length
    if stored.size != num_places:  # slices end where the tokens do, without an error
        raise SourceError(
            f"source.tokens must have as many tokens as when the rows were checked; found {tokens.size}, which is"
            f" {num_places - stored.size} too few. Nothing was trained on. Correct the source: it must not change."
        )
    return stored


def _read_each(source: TokenSource, rows: PackedRows, padding: list[Padding]) -> TokenArray:
    """Read each piece by itself: int64."""
    columns = (rows.document, rows.start, rows.stop)
    parts = []
    for document, start, stop in zip(*(column.tolist() for column in columns), strict=True):
        piece = source.read(document, start, stop)
        _check_read(piece, document, start, stop)
        parts.append(piece)
    for row_end in padding:
        parts.insert(row_end.after, np.zeros(row_end.size, dtype=np.int64))
    return np.concatenate([np.empty(0, np.int64), *parts], dtype=np.int64, casting="unsafe")


def _check_read(piece: Any, document: int, start: int, stop: int) -> None:
    """Refuse what is not the integers of this range; numpy would repeat a single one, and cut a fraction."""
    is_array = isinstance(piece, np.ndarray)
    if not is_array or piece.shape != (stop - start,) or piece.dtype.kind not in "iu":
        found = f"{piece.dtype} of shape {piece.shape}" if is_array else type(piece).__name__
        raise SourceError(
            f"source.read({document}, {start}, {stop}) must give an integer array of shape ({stop - start},); found"
            f" {found}. Other tokens than the document's would be trained on. Correct the source."
        )
    _check_fits(piece)


def _check_fits(tokens: TokenArray) -> None:
    """Refuse uint64 tokens that int64 would show as negative ones."""
    if tokens.dtype.kind != "u" or tokens.dtype.itemsize < 8:
        return
    largest = int(tokens.max(initial=0))
    if largest > MAX_TOKEN:
        raise SourceError(
            f"tokens must be at most 2**63 - 1; found {largest}. It would become a negative one. No vocabulary is that"
            " large: the tokens were written as another type, or are damaged."
        )
