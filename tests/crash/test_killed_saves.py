"""A save is killed at every stage: the newest checkpoint is always one that was finished, and loads as it was saved."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pytest

from tests.crash.deaths import Point
from tests.crash.killed_saves import Trial, Way, check, choose, die_at, die_at_random, make_root, watch_save

STAGES = {
    "talk after nothing",
    "mkdir directory",
    "fsync root",
    "talk after root",
    "talk after directory",
    "open data",
    "write data",
    "inside write data",
    "fsync data",
    "talk after data",
    "open metadata",
    "write metadata",
    "inside write metadata",
    "fsync metadata",
    "rename metadata",
    "write run manifest",
    "rename run manifest",
    "write manifest",
    "inside write manifest",
    "fsync manifest",
    "fsync directory",
    "rename manifest",
    "returned",
}
DELETING = {
    "rename old manifest",
    "fsync old directory",
    "unlink old metadata",
    "unlink old data",
    "unlink old deletion mark",
    "rmdir old directory",
    "talk after old directory",
}
"""What retention adds."""

FEW = [
    ("talk after nothing", 0, False),
    ("write data", 100, True),
    ("rename metadata", 0, False),
    ("write manifest", 0, True),
    ("rename manifest", 0, False),
    ("fsync directory", 3, False),
    ("unlink old data", 0, False),
]


FEW_WAY = Way(num_ranks=2, is_async=False, has_older=True, kills_all=False)


@pytest.fixture(scope="module")
def order(tmp_path_factory: pytest.TempPathFactory) -> list[Point]:
    """What the first process does in a save."""
    return watch_save(tmp_path_factory.mktemp("watched"), FEW_WAY)[0]


def test_killed_at_a_few_stages(tmp_path: Path, order: list[Point]) -> None:
    """The first process is killed before, inside and after the writing of data, metadata and the manifest."""
    before = make_root(tmp_path / "before", FEW_WAY)
    points = [Point(0, name, count, inside) for name, count, inside in FEW]
    check([die_at(tmp_path / str(at), before, FEW_WAY, one, order) for at, one in enumerate(points)], 2)


def test_what_must_be_on_the_disk_before_what(order: list[Point]) -> None:
    """Contents and names of files, then the mark, then deletions: also where the power fails."""
    steps = [
        ("mkdir directory", 0),
        ("fsync root", 0),
        ("fsync data", 0),
        ("fsync metadata", 0),
        ("rename metadata", 0),
        ("fsync run manifest", 0),
        ("rename run manifest", 0),
        ("fsync manifest", 0),
        ("fsync directory", 2),
        ("rename manifest", 0),
        ("fsync directory", 3),
        ("rename old manifest", 0),
        ("fsync old directory", 0),
        ("unlink old metadata", 0),
    ]
    names = [(point.name, point.count) for point in order]
    assert [step for step in names if step in steps] == steps


WAYS = [
    Way(num_ranks=2, is_async=False, has_older=True, kills_all=False),
    Way(num_ranks=3, is_async=True, has_older=True, kills_all=False),
    Way(num_ranks=3, is_async=False, has_older=True, kills_all=True),
    Way(num_ranks=2, is_async=True, has_older=True, kills_all=True),
    Way(num_ranks=2, is_async=True, has_older=False, kills_all=False),
    Way(num_ranks=2, is_async=False, has_older=False, kills_all=True),
]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS, ids=str)
def test_killed_at_every_stage(tmp_path: Path, way: Way) -> None:
    """Each process is killed before each file operation and each talk with the others, alone or all with it."""
    order = watch_save(tmp_path, way)
    before = make_root(tmp_path / "before", way)
    points = [point for of_rank in order[:2] for point in choose(of_rank)]
    trials: list[Trial] = []
    for at, point in enumerate(points):
        trials.append(die_at(tmp_path / str(at), before, way, point, order[point.rank]))
    check(trials, 5 - way.num_ranks)
    stages = Counter(point.stage for point in points)
    expected = STAGES | (DELETING if way.has_older else set())
    assert expected <= stages.keys(), f"{len(trials)} trials, by stage: {stages}"
    assert len(trials) >= 35, stages


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS[:4], ids=str)
def test_killed_at_any_time(tmp_path: Path, way: Way) -> None:
    """Wherever a process happens to be when it is killed from outside."""
    draw = random.Random(str(way))
    before = make_root(tmp_path / "before", way)
    trials = [die_at_random(tmp_path / str(number), before, way, draw) for number in range(12)]
    check(trials, 5 - way.num_ranks)
