"""A watch inside the run that goes on after a move: a clean one passes, and each fault is told at once."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from resumable_data.checkpoint import load_checkpoint
from resumable_data.errors import DeviationError
from resumable_data.validation import WatchReport, watch
from tests.distributed.ranks import run_ranks
from tests.distributed.traced_training import BEFORE, Job, control

UPDATES = 3
LIMITS = dict.fromkeys(("loss", "gradient_norm", "update_norm"), 1e-5)


def watch_all(folder: str) -> list[tuple[str, str]]:
    """Go on from the checkpoint, each time with one fault or none; what this rank has seen."""
    seen = []
    cases: list[tuple[str, dict[str, Any]]] = [
        ("", {}),
        ("weights rounded to bfloat16", {}),
        ("step counter one too high", {"path": f"{folder}/control.jsonl/no"}),
        ("cursor one sample late", {"on_violation": "raise"}),
    ]
    for number, (sabotage, options) in enumerate(cases):
        job = Job()
        load_checkpoint(f"{folder}/checkpoint", job.state, loader=job.loader)
        job.spoil(sabotage)
        options = {"path": f"{folder}/{number}.json", "scheduler": job.scheduler, "limits": LIMITS, **options}
        watched = watch(
            job.loader, f"{folder}/control.jsonl", UPDATES, model=job.model, optimizer=job.optimizer, **options
        )
        try:
            job.train(UPDATES + 1, recorder=watched)
            ended = ""
        except DeviationError as error:
            ended = str(error)
        seen.append((ended, watched.report.verdict if watched.report else ""))
    return seen


def test_a_move_is_watched(tmp_path: Path) -> None:
    """FSDP2 from 4 ranks to 3: only the first rank reports, all end where that is asked for, none hangs on a file."""
    run_ranks(control, 4, str(tmp_path), 0, "fsdp", UPDATES)
    first, *others = run_ranks(watch_all, 3, str(tmp_path))
    assert [verdict for _, verdict in first] == ["pass", "deviates", "deviates", "deviates"]
    for seen in (first, *others):
        assert [bool(ended) for ended, _ in seen] == [False, False, False, True]
        assert seen[3][0].startswith(f"expected update {BEFORE} to be the control's")
    assert all(verdict == "" for seen in others for _, verdict in seen)
    report = read(tmp_path / "0.json")
    assert (report.can_promote, report.first_update, report.coverage.updates) == (True, BEFORE, UPDATES)
    assert report.comparison is not None
    assert report.comparison.candidate.num_replicas == 3
    for number, quantity, updates in ((1, "loss", UPDATES), (3, "samples", 1)):
        report = read(tmp_path / f"{number}.json")
        assert report.first_alarm is not None
        assert (report.first_alarm.update, report.first_alarm.quantity) == (BEFORE, quantity)
        assert (report.can_promote, report.updates) == (False, updates)
    assert not [name for name in os.listdir(tmp_path) if name.endswith(".tmp")]


def read(path: Path) -> WatchReport:
    report = WatchReport.read(path)
    assert report is not None
    return report
