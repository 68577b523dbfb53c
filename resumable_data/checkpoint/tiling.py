"""Whether boxes tile a tensor: each element in exactly one."""

from __future__ import annotations

from collections import Counter
from itertools import combinations, product
from math import prod
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

Box = tuple[tuple[int, ...], tuple[int, ...]]
"""Offsets and sizes."""


def tiling_fault(shape: Sequence[int], boxes: Sequence[Box]) -> str | None:
    """What is wrong with boxes that should tile a tensor, or None where they do.

    The time is proportional to the number of boxes, for any cut, except where something is wrong and is looked for.

    Args:
        shape: Of the tensor.
        boxes: Offsets and sizes, one per dimension, in elements.
    """
    for offsets, sizes in boxes:
        same_length = len(offsets) == len(sizes) == len(shape)
        if not same_length or any(o < 0 or n < 0 or o + n > s for s, o, n in zip(shape, offsets, sizes, strict=True)):
            return f"{show_box((offsets, sizes))} is not inside shape {list(shape)}"
    filled = [box for box in boxes if prod(box[1])]
    whole = [((0,) * len(shape), tuple(shape))] if prod(shape) else []
    # a dimension that no box is cut in has the same two sides in all of them
    cut = [dim for dim, size in enumerate(shape) if any(sizes[dim] != size for _, sizes in filled)]
    if _corners(cut, filled) == _corners(cut, whole):
        return None
    for first, second in combinations(filled, 2):
        if _overlap(first, second):
            return f"{show_box(first)} and {show_box(second)} overlap"
    found = sum(prod(sizes) for _, sizes in filled)
    return f"{found} of {prod(shape)} elements are there"


def show_box(box: Box) -> str:
    """As Python would slice it."""
    return "[" + ", ".join(f"{o}:{o + n}" for o, n in zip(*box, strict=True)) + "]"


def _corners(dims: Sequence[int], boxes: Sequence[Box]) -> Counter[tuple[int, ...]]:
    """Corners of boxes in some dimensions, each +1 or -1, so that those of neighbours cancel.

    This is the mixed difference of the function that counts in how many boxes an element lies, so it is equal for two
    sets of boxes exactly where they cover all elements equally often.
    """
    corners: Counter[tuple[int, ...]] = Counter()
    for offsets, sizes in boxes:
        for ends in product((0, 1), repeat=len(dims)):
            corner = tuple(offsets[dim] + end * sizes[dim] for dim, end in zip(dims, ends, strict=True))
            corners[corner] += -1 if sum(ends) % 2 else 1
    return Counter({corner: count for corner, count in corners.items() if count})


def _overlap(first: Box, second: Box) -> bool:
    sides = zip(*first, *second, strict=True)
    return all(max(o, p) < min(o + n, p + m) for o, n, p, m in sides)
