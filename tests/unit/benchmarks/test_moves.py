"""The benchmark of moves, run on ours."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks._moves_table import cell
from benchmarks.competitors._interface import Job
from benchmarks.competitors.registry import COMPETITORS
from benchmarks.data_after_a_move import SCENARIOS, Scenario

ROOT = Path(__file__).parents[3]


@pytest.mark.slow
def test_ours_is_exact_on_real_ranks() -> None:
    """All scenarios through the public loader, and another seed refused."""
    command = [sys.executable, "-m", "benchmarks.data_after_a_move", "--one", "resumable_data"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    cells = {name: cell(entry) for name, entry in json.loads(done.stdout.splitlines()[-1]).items()}
    expected = {scenario.name: "exact" for scenario in SCENARIOS} | {"another seed": "refuses"}
    assert cells == expected


def test_a_rank_reads_its_share_of_the_global_batch_where_there_is_one() -> None:
    """16 samples are 8 each on 2 ranks; on 3 there is no share, and a rank keeps its 4."""
    scenario = Scenario(name="", length=64, before=4, after=3, global_batch=16, stop_after=2)
    assert [scenario.batch_size(ranks) for ranks in (2, 3, 4)] == [8, 4, 4]


@pytest.mark.parametrize(("num_replicas", "batch_size", "steps"), [(2, 8, 2), (3, 4, 2), (10, 3, 1), (1, 32, 1)])
def test_a_careful_loop_skips_whole_steps_of_its_own(num_replicas: int, batch_size: int, steps: int) -> None:
    """32 samples are done: no step that is skipped holds one that is not."""
    job = Job(
        length=64,
        rank=0,
        num_replicas=num_replicas,
        batch_size=batch_size,
        global_batch=16,
        num_workers=0,
        seed=0,
        epoch=0,
        steps_done=2,
        states=(),
        folder=Path(),
    )
    assert job.steps_to_skip == steps


@pytest.mark.parametrize("group", ["bench", "bench-streaming"])
def test_other_loaders_are_pinned(group: str) -> None:
    """Figures name the releases that they are of, and `make bench` installs those."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert all("==" in package for package in project["dependency-groups"][group])


def test_loaders_have_names_of_their_own() -> None:
    """Results are stored by them."""
    names = [competitor.name for competitor in COMPETITORS]
    assert len(set(names)) == len(names)
