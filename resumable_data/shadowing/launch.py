"""Which launch of a job this process is part of, and which of its ranks: without a collective call."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Any, NamedTuple

import xxhash

STORE = "store "
"""How a token begins that is of one launch alone."""

_KEY = "resumable_data/shadow"
_VARIABLES = ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID")


class Launch(NamedTuple):
    """This process among the ranks of a launch."""

    token: str
    rank: int
    num_replicas: int


def this_launch(rank: int | None, num_replicas: int | None) -> Launch:
    """From the arguments, else the process group, else the environment, else a single process."""
    group = _distributed()
    if rank is None:
        rank = group.get_rank() if group else _number("RANK", 0)
    if num_replicas is None:
        num_replicas = group.get_world_size() if group else _number("WORLD_SIZE", 1)
    return Launch(_token(group), rank, max(num_replicas, rank + 1))


def _distributed() -> Any:
    distributed = sys.modules.get("torch.distributed")
    return distributed if distributed and distributed.is_available() and distributed.is_initialized() else None


def _number(name: str, default: int) -> int:
    text = os.environ.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else default


def _token(group: Any) -> str:
    """A text that ranks of one launch share: they agree on one in the process group's store, without waiting."""
    if group:
        with contextlib.suppress(Exception):  # the store is not public, and only makes the report better
            store = group.distributed_c10d._get_default_store()
            return STORE + str(store.compare_set(_KEY, "", os.urandom(8).hex()).decode())
    values = [os.environ.get(name, "") for name in _VARIABLES]
    return f"{xxhash.xxh3_64_intdigest(repr(values).encode()):016x}" if any(values) else ""
