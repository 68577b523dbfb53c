"""How the digest of a tensor counts its bytes: rows of 32-bit words, a key for each word, and boxes of both.

A tensor is its bytes in C order. Its innermost dimensions, as many as make 256 bytes, are one row; the dimensions
before them count rows. So rows are long enough that a key for each costs little, and a box of a tensor that is
sharded in any of the outer dimensions is a set of rows, or of equal parts of rows.

The key of word j of row r is ``ROW[r] * SEGMENT[j >> 12] * WORD[j & 4095]`` modulo 2^64, each factor an output of
splitmix64 made odd, so that a long row needs a new key for each 4096 words only.
"""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

MIN_ROW_BYTES = 256
SEGMENT_WORDS = 4096
WORD_BYTES = 4

# Seeds of splitmix64.
ROW_KEYS, SEGMENT_KEYS, WORD_KEYS = 1, 2, 3

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_ONE = np.uint64(1)


class Sliceable(Protocol):
    """What numpy's arrays and torch's tensors have in common here."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Its sizes."""

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""

    def __getitem__(self, index: Any, /) -> Any: ...


ArrayT = TypeVar("ArrayT", bound=Sliceable)


class Box(NamedTuple):
    """A box of a tensor, with a size of at least 1 in each of its one or more dimensions.

    Attributes:
        shape: Of the tensor.
        offsets: Where the box begins.
        sizes: Of the box.
        itemsize: Bytes of an element.
        row_dim: The first dimension that lies within a row.
    """

    shape: tuple[int, ...]
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    itemsize: int
    row_dim: int

    @classmethod
    def of(cls, shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int], itemsize: int) -> Self:
        """The box, of a tensor of no dimensions as of one with one element."""
        shape, offsets, sizes = tuple(shape) or (1,), tuple(offsets) or (0,), tuple(sizes) or (1,)
        return cls(shape, offsets, sizes, itemsize, first_row_dim(shape, itemsize))

    @property
    def has_whole_rows_inside(self) -> bool:
        """Whether its part of a row is one run of bytes."""
        return self.sizes[self.row_dim + 1 :] == self.shape[self.row_dim + 1 :]

    @property
    def run_shape(self) -> tuple[int, ...]:
        """Sizes of the smallest box around it whose part of a row is one run of bytes."""
        return self.sizes[: self.row_dim + 1] + self.shape[self.row_dim + 1 :]

    @property
    def inside_run(self) -> tuple[slice, ...]:
        """Where it lies in the box of `run_shape`."""
        inner = slice(self.row_dim + 1, None)
        parts = zip(self.offsets[inner], self.sizes[inner], strict=True)
        return (slice(None),) * (self.row_dim + 1) + tuple(slice(start, start + size) for start, size in parts)

    @property
    def num_rows(self) -> int:
        """Rows that it has a part of."""
        return math.prod(self.sizes[: self.row_dim])

    @property
    def bytes_of_row(self) -> tuple[int, int]:
        """The run [start, stop) of bytes that it has of each row."""
        unit = self.itemsize * math.prod(self.shape[self.row_dim + 1 :])
        start = self.offsets[self.row_dim] * unit
        return start, start + self.sizes[self.row_dim] * unit

    def row_keys(self, start: int, stop: int) -> NDArray[np.int64]:
        """The keys of the start-th to stop-th of its rows: (stop - start,) int64."""
        index = np.arange(start, stop, dtype=np.int64)
        if self.row_dim:
            places = np.unravel_index(index, self.sizes[: self.row_dim])
            index = np.zeros_like(index)
            for size, offset, place in zip(self.shape, self.offsets, places, strict=False):
                index = index * size + (place + offset)
        return keys(ROW_KEYS, index)


def first_row_dim(shape: Sequence[int], itemsize: int) -> int:
    """The first of the innermost dimensions that together make a row."""
    dim, row_bytes = len(shape), itemsize
    while dim > 0 and row_bytes < MIN_ROW_BYTES:
        dim -= 1
        row_bytes *= shape[dim]
    return dim


def keys(seed: int, index: NDArray[np.int64]) -> NDArray[np.int64]:
    """Odd 64-bit numbers, two's complement: the outputs of splitmix64 at these places (0 the first)."""
    mixed = (index.astype(np.uint64) + _ONE) * _GOLDEN + np.uint64(seed)
    return (mix(mixed) | _ONE).view(np.int64)


def mix(state: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """What splitmix64 makes of a state: one to one."""
    state = (state ^ (state >> np.uint64(30))) * _MIX_1
    state = (state ^ (state >> np.uint64(27))) * _MIX_2
    return state ^ (state >> np.uint64(31))


@cache
def word_keys() -> NDArray[np.int64]:
    """The keys of the words of a segment: (4096,) int64."""
    made = keys(WORD_KEYS, np.arange(SEGMENT_WORDS, dtype=np.int64))
    made.flags.writeable = False
    return made


def segment_keys(start: int, num_segments: int) -> NDArray[np.int64]:
    """The keys of some segments: (num_segments,) int64."""
    return keys(SEGMENT_KEYS, np.arange(start, start + num_segments, dtype=np.int64))


class Panel(NamedTuple):
    """Words of a row that lie alike in one or more segments.

    Attributes:
        segment: The first segment.
        num_segments: How many, all whole if more than one.
        start: The first word in each.
        width: Words in each.
    """

    segment: int
    num_segments: int
    start: int
    width: int


def panels(start: int, stop: int) -> Iterator[Panel]:
    """The words [start, stop) of a row: the rest of a segment, whole ones, the beginning of one."""
    while start < stop:
        segment, first = divmod(start, SEGMENT_WORDS)
        whole = (stop - start) // SEGMENT_WORDS
        if first or not whole:
            width = min(SEGMENT_WORDS - first, stop - start)
            yield Panel(segment, 1, first, width)
            start += width
        else:
            yield Panel(segment, whole, 0, SEGMENT_WORDS)
            start += whole * SEGMENT_WORDS


def split(array: ArrayT, offsets: Sequence[int], max_bytes: int) -> Iterator[tuple[ArrayT, tuple[int, ...]]]:
    """Cut a box into boxes of about `max_bytes` at most, along its outermost dimensions.

    Args:
        array: The box.
        offsets: Where it begins in its tensor.
        max_bytes: Exceeded only by single elements.

    Yields:
        Parts and their offsets.
    """
    axis = next((axis for axis, size in enumerate(array.shape) if size > 1), None)
    if axis is None or array.nbytes <= max_bytes:
        yield array, tuple(offsets)
        return
    size = array.shape[axis]
    step = max(1, size * max_bytes // array.nbytes)
    for start in range(0, size, step):
        part = array[(slice(None),) * axis + (slice(start, start + step),)]
        moved = (*offsets[:axis], offsets[axis] + start, *offsets[axis + 1 :])
        yield from split(part, moved, max_bytes)


def check_box(shape: Sequence[int], offsets: Sequence[int], sizes: Sequence[int]) -> None:
    """Make sure that a box lies in its tensor.

    Raises:
        UsageError: It does not.
    """
    same_length = len(shape) == len(offsets) == len(sizes)
    if not same_length or any(o < 0 or n < 0 or o + n > s for s, o, n in zip(shape, offsets, sizes, strict=True)):
        raise UsageError(
            f"expected a box inside a tensor of shape {list(shape)}, got offsets {list(offsets)} and sizes "
            f"{list(sizes)}: its words would count under other places' keys. Give offsets and sizes in elements, one "
            "per dimension."
        )
