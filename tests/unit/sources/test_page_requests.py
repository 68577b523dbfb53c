"""Which pages of a mapped file are asked for ahead: none where a sample of them is in memory."""

from __future__ import annotations

import gc
import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from resumable_data.sources.files import StoredArray
from resumable_data.sources.page_requests import PageRequests

PAGE = mmap.PAGESIZE
NUM_PAGES = 64


class Map:
    """A map of a file that takes down what is asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, int]] = []
        self.is_random = False
        self.refuses = False

    def __len__(self) -> int:
        return NUM_PAGES * PAGE

    def madvise(self, advice: int, begin: int = 0, size: int = 0) -> None:
        if advice == mmap.MADV_RANDOM:
            self.is_random = True
        else:
            self.asked.append((begin // PAGE, size))
        if self.refuses:
            raise OSError("no advice is taken")


class File:
    """A file of which some pages are in memory."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.held = range(NUM_PAGES)
        self.sampled: list[int] = []
        self.error: OSError = BlockingIOError()
        self.map = Map()
        path.write_bytes(bytes(PAGE))
        self.descriptor = os.open(path, os.O_RDONLY)
        mapped: Any = self.map
        self.requests = PageRequests(self.descriptor, mapped)
        monkeypatch.setattr(os, "preadv", self.preadv, raising=False)
        monkeypatch.setattr(os, "RWF_NOWAIT", 8, raising=False)

    def preadv(self, descriptor: int, buffers: object, place: int, flags: int) -> int:
        assert flags == 8
        self.sampled.append(place // PAGE)
        if place // PAGE not in self.held:
            raise self.error
        return 1

    def ask(self, pages: range, size: int = 3 * PAGE) -> list[tuple[int, int]]:
        """What is asked for when ranges that begin at some pages are."""
        self.map.asked, self.sampled = [], []
        starts = np.array(pages, dtype=np.int64) * PAGE + 10
        self.requests.ask(starts, np.full(len(starts), size))
        return self.map.asked


@pytest.fixture
def file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[File]:
    made = File(monkeypatch, tmp_path / "file")
    yield made
    os.close(made.descriptor)


def whole(pages: range) -> list[tuple[int, int]]:
    return [(page, 3 * PAGE + 10) for page in pages]


def test_what_is_in_memory_is_only_sampled(file: File) -> None:
    """Of ranges in memory a few are looked at, from all over the batch, and none is asked for."""
    assert file.ask(range(40)) == []
    assert file.sampled == [0, 10, 20, 30]


@pytest.mark.parametrize("num_ranges", [1, 3, 4, 7, 40])
def test_what_is_not_in_memory_is_asked_for_whole(file: File, num_ranges: int) -> None:
    """Where one of the sample is not in memory every range is asked for, and page faults no longer read ahead."""
    file.held = range(0)
    assert file.ask(range(num_ranges)) == whole(range(num_ranges))
    assert file.map.is_random
    assert file.sampled == [0]
    file.held = range(1)
    assert file.ask(range(num_ranges)) == (whole(range(num_ranges)) if num_ranges > 1 else [])


def test_a_file_system_without_such_a_read(file: File) -> None:
    """Where nothing can be sampled all ranges are asked for, and no sample is tried again."""
    file.held, file.error = range(0), OSError(95, "Operation not supported")
    assert file.ask(range(20)) == whole(range(20))
    assert file.ask(range(20)) == whole(range(20))
    assert file.sampled == []


def test_nothing_and_what_lies_beyond_is_not_asked_for(file: File) -> None:
    """Ranges without bytes, and those behind the end of the file, are left out; refused advice does no harm."""
    file.held, file.map.refuses = range(0), True
    assert file.ask(range(0)) == []
    assert file.ask(range(5), 0) == []
    assert file.ask(range(NUM_PAGES, NUM_PAGES + 3)) == []
    assert file.ask(range(2)) == whole(range(2))


def num_open(path: Path) -> int:
    links = [os.path.join("/proc/self/fd", number) for number in os.listdir("/proc/self/fd")]
    return sum(os.path.lexists(link) and os.readlink(link) == str(path) for link in links)


def test_no_file_stays_open(tmp_path: Path) -> None:
    """What a source holds open of its file is closed with it."""
    path = tmp_path / "tokens.bin"
    np.arange(5000, dtype=np.uint16).tofile(path)
    stored = StoredArray.in_file(path, 10_000, "<u2", 0, 5000)
    stored.prefetch(np.array([0, 4000]), np.array([1000, 1000]))
    assert stored.array[4999] == 4999
    assert num_open(path) > 0
    del stored
    gc.collect()
    assert num_open(path) == 0
