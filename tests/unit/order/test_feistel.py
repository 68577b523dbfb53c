"""FeistelPermutation below the lengths it is used for, where its corners are easy to reach."""

from __future__ import annotations

import numpy as np
import pytest

from resumable_data.order import feistel
from resumable_data.order.feistel import FeistelPermutation
from resumable_data.order.keys import key_message, key_words


def permutation(n: int, seed: int = 0) -> FeistelPermutation:
    message = key_message(version=1, purpose="test", seed=seed, epoch=0, length=n, name="")
    return FeistelPermutation(n, key_words(message, feistel.NUM_KEY_WORDS))


def test_bijection_where_most_cells_are_strays() -> None:
    """Every length from 1 is a bijection, however much of its grid lies outside."""
    for n in range(1, 1_500):
        network, offsets = permutation(n), np.arange(n, dtype=np.int64)
        ids = network.ids(offsets)
        assert np.array_equal(np.sort(ids), offsets), n
        assert np.array_equal(network.offsets(ids), offsets), n


@pytest.mark.parametrize("n", [1, 2, 3, 100, 65_537, 2**28 + 1, 10**9, 2**32, 2**32 + 1, 10**12, 2**62 - 5, 2**62])
def test_loops_and_vectors_agree(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The Python integers of a small question and the arrays of a large one give the same IDs."""
    network = permutation(n, seed=8)
    offsets = np.random.default_rng(0).integers(0, n, 2_000, dtype=np.int64)
    offsets[:2] = 0, n - 1
    monkeypatch.setattr(feistel, "SMALL_SIZE", 0)
    ids, back = network.ids(offsets), network.offsets(offsets)
    monkeypatch.setattr(feistel, "SMALL_SIZE", 10**9)
    assert np.array_equal(network.ids(offsets), ids)
    assert np.array_equal(network.offsets(offsets), back)


@pytest.mark.parametrize("block", [1, 7, 1_000, 10**6])
@pytest.mark.parametrize("n", [3_000, 10**9, 10**12])
def test_the_size_of_blocks_changes_nothing(n: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks are a matter of speed."""
    network, offsets = permutation(n), np.random.default_rng(0).integers(0, n, 3_001, dtype=np.int64)
    expected = network.ids(offsets)
    monkeypatch.setattr(feistel, "BLOCK_SIZE", block)
    assert np.array_equal(network.ids(offsets), expected)


def test_both_sides_of_the_grid_fit_their_arithmetic() -> None:
    """Sides stay within 2^31, the product that picks a row within its 32 or 64 bits, strays within a few percent."""
    lengths = [2**k + d for k in range(17, 62) for d in (-1, 0, 1)] + [2**62]
    for n in [length for length in lengths if length > 65_536]:
        network = permutation(n)
        rows, bits, dropped = network._rows, network._bits, network._dropped_bits
        assert rows <= 2**31
        assert bits <= 31
        assert n <= rows << bits < n * 1.01
        if network._narrow:
            assert rows << bits <= 2**32
            assert (2**32 - 1 >> dropped) * rows < 2**32
            assert 2 ** (32 - dropped) >= 16 * rows, "a row would be much likelier than another"
        else:
            assert dropped == 0
