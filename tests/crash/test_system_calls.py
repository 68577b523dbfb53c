"""A training run whose system calls about the ledger fail, one after the other, or in which it is killed there."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.crash.tracing import injected, read_calls, require_strace, run_traced, strace
from tests.crash.training import LAST, Job, begin, check, resume

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.crash.tracing import Call

pytestmark = pytest.mark.slow

READING = {"getdents64", "read", "pread64", "stat", "lstat", "fstat", "newfstatat", "fstatat64", "statx"}


class Launches:
    """Second launches of one run, each with a fault in another system call.

    Args:
        tmp_path: Where to put their files.
    """

    def __init__(self, tmp_path: Path) -> None:
        require_strace(tmp_path)
        self.log = tmp_path / "log"
        self._first = tmp_path / "first"
        self.agreed = begin(self._first)

    def calls(self) -> list[Call]:
        """What a launch asks of the kernel about the ledger where nothing fails."""
        with self.copy("no fault") as root:
            diary = run_traced(Job(root, self.agreed, LAST), self.log)
        assert (diary.outcome, diary.num_errors) == ("finished", 0)
        calls = read_calls(self.log, root)
        assert {call.name for call in calls} >= {"openat", "write", "fsync", "fdatasync", "close", "getdents64"}
        return calls

    @contextmanager
    def copy(self, about: str) -> Iterator[Path]:
        """A copy of what the first launch left, for another second one; an error says what it was about."""
        root = shutil.copytree(self._first, self._first.parent / "second")
        try:
            yield root
        except Exception as error:
            error.add_note(about)
            raise
        shutil.rmtree(root)


@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_a_call_fails(tmp_path: Path, error: str) -> None:
    """Training goes on to its end whichever call fails, and the audit proves what is in the files and no more."""
    launches = Launches(tmp_path)
    for call in launches.calls():
        if error == "ENOSPC" and call.name in READING:
            continue
        with launches.copy(call.text) as root:
            job = Job(root, launches.agreed, LAST)
            diary = run_traced(job, launches.log, f"{call.name}:error={error}:when={call.number}")
            assert str(root) in injected(launches.log)
            assert (diary.outcome, diary.updates) == ("finished", LAST), diary
            check(root, diary.agreed, num_errors=diary.num_errors)


def test_a_call_fails_where_trouble_is_to_stop_the_job(tmp_path: Path) -> None:
    """With on_error="raise" nothing but errors of the package comes out, and what was agreed on before is proven."""
    launches = Launches(tmp_path)
    num_stopped = 0
    for call in launches.calls():
        with launches.copy(call.text) as root:
            job = Job(root, launches.agreed, LAST, on_error="raise")
            diary = run_traced(job, launches.log, f"{call.name}:error=EIO:when={call.number}")
            assert str(root) in injected(launches.log)
            assert diary.outcome == "finished" or diary.is_ours, diary
            num_stopped += diary.outcome != "finished"
            check(root, diary.agreed, num_errors=0)
    assert num_stopped


def test_killed_in_a_call(tmp_path: Path) -> None:
    """Wherever it is killed, it goes on from its last checkpoint, and the audit proves the whole run."""
    launches = Launches(tmp_path)
    for call in launches.calls():
        if call.name in READING:
            continue  # it leaves what the call before it left
        with launches.copy(call.text) as root:
            job = Job(root, launches.agreed, LAST)
            diary = run_traced(job, launches.log, f"{call.name}:signal=KILL:when={call.number}")
            assert job.process.exitcode == -signal.SIGKILL
            assert str(root) in launches.log.read_text(errors="replace").splitlines()[-2]
            check(root, diary.agreed, num_errors=0)


def test_a_call_of_the_audit_fails(tmp_path: Path) -> None:
    """An audit that cannot read a file says so, with exit code 3; it takes nothing for damage, and never goes on."""
    require_strace(tmp_path)
    agreed = begin(tmp_path / "run")
    resume(tmp_path / "run", agreed)
    ledger, log = tmp_path / "run" / "ledger", tmp_path / "log"

    def audit(inject: str = "") -> subprocess.CompletedProcess[str]:
        command = [*strace(log, inject), sys.executable, "-m", "resumable_data", "audit", str(ledger)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert audit().returncode == 0
    calls = [call for call in read_calls(log, ledger) if call.name != "write"]
    assert {call.name for call in calls} >= {"openat", "read", "close", "getdents64"}
    for call in calls:
        done = audit(f"{call.name}:error=EIO:when={call.number}")
        assert str(ledger) in injected(log)
        is_harmless = done.returncode == 0 and done.stdout.startswith("PROVEN")
        assert is_harmless or (done.returncode == 3 and "Input/output error" in done.stderr), (call.text, done)
        # Python itself looks again at what it opened, and does not mind when that fails, or a directory's close
        assert not is_harmless or call.name == "close" or "stat" in call.name, call.text
