"""Runs a function on several real ranks of a gloo process group.

The ranks are forked from a server process that has torch, DCP and FSDP imported and no thread and no process group of
its own, so that a rank starts in a fraction of the seconds that importing takes. Ranks find each other by a file, not
by a port, so tests that run at the same time cannot meet.

A rank that fails or dies ends the others, as under torchrun.
"""

from __future__ import annotations

import contextlib
import faulthandler
import os
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing import connection, get_context, set_start_method
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.context import ForkServerProcess

# Imported once, by the server.
PRELOADED = [
    "numpy",
    "pytest",
    "torch",
    "torch.utils.data",
    "torch._dynamo",  # else every rank imports it, seconds, at its first backward
    "torch.distributed.checkpoint",
    "torch.distributed.checkpoint._fsspec_filesystem",  # which a save looks at
    "torch.distributed.checkpoint.state_dict",
    "torch.distributed.fsdp",
    "torch.distributed.tensor.parallel",
    "torch.nn.parallel",
    "resumable_data.checkpoint",
    "resumable_data.loader",
]

GRACE_S = 3.0
"""How long the others may take to report what they saw after a rank has failed or died."""

_context = get_context("forkserver")
_context.set_forkserver_preload(PRELOADED)


@dataclass(frozen=True)
class Outcome:
    """How one rank ended.

    Attributes:
        value: What the function returned.
        error: The traceback of what it raised, or where it was when it was stopped; empty where it returned.
        exitcode: Of its process; negative for a signal.
    """

    value: Any
    error: str
    exitcode: int | None


class RankError(AssertionError):
    """A rank raised, died, or took too long."""


def run_ranks(function: Callable[..., Any], num_ranks: int, *args: Any, timeout_s: float = 180.0) -> list[Any]:
    """What ``function(*args)`` returns on each of `num_ranks` ranks of a process group, in the order of ranks.

    Args:
        function: A function at the top of a module.
        num_ranks: Ranks of the process group.
        *args: Arguments, the same on all ranks; they and the results must pickle.
        timeout_s: When all ranks are killed and their tracebacks shown.

    Raises:
        RankError: A rank did not return.
    """
    outcomes = launch_ranks(function, num_ranks, *args, timeout_s=timeout_s)
    failed = {rank: outcome for rank, outcome in enumerate(outcomes) if outcome.error}
    if failed:
        shown = "\n".join(f"--- rank {rank} ({o.exitcode}) ---\n{o.error}" for rank, o in failed.items())
        raise RankError(f"{len(failed)} of {num_ranks} ranks did not return from {function.__qualname__}:\n{shown}")
    return [outcome.value for outcome in outcomes]


def launch_ranks(function: Callable[..., Any], num_ranks: int, *args: Any, timeout_s: float = 180.0) -> list[Outcome]:
    """As `run_ranks`, for ranks that may fail or be killed: how each ended, in the order of ranks."""
    with tempfile.TemporaryDirectory(prefix="ranks-") as directory:
        ranks = [_Rank(function, rank, num_ranks, directory, args) for rank in range(num_ranks)]
        try:
            _wait(ranks, time.monotonic() + timeout_s)
            return [rank.outcome() for rank in ranks]
        finally:
            for rank in ranks:
                rank.kill()


class _Rank:
    """One rank's process, seen from the test."""

    def __init__(
        self, function: Callable[..., Any], rank: int, num_ranks: int, directory: str, args: tuple[Any, ...]
    ) -> None:
        self.connection, theirs = _context.Pipe(duplex=False)
        self.log = Path(directory) / f"rank-{rank}.log"
        self.message: tuple[Any, str] | None = None
        self.is_done = False
        self.process: ForkServerProcess = _context.Process(
            target=_run, args=(function, rank, num_ranks, directory, theirs, args)
        )
        self.process.start()
        theirs.close()

    def receive(self) -> None:
        """Take the rank's message, or learn that it died without one."""
        with contextlib.suppress(EOFError):
            self.message = self.connection.recv()
        self.is_done = True

    @property
    def has_failed(self) -> bool:
        return self.is_done and (self.message is None or bool(self.message[1]))

    def outcome(self) -> Outcome:
        if self.message is not None and not self.message[1]:
            self.process.join(GRACE_S)
            if self.process.exitcode == 0:
                return Outcome(self.message[0], "", 0)
        error = self.message[1] if self.message else ""
        if not error and self.process.is_alive():
            with contextlib.suppress(ProcessLookupError):  # it may end by now
                os.kill(self.process.pid or 0, signal.SIGUSR1)
            self.process.join(0.5)
        self.kill()
        log = self.log.read_text(errors="replace") if self.log.exists() else ""
        return Outcome(None, f"{error}\n{log}".strip() or "it died without a word", self.process.exitcode)

    def kill(self) -> None:
        """End the process and those that it started."""
        if self.process.exitcode != 0:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid or 0, signal.SIGKILL)
            self.process.kill()  # it may not have come as far as to have a group of its own
        self.process.join()


def _wait(ranks: list[_Rank], deadline: float) -> None:
    """Until all ranks have reported, or the deadline, or a little after the first failure."""
    waiting = {rank.connection: rank for rank in ranks}
    while waiting and time.monotonic() < deadline:
        for ready in connection.wait(list(waiting), timeout=max(0.0, deadline - time.monotonic())):
            assert isinstance(ready, connection.Connection)
            rank = waiting.pop(ready)
            rank.receive()
            if rank.has_failed:
                deadline = min(deadline, time.monotonic() + GRACE_S)


def _run(
    function: Callable[..., Any], rank: int, num_ranks: int, directory: str, pipe: Connection, args: tuple[Any, ...]
) -> None:
    """What a rank's process does."""
    import torch
    import torch.distributed as dist

    os.setpgid(0, 0)
    set_start_method("fork", force=True)  # a rank's DataLoader must not ask our server for its workers
    log = os.open(f"{directory}/rank-{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    try:
        dist.init_process_group(
            "gloo",
            init_method=f"file://{directory}/rendezvous",
            rank=rank,
            world_size=num_ranks,
            timeout=timedelta(seconds=120),
        )
        value = function(*args)
        dist.barrier()  # without it gloo's threads abort at times when a peer goes first
    except BaseException:
        pipe.send((None, traceback.format_exc()))
        _leave(1)
    pipe.send((value, ""))
    _leave(0)


def _leave(exitcode: int) -> None:
    """End without Python's and gloo's clean-up, which may wait for threads of peers that are gone."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(exitcode)
