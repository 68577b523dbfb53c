"""`resumable-data plan CHECKPOINT`: what it prints and writes, its exit codes, and that torch is not needed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from resumable_data.checkpoint.migration.migration_file import read_migration
from resumable_data.cli import main
from tests.runs import make_run, write_checkpoint


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """A run on 4 data-parallel ranks, each of two tensor-parallel ones, after 5 updates of 32 samples."""
    return write_checkpoint(tmp_path / "step-5", make_run(axes=(("dp", 4), ("tp", 2))))


def test_a_move_is_declared(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What is printed is what is in the file, and all that was given is in it."""
    command = ["plan", str(checkpoint), "--mesh", "dp=10", "--microbatch", "2", "--global-batch", "48"]
    command += ["--precision", "model.parameters=bfloat16", "--schedule-unit", "tokens", "--invariant", "schedule"]
    command += ["--continuity", "bounded:3,4", "--tolerance", "loss=1e-4", "--tolerance", "update_norm=0.01"]
    file = tmp_path / "migration.json"
    assert main([*command, "--why", "fewer nodes", "--interval", "10", "--json", "-o", str(file)]) == 0
    migration = read_migration(file)
    assert capsys.readouterr().out.encode() == migration.to_json() + b"\n"
    assert {one.field for one in migration.needed} == {
        *("mesh.tp", "global_batch", "precision.model.parameters", "schedule_unit")
    }
    assert {one.why for one in migration.needed} == {"fewer nodes"}
    declaration = migration.declaration
    assert (declaration.continuity.replayed, declaration.continuity.omitted) == (3, 4)
    assert declaration.tolerances == {"loss": 1e-4, "update_norm": 0.01}
    assert (migration.effects.interval_saved, migration.effects.interval_now) == (320, 480)
    assert json.loads(file.read_bytes())["version"] == 1
    assert main([*command, "-o", str(file)]) == 2
    assert "is there already" in capsys.readouterr().err


def test_for_people(checkpoint: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both sides, what must survive, each change, the batch equation, schedules, the epoch and random numbers."""
    assert main(["plan", str(checkpoint), "--num-replicas", "10"]) == 0
    text = capsys.readouterr().out
    for line in (
        "update 5 of run 00000000000000aa: nothing changes that must be declared; risk: dp only",
        "  mesh                  dp 4 x tp 2   dp 10 x tp 2",
        "  dp: 4 to 10 (dp only)",
        "  source: 32 = microbatch 4 x 4 ranks x 2 steps",
        "  destination: 32 < microbatch 4 x 10 ranks x 1 steps",
        "    even: a global batch of 40 on these ranks, or this one on 2, 4, 8, 16, 32 ranks",
        "  an interval of 1,000 updates is 32,000 samples before, 32,000 after",
        "  left in the epoch: 840 samples",
        "  states of 8 processes, 20 needed: all are seeded anew by seed, update and data-parallel rank",
    ):
        assert line in text.splitlines(), text


def test_exit_codes(checkpoint: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """0 for a move that keeps what must survive, 1 for one that does not, 2 for arguments, 3 for no checkpoint."""
    assert main(["plan", str(checkpoint)]) == 0
    assert main(["plan", str(checkpoint), "--global-batch", "33"]) == 1
    assert "expected as many samples in an update" in capsys.readouterr().err
    assert main(["plan", str(tmp_path / "nothing"), "--num-replicas", "3"]) == 3
    (checkpoint / "resumable_data.run.json").write_text("{}")
    assert main(["plan", str(checkpoint), "--num-replicas", "3"]) == 3


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--samples", "10"], "--samples: of use only without a CHECKPOINT"),
        (["--to", "3"], "--to: of use only without"),
        (["--gradient-reduction", "sum"], "--gradient-reduction: of use only without"),
        (["--mesh", "dp"], "expected NAME=VALUE"),
        (["--mesh", "dp=0"], "sizes of at least 1"),
        (["--mesh", "dp=2,tp=2", "--data-axes", "x"], "name each axis once"),
        (["--data-axes", "dp,"], "expected names of axes"),
        (["--precision", "model.parameter=bfloat16"], "precision: expected some of"),
        (["--scheduler", "other=x"], "schedulers: expected some of"),
        (["--continuity", "bounded"], "expected exact, none or bounded:REPLAYED,OMITTED"),
        (["--continuity", "bounded:1,-1"], "expected exact, none or bounded:REPLAYED,OMITTED"),
        (["--tolerance", "loss=nan"], "above 0, below 1"),
        (["--tolerance", "accuracy=0.1"], "expected one of loss"),
        (["--batch-unit", "tokens"], "batch_unit can only be"),
        (["-o", "no/such/folder/m.json"], "cannot be written"),
    ],
)
def test_wrong_arguments(checkpoint: Path, arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A wrong argument is exit code 2 and a message that names it."""
    assert main(["plan", str(checkpoint), *arguments]) == 2
    assert text in capsys.readouterr().err


def test_what_goes_with_a_checkpoint_only(capsys: pytest.CaptureFixture[str]) -> None:
    """The command without a checkpoint does not pass over what it does not use."""
    arguments = ["plan", "--samples", "10", "--global-batch", "2", "--num-replicas", "1", "--microbatch", "1"]
    assert main(arguments) == 0
    assert main([*arguments, "-o", "m.json", "--why", "x"]) == 2
    assert "--why, --output: of use only with a CHECKPOINT" in capsys.readouterr().err
    assert main(arguments[:5]) == 2
    assert "expected --num-replicas and --microbatch, or a CHECKPOINT" in capsys.readouterr().err


def test_torch_is_not_imported(checkpoint: Path) -> None:
    """A move is planned without the second that importing torch takes."""
    code = "import sys; from resumable_data.cli import main; main(sys.argv[1:]); print('torch' in sys.modules)"
    command = [sys.executable, "-c", code, "plan", str(checkpoint), "--num-replicas", "3"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env={**os.environ})
    assert done.stdout.splitlines()[-1] == "False"
