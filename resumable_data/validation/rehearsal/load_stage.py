"""The second stage: the job is built and loaded, and evaluated on examples, before anything of it is trained."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import torch
from torch.nn.modules.batchnorm import _BatchNorm

from resumable_data.checkpoint.collective import gather_bytes
from resumable_data.checkpoint.load import load_checkpoint
from resumable_data.checkpoint.migration.changes import find_changes
from resumable_data.checkpoint.migration.coverage import find_covered, require_covered
from resumable_data.checkpoint.migration.source import read_source
from resumable_data.checkpoint.probe_file import ProbeRecord, read_probe
from resumable_data.checkpoint.random_states import kept_random_states
from resumable_data.errors import UsageError
from resumable_data.findings import PlainFinding
from resumable_data.ledger.frames import shown
from resumable_data.validation.checks import FAILED, NOT_RUN, PASSED, Check
from resumable_data.validation.judging import check_of_state
from resumable_data.validation.rehearsal.job import Context, Job
from resumable_data.validation.rehearsal.logits import check_logits, deviation_of, tolerance_of
from resumable_data.validation.state import check_state, check_unchanged
from resumable_data.validation.state_findings import StateFinding, state_finding
from resumable_data.validation.verdict_findings import finding

if TYPE_CHECKING:
    from resumable_data.checkpoint.run_manifest import RunManifest
    from resumable_data.loader import ResumableLoader
    from resumable_data.validation.rehearsal.options import Options


def build_job(build: Callable[[Context], Job], context: Context) -> Job:
    """The job, that trains one model.

    Raises:
        UsageError: What ``build()`` returned is no such job.
    """
    job = build(context)
    if not isinstance(job, Job):
        raise UsageError(f"build(context) must return a Job, got {type(job).__name__}. Nothing was rehearsed.")
    _ = job.model, job.optimizer
    return job


def check_ledger(job: Job, context: Context) -> Check:
    """Whether the job's loader writes where a trial may."""
    ledger = ledger_of(job.loader)
    if ledger is None:
        return Check.of("build", PASSED, "no ledger: coverage is judged by the cursor")
    if ledger.absolute().is_relative_to(context.folder.absolute()):
        return Check.of("build", PASSED, "a ledger of its own")
    wrong = finding("RD973", shown(ledger), expected=f"a path in {shown(context.folder)}", found=shown(ledger))
    return Check.of("build", FAILED, "nothing was delivered", [wrong])


def ledger_of(loader: ResumableLoader) -> Path | None:
    """The directory of a loader's ledger."""
    return None if loader.ledger is None else loader.ledger.path


def load(job: Job, options: Options) -> str:
    """Load in the job's own way, or in ours; returns what was allowed. Collective."""
    if job.load is not None:
        job.load(options.checkpoint)
        return "by the job's own code"
    # its contents were read in the first stage
    loaded = load_checkpoint(
        options.checkpoint,
        job.state,
        loader=job.loader,
        allow=options.allow,
        level="directory",
        migration=options.migration,
    )
    allowed = f", allowed: {', '.join(loaded.allowances)}" if loaded.allowances else ""
    return f"by load_checkpoint{allowed}{', with the migration' if options.migration is not None else ''}"


def require_declared(job: Job, saved: RunManifest | None, now: RunManifest, options: Options) -> None:
    """Hold what a job's own code has loaded against what was declared; `load_checkpoint` does so by itself.

    Raises:
        MigrationError: Something changed that nobody declared, or otherwise than the migration says.
    """
    if job.load is None or saved is None:
        return
    path, changes = options.checkpoint, find_changes(saved, now)
    covered = []
    if options.migration is not None:
        covered = find_covered(options.migration, path, read_source(path), changes, now)
    if job.loader.carried is None:  # else it was load_checkpoint, with what the job's code declares
        require_covered(path, changes, now, covered=covered, names=options.allow)


def check_loaded(job: Job, options: Options) -> Check:
    """Whether the program holds what the checkpoint holds. Collective."""
    return check_of_state(check_state(options.checkpoint, job.state, job.loader), options.waived)


def detach(loader: ResumableLoader) -> None:
    """Let a loader go on at its cursor in a ledger of its own, which knows nothing of the run's earlier launches."""
    if ledger_of(loader) is not None and loader.cursor.attempt and not loader.phase:
        loader.load_state_dict(msgspec.structs.replace(loader.cursor, attempt=0))


def detach_after_part(loader: ResumableLoader) -> None:
    """The same after the update that was begun before the checkpoint: its ledger would lack that part. Collective."""
    if ledger_of(loader) is not None:
        loader.check_agreement()  # the cursor's digest stands for all that is not in the ledger
        detach(loader)


def check_dry(job: Job) -> tuple[list[Check], ProbeRecord | None]:
    """Evaluation, and forward and backward without a step: that these change nothing, and are the same twice.

    Collective.

    Returns:
        The checks, and the logits of the probe.
    """
    phase = job.loader.phase
    records: list[ProbeRecord] = []
    numbers: list[float] = []

    def act() -> None:
        with kept_random_states():
            if job.probe is not None:
                records.append(job.probe.run(job.models))
            if job.evaluate is not None:
                numbers.extend(float(job.evaluate()) for _ in range(2))
            if not phase:
                _accumulate(job)

    plain = _plain(job)
    changed = list(check_unchanged(job.state, act))
    changed += _changed(plain, _plain(job))
    summary = "evaluation, forward and backward" if not phase else "evaluation; gradients are under way"
    unchanged = Check.of("unchanged", FAILED if changed else PASSED, summary, changed)
    record = records[0] if records else None
    return [unchanged, _check_evaluation(job, record, numbers)], record


def _accumulate(job: Job) -> None:
    """All of an update but its step, so that gradients that wait for the last microbatch are not left behind."""
    with _kept_statistics(job):
        for microbatch in job.microbatches():
            job.accumulate(microbatch)
            if microbatch.is_last:
                break
    for model in job.models:
        for parameter in model.parameters():
            parameter.grad = None


@contextmanager
def _kept_statistics(job: Job) -> Iterator[None]:
    """Running statistics, which a forward in training is meant to move, are as they were afterwards."""
    parts = [part for model in job.models for part in model.modules() if isinstance(part, _BatchNorm)]
    kept = [(buffer, buffer.clone()) for part in parts for buffer in part.buffers()]
    yield
    with torch.no_grad():
        for buffer, value in kept:
            buffer.copy_(value)


def _plain(job: Job) -> dict[str, str]:
    """What counts and what is set, which no digest of tensors tells."""
    found = {f"{name}.last_epoch": str(getattr(part, "last_epoch", None)) for name, part in job.schedulers.items()}
    for name, optimizer in job.optimizers.items():
        for number, group in enumerate(optimizer.param_groups):
            found[f"{name}: learning rate of group {number}"] = repr(float(group["lr"]))
    return found | {"cursor": str(job.loader.cursor.updates)}


def _changed(before: Mapping[str, str], after: Mapping[str, str]) -> list[StateFinding]:
    return [
        state_finding("RD957", [key], expected=value, found=after[key])
        for key, value in before.items()
        if after[key] != value
    ]


def _check_evaluation(job: Job, record: ProbeRecord | None, numbers: list[float]) -> Check:
    """Whether evaluation is the same twice, on every process. Collective."""
    if record is None and not numbers:
        return Check.of("evaluation", NOT_RUN, "the job has neither probe nor evaluate")
    tolerance = tolerance_of("float32" if record is None else record.computed_in)
    is_random = record is not None and record.is_random
    is_apart = bool(numbers) and not math.isclose(*numbers, rel_tol=tolerance, abs_tol=1e-30)
    gathered = gather_bytes(msgspec.json.encode((is_random, is_apart)))
    everyones = [msgspec.json.decode(part, type=tuple[bool, bool]) for part in gathered]
    findings: list[PlainFinding] = []
    if any(random for random, _ in everyones):
        findings.append(finding("RD975", "probe", expected="the same logits twice", found="others"))
    if numbers and not all(map(math.isfinite, numbers)):
        findings.append(finding("RD978", "evaluate()", expected="a number", found=str(numbers[0])))
    elif any(apart for _, apart in everyones):
        findings.append(finding("RD975", "evaluate()", expected=f"{numbers[0]} twice", found=str(numbers[1])))
    value = f"evaluate() gives {numbers[0]:.6g}" if numbers else "no evaluate()"
    return Check.of("evaluation", FAILED if findings else PASSED, value, findings)


def check_stored_logits(now: ProbeRecord | None, options: Options) -> Check:
    """Whether logits are those stored with the checkpoint, on every process. Collective."""
    saved: Any = read_probe(options.checkpoint)
    own = deviation_of(saved, now) if saved is not None and now is not None else 0.0
    deviation = max(float(part) for part in gather_bytes(repr(own).encode()))
    return check_logits(saved, now, deviation)
