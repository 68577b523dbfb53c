"""Saves that are killed, and what must be true of the directory of checkpoints afterwards."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch.distributed as dist

from resumable_data.checkpoint import (
    async_save_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    verify_checkpoint,
)
from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.checkpoint.retention import DELETED_NAME
from resumable_data.errors import CheckpointError
from tests.crash.deaths import RETURNED, Point, Watch, kill, watched
from tests.distributed.ranks import Outcome, launch_ranks, run_ranks
from tests.distributed.saves import Program

KEEP = 2
OLD, NEW, LATER = 2, 3, 9
"""Updates of the newest checkpoint that was there before, of the one that is killed, and of one that follows."""


@cache
def expected_values(num_updates: int) -> list[Any]:
    """Of a program that nothing happened to."""
    return Program(num_updates).values()


@dataclass(frozen=True)
class Way:
    """How a checkpoint is saved, and who is killed."""

    num_ranks: int
    is_async: bool
    has_older: bool
    kills_all: bool

    def __str__(self) -> str:
        beside, older = "beside training" if self.is_async else "", "with older ones" if self.has_older else ""
        return " ".join(filter(None, ["all" if self.kills_all else "one", f"of {self.num_ranks}", beside, older]))

    def save(self, root: Path, program: Program) -> None:
        options: Any = {"loader": program.loader, "keep": KEEP if self.has_older else None}
        if self.is_async:
            save = async_save_checkpoint(root / str(NEW), program.state, **options)
            program.train(1)
            save.result()
        else:
            save_checkpoint(root / str(NEW), program.state, **options)


def save_on_rank(root: Path, way: Way, death: Point | None) -> list[Point]:
    """What one process does: train, save, and die where it is told to; all that it came by."""
    program = Program(NEW)
    rank = dist.get_rank()
    watch = Watch(root / str(NEW), death if death and death.rank == rank else None, _victims(way))
    with watched(watch):
        way.save(root, program)
        (root.parent / f"returned-{rank}").touch()
        watch.reach(RETURNED)
    return watch.points


def save_for_a_while(root: Path, way: Way, rank: int, share: float) -> None:
    """The same, killed from outside after a share of the time that a save takes."""
    program = Program(NEW)
    warm, begin = root.parent / "warm", time.monotonic()
    way.save(warm, program)
    duration = time.monotonic() - begin
    victims = _victims(way)
    program = Program(NEW)
    if dist.get_rank() == rank:
        signals = f"kill -9 {' '.join(map(str, victims))}"
        subprocess.Popen(["sh", "-c", f"sleep {share * duration:.4f}; {signals}"])
    way.save(root, program)
    (root.parent / f"returned-{dist.get_rank()}").touch()
    if dist.get_rank() == rank:
        kill(victims)  # it was faster this time


def _victims(way: Way) -> tuple[int, ...]:
    if not way.kills_all:
        return (os.getpid(),)
    pids: list[Any] = [None] * way.num_ranks
    dist.all_gather_object(pids, os.getpid())
    return tuple(pids)


def watch_save(folder: Path, way: Way) -> list[list[Point]]:
    """The points of a save that nobody kills, by rank."""
    points = run_ranks(save_on_rank, way.num_ranks, make_root(folder / "watched", way), way, None)
    return [list(of_rank) for of_rank in points]


def choose(points: Sequence[Point]) -> Iterator[Point]:
    """Of the same thing done many times in a row the first, one in the middle and the last; and inside of writes."""
    for name, group in groupby(points, key=lambda point: point.name):
        same = list(group)
        middle = same[len(same) // 2]
        yield from dict.fromkeys([same[0], middle, same[-1]])
        if name.startswith("write"):
            yield replace(middle, inside=True)


def make_root(folder: Path, way: Way) -> Path:
    """A directory of checkpoints, with two finished ones where that is asked for."""
    root = folder / "checkpoints"
    root.mkdir(parents=True)
    for updates in range(1, NEW) if way.has_older else ():
        program = Program(updates)
        save_checkpoint(root / str(updates), program.state, loader=program.loader)
    return root


class Trial(NamedTuple):
    """A save that was killed: where, and which checkpoints may be the newest then; None where there may be none."""

    root: Path
    where: str
    allowed: set[int | None]


def die_at(folder: Path, before: Path, way: Way, point: Point, order: Sequence[Point]) -> Trial:
    """Kill a save at a point; `order` are the points of its process."""
    root = folder / "checkpoints"
    shutil.copytree(before, root)
    outcomes = launch_ranks(save_on_rank, way.num_ranks, root, way, point)
    where = f"{way}, rank {point.rank}: {point.name} {point.count}{' inside' if point.inside else ''}"
    check_ends(outcomes, point.rank, way, where)
    old: int | None = OLD if way.has_older else None
    names = [(one.name, one.count) for one in order]
    at = names.index((point.name, point.count))
    if (folder / "returned-0").exists() or (folder / f"returned-{point.rank}").exists():
        allowed: set[int | None] = {NEW}
    elif point.rank == 0:
        allowed = {old if at <= names.index(("rename manifest", 0)) else NEW}
    else:
        allowed = {old} if at <= names.index(("talk after data", 0)) else {old, NEW}
    return Trial(root, where, allowed)


def die_at_random(folder: Path, before: Path, way: Way, draw: random.Random) -> Trial:
    """Kill a save at a time."""
    root = folder / "checkpoints"
    shutil.copytree(before, root)
    rank, share = draw.randrange(way.num_ranks), draw.uniform(0, 1.2)
    outcomes = launch_ranks(save_for_a_while, way.num_ranks, root, way, rank, share)
    where = f"{way}, rank {rank}: after {share:.3f} of the time"
    check_ends(outcomes, rank, way, where)
    old: int | None = OLD if way.has_older else None
    return Trial(root, where, {NEW} if list(folder.glob("returned-*")) else {old, NEW})


def check_ends(outcomes: Sequence[Outcome], victim: int, way: Way, where: str) -> None:
    """The victims are dead; each of the others returned or said what went wrong, and none hung until it was killed."""
    for rank, one in enumerate(outcomes):
        if way.kills_all or rank == victim:
            assert one.exitcode == -9, (where, rank, one.exitcode, one.error)
        else:
            assert not one.error or one.error.startswith("Traceback"), (where, rank, one.exitcode, one.error)


def load_on_ranks(roots: Sequence[Path]) -> list[tuple[int | None, list[Any]]]:
    """The newest checkpoint of each directory: its number and what it holds."""
    found: list[tuple[int | None, list[Any]]] = []
    for root in roots:
        latest = latest_checkpoint(root)
        program = Program()
        if latest is not None:
            load_checkpoint(latest, program.state, loader=program.loader, level="payload")
        found.append((None if latest is None else int(latest.name), program.values()))
    return found


def check(trials: Sequence[Trial], num_ranks: int) -> None:
    """What is left of each loads in this process and on several, as one save and no other; and saving goes on."""
    roots = [trial.root for trial in trials]
    for loaded in [load_on_ranks(roots), *run_ranks(load_on_ranks, num_ranks, roots)]:
        for (number, values), trial in zip(loaded, trials, strict=True):
            assert number in trial.allowed, (trial, number)
            assert values == expected_values(number or 0), trial
    for trial in trials:
        check_goes_on(trial)


def check_goes_on(trial: Trial) -> None:
    """What has a manifest is sound; what was left of the save is in nobody's way, and no half-deleted one stays."""
    root = trial.root
    latest = latest_checkpoint(root)
    for manifest in root.glob(f"*/{MANIFEST_NAME}"):
        report = verify_checkpoint(manifest.parent, "payload")
        assert (report.verdict, report.has_manifest) == ("sound", True), (trial, report.to_text())
    left = root / str(NEW)
    is_torn = left.exists() and any(left.iterdir()) and not (left / MANIFEST_NAME).exists()
    program = Program(LATER)
    if is_torn:
        with pytest.raises(CheckpointError, match=r"name a directory of its own .* or remove what an interrupted save"):
            save_checkpoint(left, program.state, loader=program.loader)
    save_checkpoint(root / str(LATER), program.state, loader=program.loader, keep=KEEP)
    assert load_on_ranks([root]) == [(LATER, expected_values(LATER))], trial
    finished = sorted(int(path.parent.name) for path in root.glob(f"*/{MANIFEST_NAME}"))
    older = [int(latest.name)] if latest is not None else []
    assert finished == [*older, LATER], trial
    assert not list(root.glob(f"*/{DELETED_NAME}")), trial
    assert is_torn == (left.exists() and not (left / MANIFEST_NAME).exists() and any(left.iterdir())), trial
