"""Lets all processes of a rehearsal go on, or none, also where one fails while the others wait for it.

A process that failed cannot tell so by a collective call: others may be inside another one, in the user's code. It
says so in a file of the rehearsal's folder, which all processes share, and a thread of each of them looks there.
"""

from __future__ import annotations

import os
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
from torch.distributed.checkpoint.api import CheckpointException

from resumable_data.checkpoint.collective import explained
from resumable_data.errors import ResumableDataError

T = TypeVar("T")

STUCK_S = 3.0
"""How long a process may stay in the user's code once another has failed there."""

_PACKAGE = str(Path(__file__).parents[2])


class Failure(msgspec.Struct, frozen=True):
    """What one process could not do.

    Attributes:
        rank: The process.
        gate: How many gates it had passed.
        is_own: Whether the job's own code failed; else this package refused something.
        text: Its traceback, or the message.
    """

    rank: int
    gate: int
    is_own: bool
    text: str


class StoppedError(Exception):
    """Some process failed, and all stop.

    Attributes:
        failures: What failed, the first first.
        is_together: Whether all processes know, and none is left in a collective call.
    """

    def __init__(self, failures: list[Failure], *, is_together: bool) -> None:
        super().__init__(failures[0].text)
        self.failures = failures
        self.is_together = is_together


class Gate:
    """Runs code on each process, and says everywhere whether it ran on all of them.

    Args:
        folder: A directory of this rehearsal that all processes share.
        rank: This process.
        size: How many there are.
        when_stuck: Called in a thread where another process failed and this one does not come out of the user's code.
    """

    def __init__(self, folder: Path, rank: int, size: int, when_stuck: Callable[[list[Failure]], None]) -> None:
        self._folder, self._rank, self._size = folder, rank, size
        self._when_stuck = when_stuck
        self._number = 0
        self._end = threading.Event()
        self._is_inside = False
        if size > 1:
            threading.Thread(target=self._watch, daemon=True).start()

    def run(self, act: Callable[[], T]) -> T:
        """What `act` returns, once it returned on all processes.

        Raises:
            StoppedError: It failed on some.
        """
        self._number += 1
        self._is_inside = True
        try:
            value = act()
        except (Exception, SystemExit, CheckpointException) as error:
            self._tell(error)
            raise self._stopped() from error
        finally:
            self._is_inside = False
        if self._size > 1:
            (self._folder / f"gate-{self._number}-{self._rank}").touch()
            self._wait()
        return value

    def close(self) -> None:
        """Stop watching."""
        self._end.set()

    def _tell(self, error: BaseException) -> None:
        if isinstance(error, CheckpointException):
            error = explained(error)
        is_own = not isinstance(error, ResumableDataError)
        text = _own_traceback(error) if is_own else f"{type(error).__name__}: {error}"
        failure = Failure(self._rank, self._number, is_own, text)
        unfinished = self._folder / f".failed-{self._rank}"
        unfinished.write_bytes(msgspec.json.encode(failure))
        os.replace(unfinished, self._folder / f"failed-{self._rank}")

    def _wait(self) -> None:
        """Until all processes are at this gate, or some have failed."""
        pause_s = 0.001
        missing = set(range(self._size))
        while True:
            missing = {rank for rank in missing if not (self._folder / f"gate-{self._number}-{rank}").exists()}
            if not missing:
                return
            if self._failures():
                raise self._stopped()
            time.sleep(pause_s)
            pause_s = min(pause_s * 1.5, 0.05)

    def _stopped(self) -> StoppedError:
        """The error that this process raises; it waits a moment for the others to come to this gate, or to fail."""
        deadline = time.monotonic() + 2 * STUCK_S
        while time.monotonic() < deadline:
            failures = self._failures()
            failed = {one.rank for one in failures}
            arrived = {r for r in range(self._size) if (self._folder / f"gate-{self._number}-{r}").exists()}
            if len(failed | arrived) == self._size:
                return StoppedError(failures, is_together=True)
            time.sleep(0.02)
        return StoppedError(self._failures(), is_together=False)

    def _failures(self) -> list[Failure]:
        files = [file for rank in range(self._size) if (file := self._folder / f"failed-{rank}").exists()]
        files.sort(key=lambda file: file.stat().st_mtime_ns)
        return [msgspec.json.decode(file.read_bytes(), type=Failure) for file in files]

    def _watch(self) -> None:
        """Look for a failure of others that this process does not come to hear of."""
        since: float | None = None
        while not self._end.wait(0.1):
            if not (self._is_inside and self._folder.exists() and (failures := self._failures())):
                since = None
                continue
            since = time.monotonic() if since is None else since
            if time.monotonic() - since > STUCK_S:
                self._when_stuck(failures)
                return


def _own_traceback(error: BaseException) -> str:
    """A traceback from where the user's code begins."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename.startswith(_PACKAGE):
        trace = trace.tb_next
    trace = error.__traceback__ if trace is None else trace
    return "".join(traceback.format_exception(type(error), error, trace)).strip()
