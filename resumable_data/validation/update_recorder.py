"""Makes the record of each optimizer update of a training loop, on every process, from what all of them have."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

import torch.distributed as dist

from resumable_data.errors import UsageError
from resumable_data.validation.exchange import ProcessReport, combine, exchange
from resumable_data.validation.job_header import header_of
from resumable_data.validation.open_update import OpenUpdate
from resumable_data.validation.optimizer_state import StepSettings, StepWatch
from resumable_data.validation.probe import ParameterProbe
from resumable_data.validation.trace import Throughput, UpdateRecord

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch
    from torch import nn

    from resumable_data.loader import Microbatch, ResumableLoader
    from resumable_data.validation.trace import TraceHeader


class UpdateRecorder(ABC):
    """What `TraceRecorder` and `Watch` have in common; for the arguments see there.

    Raises:
        UsageError: This process is one of several ranks without a process group.
    """

    def __init__(
        self,
        loader: ResumableLoader,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        dtype: str | None = None,
        precision: str = "",
        update_norm: bool = True,
    ) -> None:
        self._loader, self._model, self._optimizer = loader, model, optimizer
        self._scheduler, self._scaler = scheduler, scaler
        self._precision = (dtype, precision)
        self._has_update_norm = update_norm
        self._group = loader.topology.group
        if self._group is None and loader.topology.num_replicas > 1:
            raise UsageError(
                f"this loader is rank {loader.topology.rank} of {loader.topology.num_replicas} by its arguments, and "
                "no process group has these ranks: a trace would hold the losses of one rank alone. Initialise the "
                "process group with the same ranks."
            )
        self._is_first = self._group is None or dist.get_rank(self._group) == 0
        self._probe = ParameterProbe(model, self._group)
        self._steps = StepWatch(optimizer)
        self._end_s: float | None = None
        self._open: OpenUpdate | None = None

    def add(self, microbatch: Microbatch, loss: torch.Tensor | None) -> None:
        """Take down a microbatch. Does not wait for the device, and talks to nobody.

        Args:
            microbatch: As the loader gave it.
            loss: What ``backward()`` is called on, a tensor of one element: the weighted sum of the rows' losses times
                `microbatch.loss_scale`, without the scaler's factor. None on pipeline stages that compute none.
        """
        if self._end_s is None:
            self._end_s = time.perf_counter()
        if self._open is None or self._open.update != microbatch.update or microbatch.index == 0:
            self._open = OpenUpdate(microbatch)
        self._open.add(microbatch, loss)

    @contextmanager
    def optimizer_step(self) -> Iterator[None]:
        """Put it around ``optimizer.step()``, or ``scaler.step(optimizer)``, and nothing that moves the scheduler.

        Call it after gradients were clipped: the norm recorded is of what the optimizer is given. Collective.

        Raises:
            UsageError: `add` was not called for this update.
            DisagreementError: Processes are at different updates, or differ in what must be equal.
        """
        if self._open is None:
            raise UsageError(
                "optimizer_step() expects add(microbatch, loss) at each microbatch of the update before it; it was not "
                "called. Nothing was recorded."
            )
        update, self._open = self._open, None
        self._unscale()
        settings = StepSettings.of(self._optimizer, self._scheduler, self._scaler)
        gradient_square = self._probe.gradient_square()
        if self._has_update_norm:
            self._probe.remember()
        with self._steps.watch():
            yield
        change_square = self._probe.change_square() if self._has_update_norm else 0.0
        report = self._report(update, settings, gradient_square, change_square)
        record = self._record(update, settings, exchange(report, self._group))
        if update.is_whole:
            self._take(record)

    def _report(
        self, update: OpenUpdate, settings: StepSettings, gradient_square: float, change_square: float
    ) -> ProcessReport:
        """What this process tells the others."""
        counters = self._steps.counters()
        return ProcessReport(
            rank=self._loader.topology.rank,
            update=update.update,
            num_losses=update.num_losses,
            samples=update.samples,
            settings=settings.hash(),
            loss=update.loss(),
            gradient_square=gradient_square,
            change_square=change_square,
            is_skipped=self._steps.is_skipped,
            num_counters=len(counters),
            first_counter=min(counters, default=0),
            last_counter=max(counters, default=0),
            lane_0=update.lanes[0],
            lane_1=update.lanes[1],
        )

    def _record(self, update: OpenUpdate, settings: StepSettings, reports: list[ProcessReport]) -> UpdateRecord:
        """The line that all processes' reports make."""
        together = combine(
            reports,
            num_replicas=self._loader.topology.num_replicas,
            reduction_size=self._loader.reduction_size,
            is_mean=self._loader.gradient_reduction == "mean",
        )
        tokens = update.tokens(self._loader)
        return UpdateRecord(
            update=update.update,
            loss=together.loss,
            gradient_norm=together.gradient_norm,
            update_norm=together.update_norm if self._has_update_norm else None,
            learning_rates=settings.learning_rates,
            loss_scale=settings.loss_scale,
            skipped=together.skipped,
            optimizer_steps=together.optimizer_steps,
            scheduler_step=settings.scheduler_step,
            samples=together.samples,
            tokens=tokens,
            sample_digest=together.sample_digest,
            throughput=self._throughput(together.samples, tokens, num_devices=len(reports)),
        )

    def _unscale(self) -> None:
        """See to it that gradients are as the optimizer takes them."""
        if self._scaler is None or not self._scaler.is_enabled():
            return
        try:
            self._scaler.unscale_(self._optimizer)
        except RuntimeError as error:  # the loop did it, to clip
            if "already been called" not in str(error):
                raise

    def _throughput(self, samples: int, tokens: int | None, *, num_devices: int) -> Throughput:
        now = time.perf_counter()
        assert self._end_s is not None
        seconds, self._end_s = max(now - self._end_s, 1e-9), now
        return Throughput(
            seconds=seconds,
            samples_per_s=samples / seconds,
            tokens_per_s=None if tokens is None else tokens / seconds,
            samples_per_device_s=samples / seconds / num_devices,
            tokens_per_device_s=None if tokens is None else tokens / seconds / num_devices,
        )

    def _header(self) -> TraceHeader:
        return header_of(self._loader, self._model, *self._precision, has_update_norm=self._has_update_norm)

    @abstractmethod
    def _take(self, record: UpdateRecord) -> None:
        """What to do with the record of an update that was recorded from its start; called on every process."""

    def close(self) -> None:
        """Let go of the optimizer."""
        self._steps.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
