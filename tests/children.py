"""Processes that a test's program forked: how each ended, and none is left."""

from __future__ import annotations

import os
import signal
import time

HUNG = 1000
"""In place of the exit code of a process that did not end by itself."""


def wait_for(pids: list[int], *, timeout_s: float) -> list[int]:
    """Exit codes, negative for signals; what has not ended by then is killed."""
    codes, deadline = [], time.monotonic() + timeout_s
    for pid in pids:
        ended, status = 0, 0
        while not ended and time.monotonic() < deadline:
            ended, status = os.waitpid(pid, os.WNOHANG)
            time.sleep(0.005)
        if not ended:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        codes.append(os.waitstatus_to_exitcode(status) if ended else HUNG)
    return codes
