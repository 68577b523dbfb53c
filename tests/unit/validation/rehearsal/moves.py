"""A run of a job of the caller's, and the rehearsal of what comes after its checkpoint, on one process."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import resumable_data as rd
from resumable_data.validation import Context, Job, Verdict, rehearse

Build = Callable[[Context], Job]
UPDATES = 3


def save_and_record(build: Build, folder: Path) -> None:
    """Train for some updates, save, and record a control and a repeat of what comes after."""
    job = build(Context(folder=folder))
    for _ in job.train():
        if job.loader.cursor.updates == UPDATES:
            break
    save(job, folder)
    record(build, folder)


def save(job: Job, folder: Path) -> None:
    rd.save_checkpoint(folder / "checkpoints/1", job.state, loader=job.loader)
    job.loader.close()


def record(build: Build, folder: Path) -> None:
    for name in ("control", "repeat"):
        verdict = rehearse(build, folder / "checkpoints/1", record=folder / f"{name}.jsonl")
        assert verdict.verdict == "passed", verdict.to_text()


def move(build: Build, folder: Path, **options: Any) -> Verdict:
    control, repeats = folder / "control.jsonl", [folder / "repeat.jsonl"]
    return rehearse(build, folder / "checkpoints/1", control=control, repeats=repeats, **options)


def failed(verdict: Verdict) -> dict[str, set[str]]:
    """The checks that failed, and the codes of their findings."""
    return {check.name: {one.code for one in check.findings} for check in verdict.failed}
