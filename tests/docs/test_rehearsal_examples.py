"""The scripts in docs/examples that a rehearsal can run: short, and promoted on other ranks with torchrun."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "docs/examples").glob("rehearse_*.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=400, check=False, env=environment
    )


@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_the_adapter_is_short(script: Path) -> None:
    """What a plain script needs for a rehearsal, its training code included, is under 30 lines."""
    (build,) = [
        node
        for node in ast.parse(script.read_text("utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name == "build"
    ]
    assert build.end_lineno is not None
    assert build.end_lineno - build.lineno + 1 < 30


def test_both_kinds_are_shown() -> None:
    """DDP and FSDP2."""
    assert [script.stem for script in EXAMPLES] == ["rehearse_ddp", "rehearse_fsdp2"]


@pytest.mark.slow
@pytest.mark.parametrize("script", EXAMPLES, ids=lambda script: script.stem)
def test_a_real_move_is_promoted(script: Path, tmp_path: Path) -> None:
    """Trained and recorded on 4 ranks, rehearsed on 3, by the commands that docs/rehearsal.md shows."""
    here = str(script)
    trained = run(tmp_path, *TORCHRUN, "--nproc-per-node=4", here, "--out", "run", "--updates", "10")
    assert trained.returncode == 0, trained.stderr
    rehearsal = ["-m", "resumable_data.rehearse", f"{here}:build", "--checkpoint", "run/checkpoints/10"]
    for name in ("control", "repeat-1"):
        recorded = run(tmp_path, *TORCHRUN, "--nproc-per-node=4", *rehearsal, "--record", f"{name}.jsonl")
        assert recorded.returncode == 0, recorded.stdout + recorded.stderr
    before = time.monotonic()
    options = ["--control", "control.jsonl", "--repeat", "repeat-1.jsonl", "--json"]
    moved = run(tmp_path, *TORCHRUN, "--nproc-per-node=3", *rehearsal, *options)
    sys.stdout.write(f"a rehearsal of {script.stem} on 3 ranks took {time.monotonic() - before:.1f} s\n")
    assert moved.returncode == 0, moved.stdout + moved.stderr
    verdict = json.loads(moved.stdout.splitlines()[-1])
    assert verdict["verdict"] == "promote"
    assert (verdict["saved"]["dp_size"], verdict["now"]["dp_size"]) == (4, 3)
    assert {check["status"] for check in verdict["checks"]} == {"passed"}


@pytest.mark.slow
def test_an_exercise_in_one_command(tmp_path: Path) -> None:
    """A small checkpoint of its own, made on 2 processes and rehearsed on 3; and again on 1, of what it left."""
    command = [sys.executable, "-m", "resumable_data.rehearse", f"{EXAMPLES[1]}:build", "--synthetic"]
    exercise = run(tmp_path, *command, "--save", "exercise", "--from-replicas", "2", "--to-replicas", "3")
    assert exercise.returncode == 0, exercise.stdout + exercise.stderr
    assert "PROMOTE" in exercise.stdout
    assert "made for the exercise" in exercise.stdout
    assert "anything about the real checkpoint" in exercise.stdout
    refused = run(tmp_path, *command, "--save", "exercise", "--from-replicas", "2", "--to-replicas", "3")
    assert refused.returncode != 0
    assert "has an exercise already" in refused.stderr


@pytest.mark.slow
def test_a_fault_in_build_is_shown_once_and_ends_all(tmp_path: Path) -> None:
    """With the traceback of the user's file, as a verdict, and exit code 1."""
    (tmp_path / "faulty.py").write_text("def build(context):\n    raise LookupError('my own fault')\n")
    script = str(EXAMPLES[0])
    trained = run(tmp_path, *TORCHRUN, "--nproc-per-node=2", script, "--out", "run", "--updates", "2")
    assert trained.returncode == 0, trained.stderr
    rehearsal = ["-m", "resumable_data.rehearse", "faulty.py:build", "--checkpoint", "run/checkpoints/2"]
    done = run(tmp_path, *TORCHRUN, "--nproc-per-node=2", *rehearsal)
    assert done.returncode == 1
    assert done.stdout.count("REJECT") == 1
    assert 'faulty.py", line 2, in build' in done.stdout
    assert "LookupError: my own fault" in done.stdout
    missing = run(tmp_path, *TORCHRUN, "--nproc-per-node=2", *rehearsal[:-1], "nowhere")
    assert missing.returncode != 0
    assert missing.stderr.count("error: ") >= 1
