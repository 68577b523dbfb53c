"""A rehearsal from its first stage to its verdict."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import msgspec

from resumable_data.checkpoint.capture import capture_run
from resumable_data.checkpoint.collective import gather_bytes, on_first, rank_and_size, together
from resumable_data.checkpoint.run_manifest import RunManifest, read_run_manifest
from resumable_data.validation.batches import changed_batch
from resumable_data.validation.checks import FAILED, WARM_START, Check
from resumable_data.validation.recorder import TraceRecorder
from resumable_data.validation.rehearsal import load_stage, samples, update_stage, window_stage
from resumable_data.validation.rehearsal.files import check_files
from resumable_data.validation.rehearsal.gate import Failure, Gate, StoppedError
from resumable_data.validation.rehearsal.job import Context, Job
from resumable_data.validation.rehearsal.logits import tolerance_of
from resumable_data.validation.rehearsal.options import Options
from resumable_data.validation.rehearsal.untouched import Watched, run_paths
from resumable_data.validation.trace import Trace, UpdateRecord
from resumable_data.validation.verdict import Verdict, make_verdict
from resumable_data.validation.verdict_findings import finding

if TYPE_CHECKING:
    from resumable_data.cursor import Cursor

T = TypeVar("T")

_CANDIDATE = "candidate.jsonl"


def run_rehearsal(
    build: Callable[[Context], Job],
    options: Options,
    leave: Callable[[Verdict], None],
    files: list[Check] | None = None,
) -> Verdict:
    """A rehearsal. Collective.

    Args:
        build: Makes the job's parts.
        options: What is asked for.
        leave: Called with the verdict in a process that cannot come back, as another one failed while this one waits
            for it; it ends the process.
        files: On the first process, the checks of the first stage where they were made before.
    """
    traces = [one for one in (options.control, *options.repeats) if one is not None]
    together(lambda: [Trace.read(one) for one in traces])
    with rehearsal_folder(options) as folder:
        return _Rehearsal(build, options, folder, leave, files).run()


@contextmanager
def rehearsal_folder(options: Options) -> Iterator[Path]:
    """A directory that all processes share, deleted afterwards."""
    folder = Path(on_first(lambda: tempfile.mkdtemp(prefix="rehearsal-", dir=options.scratch).encode()).decode())
    try:
        yield folder
    finally:
        if rank_and_size()[0] == 0:
            shutil.rmtree(folder, ignore_errors=True)


class _Rehearsal:
    """One rehearsal; each stage returns its checks, the same on all processes."""

    def __init__(
        self,
        build: Callable[[Context], Job],
        options: Options,
        folder: Path,
        leave: Callable[[Verdict], None],
        files: list[Check] | None,
    ) -> None:
        self._build, self._options, self._folder = build, options, folder
        self._files, self._leave = files, leave
        rank, size = rank_and_size()
        self._is_first = rank == 0
        self._gate = Gate(folder, rank, size, self._leave_stuck)
        self._context = Context(
            folder=folder,
            checkpoint=options.checkpoint,
            is_synthetic=options.is_synthetic,
            arguments=options.arguments,
        )
        self._checks: list[Check] = []
        self._at = "files"
        self._job: Job | None = None
        self._saved: RunManifest | None = None
        self._now: RunManifest | None = None
        self._tolerances: dict[str, float] = {}
        self._phase = 0

    def run(self) -> Verdict:
        """All stages, as far as they are come to."""
        own = [path for path in (self._folder, self._options.record) if path is not None]
        paths = [*run_paths(self._options.checkpoint), *self._options.untouched] if self._is_first else []
        watched = Watched(paths, own)
        try:
            for stage in (self._check_files, self._load, self._evaluate, self._train):
                stage()
                if self._is_rejected:
                    break
        except StoppedError as stopped:
            self._checks.append(self._failed(stopped.failures))
            if not stopped.is_together:
                self._leave_with(watched)
        finally:
            self._gate.close()
            if self._job is not None:
                self._job.loader.close()
        self._checks.append(watched.check())
        return self._agreed(self._verdict())

    @property
    def _is_rejected(self) -> bool:
        return any(check.status == FAILED for check in self._checks)

    @property
    def _is_warm(self) -> bool:
        return any(check.status == WARM_START for check in self._checks)

    @property
    def _cursor(self) -> Cursor | None:
        return None if self._saved is None else self._saved.decode_cursor()

    def _try(self, name: str, act: Callable[[], T]) -> T:
        """Run code on all processes; where it fails on one, the check of this name failed."""
        self._at = name
        return self._gate.run(act)

    def _judge(self, name: str, act: Callable[[], list[Check]]) -> None:
        """Add the checks that the first process makes. All processes are out of the user's code."""
        self._at = name
        made = self._gate.run(lambda: act() if self._is_first else [])
        data = gather_bytes(msgspec.json.encode(made))[0]
        self._checks += msgspec.json.decode(data, type=list[Check])

    def _check_files(self) -> None:
        options = self._options
        self._judge("files", lambda: self._files or check_files(options.checkpoint, options.level, options.migration))
        self._saved = None if self._is_rejected else read_run_manifest(options.checkpoint)

    def _load(self) -> None:
        options = self._options
        job = self._try("build", lambda: load_stage.build_job(self._build, self._context))
        self._job = job
        self._judge("build", lambda: [load_stage.check_ledger(job, self._context)])
        if self._is_rejected:
            return
        how = self._try("load", lambda: load_stage.load(job, options))
        now = self._now = self._try("load", lambda: self._capture(job))
        self._try("load", lambda: load_stage.require_declared(job, self._saved, now, options))
        self._judge("load", lambda: [Check.of("load", "passed", how)])
        state = self._try("state", lambda: load_stage.check_loaded(job, options))
        self._judge("state", lambda: [state])
        self._phase = job.loader.phase
        self._try("state", lambda: load_stage.detach(job.loader))

    def _evaluate(self) -> None:
        job = self._require_job()
        checks, record = self._try("unchanged", lambda: load_stage.check_dry(job))
        logits = self._try("logits", lambda: load_stage.check_stored_logits(record, self._options))
        if record is not None:
            self._tolerances["logits"] = tolerance_of(record.computed_in)
        self._judge("evaluation", lambda: [*checks, logits])

    def _train(self) -> None:
        """One update, then the rest of the window, with one recorder."""
        job, options = self._require_job(), self._options
        is_first = self._phase == 0
        trace = options.record or self._folder / _CANDIDATE
        # what the run began before the checkpoint is no update of the window, and the recorder leaves it out
        recorder = self._try("step", lambda: _recorder(job, trace))
        with recorder:
            loop = job.train(recorder)
            if not is_first:
                self._try("step", lambda: next(loop, None))
                self._try("step", lambda: load_stage.detach_after_part(job.loader))
                loop = job.train(recorder)
            self._now = self._try("batch", lambda: self._capture(job))
            before = update_stage.Counts.of(job)
            self._try("step", lambda: next(loop, None))
            after = update_stage.Counts.of(job)
            self._judge("step", lambda: self._update_checks(trace, before, after, is_first=is_first))
            if self._is_rejected:
                return
            length = window_stage.window_length(job, before.cursor, options.updates)
            self._try("trace", lambda: _drain(loop, length - 1))
        self._try("coverage", job.loader.check_agreement)
        self._try("coverage", job.loader.close)
        self._judge("trace", lambda: self._window_checks(trace, before.cursor))

    def _capture(self, job: Job) -> RunManifest:
        return capture_run(job.state, job.loader, invariant=self._options.declaration.invariant)

    def _update_checks(
        self, trace: Path, before: update_stage.Counts, after: update_stage.Counts, *, is_first: bool
    ) -> list[Check]:
        job, options = self._require_job(), self._options
        records = Trace.read(trace).updates if trace.exists() else ()
        assert self._now is not None
        batch = update_stage.check_batch(job, self._saved, self._now, options)
        if not records:
            ended = finding("RD985", "window", expected="an update", found="the run is over, or nothing was recorded")
            return [batch, Check.of("step", FAILED, "no update", [ended])]
        record: UpdateRecord = records[-1]
        read = samples.check_samples(
            record,
            before.cursor,
            self._cursor,
            options.declaration.continuity,
            job.loader,
            is_first=is_first,
            is_warm=self._is_warm,
            discarded=0 if self._saved is None else self._saved.phase,
        )
        checks = [batch, read, update_stage.check_step(record)]
        checks += [update_stage.check_counters(record, before, after)]
        if options.control is not None and not self._is_warm and read.status != WARM_START:
            checks.append(window_stage.check_first_update(trace, options, changed_batch(self._saved, self._now)))
        return checks

    def _window_checks(self, trace: Path, start: Cursor) -> list[Check]:
        job, options = self._require_job(), self._options
        boundaries = window_stage.check_boundaries(job, start)
        coverage = window_stage.check_coverage(job, options.declaration)
        batches = changed_batch(self._saved, self._now)
        compared, self._tolerances = window_stage.check_trace(
            trace, options, self._tolerances, batches=batches, is_warm=self._is_warm
        )
        return [compared, boundaries, coverage]

    def _require_job(self) -> Job:
        assert self._job is not None
        return self._job

    def _failed(self, failures: list[Failure]) -> Check:
        """The check during which some process failed."""
        is_refused = self._at == "load" and not failures[0].is_own
        code = "RD972" if is_refused else "RD971"
        findings = [finding(code, f"process {one.rank}", expected="no error", found=one.text) for one in failures[:2]]
        ranks = ", ".join(str(one.rank) for one in failures[:8])
        return Check.of(self._at, FAILED, f"failed on {len(failures)} processes: {ranks}", findings)

    def _verdict(self) -> Verdict:
        options = self._options
        return make_verdict(
            str(options.checkpoint),
            self._checks,
            declaration=options.declaration,
            saved=self._saved,
            now=self._now,
            tolerances=self._tolerances,
            migration=options.migration,
            is_synthetic=options.is_synthetic,
            is_part=options.record is not None,
        )

    def _agreed(self, verdict: Verdict) -> Verdict:
        """The verdict of the first process, on all of them."""
        return Verdict.from_json(gather_bytes(verdict.to_json())[0])

    def _leave_stuck(self, failures: list[Failure]) -> None:
        """End this process, which waits for one that failed."""
        self._checks.append(self._failed(failures))
        self._leave(self._verdict())

    def _leave_with(self, watched: Watched) -> None:
        """End this process; others do not come out of a collective call."""
        self._checks.append(watched.check())
        self._leave(self._verdict())


def _recorder(job: Job, trace: Path) -> TraceRecorder:
    return TraceRecorder(
        trace, job.loader, job.model, job.optimizer, scheduler=job.scheduler, scaler=job.scaler, dtype=job.dtype
    )


def _drain(loop: Iterator[None], updates: int) -> None:
    for _ in range(updates):
        if next(loop, _OVER) is _OVER:
            return


_OVER = object()
