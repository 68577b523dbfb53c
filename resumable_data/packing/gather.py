"""From packed rows and a source to the arrays that a model takes: no object per token, one cast per batch."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard

import numpy as np

from resumable_data.errors import SourceError, UsageError
from resumable_data.order import Int64Array
from resumable_data.packing.arguments import checked_int, checked_row_length
from resumable_data.packing.batch import IGNORED_LABEL, Int32Array, RowBatch, RowBuffers
from resumable_data.packing.rows import PackedRows, check_structure, running_sum

if TYPE_CHECKING:
    from resumable_data.sources import FlatTokens, TokenArray, TokenSource

_MAX_PLACES = 2**31 - 1
"""Of a batch: ``cu_seqlens`` is int32, because the kernels take it so."""

_MAX_TOKEN = 2**63 - 1


def gather(source: TokenSource, rows: PackedRows, *, pad_token: int = 0, out: RowBuffers | None = None) -> RowBatch:
    """Write rows as arrays.

    A label is the next token of the same piece. Where a document goes on in another row, its piece's last token has no
    label, as at a document's end: a piece of n tokens has n - 1 targets, whatever the source, so that `target_tokens`
    knows their number without reading a token.

    Args:
        source: of the documents.
        rows: ``k`` rows of length ``L``, ``k * L`` below 2**31; ``rows.document`` holds the source's documents.
        pad_token: for the places that a row lacks, from 0 to 2**63 - 1.
        out: memory to write to, of at least ``k`` rows of length ``L``; new memory by default. After an error its
            contents are undefined.

    Returns:
        The arrays; where ``out`` is given, of its first ``k`` rows.

    Raises:
        UsageError: when an argument is not as described, or rows name documents or tokens that the source does not
            have.
        SourceError: when the source gives something else than integers for a range, or a token above 2**63 - 1.

    Example:
        >>> import numpy as np
        >>> from resumable_data import BestFit, open_tokens
        >>> source = open_tokens(np.array([11, 12, 13, 21, 22, 31]), lengths=np.array([3, 2, 1]))
        >>> rows = BestFit().pack(source.lengths(np.arange(3)), 4)
        >>> [rows.pieces(row) for row in range(2)]
        [[(0, 0, 3), (2, 0, 1)], [(1, 0, 2)]]
        >>> batch = gather(source, rows)
        >>> batch.tokens
        array([[11, 12, 13, 31],
               [21, 22,  0,  0]])
        >>> batch.labels
        array([[  12,   13, -100, -100],
               [  22, -100, -100, -100]])
        >>> batch.position_ids.tolist()
        [[0, 1, 2, 0], [0, 1, 0, 1]]
        >>> batch.cu_seqlens.tolist(), batch.max_seqlen
        ([0, 3, 4, 6, 8], 3)
    """
    pad_token = checked_int("pad_token", pad_token, 0, _MAX_TOKEN, "Pass the token that the model has for padding.")
    _check_size(rows)
    used = _check_pieces(source, rows)
    tokens, labels, position_ids = _memory(len(rows), rows.row_length, out)
    sequences = _Sequences.of(rows, used)
    stored = _stored_tokens(source, rows, sequences)
    _write_tokens(stored, sequences.edges, tokens.reshape(-1), labels.reshape(-1))
    for row, _, size in sequences.padding:
        tokens[row, -size:] = pad_token
        labels[row, -size:] = IGNORED_LABEL
    sequences.write_positions(position_ids.reshape(-1))
    return RowBatch(tokens, labels, position_ids, sequences.edges.astype(np.int32), sequences.longest())


def prefetch(source: TokenSource, rows: PackedRows) -> None:
    """Ask the operating system for the tokens of rows that are gathered soon, without waiting for them.

    Does nothing where the source is no `FlatTokens`.

    Raises:
        UsageError: when rows name documents or tokens that the source does not have.
    """
    _check_pieces(source, rows)
    if _is_flat(source):
        source.prefetch(_begins_in_source(source, rows), rows.stop - rows.start)


def target_tokens(rows: PackedRows) -> Int64Array:
    """``(k,)`` int64, the labels of each row that are a token: of each piece one less than its tokens."""
    return rows.tokens_per_row() - np.diff(rows.edges)


def _memory(num_rows: int, row_length: int, out: RowBuffers | None) -> tuple[Int64Array, Int64Array, Int32Array]:
    """``(num_rows, row_length)`` tokens, labels and positions to write to."""
    if out is not None:
        return out.first(num_rows, row_length)
    shape = (num_rows, row_length)
    return np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int32)


def _check_size(rows: PackedRows) -> None:
    num_places = len(rows) * checked_row_length(rows.row_length)
    if num_places > _MAX_PLACES:
        raise UsageError(
            f"a batch must have fewer than 2**31 places; found {num_places}, {len(rows)} rows of {rows.row_length}."
            " cu_seqlens, which kernels take as int32, would wrap around. Gather fewer rows at a time."
        )


def _check_pieces(source: TokenSource, rows: PackedRows) -> Int64Array:
    """Refuse rows with pieces that the source does not have; returns the ``(k,)`` int64 tokens of each row."""
    used = check_structure(rows, len(source))
    lengths = np.asarray(source.lengths(rows.document))
    if lengths.shape != rows.document.shape or lengths.dtype.kind not in "iu":
        raise SourceError(
            f"source.lengths() must give an integer array of shape {rows.document.shape} for as many documents; found"
            f" {lengths.dtype} of shape {lengths.shape}. No token was read. Correct the source."
        )
    outside = (rows.start < 0) | (rows.stop > lengths)
    if outside.any():
        at = int(np.argmax(outside))
        raise UsageError(
            f"rows must hold tokens that their documents have; found [{rows.start[at]}, {rows.stop[at]}) of document"
            f" {rows.document[at]}, which has {lengths[at]}. No token was read. Pack the documents of this source, or"
            " open the one that they are from."
        )
    return used


class _Padding(NamedTuple):
    """The end of a row that is not full."""

    row: int
    after: int  # so many pieces of the batch lie before it
    size: int  # places


class _Sequences(NamedTuple):
    """The pieces of rows and the padding at their ends, one after another in the batch laid out as ``(k * L,)``."""

    sizes: list[int]  # (s,)
    edges: Int64Array  # (s + 1,)
    padding: list[_Padding]  # the last row's first, so that inserting one moves no other's place

    @classmethod
    def of(cls, rows: PackedRows, used: Int64Array) -> _Sequences:
        """The sequences of rows of which pieces take ``used``: (k,) int64 places."""
        padded = np.flatnonzero(used < rows.row_length)[::-1]
        columns = (padded, rows.edges[padded + 1], rows.row_length - used[padded])
        padding = list(map(_Padding, *(column.tolist() for column in columns)))
        sizes = (rows.stop - rows.start).tolist()
        for row_end in padding:
            sizes.insert(row_end.after, row_end.size)
        return cls(sizes, running_sum(np.array(sizes, dtype=np.int64)), padding)

    def longest(self) -> int:
        """Places of the longest; 0 where there is none."""
        return max(self.sizes, default=0)

    def write_positions(self, position_ids: Int32Array) -> None:
        """Count from 0 in each, in ``(k * L,)`` int32."""
        here, ramp = position_ids.data, np.arange(self.longest(), dtype=np.int32).data
        begin = 0
        for size in self.sizes:
            end = begin + size
            here[begin:end] = ramp[:size]
            begin = end


def _stored_tokens(source: TokenSource, rows: PackedRows, sequences: _Sequences) -> TokenArray:
    """``(k * L,)`` in the stored type or int64: the tokens of rows, and zeros in padding."""
    is_flat = _is_flat(source) and source.tokens.flags.c_contiguous
    stored = _joined(source, rows, sequences) if is_flat else _read_each(source, rows, sequences)
    _check_fits(stored)
    return stored


def _is_flat(source: TokenSource) -> TypeGuard[FlatTokens]:
    """Whether it is a `FlatTokens`; ``isinstance`` with a Protocol takes longer than copying ten thousand tokens."""
    return all(hasattr(source, name) for name in ("tokens", "starts", "prefetch"))


def _begins_in_source(source: FlatTokens, rows: PackedRows) -> Int64Array:
    """``(m,)`` int64, where each piece begins in ``source.tokens``."""
    starts = np.asarray(source.starts(rows.document))
    begins = starts + rows.start
    outside = (starts < 0) | (begins > source.tokens.size - (rows.stop - rows.start))
    if outside.any():
        at = int(np.argmax(outside))
        raise SourceError(
            f"source.starts() must give places where documents lie in the {source.tokens.size} tokens of"
            f" source.tokens; found {starts[at]} for document {rows.document[at]}, of which tokens [{rows.start[at]},"
            f" {rows.stop[at]}) were to be read. No token was read. Correct the source."
        )
    return begins


def _joined(source: FlatTokens, rows: PackedRows, sequences: _Sequences) -> TokenArray:
    """The tokens of rows, copied out of ``source.tokens`` in the stored type.

    Joining slices of a memoryview takes half the time of slices of an array: it makes no object for where they go.
    """
    begins = _begins_in_source(source, rows)
    ends = begins + rows.stop - rows.start
    view = source.tokens.data
    parts = [view[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
    for row_end in sequences.padding:
        parts.insert(row_end.after, memoryview(bytes(row_end.size * view.itemsize)))
    return np.frombuffer(b"".join(parts), source.tokens.dtype)


def _read_each(source: TokenSource, rows: PackedRows, sequences: _Sequences) -> TokenArray:
    """The tokens of rows, each piece read by itself."""
    columns = (rows.document, rows.start, rows.stop)
    parts = []
    for document, start, stop in zip(*(column.tolist() for column in columns), strict=True):
        piece = source.read(document, start, stop)
        _check_read(piece, document, start, stop)
        parts.append(piece)
    for row_end in sequences.padding:
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
    if largest > _MAX_TOKEN:
        raise SourceError(
            f"tokens must be at most 2**63 - 1; found {largest}. It would become a negative one. No vocabulary is that"
            " large: the tokens were written as another type, or are damaged."
        )


def _write_tokens(stored: TokenArray, edges: Int64Array, tokens: Int64Array, labels: Int64Array) -> None:
    """Cast ``(n,)`` tokens, and as labels the next of each; at a sequence's end there is none."""
    tokens[:] = stored
    labels[:-1] = stored[1:]
    labels[edges[1:] - 1] = IGNORED_LABEL
