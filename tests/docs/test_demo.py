"""The demo and the training script that it shows."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from resumable_data.audit import audit_ledger
from resumable_data.cli.demo import find_script
from resumable_data.cli.demo_run import DemoError, Job, Kill, Progress, Stage, run_stages

ROOT = Path(__file__).parents[2]
DEMO = [sys.executable, "-m", "resumable_data", "demo"]


def test_script_is_short() -> None:
    """What a user would copy has fewer than 120 lines."""
    script = find_script()
    assert script == ROOT / "docs/examples/train_bytes.py"
    assert len(script.read_text(encoding="utf-8").splitlines()) < 120


def test_readme_names_both_commands() -> None:
    """The first lines of the README say how to see the demo and how to run the tests."""
    opening = (ROOT / "README.md").read_text(encoding="utf-8").partition("## ")[0]
    assert re.findall(r"^make \w+", opening, re.MULTILINE) == ["make demo", "make test"]


def test_script_killed_on_two_processes_goes_on_with_one(tmp_path: Path) -> None:
    """A process killed in mid-update costs the work since the last checkpoint and nothing else."""
    job = Job(script=find_script(), folder=tmp_path, num_samples=63, num_epochs=1, checkpoint_every=2)
    losses = run_stages(job, "run", [Stage(2, Kill(rank=1, update=3)), Stage(1)], Progress())
    assert sorted(losses) == list(range(7))
    report = audit_ledger(tmp_path / "run/ledger")
    assert (report.verdict, report.samples, report.replayed.high, report.omitted.high) == ("proven", 63, 0, 0)
    killed, resumed = report.attempts
    assert (killed.num_replicas, resumed.num_replicas) == (2, 1)
    assert killed.discarded.low > 0
    assert resumed.discarded.high == 0


def test_failing_script_is_shown_with_its_last_lines(tmp_path: Path) -> None:
    """When the training script fails, the demo says why in the script's own words, not in torchrun's."""
    script = tmp_path / "script.py"
    script.write_text("raise RuntimeError('no such corpus')\n", encoding="utf-8")
    with pytest.raises(DemoError, match=r"RuntimeError: no such corpus\Z"):
        run_stages(Job(script=script, folder=tmp_path), "run", [Stage(1)], Progress())


@pytest.mark.slow
def test_demo_proves_what_the_readme_shows() -> None:
    """The demo holds, and prints the lines that the README shows, but for the numbers that are measured."""
    done = subprocess.run(DEMO, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shown = (ROOT / "README.md").read_text(encoding="utf-8")
    table = done.stdout.partition("] done\n\n")[2]
    assert len(table.splitlines()) > 10
    for line in table.splitlines():
        if not re.search(r"loss|discarded", line):
            assert line in shown.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_stopped_demo_leaves_no_process(number: signal.Signals, tmp_path: Path) -> None:
    """Ctrl-C, or a request to end, ends training processes and their workers too."""
    demo = subprocess.Popen([*DEMO, "--keep", str(tmp_path / "kept")], stdout=subprocess.PIPE, text=True)
    assert demo.stdout is not None
    with demo:
        assert any("updates, loss" in line for line in demo.stdout)
        assert str(tmp_path) in _processes()
        demo.send_signal(number)
        assert demo.wait(timeout=60) == 130
    assert str(tmp_path) not in _processes()


def _processes() -> str:
    """The command lines of all processes."""
    return subprocess.run(["ps", "-A", "-ww", "-o", "args"], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("is_file", [True, False])
def test_directory_in_use_is_refused(is_file: bool, tmp_path: Path) -> None:
    """The demo does not resume from, or write into, what it did not make."""
    path = tmp_path / "file" if is_file else tmp_path
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    done = subprocess.run([*DEMO, "--keep", str(path)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "expected a new or empty directory" in done.stderr
