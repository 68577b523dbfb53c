"""async_save_checkpoint with real FSDP2 processes: what is saved, when it counts, and who learns that it failed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import Any
from unittest.mock import patch

import pytest
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from resumable_data.audit import audit_ledger
from resumable_data.checkpoint import (
    async_save_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    prepare,
    save_checkpoint,
    verify_checkpoint,
)
from resumable_data.checkpoint.manifest import MANIFEST_NAME, read_manifest
from resumable_data.errors import CheckpointError, ResumableDataError
from resumable_data.ledger.reader import read_rank
from tests.distributed.ranks import run_ranks
from tests.distributed.saves import Run, before_writing, held_writing


def save_and_go_on(root: Path) -> list[Any]:
    """A save whose files are written while training goes on; what this process held at the call."""
    run = Run(root / "ledger")
    run.train(4)
    held = [run.weights(), run.moments()]
    with held_writing() as release:
        save = async_save_checkpoint(root / "4", run.state, loader=run.loader, checksums="digest")
        run.note.append(3)
        run.train(3)
        assert not save.done()
        assert not (root / "4" / MANIFEST_NAME).exists()
        with pytest.raises(TimeoutError, match="not over"):
            save.result(timeout=0.01)
        release.set()
        save.result()
    assert save.done()
    save.result()
    run.train(1)
    run.loader.close()
    return held


def load_and_compare(root: Path) -> tuple[int, Any, list[Any]]:
    """What this process holds after a load."""
    run = Run()
    loaded = load_checkpoint(root / "4", run.state, loader=run.loader, level="payload")
    return run.loader.cursor.updates, loaded.values["note"], [run.weights(), run.moments()]


def test_the_moment_of_the_call_is_saved(tmp_path: Path) -> None:
    """What training changes afterwards is not in the checkpoint, and the ledger says once that it is complete."""
    held = run_ranks(save_and_go_on, 4, tmp_path)
    report = verify_checkpoint(tmp_path / "4")
    assert (report.verdict, report.has_manifest) == ("sound", True), report.to_text()
    manifest = read_manifest(tmp_path / "4")
    assert manifest is not None
    assert (manifest.update, manifest.topology.world_size, manifest.checksums) == (4, 4, "digest")
    for rank, (updates, note, weights) in enumerate(run_ranks(load_and_compare, 4, tmp_path)):
        assert (updates, note) == (4, [1, 2])
        assert weights == held[rank]
    for file in sorted((tmp_path / "ledger").rglob("rank*")):
        assert read_rank(file).saved.tolist() == [4]
    assert audit_ledger(tmp_path / "ledger").verdict == "proven"


def fail_on(rank: int) -> Callable[[], None]:
    def act() -> None:
        if dist.get_rank() == rank:
            raise OSError(errno.ENOSPC, "No space left on device")

    return act


@contextmanager
def failing(how: str) -> Iterator[None]:
    """Let a save fail on one process alone."""
    start = dcp.async_save

    def stage(state: dict[str, Any], **arguments: Any) -> Any:
        if state and dist.get_rank() == 1:
            raise MemoryError("no room for a copy")
        return start(state, **arguments)

    def commit(*args: Any) -> None:
        raise OSError(errno.EIO, "Input/output error")

    if how == "write":
        with before_writing(fail_on(1)):
            yield
    elif how == "stage":
        with patch.object(dcp, "async_save", stage):
            yield
    else:
        with patch.object(prepare, "write_manifest", commit):
            yield


FAILURES = [("write", "No space left"), ("stage", "no room for a copy"), ("commit", "Input/output error")]


def error_of(act: Callable[..., object], *args: Any, **arguments: Any) -> str:
    try:
        act(*args, **arguments)
    except CheckpointError as error:
        return str(error)
    return ""


def fail(root: Path) -> list[tuple[str, str, str, str]]:
    """For each way to fail: the errors of result(), of the next save, of one that nobody asked about, and after it."""
    run = Run()
    run.train(1)
    save_checkpoint(root / "1", run.state, loader=run.loader)
    found = []
    for number, (how, _) in enumerate(FAILURES):
        with failing(how):
            save = async_save_checkpoint(root / f"{how}-100", run.state, loader=run.loader)
            asked = error_of(save.result)
            assert latest_checkpoint(root) == root / str(number + 1)
            async_save_checkpoint(root / f"{how}-101", run.state, loader=run.loader)
            next_call = save_checkpoint if number % 2 else async_save_checkpoint
            told = error_of(next_call, root / str(number + 2), run.state, loader=run.loader)
        async_save_checkpoint(root / str(number + 2), run.state, loader=run.loader).result()
        after = error_of(load_checkpoint, root / str(number + 2), run.state, loader=run.loader)
        found.append((how, asked, told, after))
    return found


def test_a_failed_save_is_an_error_on_all_processes(tmp_path: Path) -> None:
    """Once, of result() or of the next save, with the checkpoint's name; it has no manifest and is not the latest."""
    for errors in run_ranks(fail, 2, tmp_path):
        for (how, asked, told, after), (_, reason) in zip(errors, FAILURES, strict=True):
            for number, error in ((100, asked), (101, told)):
                assert f"{how}-{number}" in error
                assert "which ran beside training, failed" in error
                assert reason in error
            assert after == ""
    assert not list(tmp_path.glob(f"*-10?/{MANIFEST_NAME}"))


def save_twice_and_load(root: Path) -> tuple[int, int]:
    """Nobody waits but the calls themselves; updates of the second save and of what was loaded."""
    run = Run()
    run.train(1)
    with held_writing() as release:
        first = async_save_checkpoint(root / "1", run.state, loader=run.loader)
        assert not first.done()
        Timer(0.2, release.set).start()
        second = async_save_checkpoint(root / "2", run.state, loader=run.loader)
        assert first.done()
        assert (root / "1" / MANIFEST_NAME).exists()
        again = Run()
        load_checkpoint(root / "2", again.state, loader=again.loader)
    assert second.done()
    return run.loader.cursor.updates, again.loader.cursor.updates


def test_never_two_at_a_time(tmp_path: Path) -> None:
    """The next save waits for the one before, and so does a load, also of the one that is under way."""
    assert run_ranks(save_twice_and_load, 2, tmp_path) == [(1, 1)] * 2


def refuse(root: Path) -> list[str]:
    """The errors of saves that must not begin."""
    run = Run()
    run.train(1)
    save_checkpoint(root / "1", run.state, loader=run.loader)
    errors = []
    for path, state in ((root / "1", run.state), (root / "2", {**run.state, "rank": dist.get_rank()})):
        try:
            async_save_checkpoint(path, state, loader=run.loader)
        except ResumableDataError as error:
            errors.append(str(error))
    return errors


def test_what_is_refused_is_refused_by_the_call(tmp_path: Path) -> None:
    """A directory that holds something, and values that differ, are errors before anything is copied."""
    for directory, values in run_ranks(refuse, 2, tmp_path):
        assert "expected a new or empty directory" in directory
        assert (
            "processes hold different values under 1 names:\n  rank = 0  on process 0\n  rank = 1  on process 1"
            in values
        )
    assert not list((tmp_path / "2").iterdir())


def test_a_single_process_needs_no_group(tmp_path: Path) -> None:
    """A plain script saves beside training in the same way."""
    run = Run()
    run.train(2)
    with held_writing() as release:
        save = async_save_checkpoint(tmp_path / "2", run.state, loader=run.loader)
        run.train(1)
        release.set()
        save.result()
    again = Run()
    load_checkpoint(tmp_path / "2", again.state, loader=again.loader)
    assert (again.loader.cursor.updates, run.loader.cursor.updates) == (2, 3)
