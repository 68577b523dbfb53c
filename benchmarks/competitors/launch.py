"""One launch of a job: each rank a process, forked from this one, in a gloo process group, reading and logging."""

from __future__ import annotations

import os
import pickle
import signal
import socket
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist

from benchmarks.competitors._interface import Competitor, Job, Reader, RefusedError

TIMEOUT_S = 120


@dataclass(frozen=True, kw_only=True)
class Launch:
    """What one launch of a job does.

    Attributes:
        job: What all ranks have in common; `Job.rank` is set for each.
        stop_after: Steps to take; None for all of the epoch.
        asks_again: Whether a pass that gives nothing is followed by another, as in a loop over epochs.
        log: Folder of a log of each rank, and of a file ``rank-R.empty`` where a pass gave it nothing.
        timeout_s: After which a rank has failed.
    """

    job: Job
    stop_after: int | None
    asks_again: bool = False
    log: Path
    timeout_s: int = TIMEOUT_S


class LaunchFailedError(Exception):
    """A rank ended with an error, or never."""


def launch(competitor: Competitor, one: Launch) -> list[Any]:
    """Run all ranks to the end; what each saved after its last step.

    Raises:
        RefusedError: The loader refuses.
        LaunchFailedError: It fails, or hangs.
    """
    one.log.mkdir(parents=True)
    port = free_port()
    children = [_fork(competitor, one, rank, port) for rank in range(one.job.num_replicas)]
    try:
        for child in children:
            os.waitpid(child, 0)
    finally:
        for child in children:
            _kill(child)
    return [_outcome(one, rank) for rank in range(one.job.num_replicas)]


def _fork(competitor: Competitor, one: Launch, rank: int, port: int) -> int:
    child = os.fork()
    if child:
        return child
    # whatever happens, this process ends here, and without the parent's own clean-up
    outcome: tuple[str, Any] = ("failed", "killed")
    try:
        signal.alarm(one.timeout_s)
        outcome = "saved", _run(competitor, one, rank, port)
    except RefusedError as error:
        outcome = "refused", str(error)
    except BaseException:
        outcome = "failed", traceback.format_exc()
    finally:
        (one.log / f"rank-{rank}.state").write_bytes(pickle.dumps(outcome))
        os._exit(0)


def _run(competitor: Competitor, one: Launch, rank: int, port: int) -> Any:
    join_group(rank, one.job.num_replicas, port)
    job = Job(**{**vars(one.job), "rank": rank})
    reader = competitor.open(job)
    with (one.log / f"rank-{rank}.log").open("w") as log:
        done = _read(reader, one, job, log)
        if not done and one.asks_again:
            (one.log / f"rank-{rank}.empty").touch()
            _read(reader, one, job, log)
        state = reader.state()
    dist.barrier()
    return state


def join_group(rank: int, size: int, port: int) -> None:
    """Make this process a rank, with the variables that a launcher sets and a gloo process group."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "WORLD_SIZE": str(size)}
    os.environ |= {"LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size), "NODE_RANK": "0", "GROUP_RANK": "0"}
    torch.set_num_threads(1)
    dist.init_process_group("gloo")


def _read(reader: Reader, one: Launch, job: Job, log: IO[str]) -> int:
    """One pass, each step logged; the number of them."""
    done = 0
    steps = reader.steps()
    while (one.stop_after is None or done < one.stop_after) and (ids := next(steps, None)) is not None:
        log.write(f"{job.epoch} {job.steps_done + done} {job.rank} {' '.join(map(str, ids))}\n")
        done += 1
    return done


def _outcome(one: Launch, rank: int) -> Any:
    # written by a process of this program, a moment ago
    path = one.log / f"rank-{rank}.state"
    kind, value = pickle.loads(path.read_bytes()) if path.exists() else ("failed", f"no answer in {one.timeout_s} s")
    if kind == "refused":
        raise RefusedError(value)
    if kind == "failed":
        raise LaunchFailedError(value)
    return value


def _kill(child: int) -> None:
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        return


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        port: int = server.getsockname()[1]
        return port


def logs_of(launches: Sequence[Launch]) -> list[Path]:
    """The logs of all ranks, the first launch's first."""
    return [path for one in launches for path in sorted(one.log.glob("rank-*.log"))]
