"""Records a trace of a training loop, with a line at each microbatch and one around each step."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resumable_data.errors import TraceError, UsageError
from resumable_data.validation.trace_writer import TraceWriter, check_is_free
from resumable_data.validation.update_recorder import UpdateRecorder

if TYPE_CHECKING:
    import os

    import torch
    from torch import nn

    from resumable_data.loader import ResumableLoader
    from resumable_data.validation.trace import UpdateRecord

_logger = logging.getLogger(__name__)


class TraceRecorder(UpdateRecorder):
    """Writes a line of a trace at each optimizer update: on the first process, from what all of them have.

    Make it on every process, after the loader, the wrapped model and the optimizer. Each update costs the two norms of
    `ParameterProbe` and one all-gather of 105 bytes per process, and waits for the device once or twice. An update that
    was begun before a restart is left out: its first losses are not known here.

    Args:
        path: The file, a new one.
        loader: What the microbatches come from.
        model: What is trained.
        optimizer: What steps.
        scheduler: What moves learning rates, where there is something.
        scaler: The gradient scaler, where there is one. Its gradients are unscaled where the loop did not do that.
        dtype: What the model computes in: the widest rounding to expect. That of its parameters when None; name it
            where autocast or FSDP's mixed precision compute in another.
        precision: More about it, for people.
        update_norm: Whether to record the norm of each update, which takes a copy of the parameters during the step.
        replace: Whether a file that is there is replaced.

    Raises:
        UsageError: There is a file of that name, or this process is one of several ranks without a process group.

    Example:
        >>> import tempfile, torch
        >>> from resumable_data import ResumableLoader
        >>> from resumable_data.validation import Trace, TraceRecorder
        >>> model = torch.nn.Linear(8, 1)
        >>> optimizer = torch.optim.AdamW(model.parameters())
        >>> loader = ResumableLoader(torch.eye(8), global_batch=4, microbatch=2, epochs=1)
        >>> folder = tempfile.TemporaryDirectory()
        >>> recorder = TraceRecorder(f"{folder.name}/trace.jsonl", loader, model, optimizer)
        >>> for microbatch in loader:
        ...     loss = model(microbatch.data).sum() * microbatch.loss_scale
        ...     recorder.add(microbatch, loss)
        ...     loss.backward()
        ...     if microbatch.is_last:
        ...         with recorder.optimizer_step():
        ...             optimizer.step()
        ...         optimizer.zero_grad()
        ...         loader.commit()
        >>> recorder.close()
        >>> [update.samples for update in Trace.read(f"{folder.name}/trace.jsonl").updates]
        [4, 4]
        >>> folder.cleanup()
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        loader: ResumableLoader,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        scheduler: Any = None,
        scaler: Any = None,
        dtype: str | None = None,
        precision: str = "",
        update_norm: bool = True,
        replace: bool = False,
    ) -> None:
        super().__init__(
            loader,
            model,
            optimizer,
            scheduler=scheduler,
            scaler=scaler,
            dtype=dtype,
            precision=precision,
            update_norm=update_norm,
        )
        self._path, self._replace = Path(path), replace
        if self._is_first and not replace:
            check_is_free(self._path)
        self._writer: TraceWriter | None = None
        self._is_broken = False

    def _take(self, record: UpdateRecord) -> None:
        """Trouble with the file must not end training: the trace ends, and a comparison says that it is short."""
        if self._is_broken or not self._is_first:
            return
        try:
            if self._writer is None:
                self._writer = TraceWriter(self._path, self._header(), replace=self._replace)
            self._writer.append(record)
        except (TraceError, UsageError) as error:
            self._is_broken = True
            _logger.error("the trace ends before update %d: %s", record.update, error)

    def close(self) -> None:
        """Put the trace on the disk, and let go of the optimizer."""
        super().close()
        if self._writer is not None:
            self._writer.close()
