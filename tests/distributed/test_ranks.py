"""The harness itself: results, failures, kills and timeouts of ranks."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch
import torch.distributed as dist

from tests.distributed.ranks import RankError, launch_ranks, run_ranks


def sum_of_ranks(factor: int) -> tuple[int, int]:
    total = torch.tensor(dist.get_rank() * factor)
    dist.all_reduce(total)
    return dist.get_rank(), int(total)


def fail_on_rank_1() -> None:
    if dist.get_rank() == 1:
        raise ValueError("as asked")
    dist.barrier()


def die_on_rank_1() -> None:
    if dist.get_rank() == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()


def hang_on_rank_1() -> None:
    if dist.get_rank() == 1:
        time.sleep(600)


def test_each_rank_returns_its_own_value() -> None:
    """Results come back in the order of ranks, from one process group."""
    assert run_ranks(sum_of_ranks, 3, 10) == [(0, 30), (1, 30), (2, 30)]


def test_an_error_on_one_rank_ends_all_and_shows_its_traceback() -> None:
    """A failing rank is named with its traceback, and nobody waits for it."""
    with pytest.raises(RankError, match="ValueError: as asked"):
        run_ranks(fail_on_rank_1, 2)


def test_a_killed_rank_is_seen_as_killed() -> None:
    """A rank that dies by SIGKILL has that exit code, and the others end too."""
    outcomes = launch_ranks(die_on_rank_1, 2)
    assert outcomes[1].exitcode == -signal.SIGKILL
    assert outcomes[0].error


def test_a_timeout_shows_where_each_rank_hangs() -> None:
    """Ranks that take too long are killed, and the error says which line they were at."""
    with pytest.raises(RankError, match="hang_on_rank_1"):
        run_ranks(hang_on_rank_1, 2, timeout_s=3)
