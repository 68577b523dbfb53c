"""Windows: each number names a permutation of its own, of any size, good enough to pass for random."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resumable_data.order import BlockShuffle, Int64Array
from resumable_data.order.keys import key_words
from resumable_data.order.windows import MAX_RANKED_WINDOW, NetworkWindows, keyed_windows
from tests.unit.order.battery import REJECTED, all_arrangements_p, chi_square_p, independence_p, matches_p

SIZES = (1, 2, 3, 5, 8, 63, 64, 65, 66, 100, 127, 128, 129, 500, 512, 1000, 1024, 1025, 5000)
WORD, LONG = 2**32 - 1, 2**64 - 1


def permutations(windows: object, size: int, numbers: Int64Array) -> Int64Array:
    """The permutations of windows: (num_windows, size) int64."""
    places = np.tile(np.arange(size, dtype=np.int64), numbers.size)
    made: Int64Array = windows.forward(np.repeat(numbers, size), places)  # type: ignore[attr-defined]
    return made.reshape(numbers.size, size)


@pytest.mark.parametrize("size", SIZES)
def test_each_window_is_a_permutation(size: int) -> None:
    """Each place occurs once in each window, inverse undoes forward, and neighbours differ."""
    numbers = np.array([0, 1, 2, 5, 6, 2**32, 2**32 + 1, 2**62], dtype=np.int64)
    windows = keyed_windows(size, b"key")
    made = permutations(windows, size, numbers)
    assert np.array_equal(np.sort(made, axis=1), np.tile(np.arange(size), (numbers.size, 1)))
    back = windows.inverse(np.repeat(numbers, size), made.ravel())
    assert np.array_equal(back.reshape(made.shape), np.tile(np.arange(size), (numbers.size, 1)))
    if size > 8:
        assert len({tuple(row) for row in made.tolist()}) == numbers.size
        assert not np.array_equal(made, permutations(keyed_windows(size, b"kez"), size, numbers))


def mixed(value: int, multipliers: list[int]) -> int:
    for multiplier, shift in zip(multipliers, (32, 29), strict=True):
        value = (value ^ value >> shift) * (multiplier | 1) & LONG
    return value ^ value >> 32


def joined(words: list[int]) -> list[int]:
    return [high << 32 | low for high, low in zip(words[::2], words[1::2], strict=True)]


def ranked(size: int, message: bytes, window: int) -> list[int]:
    """The permutation of a small window, one place at a time in plain Python."""
    start, step, window_step, *multipliers = joined(key_words(message, 10).tolist())
    base = mixed((window * (window_step | 1) + start) & LONG, multipliers)
    hashes = [mixed((base + place * (step | 1)) & LONG, multipliers) for place in range(size)]
    return sorted(range(size), key=lambda place: (hashes[place] >> 6, place))


def walked(size: int, message: bytes, window: int) -> list[int]:
    """The permutation of a larger window, one place at a time in plain Python."""
    num_pairs = 5 if size <= 1024 else 4
    words = key_words(message, 6 * num_pairs + 8).tolist()
    start, step, *multipliers = joined(words[6 * num_pairs :])
    hashed = mixed((window * (step | 1) + start) & LONG, multipliers)
    cell_bits = (size - 1).bit_length()
    bits = max(1, cell_bits // 2, cell_bits - 14)
    rows = -(-size >> bits)
    dropped = (rows - 1).bit_length()

    def round_hash(value: int, multiply: int, add: int, finish: int) -> int:
        value = (value * (multiply | 1) + add) & WORD
        return (value ^ value >> 15) * (finish | 1) & WORD

    def once(value: int) -> int:
        left, right = value >> bits, value & (1 << bits) - 1
        for pair in range(num_pairs):
            key = words[6 * pair : 6 * pair + 6]
            row = round_hash(right, key[0], key[1] + (hashed & WORD), key[2]) >> dropped
            left = (left + (row * rows >> 32 - dropped)) % rows
            right ^= round_hash(left, key[3], key[4] + (hashed >> 32), key[5]) >> 32 - bits
        return left << bits | right

    result = []
    for place in range(size):
        value = once(place)
        while value >= size:
            value = once(value)
        result.append(value)
    return result


@pytest.mark.parametrize("size", SIZES)
def test_windows_are_what_plain_python_says(size: int) -> None:
    """Hashes, key words and rounds are those of a second implementation on exact integers."""
    reference = ranked if size <= MAX_RANKED_WINDOW else walked
    numbers = [0, 1, 77, 2**40 + 3]
    made = permutations(keyed_windows(size, b"golden"), size, np.array(numbers, dtype=np.int64))
    assert made.tolist() == [reference(size, b"golden", number) for number in numbers]


@pytest.mark.parametrize(("size", "num_windows"), [(2, 4_000), (3, 6_000), (4, 6_000), (5, 12_000), (6, 14_400)])
def test_all_arrangements_of_a_small_window_are_equally_likely(size: int, num_windows: int) -> None:
    """Over the windows of one epoch, each of the permutations of a small window is equally likely."""
    made = permutations(keyed_windows(size, b"small"), size, np.arange(num_windows, dtype=np.int64))
    assert all_arrangements_p(made) > REJECTED


def worst_p(made: Int64Array) -> float:
    """The smallest p-value of what windows of one epoch must have in common with random ones."""
    num_windows, size = made.shape
    cells = np.bincount((made + size * np.arange(size)).ravel(), minlength=size * size)
    p_values = [chi_square_p(cells, num_windows / size, lost=2 * size - 1)]
    for distance in (1, 2, 3, 4, 8, 16, 32):
        if distance < size // 2:
            steps = (np.roll(made, -distance, axis=1) - made) % size
            seen = np.bincount(steps.ravel(), minlength=size)[1:]
            p_values.append(chi_square_p(seen, steps.size / (size - 1)))
    for apart in (1, 2, 16, 64):
        steps = (made[apart:] - made[:-apart]) % size
        p_values.append(chi_square_p(np.bincount(steps.ravel(), minlength=size), steps.size / size))
        p_values.append(independence_p(made[apart:].ravel(), made[:-apart].ravel(), size))
    p_values.append(matches_p((made == np.arange(size)).sum(axis=1).tolist()))
    return min(p_values)


@pytest.mark.parametrize(
    "size", [32, 50, 64, 65, 100, 128, 257, 512, *(pytest.param(n, marks=pytest.mark.slow) for n in (1024, 1025))]
)
def test_windows_look_random(size: int) -> None:
    """Places, distances between neighbours, fixed points and likeness to other windows are those of random ones."""
    num_windows = max(6 * size, (1 << 20) // size)
    assert worst_p(permutations(keyed_windows(size, b"look"), size, np.arange(num_windows, dtype=np.int64))) > REJECTED


def test_weak_windows_are_seen() -> None:
    """Fewer rounds, one permutation for all windows, and a rotation by the window's number are rejected."""
    numbers = np.arange(8_192, dtype=np.int64)
    assert worst_p(permutations(NetworkWindows(128, b"look", num_round_pairs=2), 128, numbers)) < REJECTED
    one = permutations(NetworkWindows(128, b"look"), 128, numbers[:1])
    assert worst_p(np.tile(one, (8_192, 1))) < REJECTED
    assert worst_p((one + numbers[:, None]) % 128) < REJECTED


def displacement_p(order: BlockShuffle) -> float:
    """Whether blocks are in random order: chi-square of the steps from a block to the next, over 100 epochs."""
    num_blocks, steps = len(order) // order.block, []
    for epoch in range(100):
        blocks = order.ids(epoch, np.arange(0, len(order), order.block, dtype=np.int64)) // order.block
        steps.append((blocks[1:] - blocks[:-1]) % num_blocks)
    seen = np.bincount(np.concatenate(steps), minlength=num_blocks)
    return 0.0 if seen[0] else chi_square_p(seen[1:], seen.sum() / (num_blocks - 1))


def test_blocks_are_in_random_order() -> None:
    """The steps from one block to the next are those of a random permutation, and all orders of 4 blocks occur."""
    assert displacement_p(BlockShuffle(2_000, block=10, window=10)) > REJECTED
    few = [BlockShuffle(7, block=2, window=1, seed=seed).ids(0, np.arange(7)) // 2 for seed in range(2_400)]
    turns = np.array([list(dict.fromkeys(ids.tolist())) for ids in few])
    assert all_arrangements_p(turns) > REJECTED
    assert chi_square_p(np.bincount(turns[:, 0], minlength=4), 600) > REJECTED


def test_odd_shares_are_those_of_whole_blocks() -> None:
    """With blocks of two neighbours each window of n / 2 samples has half odd IDs, up to one block cut in two."""
    ids = BlockShuffle(1 << 12, block=2, window=1 << 11, seed=1).ids(0, np.arange(1 << 12))
    odd = (ids & 1).reshape(-1, 1 << 11).sum(axis=1)
    assert odd.tolist() == [1 << 10, 1 << 10]
    within = (ids & 1)[: 1 << 10].sum()
    assert abs(within - 512) < 6 * math.sqrt(1024 / 4 / 2)
