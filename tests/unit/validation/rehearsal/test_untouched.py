"""Whether a run's files are as they were."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from resumable_data.validation.rehearsal.untouched import Watched, run_paths


def make_run(root: Path) -> Path:
    (root / "checkpoints/5").mkdir(parents=True)
    (root / "checkpoints/5/.metadata").write_bytes(b"m")
    (root / "checkpoints/scheduler.txt").write_text("5")
    return root / "checkpoints/5"


def keep_times(path: Path) -> None:
    """Other contents of the same size, with the times of before, as a tool that hides a change would leave them."""
    before = path.stat()
    path.write_bytes(b"n")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "changed": (lambda run: (run / "checkpoints/scheduler.txt").write_text("6"), "it was changed"),
    "changed in secret": (lambda run: keep_times(run / "checkpoints/5/.metadata"), "it was changed"),
    "new": (lambda run: (run / "checkpoints/6").write_text(""), "it is new"),
    "gone": (lambda run: (run / "checkpoints/5/.metadata").unlink(), "it is gone"),
    "a ledger that was not there": (lambda run: make_run(run / "ledger"), "it is new"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_any_change_is_found(tmp_path: Path, name: str) -> None:
    """In the directory of the checkpoint, around it, and where else was named."""
    checkpoint = make_run(tmp_path)
    watched = Watched([*run_paths(checkpoint), tmp_path / "ledger"])
    assert watched.check().status == "passed"
    act, found = CHANGES[name]
    act(tmp_path)
    check = watched.check()
    assert check.status == "failed"
    assert {(one.code, one.found) for one in check.findings} == {("RD991", found)}


def test_reading_and_what_is_the_rehearsals_own_is_no_change(tmp_path: Path) -> None:
    """A load reads everything; a trace that was asked for may come to be."""
    checkpoint = make_run(tmp_path)
    watched = Watched(run_paths(checkpoint), [checkpoint.parent / "control.jsonl", checkpoint.parent / "scratch"])
    for file in tmp_path.rglob("*"):
        if file.is_file():
            file.read_bytes()
    (checkpoint.parent / "control.jsonl").touch()
    (checkpoint.parent / "scratch").mkdir()
    (checkpoint.parent / "scratch/ledger").touch()
    assert watched.check().status == "passed"


def test_directories_that_everybody_shares_are_not_watched() -> None:
    """What others do there says nothing about a rehearsal."""
    shared = Path(tempfile.gettempdir()) / "checkpoint"
    assert run_paths(shared) == [shared]
    assert run_paths(Path("/a/b")) == [Path("/a")]
