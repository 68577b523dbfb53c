"""The shuffle behaves like a random one, and the tests that say so can fail."""

from __future__ import annotations

import math

import numpy as np
import pytest

from resumable_data.order import Int64Array, Shuffle
from resumable_data.order.feistel import FeistelPermutation
from resumable_data.order.keys import key_message, key_words
from tests.unit.order.battery import (
    REJECTED,
    Family,
    all_arrangements_p,
    chi_square_p,
    normal_p,
    odd_share,
    over_keys,
    within_epoch,
    worst,
)

WHOLE_LENGTHS = (1_000, 65_536, 65_537, 70_001)
PART_LENGTHS = (65_536, 65_537, 1_000_000, 2**28, 2**28 + 1, 10**9, 2**32, 2**32 + 1, 10**12, 2**53 + 1)


def shuffle(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    return Shuffle(n, seed=seed).ids(epoch, offsets)


def truly_random(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    permutation = np.random.default_rng([n, seed, epoch]).permutation(np.arange(n, dtype=np.int64))
    drawn: Int64Array = permutation[offsets]
    return drawn


def identity(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    return offsets.copy()


def linear(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    """A linear congruential step, (a x + b) mod n, with random a and b."""
    rng = np.random.default_rng([n, seed, epoch])
    factor = next(a for a in rng.integers(n // 3, n, 1000).tolist() if math.gcd(a, n) == 1)
    drawn: Int64Array = (offsets * factor + int(rng.integers(n))) % n
    return drawn


def masked_multiplier(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    """Five swaps whose round function is an odd multiplier and a low-bit mask; n = 4^h."""
    half = (n.bit_length() - 1) // 2
    keys = np.random.default_rng([n, seed, epoch]).integers(0, n, 5).tolist()
    left, right = offsets >> half, offsets & ((1 << half) - 1)
    for key in keys:
        left, right = right, left ^ ((right * 2_654_435_761 + key) & ((1 << half) - 1))
    return left << half | right


def seed_plus_epoch(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    return Shuffle(n, seed=seed + epoch).ids(0, offsets)


def two_rounds(n: int, seed: int, epoch: int, offsets: Int64Array) -> Int64Array:
    """The shuffle's own network with two rounds in place of six."""
    message = key_message(version=1, purpose="test", seed=seed, epoch=epoch, length=n, name="")
    return FeistelPermutation(n, key_words(message, 6)).ids(offsets)


@pytest.mark.parametrize(("n", "num_seeds"), [(4, 2_400), (5, 6_000), (6, 10_800)])
def test_all_arrangements_of_a_small_order_are_equally_likely(n: int, num_seeds: int) -> None:
    """Over seeds and over epochs, each of the n! permutations of 4, 5 and 6 samples is equally likely."""
    offsets = np.arange(n, dtype=np.int64)
    over_seeds = np.stack([Shuffle(n, seed=seed).ids(0, offsets) for seed in range(num_seeds)])
    assert all_arrangements_p(over_seeds) > REJECTED
    order = Shuffle(n, seed=11)
    over_epochs = np.stack([order.ids(epoch, offsets) for epoch in range(num_seeds)])
    assert all_arrangements_p(over_epochs) > REJECTED


@pytest.mark.parametrize("n", WHOLE_LENGTHS)
def test_whole_permutations_look_random(n: int) -> None:
    """Fixed points, and likeness to the next epoch and the next seed, are those of a random permutation."""
    name, p = worst(over_keys(shuffle, n, num_keys=400 if n < 10_000 else 100))
    assert p > REJECTED, name


@pytest.mark.parametrize("n", PART_LENGTHS)
def test_stretches_of_an_epoch_look_random(n: int) -> None:
    """Differences, strides, windows and low bits of consecutive samples are those of a random permutation."""
    for start in (0, n // 2, n - min(n, 1 << 17)):
        name, p = worst(within_epoch(shuffle, n, min(n - start, 1 << 17), start))
        assert p > REJECTED, name


@pytest.mark.parametrize("n", [131_072, 1_000_000, 1 << 20, 3_000_000])
def test_case_25_batches_hold_the_ideal_share_of_odd_ids(n: int) -> None:
    """The share of odd IDs per batch of 2^k deviates within 1.2 times of the ideal deviation."""
    for name, ratio in odd_share(shuffle, n, num_seeds=4):
        assert 1 / 1.2 < ratio < 1.2, name


def test_a_true_shuffle_passes() -> None:
    """The battery does not reject what is random."""
    for n in (1_000, 70_001):
        assert worst(over_keys(truly_random, n, num_keys=100))[1] > REJECTED
    assert worst(within_epoch(truly_random, 1 << 20, 1 << 17))[1] > REJECTED


@pytest.mark.parametrize("family", [identity, linear, masked_multiplier, two_rounds], ids=lambda f: f.__name__)
def test_bad_permutations_are_rejected_within_an_epoch(family: Family) -> None:
    """The battery rejects permutations that are known to be bad, by a stretch of one epoch."""
    assert worst(within_epoch(family, 1 << 20, 1 << 17))[1] < REJECTED


@pytest.mark.parametrize("family", [identity, seed_plus_epoch, two_rounds], ids=lambda f: f.__name__)
def test_bad_permutations_are_rejected_over_keys(family: Family) -> None:
    """The battery rejects families whose members are alike."""
    with np.errstate(divide="ignore", invalid="ignore"):
        assert worst(over_keys(family, 10_000, num_keys=100))[1] < REJECTED


@pytest.mark.parametrize("family", [identity, masked_multiplier], ids=lambda f: f.__name__)
def test_bad_shares_of_odd_ids_are_seen(family: Family) -> None:
    """Batches that are all even or all odd, or always half and half, are outside the bounds."""
    ratios = [ratio for _, ratio in odd_share(family, 1 << 20, num_seeds=4)]
    assert not all(1 / 1.2 < ratio < 1.2 for ratio in ratios)


def test_too_few_arrangements_are_seen() -> None:
    """Even permutations alone are not all permutations."""
    offsets = np.arange(4, dtype=np.int64)
    drawn = np.stack([Shuffle(4, seed=seed).ids(0, offsets) for seed in range(2_400)])
    odd = np.array([np.linalg.det(np.eye(4)[row]) < 0 for row in drawn])
    drawn[odd, :2] = drawn[odd, 1::-1]
    assert all_arrangements_p(drawn) < REJECTED


def test_p_values_of_the_helpers_are_right() -> None:
    """Known quantiles of the normal and chi-square distributions."""
    assert normal_p(1.959964) == pytest.approx(0.05, rel=1e-5)
    # 63 degrees of freedom: the 99.9 % quantile is 103.44; half of the cells 5 % up and half down by as much.
    shift = math.sqrt(103.442 / 64)
    observed = np.array([100 + 10 * shift, 100 - 10 * shift] * 32)
    assert chi_square_p(observed, 100) == pytest.approx(2 * 0.001, rel=0.03)


@pytest.mark.slow
@pytest.mark.parametrize("n", [65_537, 1_000_000, 10**9, 2**32, 2**32 + 1, 10**12])
def test_there_are_no_weak_keys(n: int) -> None:
    """No seed among 500 gives a stretch that the battery rejects, allowing for the number of questions asked."""
    for seed in range(500):
        name, p = worst(within_epoch(shuffle, n, 1 << 14, n // 3, seed))
        assert p > REJECTED / 500, f"{name}, seed {seed}"


@pytest.mark.slow
@pytest.mark.parametrize("n", [10**7, 10**9, 2**32, 2**32 + 1, 10**12])
def test_long_stretches_look_random(n: int) -> None:
    """Four million consecutive samples still show nothing."""
    name, p = worst(within_epoch(shuffle, n, 1 << 22))
    assert p > REJECTED, name
