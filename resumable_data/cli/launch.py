"""One launch of a training script under torchrun: its output, its processes, and how to end them all."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_STOP_TIME_S_MAX = 10
_TORCHRUN_LOG = "torch/distributed/elastic/multiprocessing/api.py"
# What a shell inside another launch may hold, and what would split a line that two processes write at once.
_FOREIGN_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "PYTHONUNBUFFERED")


class Launch:
    """A script on several processes of this machine, from construction to `close`.

    The script prints one JSON object per line; those with a ``"pid"`` tell the process of a ``"rank"``.

    Args:
        script: The training script.
        arguments: Its arguments.
        num_processes: How many processes run it.
        log: Where its output goes: ``log.out`` and ``log.err``.
    """

    def __init__(self, script: Path, arguments: Sequence[str], *, num_processes: int, log: Path) -> None:
        self.num_processes = num_processes
        self.pids: dict[int, int] = {}
        self._paths = log.with_suffix(".out"), log.with_suffix(".err")
        torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(num_processes)]
        with self._paths[0].open("wb") as out, self._paths[1].open("wb") as err:
            self._process = subprocess.Popen(
                [sys.executable, *torchrun, str(script), *arguments],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=_environment(),
                start_new_session=True,  # Ctrl-C comes here first, and `close` decides what ends when
            )
        self._output = self._paths[0].open("r", encoding="utf-8", errors="replace")
        self._rest = ""

    def records(self) -> Iterator[dict[str, Any]]:
        """The JSON objects printed since the last call."""
        *lines, self._rest = (self._rest + self._output.read()).split("\n")
        for line in lines:
            if line.startswith("{"):
                record = json.loads(line)
                if "pid" in record:
                    self.pids[record["rank"]] = record["pid"]
                yield record

    @property
    def exit_code(self) -> int | None:
        """What torchrun ended with; None while it runs."""
        return self._process.poll()

    def wait(self, time_s_max: float) -> int | None:
        """The exit code, or None where torchrun has not ended in time."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(time_s_max)
        return self.exit_code

    def last_lines(self, num_lines: int = 15) -> str:
        """The last lines of the processes' error output, before those in which torchrun sums up."""
        lines = self._paths[1].read_text(encoding="utf-8", errors="replace").splitlines()
        ends = [at for at, line in enumerate(lines) if _TORCHRUN_LOG in line and at]
        return "\n".join(lines[: ends[0] if ends else None][-num_lines:])

    def close(self) -> None:
        """End every process of this launch that still runs."""
        for _ in self.records():  # the last to start may have told their numbers just now
            pass
        if self.exit_code != 0:
            # torchrun gives each process a session of its own; DataLoader workers are in their process's.
            for pid in self.pids.values():
                _kill_group(pid)
        if self.exit_code is None:
            self._process.terminate()
        if self.wait(_STOP_TIME_S_MAX) is None:
            _kill_group(self._process.pid)
            self._process.wait()
        self._output.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def kill_if(condition: Callable[[], bool], pid: int) -> bool:
    """SIGKILL a process where `condition()` still holds once it has been stopped; else let it run on."""
    os.kill(pid, signal.SIGSTOP)
    time.sleep(0.02)
    is_met = condition()
    os.kill(pid, signal.SIGKILL if is_met else signal.SIGCONT)
    return is_met


def _kill_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in _FOREIGN_VARIABLES}
    return {**kept, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
