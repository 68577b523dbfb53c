"""The digest of a tensor: the formula, whatever the boxes; and which changes it sees."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from resumable_data.checkpoint.digest import array_digest, box_digest, combine, finish
from resumable_data.errors import UsageError
from tests import digest_oracle
from tests.examples import examples

DTYPES = {1: "int8", 2: "bfloat16", 4: "float32", 8: "float64", 16: "complex128"}
TYPES = {1: "u1", 2: "u2", 4: "u4", 8: "u8", 16: "c16"}

Box = tuple[tuple[int, ...], tuple[int, ...]]


def random_array(shape: tuple[int, ...], itemsize: int, seed: int = 0) -> NDArray[Any]:
    data = np.random.default_rng(seed).bytes(math.prod(shape) * itemsize)
    return np.frombuffer(data, TYPES[itemsize]).reshape(shape)


def whole_digest(array: NDArray[Any], dtype: str | None = None) -> str:
    total = array_digest(array, array.shape, (0,) * array.ndim)
    return finish(total, dtype or DTYPES[array.itemsize], array.shape)


def cut(array: NDArray[Any], box: Box) -> NDArray[Any]:
    return array[tuple(slice(o, o + n) for o, n in zip(*box, strict=True))]


def random_boxes(shape: tuple[int, ...], num_cuts: int, draw: Callable[[int], int]) -> list[Box]:
    """Boxes that tile a tensor, in random order; `draw(n)` is below n."""
    boxes: list[Box] = [((0,) * len(shape), shape)]
    for _ in range(num_cuts):
        offsets, sizes = boxes.pop(draw(len(boxes)))
        dims = [dim for dim, size in enumerate(sizes) if size > 1]
        if dims:
            dim = dims[draw(len(dims))]
            first = 1 + draw(sizes[dim] - 1)
            rest = sizes[dim] - first
            boxes.append((offsets, (*sizes[:dim], first, *sizes[dim + 1 :])))
            moved = (*offsets[:dim], offsets[dim] + first, *offsets[dim + 1 :])
            boxes.append((moved, (*sizes[:dim], rest, *sizes[dim + 1 :])))
        else:
            boxes.append((offsets, sizes))
    return boxes


def shapes() -> st.SearchStrategy[tuple[int, ...]]:
    """0 to 3 dimensions, of a few hundred elements, with rows on both sides of 256 bytes."""
    sizes = [st.just(()), st.tuples(st.integers(0, 400)), st.tuples(st.integers(0, 5), st.integers(0, 90))]
    return st.one_of(*sizes, st.tuples(st.integers(1, 4), st.integers(1, 12), st.integers(1, 12)))


@given(shapes(), st.sampled_from(sorted(TYPES)), st.integers(0, 6), st.randoms(use_true_random=False))
@examples(150, quick=50)
def test_boxes_add_up_to_the_oracle(shape: tuple[int, ...], itemsize: int, num_cuts: int, random: Any) -> None:
    """Whatever boxes a tensor is cut into, and in whatever order, their sum is that of its words one by one."""
    array = random_array(shape, itemsize)
    boxes = random_boxes(shape, num_cuts, random.randrange)
    parts = [box_digest(cut(array, box).tobytes(), itemsize, shape, *box) for box in boxes]
    expected = digest_oracle.digest(array.tobytes(), itemsize, DTYPES[itemsize], shape)
    assert finish(combine(parts), DTYPES[itemsize], shape) == expected


@pytest.mark.parametrize(("shape", "itemsize"), [((9001,), 4), ((20_003,), 2), ((2, 5000), 4), ((2, 20_001), 1)])
def test_long_rows_are_cut_anywhere(shape: tuple[int, ...], itemsize: int) -> None:
    """Rows of more than 4096 words give the oracle's sum, cut inside a word, at its sides, and at a segment's."""
    array = random_array(shape, itemsize)
    expected = digest_oracle.digest(array.tobytes(), itemsize, DTYPES[itemsize], shape)
    assert whole_digest(array) == expected
    per_word = max(1, 4 // itemsize)
    for middle in (1, 2, 3, 4096 * per_word - 1, 4096 * per_word, 4096 * per_word + 1, shape[-1] - 1):
        first, rest = array[..., :middle], array[..., middle:]
        parts = [array_digest(first, shape, (0,) * array.ndim)]
        parts.append(array_digest(rest, shape, (0,) * (array.ndim - 1) + (middle,)))
        assert finish(combine(parts), DTYPES[itemsize], shape) == expected


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (1, 2, 0), (0, 2, 1)])
@pytest.mark.parametrize("itemsize", [1, 2, 4, 16])
@pytest.mark.parametrize("shape", [(7, 5, 6), (3, 40, 90), (2, 3, 30_001)])
def test_strided_payload(shape: tuple[int, ...], itemsize: int, order: tuple[int, ...]) -> None:
    """Bytes that lie in another order than C, with their strides, give the digest of the same elements in C order."""
    array = random_array(shape, itemsize)
    stored = np.ascontiguousarray(array.transpose(order))
    strides = [0] * 3
    for place, dim in enumerate(order):
        strides[dim] = stored.strides[place] // itemsize
    assert box_digest(stored.tobytes(), itemsize, shape, (0, 0, 0), shape, strides) == array_digest(
        array, shape, (0, 0, 0)
    )


def test_views_with_steps_and_broadcasts() -> None:
    """An array of any strides, negative or 0, counts as its elements do."""
    base = random_array((9, 400), 2)
    for view in (base[::2, ::-3], base[::-1], np.broadcast_to(base[0], (5, 400)), base.T, base[:, 3:4]):
        assert whole_digest(view) == whole_digest(np.ascontiguousarray(view))


@pytest.mark.parametrize("raw_type", [bytes, bytearray, memoryview])
def test_bytes_at_any_address(raw_type: Any) -> None:
    """Bytes are taken from any read-only or writable buffer, aligned or not."""
    array = random_array((3, 100), 8)
    expected = array_digest(array, (3, 100), (0, 0))
    assert box_digest(raw_type(array.tobytes()), 8, (3, 100), (0, 0), (3, 100)) == expected
    for shift in range(1, 8):
        shifted = memoryview(bytes(shift) + array.tobytes())[shift:]
        assert box_digest(shifted, 8, (3, 100), (0, 0), (3, 100)) == expected


GOLDEN = [
    ("float32", (2, 3), "<f4", "d2c28e5351f06b58"),
    ("int64", (), "<i8", "746c31b51e055f43"),
    ("int8", (5,), "<i1", "d9d95e44ee59c335"),
    ("bool", (0, 4), "?", "abafedfff4a14eac"),
    ("float16", (3, 65, 3), "<f2", "62610d201e244aa7"),
    ("uint8", (70_000,), "<u1", "de49ef3f5b6ec8ea"),
]


@pytest.mark.parametrize(("dtype", "shape", "stored", "expected"), GOLDEN)
def test_digests_stay_as_they_are(dtype: str, shape: tuple[int, ...], stored: str, expected: str) -> None:
    """Digests of 0, 1, 2, ... are those that manifests of earlier versions hold."""
    array = np.arange(math.prod(shape)).astype(stored).reshape(shape)
    assert whole_digest(array, dtype) == expected


SMALL: list[tuple[tuple[int, ...], int]] = [((), 8), ((13,), 1), ((5, 7), 2), ((2, 3, 4), 4), ((3,), 16), ((3, 67), 2)]


@pytest.mark.parametrize(("shape", "itemsize"), SMALL)
def test_every_flipped_bit_is_seen(shape: tuple[int, ...], itemsize: int) -> None:
    """Each single flipped bit of a small tensor gives another digest, no two the same."""
    data = bytearray(random_array(shape, itemsize).tobytes())
    seen = {box_digest(data, itemsize, shape, (0,) * len(shape), shape)}
    for bit in range(8 * len(data)):
        data[bit // 8] ^= 1 << bit % 8
        seen.add(box_digest(data, itemsize, shape, (0,) * len(shape), shape))
        data[bit // 8] ^= 1 << bit % 8
    assert len(seen) == 8 * len(data) + 1


@given(st.integers(0, 9000), st.integers(1, 2**32 - 1), st.integers(0, 5))
@settings(max_examples=60)
def test_any_change_of_one_word_is_seen(place: int, flipped: int, seed: int) -> None:
    """Whatever one word becomes, in a row of several segments, the digest changes."""
    words = random_array((9001,), 4, seed).copy()
    before = whole_digest(words)
    words[place] ^= np.uint32(flipped)
    assert whole_digest(words) != before


def changes(array: NDArray[np.float32]) -> Iterator[NDArray[np.float32]]:
    """What accidents make of a matrix of floats."""
    flat = array.reshape(-1)
    for first, second in combinations(range(0, flat.size, 1 + flat.size // 50), 2):
        swapped, negated = flat.copy(), flat.copy()
        swapped[[first, second]] = flat[[second, first]]
        negated[[first, second]] *= -1
        yield swapped.reshape(array.shape)
        yield negated.reshape(array.shape)
    for first, second in combinations(range(len(array)), 2):
        rows = array.copy()
        rows[[first, second]] = array[[second, first]]
        yield rows
    for row in range(len(array)):
        zeroed, turned = array.copy(), array.copy()
        zeroed[row] = 0
        turned[row] = np.roll(array[row], 1)
        yield zeroed
        yield turned
    yield -array
    yield array[::-1]
    yield array[:, ::-1]
    yield np.zeros_like(array)


@pytest.mark.parametrize("shape", [(4, 8), (3, 70)])
def test_swaps_signs_and_rows_are_seen(shape: tuple[int, int]) -> None:
    """Swapped, zeroed, turned or negated elements and rows give another digest, each its own."""
    array = np.random.default_rng(1).standard_normal(shape).astype(np.float32)
    if array.size > 100:
        array[1:] = array[0]  # rows alike but for their first elements
        array[:, 0] = [1, 2, 3]
    changed = {whole_digest(array.view(np.uint32))}
    different = {array.tobytes()}
    for other in changes(array):
        different.add(other.tobytes())
        changed.add(whole_digest(np.ascontiguousarray(other).view(np.uint32)))
    assert len(different) > 100
    assert len(changed) == len(different)


def test_dtype_and_shape_count() -> None:
    """The same bytes of another dtype or shape have another digest, and so have empty tensors."""
    found = [
        finish(box_digest(bytes(24), itemsize, shape, (0,) * len(shape), shape), dtype, shape)
        for dtype, itemsize in (("float32", 4), ("int32", 4), ("int16", 2), ("bfloat16", 2), ("int8", 1))
        for shape in ((24 // itemsize,), (2, 12 // itemsize), (12 // itemsize, 2), (1, 24 // itemsize))
    ]
    found += [finish(0, "float32", shape) for shape in ((0,), (0, 3), (3, 0))]
    assert len(set(found)) == len(found)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((bytes(24), 4, (2, 3), (0, 1), (2, 3)), r"inside a tensor of shape \[2, 3\]"),
        ((bytes(24), 4, (2, 3), (0, -1), (2, 3)), "inside a tensor"),
        ((bytes(24), 4, (6,), (0, 0), (2, 3)), "inside a tensor"),
        ((bytes(23), 4, (2, 3), (0, 0), (2, 3)), "at least 24 bytes .* got 23"),
        ((bytes(24), 4, (2, 3), (0, 0), (2, 3), (4, 1)), "at least 28 bytes"),
        ((bytes(24), 3, (2, 3), (0, 0), (2, 3)), "elements of 1, 2, 4, 8, 16 bytes"),
        ((bytes(24), 4, (2, 3), (0, 0), (2, -3)), "at least 0"),
        ((bytes(24), 4, (2, 3), (0, 0), (2, 3), (-3, 1)), "at least 0"),
        ((bytes(24), 4, (2, 3), (0, 0), (2, 3), (1,)), "strides"),
    ],
)
def test_box_that_cannot_be_is_refused(arguments: Any, message: str) -> None:
    """A box outside its tensor, too few bytes and impossible strides are errors, not some digest."""
    with pytest.raises(UsageError, match=message):
        box_digest(*arguments)


def test_dtype_must_be_a_bare_name() -> None:
    """A dtype as torch prints it would make another digest, and is refused."""
    with pytest.raises(UsageError, match=r'"float32", got .torch\.float32'):
        finish(0, "torch.float32", ())
