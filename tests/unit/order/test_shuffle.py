"""Shuffle: a bijection of any length, a pure function of its arguments, in O(1) memory."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from typing import cast

import numpy as np
import pytest

from resumable_data.errors import UsageError
from resumable_data.order import Shuffle
from resumable_data.order.table import MAX_TABLE_LENGTH

HUGE = (2**31 + 11, 2**32 - 1, 2**32, 2**32 + 1, 2**40 + 1, 10**12, 2**53 + 1, 2**62 - 1, 2**62)


def assert_bijection(order: Shuffle, epoch: int) -> None:
    n = len(order)
    offsets = np.arange(n, dtype=np.int64)
    ids = order.ids(epoch, offsets)
    assert ids.dtype == np.int64
    assert ids.shape == (n,)
    assert np.array_equal(np.bincount(ids, minlength=n), np.ones(n, dtype=np.int64)), f"{order}, epoch {epoch}"
    assert np.array_equal(order.offsets(epoch, ids), offsets), f"{order}, epoch {epoch}"


def sample(n: int, size: int, seed: int = 0) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Both ends of ``[0, n)`` and ``size`` offsets from within."""
    ends = np.array([0, 1, n - 2, n - 1], dtype=np.int64)
    return np.concatenate([ends, np.random.default_rng(seed).integers(0, n, size, dtype=np.int64)])


def test_bijection_of_every_small_length() -> None:
    """Each ID occurs once, and offsets undoes ids, for n = 1 .. 2,000."""
    for n in range(1, 2_001):
        assert_bijection(Shuffle(n, seed=n % 5), epoch=n % 3)


@pytest.mark.parametrize("k", range(1, 21))
def test_case_24_bijection_around_powers_of_two(k: int) -> None:
    """Each ID occurs once, and offsets undoes ids, for n = 2^k - 1, 2^k and 2^k + 1."""
    for n in (2**k - 1, 2**k, 2**k + 1):
        for seed, epoch in ((0, 0), (2**63 - 1, 7)):
            assert_bijection(Shuffle(n, seed=seed), epoch)


@pytest.mark.parametrize("n", HUGE)
def test_case_24_sampled_inverse_of_huge_lengths(n: int) -> None:
    """Where not every ID can be looked at, offsets still undoes ids, and distinct offsets stay distinct."""
    order = Shuffle(n, seed=3, name="huge")
    for epoch in (0, 1):
        offsets = sample(n, 100_000)
        ids = order.ids(epoch, offsets)
        assert ids.min() >= 0
        assert ids.max() < n
        assert ids.max() > n // 2
        assert np.unique(ids).size == np.unique(offsets).size
        assert np.array_equal(order.offsets(epoch, ids), offsets)
        assert np.array_equal(order.ids(epoch, order.offsets(epoch, offsets)), offsets)


@pytest.mark.parametrize("n", [1_000, 65_536, 65_537, 10**9, 10**12])
def test_case_26_seed_and_epoch_are_not_added(n: int) -> None:
    """Seed 5 in epoch 1 has nothing in common with seed 6 in epoch 0."""
    offsets = np.arange(1_000, dtype=np.int64)
    equal = Shuffle(n, seed=5).ids(1, offsets) == Shuffle(n, seed=6).ids(0, offsets)
    assert equal.sum() < 10


@pytest.mark.parametrize("n", [1_000, 65_535, 65_536, 65_537, 2**20, 10**9, 2**32, 10**12])
def test_case_26_one_more_sample_is_another_order(n: int) -> None:
    """The orders of n and n + 1 samples are unrelated, not near-copies."""
    offsets = np.arange(1_000, dtype=np.int64)
    before, after = Shuffle(n, seed=5).ids(0, offsets), Shuffle(n + 1, seed=5).ids(0, offsets)
    assert (before == after).sum() < 10
    assert abs(np.corrcoef(before, after)[0, 1]) < 0.2


@pytest.mark.parametrize("n", [1_000, 10**6])
def test_names_give_unrelated_orders(n: int) -> None:
    """Orders with different names, or the same letters split differently, are unrelated."""
    offsets = np.arange(1_000, dtype=np.int64)
    orders = [Shuffle(n, 1, ""), Shuffle(n, 1, "a"), Shuffle(n, 1, "b"), Shuffle(n, 11, ""), Shuffle(n, 1, "1")]
    drawn = [order.ids(0, offsets) for order in orders]
    for i, first in enumerate(drawn):
        for second in drawn[:i]:
            assert (first == second).sum() < 10


@pytest.mark.parametrize("n", [10**12, 2**62])
def test_case_27_a_huge_order_is_made_in_no_time_and_memory(n: int) -> None:
    """10^12 samples: construction under 10 ms and 1 MB, and the first question too."""
    question = np.array([0, 1, 2, 3, n // 2, n - 3, n - 2, n - 1], dtype=np.int64)
    tracemalloc.start()
    try:
        durations = []
        for seed in range(5):
            started = time.thread_time()
            order = Shuffle(n, seed=seed)
            durations.append(time.thread_time() - started)
            order.ids(0, question)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()
    assert min(durations) < 0.010


def test_case_27_entering_late_costs_what_entering_early_does() -> None:
    """The first question at 99 % of an epoch of 10^12 takes what it takes at 1 %."""
    n = 10**12
    fastest = {}
    for percent in (1, 99):
        question = np.arange(n // 100 * percent, n // 100 * percent + 1_000, dtype=np.int64)
        durations = []
        for seed in range(20):
            started = time.thread_time()
            Shuffle(n, seed=seed).ids(0, question)
            durations.append(time.thread_time() - started)
        fastest[percent] = min(durations)
    assert max(fastest.values()) < 0.010
    assert fastest[99] < 3 * fastest[1]


@pytest.mark.parametrize("n", [50_000, 65_536, 65_537, 200_000, 10**9, 2**32 + 1, 10**12])
def test_an_answer_does_not_depend_on_what_else_is_asked(n: int) -> None:
    """Any slice of the question, of any size or stride, gives the slice of the answer."""
    order = Shuffle(n, seed=9)
    offsets = sample(n, 100_000)
    ids, back = order.ids(2, offsets), order.offsets(2, offsets)
    for part in (slice(0, 1), slice(3, 15), slice(7, 20), slice(5, 33_000), slice(None, None, -3), slice(9, 9)):
        assert np.array_equal(order.ids(2, offsets[part]), ids[part])
        assert np.array_equal(order.offsets(2, offsets[part]), back[part])
    one_by_one = [int(order.ids(2, offsets[i : i + 1])[0]) for i in range(300)]
    assert one_by_one == ids[:300].tolist()


@pytest.mark.parametrize("n", [60_000, 10**9, 10**12])
def test_threads_do_not_disturb_each_other(n: int) -> None:
    """Many threads asking one order about different epochs get what one thread gets."""
    order, offsets = Shuffle(n, seed=1), sample(n, 50_000)
    expected = [Shuffle(n, seed=1).ids(epoch, offsets) for epoch in range(8)]

    def ask(task: int) -> bool:
        epoch = task % 8
        ids = order.ids(epoch, offsets)
        return bool(np.array_equal(ids, expected[epoch]) and np.array_equal(order.offsets(epoch, ids), offsets))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(ask, range(64)))


@pytest.mark.parametrize("n", [100, 10**9])
def test_answers_belong_to_the_caller(n: int) -> None:
    """Writing into an answer changes no later answer, and a read-only question is fine."""
    order, offsets = Shuffle(n), np.arange(50, dtype=np.int64)
    offsets.flags.writeable = False
    first = order.ids(0, offsets)
    kept = first.copy()
    first[:] = 0
    assert np.array_equal(order.ids(0, offsets), kept)
    back = order.offsets(0, kept)
    back[:] = 0
    assert np.array_equal(order.offsets(0, kept), offsets)


def test_orders_are_equal_by_what_they_describe() -> None:
    """Equal arguments make equal, hash-equal orders; pickling keeps them and carries no table."""
    order = Shuffle(MAX_TABLE_LENGTH, seed=4, name="x")
    order.ids(0, np.arange(10, dtype=np.int64))
    again = pickle.loads(pickle.dumps(order))
    assert len(pickle.dumps(order)) < 500
    assert again == order == Shuffle(MAX_TABLE_LENGTH, 4, "x")
    assert hash(again) == hash(order)
    assert order != Shuffle(MAX_TABLE_LENGTH, 4, "y")
    assert order != Shuffle(MAX_TABLE_LENGTH, 5, "x")
    assert order != "x"
    assert repr(order) == "Shuffle(65536, seed=4, name='x')"
    assert order.describe() == {"kind": "shuffle", "version": 1, "length": 65_536, "seed": 4, "name": "x"}
    assert (order.seed, order.name, len(order)) == (4, "x", 65_536)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0,), "n, the number of samples, must be at least 1; found 0"),
        ((-1,), "at least 1; found -1"),
        ((True,), "must be an int; found bool True"),
        ((np.True_,), "must be an int"),
        ((10.0,), "must be an int; found float 10.0"),
        (("10",), "must be an int; found str"),
        ((2**62 + 1,), "at most 4611686018427387904"),
        ((10, -1), "seed must be in"),
        ((10, 2**63), "seed must be in"),
        ((10, 1.0), "seed must be an int"),
        ((10, None), "seed must be an int; found NoneType"),
        ((10, 0, None), "name must be a str"),
        ((10, 0, "\ud800"), "UTF-8"),
        ((10, 0, "é" * 128), "at most 255 bytes of UTF-8; found 256"),
    ],
)
def test_wrong_arguments_are_refused(arguments: tuple[int, int, str], message: str) -> None:
    """What is not a length, a seed or a name is refused with what was expected and found."""
    with pytest.raises(UsageError, match=message):
        Shuffle(*arguments)


def test_integers_of_numpy_are_integers() -> None:
    """Lengths, seeds and epochs that numpy computed are taken, and leave no trace in the description."""
    n, seed, epoch = (cast(int, number) for number in (np.int64(10), np.int32(3), np.int64(2)))
    order = Shuffle(n, seed=seed)
    assert order == Shuffle(10, 3)
    assert all(type(value) in (int, str) for value in order.describe().values())
    offsets = np.arange(10, dtype=np.int64)
    assert np.array_equal(order.ids(epoch, offsets), order.ids(2, offsets))


@pytest.mark.parametrize("n", [10, 10**9])
@pytest.mark.parametrize(
    ("question", "message"),
    [
        ([1, 2], "must be an int64 array of shape .k,.; found list"),
        (np.array([1, 2], dtype=np.int32), "found int32 of shape"),
        (np.array([1, 2], dtype=np.uint64), "found uint64 of shape"),
        (np.array([1, 2], dtype=">i8"), "found >i8 of shape"),
        (np.array([1.0]), "found float64"),
        (np.array([[1]]), r"of shape \(1, 1\)"),
        (np.array(1), r"of shape \(\)"),
        (np.array([0, -1]), r"found -1 at index 1 \(1 of 2"),
        (np.array([0, 10**9, 1]), "found 1000000000 at index 1"),
        (np.array([-(2**63)]), "found -9223372036854775808"),
    ],
)
def test_wrong_questions_are_refused(
    n: int, question: np.ndarray[tuple[int], np.dtype[np.int64]], message: str
) -> None:
    """Offsets and IDs outside [0, n), or of another type, are refused; nothing wraps around."""
    order = Shuffle(n)
    with pytest.raises(UsageError, match=message):
        order.ids(0, question)
    with pytest.raises(UsageError, match=message):
        order.offsets(0, question)


@pytest.mark.parametrize("epoch", [-1, 2**63, 1.0, True, None])
def test_wrong_epochs_are_refused(epoch: int) -> None:
    """An epoch is an int of at least 0."""
    with pytest.raises(UsageError, match="epoch must be"):
        Shuffle(10).ids(epoch, np.arange(3, dtype=np.int64))


@pytest.mark.slow
def test_bijection_over_many_keys() -> None:
    """Each ID occurs once for lengths between the powers of two, over many keys."""
    rng = np.random.default_rng(0)
    for n in rng.integers(2, 3_000_000, 300).tolist():
        assert_bijection(Shuffle(n, seed=int(rng.integers(2**62))), epoch=int(rng.integers(2**40)))
