"""Random numbers of samples and updates depend on seed and place in the run, on nothing else."""

from __future__ import annotations

import pickle
import random
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from torch.utils.data import StackDataset, Subset

from resumable_data import ResumableLoader, Sequential, Shuffle, evaluation_loader
from resumable_data.errors import SampleReadError, UsageError
from resumable_data.rng import Fetch, sample_generator, sample_stream, update_seed
from tests.simulated_ranks import Numbers, keep_list

if TYPE_CHECKING:
    from numpy.random import Generator


class Drawing(Numbers):
    """Each item is its index and a number from the sample's generator."""

    def __getitem__(self, index: int) -> Any:
        return index, float(sample_generator().random())


class BatchDrawing(Drawing):
    """The same, read a whole microbatch at a time."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        return [(index, float(sample_generator(k).random())) for k, index in enumerate(indices)]


class GlobalDrawing(Numbers):
    """Each item is its index and a number of each of the three global generators."""

    def __getitem__(self, index: int) -> Any:
        return index, random.random(), float(np.random.random()), float(torch.rand(()))


class BatchGlobalDrawing(GlobalDrawing):
    """The same, with a `__getitems__` that must not be used."""

    def __getitems__(self, indices: list[int]) -> list[Any]:
        raise AssertionError("one draw for all rows would depend on the number of ranks")


def expected_generator(position: int, seed: int = 0) -> Generator:
    """The generator of a position, outside of any loader."""
    stream = sample_stream("rng.sample_generator", seed)
    return Fetch(stream, (b"\0" * 8, position, 1, b""), [], False).generator(None)


def read(
    dataset: Any, num_replicas: int, *, length: int = 11, restart_at: int | None = None, **options: Any
) -> dict[int, Any]:
    """Position -> item over all ranks and two epochs; on other ranks after `restart_at` updates."""
    settings: dict[str, Any] = {"global_batch": 5, "microbatch": 2, "epochs": 2, "collate_fn": keep_list, **options}
    found: dict[int, Any] = {}
    state = None
    for ranks in (num_replicas, num_replicas + 1):
        for rank in range(ranks):
            loader = ResumableLoader(dataset, order=Shuffle(length), rank=rank, num_replicas=ranks, **settings)
            with loader:
                if state is not None:
                    loader.load_state_dict(state)
                for microbatch in loader:
                    found.update(zip(microbatch.positions.tolist(), microbatch.data, strict=False))
                    if microbatch.is_last:
                        loader.commit()
                        if state is None and loader.cursor.updates == restart_at:
                            break
                saved = loader.state_dict()
        if restart_at is None:
            break
        state = saved
    assert sorted(found) == list(range(2 * length))
    return found


@pytest.mark.parametrize("dataset", [Drawing(11), BatchDrawing(11), GlobalDrawing(11), BatchGlobalDrawing(11)])
def test_numbers_do_not_depend_on_ranks_workers_and_restarts(dataset: Any) -> None:
    """The same position gives the same item on 1, 2 and 3 ranks, with workers, and after a restart."""
    seeded = {"seed_samples": isinstance(dataset, GlobalDrawing)}
    alone = read(dataset, 1, **seeded)
    assert len({item[1:] for item in alone.values()}) == 22, "positions share numbers"
    assert read(dataset, 3, **seeded) == alone
    assert read(dataset, 2, num_workers=2, **seeded) == alone
    assert read(dataset, 2, restart_at=2, **seeded) == alone
    assert read(dataset, 2, microbatch=1, pad_microbatches=True, **seeded) == alone
    assert read(dataset, 1, seed=1, **seeded) != alone


def test_global_generators_without_the_option_depend_on_ranks() -> None:
    """What the option is for can be seen: without it, two runs draw different numbers for a position."""
    assert read(GlobalDrawing(11), 1) != read(GlobalDrawing(11), 3)


def test_both_ways_of_reading_give_the_same_numbers() -> None:
    """`__getitem__`, `__getitems__`, and either behind torch's Subset or StackDataset, are the same to a position."""
    alone = read(Drawing(11), 1)
    assert [alone[position][1] for position in range(22)] == [expected_generator(p).random() for p in range(22)]
    assert read(BatchDrawing(11), 2) == alone
    for kind in (Drawing, BatchDrawing):
        assert read(Subset(Subset(kind(20), range(15)), range(11)), 2) == alone  # type: ignore[arg-type]
        stacked = read(StackDataset(kind(11)), 2)  # type: ignore[arg-type]
        assert {position: item for position, (item,) in stacked.items()} == alone


@pytest.mark.slow
def test_numbers_in_spawned_workers() -> None:
    """A worker that was spawned, and so shares no memory, draws the same."""
    spawned: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "spawn"}
    assert read(BatchDrawing(11), 1, **spawned) == read(Drawing(11), 1)
    assert read(GlobalDrawing(11), 1, seed_samples=True, **spawned) == read(GlobalDrawing(11), 1, seed_samples=True)


@pytest.mark.parametrize("seeded", [False, True])
def test_the_fetching_dataset_pickles(seeded: bool) -> None:
    """What is sent to a spawned worker can be, and reads the same there."""
    options: dict[str, Any] = {"seed_samples": seeded, "global_batch": 4, "microbatch": 4, "collate_fn": keep_list}
    dataset = GlobalDrawing(11) if seeded else Drawing(11)
    loader = ResumableLoader(dataset, order=Sequential(11), rank=0, num_replicas=1, **options)
    fetching = loader._reader.require_open().dataset
    request = np.arange(3).tobytes(), 0, 1, b""
    assert pickle.loads(pickle.dumps(fetching))[request] == fetching[request]


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
@pytest.mark.parametrize("pad_microbatches", [False, True])
@pytest.mark.parametrize("kind", [Drawing, BatchDrawing])
def test_repeated_rows_have_the_numbers_of_what_they_repeat(kind: Any, tail: str, pad_microbatches: bool) -> None:
    """A filler or padding row is the item of some position, its random numbers included."""
    for length, global_batch, num_replicas, microbatch in ((7, 9, 4, 3), (3, 11, 5, 1), (5, 4, 3, 2)):
        if tail == "drop" and global_batch > length:
            continue
        order, num_repeats = Shuffle(length), 0
        known = {(order.ids(p // length, np.array([p % length]))[0], expected_generator(p).random()) for p in range(24)}
        for rank in range(num_replicas):
            loader = ResumableLoader(
                kind(length),
                order=order,
                global_batch=global_batch,
                microbatch=microbatch,
                epochs=2,
                rank=rank,
                num_replicas=num_replicas,
                tail=tail,
                pad_microbatches=pad_microbatches,
                collate_fn=keep_list,
            )
            for item in loader:
                assert set(item.data) <= known
                num_repeats += len(item.data) - len(item.ids)
        assert num_repeats or not pad_microbatches


def test_filler_repeats_the_first_sample_of_its_stretch() -> None:
    """3 samples on 5 ranks: the idle ranks' filler has the numbers of position 0."""
    options: dict[str, Any] = {"microbatch": 2, "num_replicas": 5, "collate_fn": keep_list}
    (item,) = evaluation_loader(Drawing(3), rank=4, **options)
    assert item.data == [(0, expected_generator(0).random())]
    assert item.weights.tolist() == [0]


def test_a_padding_row_repeats_the_numbers_too() -> None:
    """tail="pad", 3 samples, G=5, in epoch 1: rows 4 and 5 are positions 3 and 4 again, not 6 and 7."""
    loader = ResumableLoader(
        Drawing(3), order=Sequential(3), global_batch=5, microbatch=5, epochs=2, tail="pad", collate_fn=keep_list
    )
    _, second = loader
    assert [number for _, number in second.data] == [expected_generator(p).random() for p in (3, 4, 5, 3, 4)]


def test_a_sample_has_one_generator() -> None:
    """Two transforms of one sample, and its collate_fn, do not draw the same numbers."""

    class Twice(Numbers):
        def __getitem__(self, index: int) -> Any:
            return [sample_generator().random(), sample_generator(0).random()]

    def collate(samples: list[Any]) -> Any:
        return [[*sample, sample_generator(k).random()] for k, sample in enumerate(samples)]

    (item,) = evaluation_loader(Twice(5), microbatch=5, collate_fn=collate)
    assert item.data == [expected_generator(position).random(3).tolist() for position in range(5)]


def test_a_pool_of_the_dataset_may_draw() -> None:
    """`__getitems__` may hand its rows to threads."""

    class Pooled(Numbers):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            with ThreadPoolExecutor(3) as pool:
                return list(pool.map(lambda k: sample_generator(k).random(), range(len(indices))))

    (item,) = evaluation_loader(Pooled(9), microbatch=9, collate_fn=keep_list)
    assert item.data == [expected_generator(position).random() for position in range(9)]


def test_a_thread_that_reads_for_one_of_two_loaders_is_refused() -> None:
    """Where two threads read at the same time, a third one's numbers could be either's."""

    class Pooled(Numbers):
        def __getitem__(self, index: int) -> Any:
            with ThreadPoolExecutor(1) as pool:
                if index:
                    return pool.submit(sample_generator).result()
                return pool.submit(list, evaluation_loader(Inner(1), microbatch=1)).result()

    class Inner(Numbers):
        def __getitem__(self, index: int) -> Any:
            with ThreadPoolExecutor(1) as pool:
                return pool.submit(sample_generator).result()

    with pytest.raises(SampleReadError, match="reads for one of 2 loaders"):
        list(evaluation_loader(Pooled(1), microbatch=1))


def test_a_dataset_that_reads_from_a_loader_keeps_its_own_numbers() -> None:
    """A fetch within a fetch ends with the outer one as it was."""

    class Outer(Numbers):
        def __getitem__(self, index: int) -> Any:
            inner = [item.data for item in evaluation_loader(Drawing(3), microbatch=3, seed=9, collate_fn=keep_list)]
            return inner, sample_generator().random()

    (item,) = evaluation_loader(Outer(2), microbatch=2, collate_fn=keep_list)
    inner = [(index, expected_generator(index, seed=9).random()) for index in range(3)]
    assert item.data == [([inner], expected_generator(position).random()) for position in range(2)]


def test_a_row_that_fails_by_chance_is_found() -> None:
    """Reading a failed batch again, a row at a time, draws what the batch drew."""

    class Unlucky(Numbers):
        def __getitems__(self, indices: list[int]) -> list[Any]:
            if any(sample_generator(k).random() == expected_generator(3).random() for k in range(len(indices))):
                raise OSError("by chance")
            return indices

    with pytest.raises(SampleReadError, match=r"sample 3 .position 3 of the run. cannot be read: OSError: by chance"):
        list(evaluation_loader(Unlucky(6), microbatch=6))


def test_outside_of_a_fetch_is_an_error() -> None:
    """There is no position to key numbers by: before, between and after fetches."""
    with pytest.raises(UsageError, match="while no loader reads a sample"):
        sample_generator()
    for _ in evaluation_loader(Drawing(4), microbatch=2):
        with pytest.raises(UsageError, match="a plain DataLoader knows no positions"):
            sample_generator(0)
    with pytest.raises(SampleReadError):
        list(evaluation_loader(Misused(None, batched=True), microbatch=2))
    with pytest.raises(UsageError, match="while no loader"):
        sample_generator()


class Misused(Numbers):
    """Asks for row `k`."""

    def __init__(self, k: Any, *, batched: bool) -> None:
        super().__init__(4)
        self._k = k
        if batched:
            self.__getitems__ = lambda indices: [self[index] for index in indices]

    def __getitem__(self, index: int) -> Any:
        return sample_generator(self._k).random()


@pytest.mark.parametrize(
    ("k", "batched", "message"),
    [
        (None, True, "where 2 rows are read at once"),
        (1, False, "reads one row"),
        (2, True, r"expected k in \[0, 2\).*found 2"),
        (-1, True, r"expected k in \[0, 2\).*found -1"),
    ],
)
def test_a_row_that_is_not_meant_is_refused(k: Any, batched: bool, message: str) -> None:
    """A call that would take another row's numbers, or one row's for all, says so."""
    with pytest.raises(SampleReadError, match=message):
        list(evaluation_loader(Misused(k, batched=batched), microbatch=2))


@pytest.mark.parametrize("fails", [False, True])
def test_the_training_process_keeps_its_own_numbers(fails: bool) -> None:
    """With seed_samples and no workers, training draws what it draws without any loader."""

    class Failing(GlobalDrawing):
        def __getitem__(self, index: int) -> Any:
            drawn = super().__getitem__(index)
            return drawn if not fails or index < 3 else 1 / 0

    def draw() -> list[float]:
        return [random.random(), float(np.random.random()), float(np.random.normal()), float(torch.rand(()))]

    def seed() -> None:
        random.seed(1)
        np.random.seed(1)
        torch.manual_seed(1)

    seed()
    np.random.normal()  # draws two, and keeps one for the next call
    wanted = [draw() for _ in range(3)]
    seed()
    np.random.normal()
    stream = iter(evaluation_loader(Failing(6), microbatch=2, seed_samples=True))
    found = [draw()]
    next(stream)
    found.append(draw())
    if fails:
        with pytest.raises(SampleReadError, match="ZeroDivisionError"):
            list(stream)
    else:
        list(stream)
    found.append(draw())
    assert found == wanted


def test_spawned_generators_are_unrelated() -> None:
    """A sample's generator can spawn further ones, in sequence, without repeating a stream."""
    generator = expected_generator(5)
    children = generator.spawn(2) + generator.spawn(1)
    streams = [generator, *children, *children[0].spawn(1)]
    assert len({stream.random() for stream in streams}) == 5
    assert expected_generator(5).spawn(3)[2].random() != expected_generator(5).spawn(3)[1].random()
    again = expected_generator(5).spawn(3)
    assert again[2].random() == expected_generator(5).spawn(3)[2].random()


def test_a_generator_pickles() -> None:
    """A generator can be handed to another process, and goes on there."""
    generator = expected_generator(5)
    generator.random(7)
    assert pickle.loads(pickle.dumps(generator)).random() == generator.random()


def test_numbers_are_what_they_were() -> None:
    """Golden values: a later version that drew others would change every run that is resumed with it."""
    assert expected_generator(0).integers(1 << 62, size=2).tolist() == [4466711974628049880, 229108449747438362]
    assert expected_generator(2**40 + 1, seed=7).integers(1 << 62) == 2656280416863678043
    assert update_seed(0, 0, 0) == 1817416926570800278
    assert update_seed(1, 2, 3, "dropout") == 12305302169326984619


def test_numbers_of_neighbouring_positions_and_seeds_are_unrelated() -> None:
    """First draws over positions and seeds are uniform: mean, variance and correlation are those of chance."""
    draws = np.array([[expected_generator(p, seed=s).random() for p in range(500)] for s in range(8)])
    flat = draws.ravel()
    assert abs(flat.mean() - 0.5) < 5 * np.sqrt(1 / 12 / flat.size)
    assert abs(flat.var() - 1 / 12) < 5 * np.sqrt(1 / 180 / flat.size)
    assert abs(np.corrcoef(flat[1:], flat[:-1])[0, 1]) < 5 / np.sqrt(flat.size)
    assert np.abs(np.corrcoef(draws) - np.eye(8)).max() < 5 / np.sqrt(500)
    assert np.unique(flat).size == flat.size


def test_update_seeds_are_all_different() -> None:
    """Seed, update, rank and purpose each make another seed, of 64 bits, and cannot be traded for one another."""
    grid = [(s, u, r, p) for s in range(6) for u in range(40) for r in range(40) for p in ("", "a")]
    seeds = np.array([update_seed(*arguments) for arguments in grid], np.uint64)
    assert np.unique(seeds).size == seeds.size
    ones = np.unpackbits(seeds.view(np.uint8)).reshape(seeds.size, 64).mean(0)
    assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(seeds.size)


def test_update_seed_is_one_that_torch_takes() -> None:
    """The largest 64-bit seeds included."""
    seed = next(seed for update in range(100) if (seed := update_seed(0, update, 0)) > 1 << 63)
    torch.manual_seed(seed)
    first = torch.rand(3)
    torch.manual_seed(seed)
    assert torch.equal(torch.rand(3), first)
    torch.manual_seed(update_seed(0, 0, 1))
    assert not torch.equal(torch.rand(3), first)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [((-1, 0, 0), "seed"), ((0, 1.5, 0), "update"), ((0, 0, -1), "dp_rank"), ((0, True, 0), "update")],
)
def test_wrong_arguments_of_update_seed_are_named(arguments: Any, name: str) -> None:
    """A rounded or negative number is refused."""
    with pytest.raises(UsageError, match=name):
        update_seed(*arguments)


def test_a_negative_seed_is_refused() -> None:
    """The loader says so before anything is read."""
    with pytest.raises(UsageError, match="seed must be in"):
        ResumableLoader(Numbers(3), order=Sequential(3), global_batch=1, microbatch=1, seed=-1)
