"""What a model takes: packed rows as arrays, and the memory that they are written to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array

IGNORED_LABEL = -100
"""The label of a place without a target, as torch's cross entropy ignores it by default."""

Int32Array = npt.NDArray[np.int32]


@dataclass(frozen=True, eq=False)
class RowBatch:
    """Rows as a model takes them: ``k`` of them, ``L`` places each.

    A *sequence* is a piece of a document, or the padding at a row's end. They lie one after another and cover every
    place of the batch.

    Args:
        tokens: ``(k, L)`` int64; the pad token where a row is not full.
        labels: ``(k, L)`` int64, the next token of the same piece; -100 at a piece's last token and in padding.
        position_ids: ``(k, L)`` int32, from 0 on in each sequence.
        cu_seqlens: ``(s + 1,)`` int32, where sequences begin in the batch laid out as ``(k * L,)``, and its end: from 0
            to ``k * L``, ascending, as flash-attention's variable-length kernels take them.
        max_seqlen: places of the longest sequence; 0 where there is none.
    """

    tokens: Int64Array
    labels: Int64Array
    position_ids: Int32Array
    cu_seqlens: Int32Array
    max_seqlen: int

    def sequence_ids(self) -> Int32Array:
        """``(k, L)`` int32, the number of each place's sequence in the batch, from 0.

        What a mask for torch's ``flex_attention`` compares: a place may look at those of its own sequence only.
        """
        num_sequences = self.cu_seqlens.size - 1
        numbers = np.repeat(np.arange(num_sequences, dtype=np.int32), np.diff(self.cu_seqlens))
        return numbers.reshape(self.tokens.shape)


@dataclass(frozen=True, eq=False)
class RowBuffers:
    """Memory for rows, to be written again and again: the first touch of new memory costs more than what is written.

    Whoever keeps a batch while the next one is made needs buffers for both.

    Args:
        tokens: ``(n, L)`` int64, contiguous.
        labels: ``(n, L)`` int64, contiguous.
        position_ids: ``(n, L)`` int32, contiguous.

    Raises:
        UsageError: when an array is not as described, or they share memory.

    Example:
        >>> buffers = RowBuffers.empty(4, 2048)
        >>> buffers.position_ids.shape
        (4, 2048)
    """

    tokens: Int64Array
    labels: Int64Array
    position_ids: Int32Array

    def __post_init__(self) -> None:
        shape = np.shape(self.tokens)
        arrays = {"tokens": self.tokens, "labels": self.labels, "position_ids": self.position_ids}
        for name, array in arrays.items():
            _check_buffer(name, array, shape, np.dtype(np.int32 if name == "position_ids" else np.int64))
        pairs = ((self.tokens, self.labels), (self.tokens, self.position_ids), (self.labels, self.position_ids))
        if any(np.may_share_memory(one, other) for one, other in pairs):
            raise UsageError(
                "buffers must not share memory; found two that do. What is written to one would be lost in the other."
                " Allocate each by itself, or use RowBuffers.empty()."
            )

    @classmethod
    def empty(cls, num_rows: int, row_length: int) -> RowBuffers:
        """New memory for so many rows of this length, not yet written to."""
        shape = (num_rows, row_length)
        return cls(np.empty(shape, np.int64), np.empty(shape, np.int64), np.empty(shape, np.int32))

    def first(self, num_rows: int, row_length: int) -> tuple[Int64Array, Int64Array, Int32Array]:
        """The arrays of the first rows, ``(num_rows, row_length)``.

        Raises:
            UsageError: when there are fewer rows, or they have another length.
        """
        available, length = self.tokens.shape
        if length != row_length or available < num_rows:
            raise UsageError(
                f"out must have at least {num_rows} rows of {row_length} places; found {available} of {length}. The"
                f" batch would be cut. Pass RowBuffers.empty({num_rows}, {row_length}), or fewer rows."
            )
        return self.tokens[:num_rows], self.labels[:num_rows], self.position_ids[:num_rows]


def _check_buffer(name: str, array: Any, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
    is_array = isinstance(array, np.ndarray)
    fits = is_array and array.ndim == 2 and array.shape == shape and array.dtype == dtype
    if not fits or not array.flags.c_contiguous or not array.flags.aligned or not array.flags.writeable:
        found = f"{array.dtype} of shape {array.shape}" if is_array else type(array).__name__
        kind = "" if not fits else ", not contiguous, not aligned or read-only"
        raise UsageError(
            f"{name} must be a contiguous, writeable {dtype} array of shape (rows, row length), the same for all;"
            f" found {found}{kind}. Rows cannot be written to it. Use RowBuffers.empty()."
        )
