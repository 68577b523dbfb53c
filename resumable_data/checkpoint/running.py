"""The save that runs beside training: there is at most one in a process."""

from __future__ import annotations

import atexit
import logging
from concurrent.futures import Future, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch.distributed.checkpoint.api import CheckpointException

from resumable_data.checkpoint.collective import explained
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Callable

_logger = logging.getLogger(__name__)


class AsyncSave:
    """A save that `async_save_checkpoint` started. Its methods are for the thread that trains; none is collective.

    Attributes:
        path: The checkpoint.
    """

    def __init__(self, path: Path, future: Future[Any], mark_saved: Callable[[], None]) -> None:
        self.path = path
        self._future = future
        self._mark_saved: Callable[[], None] | None = mark_saved
        self._is_told = False

    def done(self) -> bool:
        """Whether it is over on this process: there is a checkpoint now, or never will be one."""
        return self._future.done()

    def result(self, timeout: float | None = None) -> None:
        """Wait until it is over. When it returns, the checkpoint is complete and on the disk, for all processes.

        Args:
            timeout: The longest time to wait [s]; None for as long as it takes.

        Raises:
            TimeoutError: It is not over yet.
            CheckpointError: It failed, on this process or another one. There is no manifest.
        """
        if wait([self._future], timeout).not_done:
            raise TimeoutError(f"the save to {shown(self.path)} is not over after {timeout} s; it goes on")
        self._is_told = True
        error = self._future.exception()
        if error is not None:
            reason = explained(error) if isinstance(error, CheckpointException) else error
            raise CheckpointError(
                f"the save to {shown(self.path)}, which ran beside training, failed. It has no manifest and is no "
                f"checkpoint; the one before it is still there. Training may go on; save again into a new directory.\n"
                f"{type(reason).__name__}: {reason}"
            ) from error
        if self._mark_saved is not None:  # here and not where the save ran: the ledger's file is this thread's
            mark, self._mark_saved = self._mark_saved, None
            mark()

    def settle(self, *, raises: bool) -> None:
        """Wait until it is over; `raises` its error where `result` did not.

        Raises:
            CheckpointError: It failed.
        """
        wait([self._future])
        if self._future.exception() is None or (raises and not self._is_told):
            self.result()

    def tell_at_exit(self) -> None:
        """Log the error that nobody was told: Python ends, and threads have ended before."""
        if self._future.done() and not self._is_told:
            try:
                self.result()
            except CheckpointError as error:
                _logger.error("%s", error)


_running: AsyncSave | None = None


def set_running(save: AsyncSave) -> AsyncSave:
    """Remember the save that was just started; the one before was settled."""
    global _running
    _running = save
    return save


def settle_running() -> None:
    """Wait for the save that runs, and raise its error where nobody was told yet.

    Raises:
        CheckpointError: It failed.
    """
    global _running
    if _running is not None:
        wait([_running._future])  # where this is interrupted it still runs
        save, _running = _running, None
        save.settle(raises=True)


def wait_for_running() -> None:
    """Wait for the save that runs; the error of one that failed is kept for whoever saves next."""
    if _running is not None:
        _running.settle(raises=False)


def _tell_at_exit() -> None:
    if _running is not None:
        _running.tell_at_exit()


atexit.register(_tell_at_exit)
