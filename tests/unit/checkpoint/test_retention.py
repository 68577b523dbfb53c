"""Old checkpoints are deleted, and nothing else: not the newest that verifies, nothing under way, nothing foreign."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch

from resumable_data.checkpoint import (
    async_save_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    prune_checkpoints,
    save_checkpoint,
    verify_checkpoint,
)
from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.checkpoint.retention import DELETED_NAME
from resumable_data.cli import main
from resumable_data.errors import CheckpointError, UsageError

STATE = {"value": torch.arange(4)}


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("one") / "1"
    save_checkpoint(path, STATE)
    return path


def fill(root: Path, checkpoint: Path, *names: str) -> Path:
    for name in names:
        shutil.copytree(checkpoint, root / name)
    return root


def names(root: Path) -> set[str]:
    return set(os.listdir(root))


@pytest.mark.parametrize("keep", [1, 2, 3, 9])
def test_the_newest_by_number_are_kept(checkpoint: Path, tmp_path: Path, keep: int) -> None:
    """And a dry run says the same and deletes nothing."""
    root = fill(tmp_path, checkpoint, "step-9", "step-10", "step-100", "step-20")
    in_order = ["step-100", "step-20", "step-10", "step-9"]
    dry = prune_checkpoints(root, keep=keep, dry_run=True)
    assert names(root) == set(in_order)
    report = prune_checkpoints(root, keep=keep)
    assert names(root) == set(in_order[:keep])
    assert (
        (dry.kept, dry.deleted)
        == (report.kept, report.deleted)
        == (
            tuple(in_order[:keep]),
            tuple(in_order[keep:]),
        )
    )
    assert (dry.is_dry, report.is_dry, report.newest, report.not_deleted) == (True, False, "step-100", ())


def test_what_is_not_an_old_checkpoint_is_left_alone(checkpoint: Path, tmp_path: Path) -> None:
    """Newer ones that do not verify, saves under way, other names, links, files, and checkpoints without a manifest."""
    root = fill(tmp_path, checkpoint, "1", "2", "3", "5", "4-under-way", "best", "0-foreign", "6-under-way", "7.tmp")
    for name in ("4-under-way", "0-foreign", "6-under-way"):
        (root / name / MANIFEST_NAME).unlink()
    (root / "5" / ".metadata").write_bytes(b"")
    (root / "0-link").symlink_to(root / "1")
    (root / "0-file").write_text("")
    (root / "0-empty").mkdir()
    before = names(root)
    report = prune_checkpoints(root, keep=1)
    assert (report.newest, report.kept, report.deleted) == ("3", ("5", "3"), ("2", "1"))
    assert before - names(root) == {"1", "2"}


def test_nothing_is_deleted_where_none_verifies(checkpoint: Path, tmp_path: Path) -> None:
    """The damaged ones may be all that there is; with a deeper look, damage that a shallow one misses counts too."""
    root = fill(tmp_path, checkpoint, "1", "2")
    for name in ("1", "2"):
        data = bytearray((root / name / "__0_0.distcp").read_bytes())
        data[data.index(torch.arange(4).numpy().tobytes())] ^= 1
        (root / name / "__0_0.distcp").write_bytes(data)
    assert prune_checkpoints(root, keep=1, level="payload").newest is None
    assert names(root) == {"1", "2"}
    assert prune_checkpoints(root, keep=1, level="structure").deleted == ("1",)


class Crash(BaseException):
    """The process ends here."""


@contextmanager
def crash_at(number: int) -> Iterator[Callable[[], bool]]:
    """Let the process end before the change of the disk that has this number; whether it did."""
    left = number + 1

    def counted(change: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **arguments: Any) -> Any:
            nonlocal left
            left -= 1
            if left <= 0:
                raise Crash
            return change(*args, **arguments)

        return call

    with ExitStack() as stack:
        for name in ("rename", "unlink", "rmdir"):
            stack.enter_context(patch.object(os, name, counted(getattr(os, name))))
        yield lambda: left <= 0


def test_a_crash_leaves_no_half_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    """Wherever it is: what is left of an old one is whole or no checkpoint, and the next time takes it away."""
    number, has_crashed = 0, True
    while has_crashed:
        root = fill(tmp_path / str(number), checkpoint, "1", "2", "3")
        (root / "1" / "notes").mkdir()
        (root / "1" / "notes" / "text").write_text("x")
        with crash_at(number) as crashed, suppress(Crash):
            prune_checkpoints(root, keep=1)
        has_crashed = crashed()
        assert latest_checkpoint(root) == root / "3"
        for path in (root / "1", root / "2"):
            if (path / MANIFEST_NAME).exists():
                assert verify_checkpoint(path).verdict == "sound"
            elif path.exists():
                assert (path / DELETED_NAME).exists() or not os.listdir(path)
                with pytest.raises(CheckpointError):
                    load_checkpoint(path, {"value": torch.zeros(4, dtype=torch.int64)})
        prune_checkpoints(root, keep=1)
        assert {name for name in names(root) if os.listdir(root / name)} == {"3"}
        number += 1
    assert number > 8  # of two checkpoints: marks, files, directories


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("save", [save_checkpoint, async_save_checkpoint])
def test_a_save_deletes_those_before_it(
    save: Callable[..., Any], checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """By its own number, once it is complete; one of a higher number, as after a rollback, stays and does not count."""
    root = fill(tmp_path, checkpoint, "step-1", "step-2", "step-3", "step-100")
    saving = save(root / "step-4", STATE, keep=2)
    if saving is not None:
        saving.result()
    assert names(root) == {"step-3", "step-4", "step-100"}
    assert not warnings_of(caplog)


def test_trouble_is_logged(checkpoint: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The save is good all the same, and the next one goes on with what is left."""
    root = fill(tmp_path, checkpoint, "1", "2", "3")
    with patch.object(os, "rmdir", side_effect=OSError(30, "Read-only file system")):
        save_checkpoint(root / "4", STATE, keep=2)
    assert latest_checkpoint(root) == root / "4"
    messages = warnings_of(caplog)
    assert len(messages) == 2
    assert all("was not deleted: Read-only file system" in message for message in messages)
    (root / "1" / DELETED_NAME).touch()  # the directories are empty by now
    (root / "2" / DELETED_NAME).touch()
    save_checkpoint(root / "5", STATE, keep=2)
    assert names(root) == {"4", "5"}


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "2"])
def test_a_wrong_number_is_refused(tmp_path: Path, keep: Any) -> None:
    """Before anything is saved or deleted."""
    with pytest.raises(UsageError, match="keep must be an integer of at least 1"):
        prune_checkpoints(tmp_path, keep=keep)
    with pytest.raises(UsageError, match="keep must be an integer of at least 1"):
        save_checkpoint(tmp_path / "1", STATE, keep=keep)
    with pytest.raises(UsageError, match="needs a number in the checkpoint's name"):
        save_checkpoint(tmp_path / "latest", STATE, keep=1)
    assert not names(tmp_path)


def test_the_command(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says what it would do, and does it; exit code 1 where none verifies, 2 for a wrong number, 3 for none."""
    root = fill(tmp_path, checkpoint, "1", "2", "3")
    command = ["checkpoint", "prune", str(root), "--keep", "1"]
    assert main([*command, "--dry-run"]) == 0
    assert capsys.readouterr().out.splitlines() == ["kept 3", "would delete 2", "would delete 1"]
    assert main([*command, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["schema_version"], found["deleted"], found["is_dry"]) == (1, ["2", "1"], False)
    assert names(root) == {"3"}
    (root / "3" / MANIFEST_NAME).unlink()
    assert main(command) == 1
    assert "none of the checkpoints" in capsys.readouterr().out
    assert main(["checkpoint", "prune", str(root), "--keep", "0"]) == 2
    assert main(["checkpoint", "prune", str(root / "none"), "--keep", "1"]) == 3
    assert names(root) == {"3"}
