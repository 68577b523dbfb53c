"""Reading samples: what the dataset is asked for, and what is said when it fails."""

from __future__ import annotations

import pickle
from typing import Any

import pytest
import torch

from resumable_data import ResumableLoader, Sequential
from resumable_data.errors import SampleReadError, UsageError
from tests.simulated_ranks import Numbers, keep_list


class Batched(Numbers):
    """A dataset with `__getitems__`, which records what it is asked for; sample 6 is damaged where wanted."""

    def __init__(self, length: int, *, broken: int | None = None, lose: int = 0) -> None:
        super().__init__(length)
        self.asked: list[list[int]] = []
        self._broken = broken
        self._lose = lose

    def __getitems__(self, indices: list[int]) -> list[int]:
        self.asked.append(indices)
        if self._broken in indices:
            raise OSError("bad sector")
        return [10 * index for index in indices][self._lose :]

    def __getitem__(self, index: int) -> int:
        raise AssertionError("__getitems__ exists and must be used")


class BrokenAt(Numbers):
    """A dataset without `__getitems__` whose sample 6 cannot be read."""

    def __getitem__(self, index: int) -> int:
        if index == 6:
            raise OSError("bad sector")
        return index


def loader_of(dataset: Any, **options: Any) -> ResumableLoader:
    settings: dict[str, Any] = {"global_batch": 8, "microbatch": 4, "epochs": 1, "rank": 0, "num_replicas": 1}
    settings |= {"collate_fn": keep_list, **options}
    return ResumableLoader(dataset, order=Sequential(len(dataset)), **settings)


def test_getitems_is_used_where_it_exists() -> None:
    """One call per microbatch, with plain integers, filler included."""
    dataset = Batched(6)
    data = [microbatch.data for microbatch in loader_of(dataset, pad_microbatches=True, global_batch=6)]
    assert dataset.asked == [[0, 1, 2, 0], [3, 4, 5, 3]]
    assert data == [[0, 10, 20, 0], [30, 40, 50, 30]]
    assert {type(index) for asked in dataset.asked for index in asked} == {int}


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("dataset", [BrokenAt(20), Batched(20, broken=6)], ids=["getitem", "getitems"])
def test_a_sample_that_cannot_be_read_is_named(dataset: Any, num_workers: int) -> None:
    """The error names ID, position, cause and the way on, from the training process and from a worker."""
    with loader_of(dataset, num_workers=num_workers) as loader:
        stream = iter(loader)
        next(stream)
        with pytest.raises(
            SampleReadError, match=r"sample 6 \(position 6 of the run\) cannot be read: OSError: bad sector. The cursor"
        ):
            next(stream)
        assert loader.cursor.position == 0


def test_the_position_is_the_runs_not_the_datasets() -> None:
    """In the second epoch, and for a rank of several, the position named is the one in the global sequence."""
    loader = loader_of(BrokenAt(7), epochs=3, rank=1, num_replicas=2, microbatch=2, tail="short")
    saved = loader_of(Numbers(7), epochs=3, tail="short", microbatch=7)
    next(iter(saved))
    saved.commit()
    loader.load_state_dict(saved.state_dict())
    # epoch 1 is positions 7 .. 13: rank 1 has 8, 10, 12, and is short of a row; rank 0 has 7, 9, 11, 13
    assert [microbatch.positions.tolist() for microbatch in loader] == [[8, 10], [12], [15, 17], [19]]
    loader = loader_of(BrokenAt(7), epochs=3, tail="short", microbatch=7)
    loader.load_state_dict(saved.state_dict())
    with pytest.raises(SampleReadError, match=r"sample 6 \(position 13 of the run\)"):
        next(iter(loader))


@pytest.mark.parametrize(
    ("options", "length", "place"),
    [
        ({"rank": 3, "num_replicas": 4, "global_batch": 7, "microbatch": 1}, 7, "filler"),
        ({"tail": "pad", "global_batch": 16, "microbatch": 16}, 7, None),
    ],
)
def test_repeated_rows_are_not_named_by_a_position_of_their_own(
    options: dict[str, Any], length: int, place: str | None
) -> None:
    """A filler or padding row is a repeat: the position after the samples is another sample's."""

    class BrokenSecondTime(Numbers):
        def __init__(self, length: int) -> None:
            super().__init__(length)
            self.seen: set[int] = set()

        def __getitem__(self, index: int) -> int:
            if index in self.seen or (place == "filler" and index == 4):
                raise OSError("gone")
            self.seen.add(index)
            return index

    expected = "sample 4 .repeated as a filler row" if place else "sample 0 .repeated as a padding row"
    with pytest.raises(SampleReadError, match=expected):
        list(loader_of(BrokenSecondTime(length), **options))


def test_a_wrong_number_of_samples_is_refused() -> None:
    """A dataset that drops a sample would shift all after it onto other IDs."""
    with pytest.raises(SampleReadError, match=r"\b3\b.*in order"):
        next(iter(loader_of(Batched(8, lose=1))))


@pytest.mark.parametrize("error", [StopIteration, KeyError, RuntimeError, IndexError, GeneratorExit])
def test_no_exception_of_a_dataset_passes_for_fewer_samples(error: type[BaseException]) -> None:
    """Whatever a dataset raises, what ends Python's loops too, is an error and never a short batch."""

    class Ends(Numbers):
        def __getitem__(self, index: int) -> int:
            if index == 2:
                raise error("no more")
            return index

    with pytest.raises((SampleReadError, GeneratorExit)):
        next(iter(loader_of(Ends(8))))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_collate_fn_cannot_end_the_run(num_workers: int) -> None:
    """A StopIteration from a collate_fn is an error, not the end of the run."""

    def collate(samples: list[int]) -> list[int]:
        return [next(iter([])) for _ in samples] if 4 in samples else samples

    with loader_of(Numbers(16), collate_fn=collate, num_workers=num_workers) as loader:
        stream = iter(loader)
        next(stream)
        with pytest.raises((SampleReadError, RuntimeError)):
            next(stream)
        assert loader.cursor.updates == 0


def test_samples_that_fail_only_together_are_all_named() -> None:
    """Where each sample can be read alone, the message lists those that failed together."""

    class NotTogether(Numbers):
        def __getitems__(self, indices: list[int]) -> list[int]:
            if len(indices) > 1:
                raise MemoryError("too much")
            return indices

    with pytest.raises(SampleReadError, match=r"the samples \[0, 1, 2, 3\] together.*MemoryError"):
        next(iter(loader_of(NotTogether(8))))


def test_what_a_worker_read_is_compared_with_what_it_was_asked_for() -> None:
    """A digest of other IDs than those asked for is an error, not a delivery."""
    loader = loader_of(Numbers(8))
    dataset: Any = loader._reader.require_open()
    honest = dataset.dataset.__class__.__getitem__
    data, digest = honest(dataset.dataset, next(iter(request_of(loader))))
    stream = iter(loader)

    class Lying:
        def __getitem__(self, request: Any) -> Any:
            return data, digest ^ 1

    dataset.__dict__["dataset"] = Lying()
    with pytest.raises(SampleReadError, match="a worker read other samples than the 4 it was asked for in update 0"):
        next(stream)
    assert loader.cursor.updates == 0


def request_of(loader: ResumableLoader) -> Any:
    queue = loader._reader._requests
    queue.start(loader._rows())
    return queue


class Stream(torch.utils.data.IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(4))


class NoLength:
    def __getitem__(self, index: int) -> int:
        return index


@pytest.mark.parametrize(
    ("dataset", "says"),
    [
        (Stream(), "Stream is an IterableDataset.*Give a map-style dataset"),
        ([], "the dataset is empty .len is 0.; there is nothing to train on"),
        (NoLength(), "expected a map-style dataset.*got NoLength"),
        ({1, 2}, "expected a map-style dataset.*got set"),
    ],
)
def test_datasets_that_cannot_be_resumed_are_refused(dataset: Any, says: str) -> None:
    """What is no map-style dataset, or holds nothing, is refused by name when the loader is made."""
    with pytest.raises(UsageError, match=says):
        ResumableLoader(dataset, global_batch=2, microbatch=1)


def test_our_errors_cross_process_borders() -> None:
    """An error keeps its class and message when it is pickled, as workers do."""
    error = pickle.loads(pickle.dumps(SampleReadError("sample 6")))
    assert type(error) is SampleReadError
    assert str(error) == "sample 6"
