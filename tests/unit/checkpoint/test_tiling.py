"""Boxes tile a tensor, or it is said where they do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.checkpoint.tiling import Box, tiling_fault


def is_tiled(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """By counting at each element."""
    count = np.zeros(tuple(shape), np.int64)
    for box in boxes:
        count[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))] += 1
    return bool((count == 1).all())


@st.composite
def tensors_and_boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Box]]:
    """A tiling by repeated cuts, and then perhaps a box moved, lost, or there twice."""
    shape = tuple(draw(st.lists(st.integers(0, 4), max_size=3)))
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 4))):
        offsets, sizes = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        if not shape:
            boxes.append((offsets, sizes))
            continue
        dim = draw(st.integers(0, len(shape) - 1))
        first = draw(st.integers(0, sizes[dim]))
        boxes.append((offsets, (*sizes[:dim], first, *sizes[dim + 1 :])))
        moved = (*offsets[:dim], offsets[dim] + first, *offsets[dim + 1 :])
        boxes.append((moved, (*sizes[:dim], sizes[dim] - first, *sizes[dim + 1 :])))
    for _ in range(draw(st.integers(0, 2))):
        place = draw(st.integers(0, len(boxes) - 1))
        fault = draw(st.sampled_from(["lose", "repeat", "move"]))
        offsets, sizes = boxes[place]
        if fault == "lose" and len(boxes) > 1:
            del boxes[place]
        elif fault == "repeat":
            boxes.append(boxes[place])
        elif fault == "move":
            room = [draw(st.integers(0, s - n)) for s, n in zip(shape, sizes, strict=True)]
            boxes[place] = (tuple(room), sizes)
    return shape, boxes


@given(tensors_and_boxes())
def test_tiling_is_what_counting_says(case: tuple[tuple[int, ...], list[Box]]) -> None:
    """A fault is found exactly where an element lies in no box or in two."""
    assert (tiling_fault(*case) is None) == is_tiled(*case)


@pytest.mark.parametrize(
    ("shape", "boxes", "message"),
    [
        ((4,), [((0,), (3,))], "3 of 4 elements are there"),
        ((), [], "0 of 1 elements are there"),
        ((4,), [((0,), (3,)), ((2,), (2,))], r"[0:3] and [2:4] overlap"),
        ((2, 4), [((0, 0), (2, 2)), ((0, 1), (2, 2))], r"[0:2, 0:2] and [0:2, 1:3] overlap"),
        ((4,), [((2,), (3,))], r"[2:5] is not inside shape [4]"),
        ((4,), [((0, 0), (4, 1))], r"[0:4, 0:1] is not inside shape [4]"),
    ],
)
def test_fault_is_named(shape: tuple[int, ...], boxes: list[Box], message: str) -> None:
    """What is missing, lies twice or outside is said."""
    assert tiling_fault(shape, boxes) == message


def test_many_boxes_take_no_pairs() -> None:
    """A tensor in 20,000 parts is checked without comparing them by pairs."""
    boxes = [((row, column), (1, 2)) for row in range(100) for column in range(0, 400, 2)]
    assert tiling_fault((100, 400), boxes) is None
