"""BlockShuffle: a bijection for any n, block and window; blocks stay together, windows are shuffled on their own."""

from __future__ import annotations

import pickle
import time
import tracemalloc
from concurrent.futures import ThreadPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resumable_data import audit_ledger
from resumable_data.errors import UsageError
from resumable_data.order import BlockShuffle, Int64Array, check_order, order_from_description
from tests.simulated_ranks import Job

ARGUMENTS = [
    (50_000, 256, 512),
    (100_003, 7, 10),
    (100_003, 1, 64),
    (100_003, 5_000, 65),
    (70_000, 70_000, 69_999),
    (200_000, 300_000, 2**32),
    (10**9, 256, 512),
    (10**12 + 7, 3, 1_000_003),
    (2**62, 2**40, 2**32),
]


def everything(n: int) -> Int64Array:
    return np.arange(n, dtype=np.int64)


def sample(n: int, size: int) -> Int64Array:
    """Both ends of ``[0, n)`` and ``size`` offsets from within, some in runs."""
    scattered = np.random.default_rng(n).integers(0, n, size, dtype=np.int64)
    return np.concatenate(
        [[0, n - 1, n - 2], scattered, np.sort(scattered)[: size // 4], n // 3 + np.arange(size // 4)]
    )


def test_bijection_on_a_grid() -> None:
    """Each ID occurs once, and offsets undoes ids, whatever divides what."""
    sizes = (1, 2, 3, 4, 7, 16, 64, 65, 129, 500)
    for n, block, window in product((*range(1, 18), 64, 65, 130, 131, 257), sizes, sizes):
        order = BlockShuffle(n, block=block, window=window, seed=n)
        ids = order.ids(1, everything(n))
        assert np.array_equal(np.sort(ids), everything(n)), repr(order)
        assert np.array_equal(order.offsets(1, ids), everything(n)), repr(order)
        assert ids.dtype == np.int64


@pytest.mark.parametrize("arguments", [argument for argument in ARGUMENTS if argument[0] <= 200_000])
def test_bijection_of_whole_epochs(arguments: tuple[int, int, int]) -> None:
    """Each ID occurs once in each of several epochs, and epochs differ."""
    order, offsets = BlockShuffle(*arguments, seed=2, name="x"), everything(arguments[0])
    epochs = [order.ids(epoch, offsets) for epoch in range(3)]
    for epoch, ids in enumerate(epochs):
        assert np.array_equal(np.bincount(ids, minlength=offsets.size), np.ones(offsets.size))
        assert np.array_equal(order.offsets(epoch, ids), offsets)
    assert (epochs[0] == epochs[1]).mean() < 0.5
    assert (epochs[1] == epochs[2]).mean() < 0.5


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_sampled_inverse(arguments: tuple[int, int, int]) -> None:
    """Where not every ID can be looked at, offsets still undoes ids, both ways round."""
    order, values = BlockShuffle(*arguments, seed=2), sample(arguments[0], 20_000)
    ids = order.ids(3, values)
    assert ids.min() >= 0
    assert ids.max() < arguments[0]
    assert np.unique(ids).size == np.unique(values).size
    assert np.array_equal(order.offsets(3, ids), values)
    assert np.array_equal(order.ids(3, order.offsets(3, values)), values)


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_an_answer_does_not_depend_on_what_else_is_asked(arguments: tuple[int, int, int]) -> None:
    """Any slice of the question, of any size or stride, gives the slice of the answer."""
    order, values = BlockShuffle(*arguments, seed=9), sample(arguments[0], 60_000)
    ids, back = order.ids(2, values), order.offsets(2, values)
    for part in (slice(0, 1), slice(7, 20), slice(5, 33_000), slice(None, None, -3), slice(9, 9)):
        assert np.array_equal(order.ids(2, values[part]), ids[part])
        assert np.array_equal(order.offsets(2, values[part]), back[part])
    assert [int(order.ids(2, values[i : i + 1])[0]) for i in range(50)] == ids[:50].tolist()


def blocks_in_turn(n: int, block: int, window: int, ids: Int64Array) -> list[int]:
    """The blocks of an epoch in their order, after asserting that its windows hold them one after another.

    Written from the contract alone: sorted by block within each window, an epoch is a sequence of whole blocks.
    """
    last = (n - 1) // block
    sizes = {k: min(block, n - k * block) for k in range(last + 1)}
    waiting, turns, left = [set(ids[a : a + window].tolist()) for a in range(0, n, window)], [], 0
    current = -1
    for samples in waiting:
        counts: dict[int, int] = {}
        for value in samples:
            counts[value // block] = counts.get(value // block, 0) + 1
        if left:  # what the window before began goes on here
            taken = min(left, len(samples))
            assert counts.get(current) == taken
            del counts[current]
            left -= taken
        # of the blocks that begin here, at most one is not whole, and it is the one that comes last
        unfinished = [k for k, count in counts.items() if count < sizes[k]]
        assert len(unfinished) <= 1
        turns += [k for k in counts if k not in unfinished] + unfinished
        if unfinished:
            current, left = unfinished[0], sizes[unfinished[0]] - counts[unfinished[0]]
    assert sorted(turns) == list(range(last + 1))
    return turns


@pytest.mark.parametrize(
    ("n", "block", "window"),
    [(1_003, 10, 40), (1_003, 40, 10), (1_000, 7, 33), (999, 100, 70), (50, 60, 8), (60, 8, 99)],
)
def test_windows_hold_blocks_one_after_another(n: int, block: int, window: int) -> None:
    """A window of consecutive offsets is a stretch of the sequence of whole blocks, the short block included."""
    for epoch in range(20):
        ids = BlockShuffle(n, block=block, window=window, seed=5).ids(epoch, everything(n))
        blocks_in_turn(n, block, window, ids)
    with pytest.raises(AssertionError):
        blocks_in_turn(1_003, 10, 40, np.random.default_rng(0).permutation(everything(1_003)))


def test_the_short_block_takes_any_place() -> None:
    """A block shorter than the others is not always last: over epochs it comes at every place about equally often."""
    order, places = BlockShuffle(9, block=2, window=1), []
    for epoch in range(1_000):
        ids = order.ids(epoch, everything(9)).tolist()
        places.append(ids.index(8) // 2)
    assert np.bincount(places, minlength=5).min() > 150


@pytest.mark.parametrize("n", [10**12, 2**62])
@pytest.mark.parametrize("window", [64, 512, 2**32])
def test_case_27_a_huge_order_is_made_in_no_time_and_memory(n: int, window: int) -> None:
    """10^12 samples: construction and the first question under 10 ms and 1 MB, anywhere in the epoch."""
    for place in (n // 100, n // 100 * 99):
        question = np.arange(place, place + 100, dtype=np.int64)
        durations = []
        for seed in range(5):
            started = time.thread_time()
            BlockShuffle(n, window=window, seed=seed).ids(0, question)
            durations.append(time.thread_time() - started)
        tracemalloc.start()
        try:
            BlockShuffle(n, window=window, seed=9).ids(0, question)
            assert tracemalloc.get_traced_memory()[1] < 1_000_000
        finally:
            tracemalloc.stop()
        assert min(durations) < 0.010


@pytest.mark.parametrize(
    "other",
    [
        BlockShuffle(100_000, block=16, window=512, seed=6),
        BlockShuffle(100_001, block=16, window=512, seed=5),
        BlockShuffle(100_000, block=15, window=512, seed=5),
        BlockShuffle(100_000, block=16, window=511, seed=5),
        BlockShuffle(100_000, block=16, window=512, seed=5, name="a"),
    ],
    ids=repr,
)
def test_case_26_other_arguments_are_another_order(other: BlockShuffle) -> None:
    """Seed, n, block, window and name each give an unrelated order, not a near-copy."""
    offsets = np.arange(2_000, dtype=np.int64)
    order = BlockShuffle(100_000, block=16, window=512, seed=5)
    ids = order.ids(1, offsets)
    assert (ids == other.ids(1, offsets)).sum() < 10
    assert (ids == other.ids(0, offsets)).sum() < 10
    assert len(set((ids // 16).tolist()) & set((other.ids(1, offsets) // 16).tolist())) < 25


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_threads_do_not_disturb_each_other(arguments: tuple[int, int, int]) -> None:
    """Many threads asking one order about different epochs get what one thread gets."""
    order, offsets = BlockShuffle(*arguments), sample(arguments[0], 5_000)
    expected = [BlockShuffle(*arguments).ids(epoch, offsets) for epoch in range(6)]

    def ask(task: int) -> bool:
        ids = order.ids(task % 6, offsets)
        return bool(np.array_equal(ids, expected[task % 6]) and np.array_equal(order.offsets(task % 6, ids), offsets))

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(ask, range(24)))


@pytest.mark.parametrize("window", [1, 7, 512])
def test_answers_belong_to_the_caller(window: int) -> None:
    """Writing into an answer changes no later answer, and a read-only question is fine."""
    order, offsets = BlockShuffle(1_000, block=10, window=window), everything(1_000)
    offsets.flags.writeable = False
    for question in (order.ids, order.offsets):
        first = question(0, offsets)
        kept = first.copy()
        first[:] = 0
        assert np.array_equal(question(0, offsets), kept)


def test_orders_are_equal_by_what_they_describe() -> None:
    """Descriptions, equality, pickling and the registry agree; our own order is not questioned."""
    order = BlockShuffle(1_000, block=8, window=24, seed=4, name="x")
    order.ids(0, everything(1_000))
    assert order.describe() == {
        "kind": "block-shuffle",
        "version": 1,
        "length": 1_000,
        "block": 8,
        "window": 24,
        "seed": 4,
        "name": "x",
    }
    assert order_from_description(order.describe()) == order == pickle.loads(pickle.dumps(order))
    assert len(pickle.dumps(order)) < 500
    assert repr(order) == "BlockShuffle(1000, block=8, window=24, seed=4, name='x')"
    assert order != BlockShuffle(1_000, block=8, window=25, seed=4, name="x")
    assert (order.block, order.window, order.seed, order.name) == (8, 24, 4, "x")
    assert BlockShuffle(5) == BlockShuffle(5, 256, 512, 0, "")
    check_order(order)
    assert order._arrangement_of.cache_info().currsize == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n": 0}, "at least 1; found 0"),
        ({"block": 0}, "block must be from 1 to 4611686018427387904 samples; found 0"),
        ({"block": 2**62 + 1}, "block must be from 1"),
        ({"block": 2.0}, "block must be an int; found float 2.0"),
        ({"window": 0}, "window must be from 1 to 4294967296 samples; found 0"),
        ({"window": 2**32 + 1}, "use Shuffle"),
        ({"window": None}, "window must be an int; found NoneType"),
        ({"window": True}, "window must be an int"),
        ({"seed": -1}, "seed must be in"),
        ({"name": None}, "name must be a str"),
    ],
)
def test_wrong_arguments_are_refused(arguments: dict[str, Any], message: str) -> None:
    """What is not a number of samples, a seed or a name is refused with what was expected and found."""
    with pytest.raises(UsageError, match=message):
        BlockShuffle(**{"n": 10, **arguments})


def test_the_loader_goes_on_with_it_on_other_ranks(tmp_path: Path) -> None:
    """Restarted after every update on other ranks, a run reads the whole sequence, and the audit agrees."""
    order = BlockShuffle(23, block=4, window=6, seed=1)
    state, seen = None, []
    for num_replicas, num_updates in ((2, 1), (3, 1), (1, 1), (4, 1), (2, 1), (3, 1), (5, 2), (2, None)):
        recipe = {"order": order, "global_batch": 3, "microbatch": 1, "epochs": 2, "ledger": str(tmp_path)}
        with Job(23, num_replicas, **recipe) as job:
            job.load(state, allow={"fresh_start"})
            seen += job.train(num_updates)
            state = job.save()
    flat = [sample_id for update in seen for sample_id in update]
    assert flat == order.ids(0, everything(23)).tolist() + order.ids(1, everything(23)).tolist()
    report = audit_ledger(tmp_path)
    assert (report.verdict, report.replayed.high, report.omitted.high) == ("proven", 0, 0)
