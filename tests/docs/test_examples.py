"""The scripts in docs/examples: what changes in each, and that it then survives a killed rank and other ranks."""

from __future__ import annotations

import difflib
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from resumable_data.audit import audit_ledger
from tests.docs.code_blocks import find_blocks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/examples.md"
EXAMPLES = ROOT / "docs/examples"

KILL = """
import os, signal
from torch.optim.optimizer import register_optimizer_step_pre_hook

steps_left = {steps}

def count_down(*_):
    global steps_left
    steps_left -= 1
    if steps_left < 0 and os.environ["RANK"] == "1":
        os.kill(os.getpid(), signal.SIGKILL)

register_optimizer_step_pre_hook(count_down)
"""
"""Goes before a script: kills rank 1 after so many optimizer steps, with the gradients of the next one ready."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One launch of a script by torchrun."""

    ranks: int
    options: str = ""


@dataclass(frozen=True, kw_only=True)
class Example:
    """A script, killed after `steps_before_kill` optimizer steps and resumed.

    Attributes:
        samples: That the whole run trains on.
        padding: Rows that repeat a sample.
        dropped: Samples left out at the ends of epochs.
        skipped: Steps that the loss scaler skipped.
        resumed_at: Samples of the run before the place where it is resumed.
    """

    killed: Launch
    resumed: Launch
    steps_before_kill: int
    samples: int
    padding: int = 0
    dropped: int = 0
    skipped: int = 0
    resumed_at: int


RUNS = {
    # 2 epochs of 605. 606 rows on 3 ranks; of the second epoch the 240 samples of 10 steps, then 365 on 2 ranks
    "image_classifier": Example(
        killed=Launch(ranks=3, options="--samples 605"),
        resumed=Launch(ranks=2, options="--samples 605 --batch-size 12"),
        steps_before_kill=26 + 15,
        samples=2 * 605,
        padding=1 + 1,
        resumed_at=605 + 10 * 24,
    ),
    # 60 steps of 32 samples, nearly 5 epochs of 403
    "diffusion": Example(
        killed=Launch(ranks=4, options="--samples 403"),
        resumed=Launch(ranks=3, options="--samples 403"),
        steps_before_kill=25,
        samples=60 * 32,
        resumed_at=20 * 32,
    ),
    "gpt": Example(
        killed=Launch(ranks=3, options="--init-scale 1e38"),
        resumed=Launch(ranks=2, options="--init-scale 1e38"),
        steps_before_kill=20,
        samples=0,
        resumed_at=0,
    ),
    "fine_tuning": Example(
        killed=Launch(ranks=3, options=""),
        resumed=Launch(ranks=2, options="--batch-size 6"),
        steps_before_kill=24,
        samples=2 * 403,
        padding=0,
        resumed_at=0,
    ),
    "click_model": Example(
        killed=Launch(ranks=2, options="--batch-size 24"),
        resumed=Launch(ranks=3, options="--batch-size 16"),
        steps_before_kill=52,
        samples=2 * 1603,
        padding=0,
        resumed_at=0,
    ),
}


def test_every_example_is_run() -> None:
    """Each folder of docs/examples is a script in two versions that the tests below know."""
    scripts = {path.relative_to(EXAMPLES).as_posix() for path in EXAMPLES.glob("*/*.py")}
    assert scripts == {f"{name}/{version}.py" for name in RUNS for version in ("before", "after")}


def test_page_shows_the_diffs() -> None:
    """docs/examples.md shows exactly what differs between the two versions of each script: two to six new lines."""
    shown = ["\n".join(block.lines) for block in find_blocks(PAGE.read_text("utf-8")) if block.language == "diff"]
    expected = [show_diff(name) for name in RUNS]
    assert shown == expected
    for diff in expected:
        assert 2 <= sum(line.startswith("+") for line in diff.splitlines()[2:]) <= 6


def show_diff(name: str) -> str:
    before, after = (EXAMPLES / name / f"{version}.py" for version in ("before", "after"))
    texts = [path.read_text("utf-8").splitlines() for path in (before, after)]
    titles = [path.relative_to(EXAMPLES).as_posix() for path in (before, after)]
    return "\n".join(difflib.unified_diff(*texts, *titles, n=1, lineterm=""))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_on_other_ranks(name: str, tmp_path: Path) -> None:
    """A rank is killed in mid-epoch, other ranks go on from the last checkpoint, and the ledger proves the run."""
    run, script = RUNS[name], (EXAMPLES / name / "after.py").read_text("utf-8")
    killed = torchrun(tmp_path, KILL.format(steps=run.steps_before_kill) + script, run.killed)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr, killed.stderr
    resumed = torchrun(tmp_path, script, run.resumed)
    assert resumed.returncode == 0, resumed.stderr
    report = audit_ledger(tmp_path / "out/ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.replayed.high, report.omitted.high) == (0, 0)
    assert (report.samples, report.padding, report.dropped) == (run.samples, run.padding, run.dropped)
    assert report.skipped == run.skipped
    first, second = report.attempts
    assert (first.num_replicas, second.num_replicas) == (run.killed.ranks, run.resumed.ranks)
    assert first.discarded.low > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_script_before_the_change_runs(name: str, tmp_path: Path) -> None:
    """What the difference is taken from is a script that works, and finds its checkpoint when it is started again."""
    for _ in range(2):
        done = torchrun(tmp_path, (EXAMPLES / name / "before.py").read_text("utf-8"), Launch(ranks=2))
        assert done.returncode == 0, done.stderr


def torchrun(folder: Path, script: str, launch: Launch) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
    command += [str(folder / "script.py"), "--out", str(folder / "out"), *launch.options.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
