"""Launches of a script under torchrun."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from resumable_data.cli.launch import Launch, kill_if

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


def test_process_is_killed_only_where_the_condition_still_holds() -> None:
    """A process that has gone on in the meantime is let run on."""
    with subprocess.Popen(SLEEP, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert not kill_if(lambda: False, process.pid)
        assert process.poll() is None
        assert kill_if(lambda: True, process.pid)
        assert process.wait(timeout=10) == -9


def test_closing_a_launch_ends_its_processes_and_theirs(tmp_path: Path) -> None:
    """No process of a launch outlives it, the children of a killed one included."""
    script = tmp_path / "script.py"
    script.write_text(
        "import json, os, subprocess, sys\n"
        f"child = subprocess.Popen({SLEEP!r}, stdout=subprocess.PIPE)\n"
        "child.stdout.readline()\n"
        "print(json.dumps({'rank': int(os.environ['RANK']), 'pid': os.getpid(), 'child': child.pid}), flush=True)\n"
        "print('not a record', flush=True)\n"
        "child.wait()\n",
        encoding="utf-8",
    )
    with Launch(script, [], num_processes=2, log=tmp_path / "log") as launch:
        records: list[dict[str, int]] = []
        while len(records) < 2:
            records += launch.records()
            assert launch.exit_code is None
            time.sleep(0.01)
        assert sorted(launch.pids) == [0, 1]
        assert kill_if(lambda: True, launch.pids[1])
    deadline = time.monotonic() + 10
    for record in records:
        for process in (record["pid"], record["child"]):
            while _runs(process):
                assert time.monotonic() < deadline
                time.sleep(0.01)


def _runs(pid: int) -> bool:
    """Whether a process runs; one that ended and was not waited for yet does not."""
    state = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False).stdout
    return bool(state.strip()) and not state.startswith("Z")
