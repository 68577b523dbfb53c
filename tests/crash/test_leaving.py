"""A process ends while a save runs beside training: the save is finished or is no checkpoint, and nobody hangs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from resumable_data.checkpoint import latest_checkpoint
from resumable_data.checkpoint.files.verify import verify_checkpoint
from tests.children import HUNG
from tests.crash.leaving import CASES

EXIT_CODES = {"end": 0, "destroy": 0, "exit": 3, "interrupt": -2, "default": -15}
FINISHED = {"end", "exit", "interrupt"}


@pytest.mark.slow
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_leaving(tmp_path: Path, num_ranks: int) -> None:
    """The latest checkpoint is sound, and it is the new one wherever Python ends by itself with its process group."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.crash.leaving", str(tmp_path), str(num_ranks)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    assert list(codes) == CASES[num_ranks]
    for how, found in codes.items():
        latest = latest_checkpoint(tmp_path / how)
        assert latest is not None, how
        assert verify_checkpoint(latest).verdict == "sound"
        if how == "one killed":
            assert found[1] == -9
            assert found[0] != HUNG
        else:
            assert found == [EXIT_CODES[how]] * num_ranks, how
        if how == "destroy":  # before the save could end, which is then said
            assert "destroy/2, which ran beside training, failed" in done.stderr
        else:
            assert latest.name == ("2" if how in FINISHED else "1"), how
