"""Holds the first updates after a move against a control, inside the run that goes on."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from resumable_data.errors import DeviationError, UsageError
from resumable_data.loader.agreement import gather_numbers
from resumable_data.validation.compare import traced_run
from resumable_data.validation.findings import PASS
from resumable_data.validation.limits import MIN_UPDATES, check_limits
from resumable_data.validation.trace import Trace
from resumable_data.validation.update_recorder import UpdateRecorder
from resumable_data.validation.watch_control import Control
from resumable_data.validation.watch_coverage import OrderWatch
from resumable_data.validation.watch_file import ReportFile
from resumable_data.validation.watch_report import (
    COMPLETE,
    INTERRUPTED,
    RUNNING,
    DeviceThroughput,
    WatchReport,
    first_alarm,
    judge_watch,
)

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator, Mapping, Sequence

    import torch
    from torch import nn

    from resumable_data.loader import Microbatch, ResumableLoader
    from resumable_data.validation.trace import UpdateRecord
    from resumable_data.validation.watch_control import TraceLike

ON_VIOLATION_CHOICES = ("log", "raise")
_logger = logging.getLogger(__name__)


class Watch(UpdateRecorder):
    """Made by `watch`; used in the training loop as a `TraceRecorder` is.

    The first process compares, and writes the report after each update; the others hold no report. After the last
    update that is wanted, and after an interruption, its methods do nothing.

    Attributes:
        report: What is known so far; None on other processes than the first, and before the first update.
    """

    def __init__(
        self,
        loader: ResumableLoader,
        control: TraceLike | None,
        updates: int,
        *,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        repeats: Sequence[TraceLike],
        limits: Mapping[str, float] | None,
        first_update: int | None,
        path: str | os.PathLike[str] | None,
        on_violation: str,
        **options: Any,
    ) -> None:
        if on_violation not in ON_VIOLATION_CHOICES:
            raise UsageError(f"on_violation must be one of {ON_VIOLATION_CHOICES}, got {on_violation!r}")
        if isinstance(updates, bool) or not isinstance(updates, int) or updates < 1:
            raise UsageError(f"updates must be an integer above 0, got {updates!r}")
        check_limits(limits or {})
        self._file = ReportFile(path, loader._settings.ledger)
        super().__init__(loader, model, optimizer, **options)
        self._raises, self._wanted = on_violation == "raise", updates
        self._control = Control(
            control if self._is_first else None,
            repeats,
            first_update=first_update,
            limits=limits,
            min_updates=updates,
        )
        self._records: list[UpdateRecord] = []
        self._order = OrderWatch(loader)
        self._attempt = 0
        self._is_over = self._is_told = False
        self.report: WatchReport | None = None

    def add(self, microbatch: Microbatch, loss: torch.Tensor | None) -> None:
        """As `TraceRecorder.add`; nothing once the watch is over."""
        if self._is_over:
            return
        super().add(microbatch, loss)
        assert self._open is not None
        if not self._open.is_whole:
            self._control.leave_out(microbatch.update)

    @contextmanager
    def optimizer_step(self) -> Iterator[None]:
        """As `TraceRecorder.optimizer_step`, and compares; nothing once the watch is over. Collective until then.

        Raises:
            UsageError: `add` was not called for this update.
            DisagreementError: Processes are at different updates, or differ in what must be equal.
            DeviationError: With ``on_violation="raise"``, on all processes, after the step: something is not as it
                must be.
        """
        if self._is_over:
            yield
            return
        with super().optimizer_step():
            yield

    def close(self) -> None:
        """End the watch, before its time where updates are missing, and let go of the optimizer."""
        if not self._is_over and self._records:
            self._tell(f"closed after {len(self._records)} of {self._wanted} updates")
        self._end()

    def _take(self, record: UpdateRecord) -> None:
        attempt = self._loader._session._recording.attempt
        last = self._records[-1].update if self._records else record.update - 1
        if record.update != last + 1 or (self._records and attempt != self._attempt):
            self._tell(f"update {record.update} of attempt {attempt} came after update {last} of {self._attempt}")
            self._end()
            return
        self._attempt = attempt
        self._records.append(record)
        if self._is_first:
            self._order.take(record)
            self._tell()
        alarm = self.report.first_alarm if self.report else None
        if len(self._records) == self._wanted:
            self._end()
        if self._raises and self._is_wrong_anywhere(alarm is not None):
            self._end()
            raise DeviationError(
                f"expected update {record.update} to be the control's and its samples the order's; the first process "
                f"says that it is not{f' ({alarm.quantity} of update {alarm.update})' if alarm else ''}. The step was "
                "taken and not committed. Go back to the checkpoint of before the move; the report is "
                f"{self._file.shown(self._attempt)}."
            )

    def _is_wrong_anywhere(self, is_wrong: bool) -> bool:
        """Whether the first process says so. Collective."""
        return is_wrong if self._group is None else bool(gather_numbers(int(is_wrong), self._group)[0])

    def _tell(self, interruption: str = "") -> None:
        """Bring the report up to date, write it, and log what is wrong the first time. On the first process."""
        if not self._is_first:
            return
        self.report = self._make_report(interruption)
        self._file.write(self.report)
        alarm = self.report.first_alarm
        if alarm is not None and not self._is_told:
            self._is_told = True
            _logger.error(
                "after the move, %s of update %d is not as it must be; training goes on unless it was asked not to. "
                "The report: %s",
                alarm.quantity,
                alarm.update,
                self._file.shown(self._attempt),
            )
        if interruption:
            _logger.warning("the watch over the updates after the move proves nothing: %s", interruption)

    def _make_report(self, interruption: str) -> WatchReport:
        header = self._header()
        candidate = Trace(path="the watched run", header=header, updates=tuple(self._records))
        comparison, coverage = self._control.compare(candidate), self._order.coverage
        verdict = judge_watch(comparison, coverage)
        is_complete = len(self._records) == self._wanted
        speed = traced_run(candidate, self._records).samples_per_device_s
        before = None if comparison is None else comparison.control.samples_per_device_s
        return WatchReport(
            verdict=verdict,
            can_promote=is_complete and verdict == PASS and coverage.updates == self._wanted,
            state=INTERRUPTED if interruption else COMPLETE if is_complete else RUNNING,
            run_id=header.run_id,
            attempt=self._attempt,
            first_update=self._records[0].update,
            updates=len(self._records),
            wanted_updates=self._wanted,
            coverage=coverage,
            throughput=DeviceThroughput(control=before, candidate=speed),
            first_alarm=first_alarm(comparison, coverage),
            interruption=interruption,
            control_error=self._control.error,
            comparison=comparison,
        )

    def _end(self) -> None:
        self._is_over, self._open = True, None
        super().close()


def watch(
    loader: ResumableLoader,
    control: TraceLike | None,
    updates: int = MIN_UPDATES,
    *,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    scheduler: Any = None,
    scaler: Any = None,
    repeats: Sequence[TraceLike] = (),
    limits: Mapping[str, float] | None = None,
    first_update: int | None = None,
    path: str | os.PathLike[str] | None = None,
    on_violation: str = "log",
    dtype: str | None = None,
    precision: str = "",
) -> Watch:
    """Watch the first updates after a move: compare them with a control as they come, and write down the verdict.

    Make it on every process, after the load, and use it in the loop as a `TraceRecorder`. Until it is over, each update
    costs what a trace costs; the first process also compares, and writes a file of some kilobytes.

    The report is ``watch.json`` beside the claim of the loader's attempt, always whole, and anew after each update: a
    run that is killed within the window leaves one that is ``"running"`` and ``"unproven"``, and the next launch has an
    attempt, and a watch, of its own. What is wrong is logged as an error at the first update where it is seen.
    Training is never ended, neither by trouble with files nor by what was found, unless `on_violation` asks for it.

    Args:
        loader: Loaded, and with nothing delivered yet.
        control: A trace of the same updates on the ranks from before the move. With None, or one that cannot be used,
            the verdict is ``"no control"``, and nothing can be promoted by it.
        updates: How many updates to watch.
        model: What is trained.
        optimizer: What steps.
        scheduler: What moves learning rates, where there is something.
        scaler: The gradient scaler, where there is one.
        repeats: Further traces of the control, see `compare_traces`.
        limits: See `compare_traces`.
        first_update: Where the run is meant to go on; where the control starts when None. Give it where the control was
            recorded all along.
        path: Where the report is written, in place of the ledger's folder.
        on_violation: ``"log"``; or ``"raise"``, a `DeviationError` on all processes, after the step of that update and
            before its commit. It takes one all-gather of 8 bytes at each update.
        dtype: See `TraceRecorder`.
        precision: See `TraceRecorder`.

    Raises:
        UsageError: An argument has no meaning, or there is neither a ledger nor `path`.

    Example:
        >>> import tempfile, torch
        >>> from resumable_data import ResumableLoader
        >>> from resumable_data.validation import watch
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> folder = tempfile.TemporaryDirectory()
        >>> loader = ResumableLoader(torch.eye(8), global_batch=4, microbatch=2, epochs=1, ledger=folder.name)
        >>> watched = watch(loader, None, updates=2, model=model, optimizer=optimizer)
        >>> for microbatch in loader:
        ...     loss = model(microbatch.data).sum() * microbatch.loss_scale
        ...     watched.add(microbatch, loss)
        ...     loss.backward()
        ...     if microbatch.is_last:
        ...         with watched.optimizer_step():
        ...             optimizer.step()
        ...         optimizer.zero_grad()
        ...         loader.commit()
        >>> watched.report.verdict, watched.report.can_promote, watched.report.coverage.samples
        ('no control', False, 8)
        >>> folder.cleanup()
    """
    return Watch(
        loader,
        control,
        updates,
        model=model,
        optimizer=optimizer,
        scheduler=scheduler,
        scaler=scaler,
        repeats=repeats,
        limits=limits,
        first_update=first_update,
        path=path,
        on_violation=on_violation,
        dtype=dtype,
        precision=precision,
    )
