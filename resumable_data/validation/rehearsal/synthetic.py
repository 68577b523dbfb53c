"""A small checkpoint made for an exercise, with the control and repeats of what comes after it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from resumable_data.checkpoint.save import save_checkpoint
from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown
from resumable_data.validation.rehearsal.arguments import CHECKPOINT, CONTROL, REPEAT
from resumable_data.validation.rehearsal.job import Context, Job
from resumable_data.validation.rehearsal.load_stage import build_job
from resumable_data.validation.rehearsal.options import Options
from resumable_data.validation.rehearsal.run import rehearsal_folder, run_rehearsal
from resumable_data.validation.verdict import Verdict

BEFORE = 5
NUM_REPEATS = 2


def make_exercise(
    build: Callable[[Context], Job],
    folder: Path,
    leave: Callable[[Verdict], None],
    *,
    updates: int,
    arguments: Sequence[str] = (),
    scratch: Path | None = None,
) -> Verdict:
    """Train a small job for a few updates, save it, and record the control and repeats, on the ranks of the source.

    Collective.

    Args:
        build: Makes the job's parts; small ones, as `Context.is_synthetic` asks for.
        folder: Where ``checkpoint``, ``control.jsonl`` and the repeats are left; a new directory.
        leave: As for `run_rehearsal`.
        updates: Updates of the window.
        arguments: For ``build()``.
        scratch: As for `rehearse`.

    Returns:
        The verdict on the last recording; what is wrong with the job is found by it, or by one before.

    Raises:
        UsageError: There is something in the directory.
    """
    if (folder / CHECKPOINT).exists() or (folder / CONTROL).exists():
        raise UsageError(f"{shown(folder)} has an exercise already; name a new directory")
    checkpoint = folder / CHECKPOINT
    options = Options(
        checkpoint=checkpoint, updates=updates, is_synthetic=True, arguments=tuple(arguments), scratch=scratch
    )
    with rehearsal_folder(options) as own:
        context = Context(folder=own, is_synthetic=True, arguments=options.arguments)
        _train_and_save(build_job(build, context), checkpoint)
    for name in (CONTROL, *(REPEAT.format(number) for number in range(NUM_REPEATS))):
        verdict = run_rehearsal(build, replace(options, record=folder / name), leave)
        if verdict.exit_code:
            break
    return verdict


def _train_and_save(job: Job, checkpoint: Path) -> None:
    with job.loader:
        loop = job.train()
        for _ in range(BEFORE):
            next(loop, None)
        save_checkpoint(checkpoint, job.state, loader=job.loader, probe=job.probe)
