"""The digest of a tensor: 64 bits that do not depend on how it was sharded.

The sum over the tensor's 32-bit words of word times key, modulo 2^64, finally mixed with dtype and shape; the layout
module says which words and keys. A sum does not care who adds which part, nor in which order: each box of a tensor,
whether a rank holds it or a file, gives a partial sum, and the sums of boxes that tile the tensor add up to the sum of
the whole. A word that two boxes share adds up as well.

It finds accidents: one changed word always, several but for a chance that `docs/digest.md` states. It does not
withstand somebody who searches for a collision.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xxhash

from resumable_data.checkpoint.digest_layout import (
    WORD_BYTES,
    Box,
    check_box,
    mix,
    panels,
    segment_keys,
    split,
    word_keys,
)
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

_MASK = (1 << 64) - 1
_COPY_BYTES = 1 << 19
"""What is copied at once where elements do not lie as the digest counts them: it stays in a core's cache."""
_ROWS = 1 << 15
"""Rows whose keys are made at once."""
_ELEMENTS = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}


def box_digest(
    raw: bytes | bytearray | memoryview,
    itemsize: int,
    shape: Sequence[int],
    offsets: Sequence[int],
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> int:
    """The partial sum of one box of a tensor, from its bytes.

    Args:
        raw: The box's elements, little-endian.
        itemsize: Bytes of an element: 1, 2, 4, 8, or 16 for complex128.
        shape: Of the whole tensor.
        offsets: Where the box begins, in elements.
        sizes: Of the box.
        strides: How far apart the box's elements lie in `raw`, in elements; C order by default.

    Returns:
        An integer in [0, 2^64), for `combine` and `finish`.

    Raises:
        UsageError: The box does not lie in the tensor, or `raw` is too short for it.

    Example:
        >>> half = bytes(range(8))
        >>> whole = box_digest(half + half, 2, (2, 4), (0, 0), (2, 4))
        >>> parts = [box_digest(half, 2, (2, 4), (row, 0), (1, 4)) for row in (0, 1)]
        >>> combine(parts) == whole
        True
    """
    return array_digest(box_array(raw, itemsize, sizes, strides), shape, offsets)


def box_array(
    raw: bytes | bytearray | memoryview,
    itemsize: int,
    sizes: Sequence[int],
    strides: Sequence[int] | None = None,
) -> NDArray[Any]:
    """The elements of a box as an array over `raw`, of any type with elements of this size.

    Raises:
        UsageError: `raw` is too short, or a size, stride or itemsize is impossible.
    """
    strides = [math.prod(sizes[dim + 1 :]) for dim in range(len(sizes))] if strides is None else strides
    if itemsize not in _ELEMENTS or min((*sizes, *strides), default=0) < 0 or len(strides) != len(sizes):
        raise UsageError(
            f"expected elements of {', '.join(map(str, _ELEMENTS))} bytes, sizes and as many strides of at least 0, "
            f"got {itemsize} bytes, sizes {list(sizes)} and strides {list(strides)}; no digest can be made of them."
        )
    num_bytes = memoryview(raw).nbytes
    if 0 in sizes:
        return np.empty(tuple(sizes), _ELEMENTS[itemsize])
    needed = itemsize * (1 + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True)))
    if num_bytes < needed:
        raise UsageError(
            f"expected at least {needed} bytes for a box of sizes {list(sizes)} and strides {list(strides)} with "
            f"{itemsize} bytes per element, got {num_bytes}: the digest would miss the rest. The file is cut short, or "
            "these are the bytes of another box."
        )
    byte_strides = tuple(stride * itemsize for stride in strides)
    return np.ndarray(tuple(sizes), _ELEMENTS[itemsize], buffer=memoryview(raw).cast("B"), strides=byte_strides)


def array_digest(array: NDArray[Any], shape: Sequence[int], offsets: Sequence[int]) -> int:
    """As `box_digest`, of a box that is an array: its bytes count, not what its dtype makes of them.

    Args:
        array: Any strides; copied in small parts where they are not C order.
        shape: Of the whole tensor.
        offsets: Where the box begins.
    """
    check_box(shape, offsets, array.shape)
    if array.size == 0:
        return 0
    box = Box.of(shape, offsets, array.shape, array.itemsize)
    array = array.reshape(box.sizes)
    if array.flags.c_contiguous and box.has_whole_rows_inside:
        return _contiguous_digest(array, box)
    max_bytes = max(1, _COPY_BYTES * math.prod(box.sizes) // math.prod(box.run_shape))
    parts = split(array, box.offsets, max_bytes)
    return combine(_copied_digest(part, box._replace(offsets=start, sizes=part.shape)) for part, start in parts)


def combine(parts: Iterable[int]) -> int:
    """The partial sum of all boxes together, in any order."""
    return sum(parts) & _MASK


def finish(total: int, dtype: str, shape: Sequence[int]) -> str:
    """The digest of a tensor: 16 hexadecimal digits.

    Args:
        total: The sum over boxes that tile it.
        dtype: Its name in torch without the ``torch.``, as ``"bfloat16"``.
        shape: Of the tensor.

    Raises:
        UsageError: `dtype` is no such name.
    """
    if not dtype.isidentifier():
        raise UsageError(
            f'expected the bare name of a dtype, as "float32", got {dtype!r}: it would make another digest of the same '
            "tensor."
        )
    tag = xxhash.xxh3_64_intdigest(f"{dtype}[{','.join(map(str, shape))}]".encode())
    (mixed,) = mix(np.array([combine((total, tag))], np.uint64)).tolist()
    return f"{mixed:016x}"


def _copied_digest(part: NDArray[Any], box: Box) -> int:
    """Of a small part, copied to where its bytes lie in its rows; what is around it is 0 and adds nothing."""
    around = np.zeros(box.run_shape, part.dtype)
    # first as they lie, or a transposed part is read a cache line per element
    around[box.inside_run] = np.array(part, order="K")
    inner = slice(box.row_dim + 1, None)
    offsets = box.offsets[: box.row_dim + 1] + (0,) * len(box.shape[inner])
    return _contiguous_digest(around, box._replace(offsets=offsets, sizes=box.run_shape))


def _contiguous_digest(array: NDArray[Any], box: Box) -> int:
    start, stop = box.bytes_of_row
    # data: (rows, bytes of a row)
    data = array.reshape(-1).view(np.uint8).reshape(box.num_rows, stop - start)
    total = 0
    for row in range(0, box.num_rows, _ROWS):
        block = data[row : row + _ROWS]
        total += int((_row_sums(block, start) * box.row_keys(row, row + len(block))).sum())
    return total & _MASK


def _row_sums(data: NDArray[np.uint8], start: int) -> NDArray[np.int64]:
    """The sum over each row of its words times their keys, the row's own key left out.

    Args:
        data: (rows, n) uint8, bytes [start, start + n) of each row.
        start: A byte of the row.

    Returns:
        (rows,) int64, modulo 2^64.
    """
    stop = start + data.shape[1]
    first, last = -(-start // WORD_BYTES), stop // WORD_BYTES  # whole words
    if first > last:
        return _edge(data, start)
    sums = np.zeros(len(data), np.int64)
    for panel in panels(first, last):
        begin = (panel.segment * word_keys().size + panel.start) * WORD_BYTES - start
        words = data[:, begin : begin + panel.num_segments * panel.width * WORD_BYTES].view("<i4")
        # words: (rows, segments, width); einsum converts them in small buffers, and takes them unaligned
        words = words.reshape(len(data), panel.num_segments, panel.width)
        factors = word_keys()[panel.start : panel.start + panel.width]
        by_segment = np.einsum("rsw,w->rs", words, factors, dtype=np.int64)
        sums += np.einsum("rs,s->r", by_segment, segment_keys(panel.segment, panel.num_segments))
    if start < first * WORD_BYTES:
        sums += _edge(data[:, : first * WORD_BYTES - start], start)
    if last * WORD_BYTES < stop:
        sums += _edge(data[:, last * WORD_BYTES - start :], last * WORD_BYTES)
    return sums


def _edge(data: NDArray[np.uint8], start: int) -> NDArray[np.int64]:
    """As `_row_sums`, of bytes that are less than a word; the rest of the word is 0."""
    word, place = divmod(start, WORD_BYTES)
    padded = np.zeros((len(data), WORD_BYTES), np.uint8)
    padded[:, place : place + data.shape[1]] = data
    segment, index = divmod(word, word_keys().size)
    key = word_keys()[index : index + 1] * segment_keys(segment, 1)
    return padded.view("<i4")[:, 0].astype(np.int64) * key
