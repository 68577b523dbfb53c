"""A shadowed loop gets what the loader gives, and goes on whatever happens to the shadow."""

from __future__ import annotations

import errno
import logging
import os
from itertools import chain, islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, IterableDataset, RandomSampler, TensorDataset

import resumable_data as rd
from resumable_data.shadowing import Shadow, audit_shadow, recorder, shadow
from resumable_data.shadowing.reader import read_directory, read_values
from tests.unit.shadowing.jobs import Numbers, restart

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def values(path: Path, iteration: int = 0, file: int = -1) -> list[int]:
    """What one iteration noted."""
    found: list[int] = read_values(read_directory(path).files[file], iteration).value.tolist()
    return found


def test_same_objects_length_and_attributes(tmp_path: Path) -> None:
    """The loop gets the very objects of the loader, and everything else that it asks for is the loader's too."""

    class Loader(list[Any]):
        color = "red"

        def close(self) -> str:
            return "closed"

    loader = Loader([[1, 2], [3], {"a": [1, 2]}])
    watched = shadow(loader, tmp_path)
    assert [one is other for one, other in zip(watched, loader, strict=True)] == [True] * 3
    assert (len(watched), bool(watched), watched.color, watched.close()) == (3, True, "red", "closed")
    watched.color = "blue"
    assert vars(loader) == {"color": "blue"}
    assert not shadow(Loader(), tmp_path)
    with pytest.raises(AttributeError, match="colour"):
        _ = watched.colour
    iterator = iter(watched)
    assert iter(iterator) is iterator
    assert iterator.__length_hint__() == 3


def test_loader_without_a_length(tmp_path: Path) -> None:
    """A generator is shadowed like anything else, and has no more of a length than before."""
    watched = shadow((one for one in ([1], [2])), tmp_path)
    with pytest.raises(TypeError):
        len(watched)
    assert list(watched) == [[1], [2]]
    assert list(watched) == []


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_ids_of_a_dataloader(tmp_path: Path, num_workers: int, persistent: bool) -> None:
    """With and without workers, the batches are those of the plain loader, and the IDs those of their samples."""
    if persistent and not num_workers:
        return

    def make() -> DataLoader[torch.Tensor]:
        return DataLoader(
            Numbers(50),
            batch_size=4,
            shuffle=True,
            num_workers=num_workers,
            persistent_workers=persistent,
            generator=torch.Generator().manual_seed(5),
        )

    plain, watched = make(), shadow(make(), tmp_path)
    assert (len(watched), watched.batch_size, watched.num_workers) == (13, 4, num_workers)
    for epoch in range(3):
        num_batches = 3 if epoch == 1 else None  # left early: what workers fetched ahead is not noted
        expected = [batch.tolist() for batch in islice(plain, num_batches)]
        assert [batch.tolist() for batch in islice(watched, num_batches)] == expected
        assert values(tmp_path, epoch) == list(chain.from_iterable(expected))
    (file,) = read_directory(tmp_path).files
    assert [one.has_end for one in file.iterations] == [True, False, True]
    assert [one.num_hashed for one in file.iterations] == [0, 0, 0]
    assert [one.begin.num_samples for one in file.iterations] == [50, 50, 50]


def test_the_dataloader_stays_as_it_was(tmp_path: Path) -> None:
    """The loader is not changed, can be used beside its shadow, and what is set in it counts."""
    loader = DataLoader(Numbers(6), batch_size=2)
    before = dict(vars(loader))
    watched = shadow(loader, tmp_path)
    assert [batch.tolist() for batch in watched] == [batch.tolist() for batch in loader]
    assert dict(vars(loader)) == before
    watched.collate_fn = len
    assert (list(loader), list(watched)) == ([2, 2, 2], [2, 2, 2])


class Words(IterableDataset[str]):
    def __iter__(self) -> Iterator[str]:
        yield from ("one", "two", "three")


class Keys:
    """A sampler of keys that are no integers."""

    def __iter__(self) -> Iterator[str]:
        return iter(["a", "b"])

    def __len__(self) -> int:
        return 2


def test_where_ids_cannot_be_seen(tmp_path: Path) -> None:
    """Iterable datasets, keys that are no integers, and loaders derived from torch's are noted by contents."""

    class Own(DataLoader[torch.Tensor]):
        pass

    keyed: Any = {"a": 1, "b": 2}
    for number, loader in enumerate(
        (DataLoader(Words(), batch_size=2), DataLoader(keyed, batch_size=1, sampler=Keys()), Own(Numbers(3)))
    ):
        path = tmp_path / str(number)
        list(shadow(loader, path))
        (iteration,) = read_directory(path).files[0].iterations
        assert iteration.num_hashed == iteration.num_batches > 1
        assert iteration.has_end
        assert iteration.begin.num_samples is None


def test_loader_without_batches(tmp_path: Path) -> None:
    """A sampler of single IDs, or of lists that the dataset takes whole, is seen too."""
    list(shadow(DataLoader(Numbers(3), batch_size=None), tmp_path / "single"))
    assert values(tmp_path / "single") == [0, 1, 2]
    dataset: Any = np.arange(5)
    lists: Any = BatchSampler(range(5), 2, drop_last=False)
    list(shadow(DataLoader(dataset, batch_size=None, sampler=lists), tmp_path / "lists"))
    assert values(tmp_path / "lists") == [0, 1, 2, 3, 4]


def test_loader_made_anew_for_each_epoch(tmp_path: Path) -> None:
    """Shadows of one directory in one process go on with one file; another process opens its own."""
    for _ in range(2):
        list(shadow([[1]], tmp_path))
    assert [len(file.iterations) for file in read_directory(tmp_path).files] == [2]
    child = os.fork()
    if not child:
        try:
            list(shadow([[2]], tmp_path))
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    list(shadow([[1]], tmp_path))
    assert sorted(len(file.iterations) for file in read_directory(tmp_path).files) == [1, 3]


def test_rank_of_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process group or arguments, RANK and WORLD_SIZE say which rank this is."""
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "5")
    list(shadow([[1]], tmp_path))
    restart()
    monkeypatch.setenv("RANK", "two")
    list(shadow([[1]], tmp_path, num_replicas=4))
    headers = [file.header for file in read_directory(tmp_path).files]
    assert [(one.rank, one.num_replicas) for one in headers] == [(0, 4), (2, 5)]
    assert headers[0].launch == ""


class FaultyOs:
    """Fails the write with this number, as a full disk does: with an error, or in the middle of it."""

    def __init__(self, at: int, *, is_short: bool) -> None:
        self.left = at
        self.is_short = is_short

    def write(self, descriptor: int, data: bytes) -> int:
        self.left -= 1
        if self.left > 0:
            return REAL_WRITE(descriptor, data)
        if self.is_short and self.left == 0:
            return REAL_WRITE(descriptor, data[:5])
        raise OSError(errno.ENOSPC, "No space left on device")


REAL_WRITE = os.write


@pytest.mark.parametrize("is_short", [False, True])
@pytest.mark.parametrize("at", [1, 2, 3, 4, 5])
def test_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, at: int, is_short: bool
) -> None:
    """Whichever write fails, the loop gets all batches, one error is logged, and what was written can be read."""
    monkeypatch.setattr(os, "write", FaultyOs(at, is_short=is_short).write)
    with caplog.at_level(logging.ERROR):
        assert list(shadow([[1, 2], [3]], tmp_path)) == [[1, 2], [3]]
    monkeypatch.undo()
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "Training goes on" in caplog.text
    files = read_directory(tmp_path).files
    assert len(files) == (at > 1)
    if files:
        assert [one.num_batches for one in files[0].iterations] == [[0], [0], [1], [2]][at - 2][: at > 2]


def test_unwritable_directory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A path that is no directory is logged once, and the loop goes on through all its epochs."""
    (tmp_path / "file").write_text("")
    watched = shadow([[1]], tmp_path / "file")
    for _ in range(3):
        assert list(watched) == [[1]]
    watched.mark_saved()
    assert len(caplog.records) == 1


def test_batches_that_cannot_be_hashed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A batch of unknown things ends the shadow, says why in the file, and not the loop."""
    batches = [[1], [object()], [2]]
    assert list(shadow(batches, tmp_path)) == batches
    report = audit_shadow(tmp_path)
    assert [finding.code for finding in report.findings] == ["RD726", "RD733"]
    assert "type builtins.object" in report.findings[0].found
    assert len(caplog.records) == 1


def test_loader_that_raises(tmp_path: Path) -> None:
    """The loader's error is the loop's, and shadowing stops there, as the place is lost."""
    loader = DataLoader(TensorDataset(torch.arange(4)), batch_size=2, sampler=[0, 1, 9, 2])
    watched = shadow(loader, tmp_path)
    iterator = iter(watched)
    next(iterator)
    with pytest.raises(IndexError):
        next(iterator)
    list(watched.dataset)
    (file,) = read_directory(tmp_path).files
    assert file.stopped is not None
    assert "IndexError" in file.stopped
    assert file.iterations[0].num_batches == 1


def test_two_iterators_at_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Iterators side by side cannot be told apart later: shadowing stops, the loop does not."""
    watched = shadow(DataLoader(Numbers(4)), tmp_path)
    assert [(one.item(), other.item()) for one, other in zip(watched, watched, strict=True)] == [
        (number, number) for number in range(4)
    ]
    assert "two iterators" in caplog.text


def test_random_numbers_are_not_touched(tmp_path: Path) -> None:
    """A loop that draws random numbers draws the same with and without a shadow."""
    drawn = []
    for watch in (False, True):
        torch.manual_seed(3)
        dataset = TensorDataset(torch.arange(20))
        loader: Any = DataLoader(dataset, batch_size=3, sampler=RandomSampler(dataset))
        loader = shadow(loader, tmp_path) if watch else loader
        drawn.append([(batch[0].tolist(), torch.rand(()).item()) for batch in loader])
    assert drawn[0] == drawn[1]


class Restless:
    """An iterator that goes on after its end."""

    def __init__(self) -> None:
        self.number = 0

    def __iter__(self) -> Restless:
        return self

    def __next__(self) -> list[int]:
        self.number += 1
        if self.number == 2:
            raise StopIteration
        return [self.number]


@settings(max_examples=60)
@example(operations=["save", "iter", "exhaust", "exhaust", "save", "iter", "next", "fork", "next"], kind="torch")
@example(operations=["iter", "exhaust", "exhaust", "exhaust"], kind="restless")
@given(
    operations=st.lists(st.sampled_from(["iter", "next", "old", "exhaust", "save", "restart", "fork"]), max_size=12),
    kind=st.sampled_from(["list", "restless", "torch"]),
)
def test_whatever_a_script_does_can_be_audited(
    tmp_path_factory: pytest.TempPathFactory, operations: list[str], kind: str
) -> None:
    """However a script uses its loader, it gets what it would have got, and the files can be read."""
    path = tmp_path_factory.mktemp("shadow")
    plain: Any = {"list": [[1], [2]], "restless": Restless(), "torch": DataLoader(Numbers(3), batch_size=2)}[kind]
    twin: Any = Restless() if kind == "restless" else plain
    restart()
    watched = shadow(plain, path)
    iterators: list[tuple[Any, Any]] = []
    for operation in operations:
        if operation == "iter":
            iterators.append((iter(watched), iter(twin)))
        elif operation in ("next", "old") and iterators:
            one, other = iterators[-1 if operation == "next" else 0]
            assert repr(next(one, None)) == repr(next(other, None))
        elif operation == "exhaust" and iterators:
            one, other = iterators[-1]
            assert repr(list(islice(one, 5))) == repr(list(islice(other, 5)))
        elif operation == "save":
            watched.mark_saved()
        elif operation == "restart":
            restart()
            watched = shadow(plain, path)
        elif operation == "fork":
            watched._recorder._process = -1  # as a forked child sees it
    if read_directory(path).files:
        assert audit_shadow(path).to_text()


def test_public_names() -> None:
    """`rd.shadow` and `rd.audit_shadow` are these functions."""
    assert (rd.shadow, rd.audit_shadow) == (shadow, audit_shadow)
    assert isinstance(rd.shadow([], "nowhere"), Shadow)
    assert recorder._RECORDERS
    restart()
