"""Whether boxes cover a tensor: every element once."""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.checkpoint.files.metadata import Chunk

    Array = np.ndarray[Any, np.dtype[np.int64]]

MAX_CELLS = 2**24


class Cover(NamedTuple):
    """What boxes do to a tensor.

    Attributes:
        outside: A box that is not in it; None where all are.
        hole: Coordinates of an element in none; None where there is none.
        overlap: Coordinates of one in several.
        is_checked: False where the boxes are cut too irregularly to say more than that.
    """

    outside: Chunk | None = None
    hole: tuple[int, ...] | None = None
    overlap: tuple[int, ...] | None = None
    is_checked: bool = True


def check_cover(shape: tuple[int, ...], chunks: Sequence[Chunk]) -> Cover:
    """How boxes cover a tensor of this shape. Boxes without elements only have to be inside."""
    if len(chunks) == 1 and chunks[0].sizes == shape and not any(chunks[0].offsets):
        return Cover(outside=None if len(chunks[0].offsets) == len(shape) else chunks[0])
    rank = len(shape)
    for chunk in chunks:
        if not len(chunk.offsets) == len(chunk.sizes) == rank:
            return Cover(outside=chunk)
    # offsets, sizes: (num_chunks, rank) int64
    offsets = np.array([chunk.offsets for chunk in chunks], np.int64).reshape(len(chunks), rank)
    sizes = np.array([chunk.sizes for chunk in chunks], np.int64).reshape(offsets.shape)
    is_outside = (sizes > np.array(shape, np.int64) - offsets).any(axis=1)
    if is_outside.any():
        return Cover(outside=chunks[int(np.argmax(is_outside))])
    if 0 in shape:
        return Cover()
    if not shape:
        return Cover(hole=None if chunks else (), overlap=() if len(chunks) > 1 else None)
    has_elements = (sizes > 0).all(axis=1)
    return _check_grid(shape, offsets[has_elements], offsets[has_elements] + sizes[has_elements])


def _check_grid(shape: tuple[int, ...], offsets: Array, stops: Array) -> Cover:
    """Count the boxes over each cell of the grid that all their borders make."""
    borders = [
        np.unique(np.concatenate([[0], offsets[:, axis], stops[:, axis], [size]])) for axis, size in enumerate(shape)
    ]
    if math.prod(len(border) for border in borders) << sum(len(border) > 2 for border in borders) > 2 * MAX_CELLS:
        return Cover(is_checked=False)
    counts = _counts(borders, offsets, stops)
    return Cover(hole=_first(borders, counts == 0), overlap=_first(borders, counts > 1))


def _counts(borders: list[Array], offsets: Array, stops: Array) -> Array:
    """How many boxes lie over each cell: +1 and -1 at the corners of each box, added up along each axis."""
    corners = [
        (np.searchsorted(border, offsets[:, axis]), np.searchsorted(border, stops[:, axis]))
        for axis, border in enumerate(borders)
    ]
    counts = np.zeros([len(border) for border in borders], np.int64)  # the last cell of each axis is past the end
    # An axis along which nothing is cut has one cell, and needs no second corner.
    choices = [(0, 1) if len(border) > 2 else (0,) for border in borders]
    for ends in itertools.product(*choices):
        at = tuple(corner[end] for corner, end in zip(corners, ends, strict=True))
        np.add.at(counts, at, -1 if sum(ends) % 2 else 1)
    for axis, choice in enumerate(choices):
        if len(choice) == 2:
            np.cumsum(counts, axis=axis, out=counts)
    return counts[tuple(slice(0, len(border) - 1) for border in borders)]


def _first(borders: list[Array], where: Any) -> tuple[int, ...] | None:
    if not where.any():
        return None
    cell = np.unravel_index(int(np.argmax(where)), where.shape)
    return tuple(int(border[at]) for border, at in zip(borders, cell, strict=True))
