"""Faults of the kernel, by strace: system calls that fail, or in which the process is killed."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from pathlib import Path

    from tests.crash.training import Diary, Job

# Those that some architecture lacks have a question mark.
TRACED = (
    "?mkdir,?mkdirat,?open,openat,write,fsync,fdatasync,?link,linkat,?unlink,unlinkat,close,getdents64,read,pread64,"
    "?stat,?lstat,fstat,?newfstatat,?fstatat64,?statx"
)


class Call(NamedTuple):
    """A system call of a traced run.

    Attributes:
        name: Its name.
        number: It is that many-th of this name, from 1.
        text: What strace says of it.
    """

    name: str
    number: int
    text: str


def require_strace(tmp_path: Path) -> None:
    """Fail without strace; skip where processes may not be traced."""
    if not shutil.which("strace"):
        pytest.fail("this test needs strace, which `make test-full` cannot install; do so with: apt-get install strace")
    done = subprocess.run(["strace", "-o", tmp_path / "probe", "true"], capture_output=True, text=True, check=False)
    if "ptrace" in done.stderr.lower() and "not permitted" in done.stderr.lower():
        pytest.skip(f"this machine does not permit processes to be traced: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr


def strace(log: Path, inject: str) -> list[str]:
    """The command that traces a process.

    Args:
        log: Where it writes what it saw.
        inject: The fault, see strace(1); empty for none.
    """
    faults = ["-e", f"inject={inject}"] if inject else []
    return ["strace", "-y", "-s", "300", "-o", str(log), "-e", f"trace={TRACED}", *faults]


def run_traced(job: Job, log: Path, inject: str = "") -> Diary:
    """Let a job run under strace, and wait for its end."""
    with subprocess.Popen([*strace(log, inject), "-p", str(job.pid)], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr
        assert "attached" in (line := process.stderr.readline()), line
        diary = job.run()
        process.stderr.read()
    return diary


def injected(log: Path) -> str:
    """What a log says of the call that was let fail."""
    (line,) = [line for line in log.read_text(errors="replace").splitlines() if line.endswith("(INJECTED)")]
    return line


def read_calls(log: Path, about: Path) -> list[Call]:
    """The calls in a log that are about files in a directory, or that directory."""
    numbers: dict[str, int] = {}
    calls = []
    for line in log.read_text(errors="replace").splitlines():
        if match := re.match(r"(\w+)\(", line):
            name = match[1]
            numbers[name] = numbers.get(name, 0) + 1
            if str(about) in line:
                calls.append(Call(name, numbers[name], line))
    return calls
