"""Counting positions by the rows that differ from what was expected."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.audit import coverage
from resumable_data.audit.branch import Branch
from resumable_data.audit.coverage import check_partition, count_multiplicity
from resumable_data.audit.rank_result import Change
from resumable_data.audit.rows import CHUNK_ROWS, chunks, expand
from resumable_data.audit.updates import Course, Stretch
from resumable_data.cursor import Cursor, Recipe
from resumable_data.ledger import Claim
from resumable_data.order import Sequential

RUNS = st.lists(st.tuples(st.integers(0, 60), st.integers(1, 7), st.integers(1, 9)), max_size=8)


def make_branch(length: int = 10, batch: int = 4, tail: str = "drop", stop_update: int = 6) -> Branch:
    recipe = Recipe(order=Sequential(length).describe(), global_batch=batch, tail=tail)
    claim = Claim("run", 1, Cursor(recipe=recipe), 3, 2, None, "0")
    return Branch(claim, Course((Stretch(recipe, 0, 0, 0),)), stop_update, None)


def make_change(runs: list[tuple[int, int, int]], sign: int) -> Change:
    start, stride, count = (np.array([run[i] for run in runs], np.int64) for i in range(3))
    return Change(start, stride, count, sign)


def positions_of(runs: list[tuple[int, int, int]]) -> list[int]:
    return [start + k * stride for start, stride, count in runs for k in range(count)]


@given(extra=RUNS)
def test_counts_are_those_of_a_counter(extra: list[tuple[int, int, int]]) -> None:
    """Replayed and omitted positions, with rows in and outside the range, and in parts that were dropped."""
    branch = make_branch()
    expected = Counter(p for p in range(30) if p % 10 < 8)
    times = expected + Counter(positions_of(extra))
    missing = [(0, 3, 2), (21, 1, 3)]
    times.subtract(positions_of(missing))
    counts = count_multiplicity([make_change(extra, 1), make_change(missing, -1)], [branch])
    assert counts.omitted == sum(times[p] == 0 for p in expected)
    assert counts.replayed == sum(n - 1 for n in times.values() if n > 1)


def test_windows_do_not_matter() -> None:
    """Runs that reach over many windows, or lie far apart, are counted the same."""
    branch = make_branch(length=1 << 20, batch=1 << 10, tail="carry", stop_update=4096)
    runs = [(5, 100_003, 30), (7, 1, 300_000), (1 << 60, 1 << 40, 3), (12, 1, 1)]
    counts = count_multiplicity([make_change(runs, 1)], [branch])
    times = Counter(positions_of(runs))
    base = {p for p in times if p < branch.stop_position}
    assert counts == (sum(n - 1 + (p in base) for p, n in times.items()), 0)
    assert coverage.WINDOW_POSITIONS < 300_000


def test_shares_of_an_update_are_a_partition() -> None:
    """The check that the counting rests on holds for even and uneven updates."""
    for tail in ("carry", "short", "drop", "pad"):
        check_partition(make_branch(length=23, batch=11, tail=tail, stop_update=9))


@given(runs=RUNS)
def test_expand(runs: list[tuple[int, int, int]]) -> None:
    """Runs become positions, one run after another."""
    change = make_change(runs, 1)
    positions = expand(change.start, change.stride, change.count).tolist()
    assert positions == positions_of(runs)


def test_chunks_hold_all_records() -> None:
    """Chunks follow one another, are of bounded size, and hold at least one record."""
    count = np.array([1, CHUNK_ROWS * 2, 0, 5, CHUNK_ROWS - 5, 1], np.int64)
    slices = list(chunks(count))
    assert [(s.start, s.stop) for s in slices] == [(0, 1), (1, 2), (2, 5), (5, 6)]
    assert list(chunks(np.empty(0, np.int64))) == []
