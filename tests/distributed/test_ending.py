"""Programs that save and load end as all others do: with exit code 0, each of many times."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

NUM_RUNS, NUM_RANKS = 50, 3


@pytest.mark.slow
def test_50_runs_end_with_exit_code_0(tmp_path: Path) -> None:
    """Saved, loaded and saved beside training in new processes, 50 times in a row, with all of Python's clean-up."""
    command = [
        sys.executable,
        "-m",
        "tests.distributed.ending",
        str(tmp_path),
        str(NUM_RANKS),
        str(NUM_RUNS),
        "barrier",
    ]
    environment = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    codes = json.loads(done.stdout.splitlines()[-1])
    failed = {number: ranks for number, ranks in enumerate(codes) if any(ranks)}
    assert (len(codes), failed) == (NUM_RUNS, {}), done.stderr
