"""What the processes of a job tell each other around a save or a load. Without a process group there is only one."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from resumable_data.errors import CheckpointError
from resumable_data.loader.agreement import all_gather_bytes, gather_numbers

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

T = TypeVar("T")

ALONE_WARNING = "torch.distributed is disabled, unavailable or uninitialized"
"""How DCP's warning begins that it takes a single process as the intent."""


def rank_and_size() -> tuple[int, int]:
    """This process and how many there are."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


@contextmanager
def alone_is_meant() -> Iterator[bool]:
    """Whether there is no other process; DCP then warns that it takes this as the intent, which it is."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ALONE_WARNING)
        yield not (dist.is_available() and dist.is_initialized())


def gather_bytes(payload: bytes, group: ProcessGroup | None = None) -> list[bytes]:
    """All processes' payloads, of any size, in the order of ranks. Collective.

    Args:
        payload: This process's.
        group: The processes; all of them by default.
    """
    if rank_and_size()[1] == 1:
        return [payload]
    group = group or dist.group.WORLD
    assert group is not None
    sizes = gather_numbers(len(payload), group)
    padded = all_gather_bytes(payload.ljust(max(sizes), b"\0"), group) if max(sizes) else [b""] * len(sizes)
    return [part[:size] for part, size in zip(padded, sizes, strict=True)]


def together(act: Callable[[], T]) -> T:
    """What `act` returns on this process; an error on all of them where it fails on any. Collective.

    A process that failed raises its own error, the others say whose it was: none is left waiting for it.

    Raises:
        CheckpointError: It failed on another process.
    """
    failure: Exception | None = None
    result: T | None = None
    try:
        result = act()
    except CheckpointException as error:  # a BaseException, which `except Exception` lets pass
        failure = explained(error)
    except Exception as error:
        failure = error
    text = "" if failure is None else f"{type(failure).__name__}: {failure}"
    failed = {rank: part.decode() for rank, part in enumerate(gather_bytes(text.encode())) if part}
    if failure is not None:
        raise failure
    if failed:
        rank, reason = next(iter(failed.items()))
        raise CheckpointError(f"process {rank} failed, and so all stop: {reason}")
    return result  # type: ignore[return-value]  # it is what `act` returned


def explained(error: CheckpointException) -> CheckpointError:
    """What DCP says of the processes that failed, in a line each."""
    reasons = [f"process {rank}: {type(reason).__name__}: {reason}" for rank, (reason, *_) in error.failures.items()]
    lines = "\n".join(f"  {reason:.500}" for reason in reasons)
    told = CheckpointError(
        f"torch.distributed.checkpoint failed on {len(reasons)} processes:\n{lines}\nA save has no manifest then, and "
        "is no checkpoint; of a load, some of the program may have been read already: do not go on from it."
    )
    told.__cause__ = error
    return told


def on_first(act: Callable[[], bytes]) -> bytes:
    """What `act` returns on the first process, on all of them. Collective."""
    return gather_bytes(together(lambda: act() if rank_and_size()[0] == 0 else b""))[0]
