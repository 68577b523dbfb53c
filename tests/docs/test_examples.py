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
class Run:
    """A script that is killed and resumed on other ranks, and what its ledger then says.

    Attributes:
        steps: After so many steps of the optimizer, skipped ones left out, the first launch is killed.
        resumed_at: The update at which the second launch goes on.
        samples: Committed by both.
        padding: Rows that repeat a sample, where the ranks do not divide what an epoch has left.
        dropped: Samples left out at the ends of epochs.
        skips: Whether a loss scaler skipped steps.
    """

    killed: Launch
    steps: int
    resumed: Launch
    resumed_at: int
    samples: int
    padding: int = 0
    dropped: int = 0
    skips: bool = False


RUNS = {
    # 2 epochs: 605 samples on 3 ranks; then 240 on 3 ranks, and the other 365 on 2
    "image_classifier": Run(
        killed=Launch(ranks=3, options="--samples 605"),
        steps=26 + 15,
        resumed=Launch(ranks=2, options="--samples 605 --batch-size 12"),
        resumed_at=26 + 10,
        samples=2 * 605,
        padding=1 + 1,
    ),
    # 60 updates of 32 samples are nearly 5 epochs
    "diffusion": Run(
        killed=Launch(ranks=4, options="--samples 403"),
        steps=25,
        resumed=Launch(ranks=3, options="--samples 403"),
        resumed_at=20,
        samples=60 * 32,
    ),
    # 2 epochs of 403 samples: 3 ranks fill 33 batches of 12 in the first; in the second, after 8 updates of 24 samples,
    # 2 ranks fill 26 batches of 8
    "gpt": Run(
        killed=Launch(ranks=3, options="--init-scale 1e8"),
        steps=17,
        resumed=Launch(ranks=2, options="--init-scale 1e8"),
        resumed_at=17 + 8,
        samples=33 * 12 + 8 * 24 + 26 * 8,
        dropped=7 + 3,
        skips=True,
    ),
    # 2 epochs: 403 samples on 3 ranks; then 3 updates of 24 samples on 3 ranks, and the other 331 samples on 2
    "fine_tuning": Run(
        killed=Launch(ranks=3),
        steps=24,
        resumed=Launch(ranks=2, options="--batch-size 6"),
        resumed_at=17 + 3,
        samples=2 * 403,
        padding=2 + 1,
    ),
    # 2 epochs: 1603 samples on 2 ranks; then 14 updates of 48 samples on 2 ranks, and the other 931 samples on 3
    "click_model": Run(
        killed=Launch(ranks=2, options="--batch-size 24"),
        steps=52,
        resumed=Launch(ranks=3),
        resumed_at=34 + 14,
        samples=2 * 1603,
        padding=1 + 2,
    ),
}
"""Every folder of docs/examples that has a script before and after."""


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
    before, after = ((EXAMPLES / name / f"{version}.py").read_text("utf-8") for version in ("before", "after"))
    files = (f"{name}/before.py", f"{name}/after.py")
    return "\n".join(difflib.unified_diff(before.splitlines(), after.splitlines(), *files, n=1, lineterm=""))


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_killed_and_resumed_on_other_ranks(name: str, tmp_path: Path) -> None:
    """A rank is killed in mid-epoch, other ranks go on from the last checkpoint, and the ledger proves the run."""
    run, script = RUNS[name], (EXAMPLES / name / "after.py").read_text("utf-8")
    killed = torchrun(tmp_path, KILL.format(steps=run.steps) + script, run.killed)
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr, killed.stderr
    resumed = torchrun(tmp_path, script, run.resumed)
    assert resumed.returncode == 0, resumed.stderr
    report = audit_ledger(tmp_path / "out/ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.replayed.high, report.omitted.high, report.in_flight) == (0, 0, 0)
    assert (report.samples, report.padding, report.dropped) == (run.samples, run.padding, run.dropped)
    assert (report.skipped > 0) == run.skips
    first, second = report.attempts
    assert (first.num_replicas, second.num_replicas) == (run.killed.ranks, run.resumed.ranks)
    assert (first.stop_update, second.first_update) == (run.resumed_at, run.resumed_at)
    assert first.discarded.low > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_script_before_the_change_runs(name: str, tmp_path: Path) -> None:
    """What the difference is taken from is a script that works, and finds its checkpoint when it is started again."""
    script, launch = (EXAMPLES / name / "before.py").read_text("utf-8"), Launch(ranks=2, options="--samples 203")
    assert not list(tmp_path.glob("out/*"))
    for _ in range(2):
        done = torchrun(tmp_path, script, launch)
        assert done.returncode == 0, done.stderr
        assert list(tmp_path.glob("out/*"))


def torchrun(folder: Path, script: str, launch: Launch) -> subprocess.CompletedProcess[str]:
    (folder / "script.py").write_text(script, "utf-8")
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={launch.ranks}"]
    command += [str(folder / "script.py"), "--out", str(folder / "out"), *launch.options.split()]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)
