"""Target tokens of an update that are known only when its microbatches are at hand: one all-reduce over the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist

from resumable_data.errors import DisagreementError, UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

COUNT_MAX = 1 << 48
"""A rank's count is at most this, so that no sum over ranks and peers overflows an int64."""


class UpdateScale:
    """The loss scale that the microbatches of one update share, and copies of them; unknown at first.

    Args:
        update: Index of the update.
    """

    def __init__(self, update: int) -> None:
        self._update = update
        self._value: float | None = None

    @property
    def is_known(self) -> bool:
        """Whether it was set."""
        return self._value is not None

    def set(self, value: float) -> None:
        """Make it known."""
        self._value = value

    def get(self) -> float:
        """Its value.

        Raises:
            UsageError: It is not known yet.
        """
        if self._value is None:
            raise UsageError(
                f'normalize="targets" expects update.set_targets(count) before loss_scale of update {self._update} is '
                "read; it was not called, so the denominator is not known. Count the target tokens of this rank's rows "
                "over all microbatches of the update, and call it before the first backward."
            )
        return self._value


class Process(NamedTuple):
    """This process among those that count.

    Attributes:
        group: All processes that read, tensor-, context- and pipeline-parallel peers included.
        number: Its number among the processes of its data-parallel rank.
        num_peers: Processes of its data-parallel rank, itself included.
    """

    group: ProcessGroup
    number: int
    num_peers: int

    @property
    def is_first(self) -> bool:
        """Whether it is the one of its data-parallel rank that counts, and writes to the ledger."""
        return self.number == 0


def read_count(value: Any) -> int:
    """A count that a user gave, as an integer.

    Args:
        value: An integer, or a tensor of one element of an integer type, on any device.

    Raises:
        UsageError: It is something else, or negative, or larger than `COUNT_MAX`.
    """
    number = value
    if isinstance(value, torch.Tensor) and value.numel() == 1 and not (value.is_floating_point() or value.is_complex()):
        number = value.item()
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number <= COUNT_MAX:
        shown = f"a tensor of {value.dtype}, shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else value
        raise UsageError(
            f"set_targets() expects the number of target tokens, an integer from 0 to 2^48 or an integer tensor of one "
            f"element; found {shown!s:.200}. A sum in floating point is not exact: count with "
            "(labels != ignored)[microbatch.weights > 0].sum(), say."
        )
    return number


def sum_counts(update: int, count: Any, process: Process) -> int:
    """The sum of all data-parallel ranks' counts, each rank counted once. One all-reduce of four integers.

    A count that is none is found by all processes, so that none is left waiting.

    Raises:
        UsageError: This process's count is none.
        DisagreementError: Another's is none, peers of one data-parallel rank counted differently, or processes are at
            different updates.
    """
    failure: UsageError | None = None
    try:
        own = read_count(count)
    except UsageError as error:
        own, failure = 0, error
    # Summed over the peers of a rank, the last number is zero where they agree.
    excess = own * (process.num_peers - 1) if process.is_first else -own
    numbers = [own if process.is_first else 0, int(failure is not None), update, excess]
    total, num_failed, updates, excess = _sum(numbers, process.group)
    if failure is not None:
        raise failure
    if num_failed:
        raise DisagreementError(
            f"{num_failed} other processes gave set_targets() something else than a count; their own errors say what. "
            "Nothing was counted or committed."
        )
    size = dist.get_world_size(process.group)
    if updates != update * size:
        raise DisagreementError(
            f"set_targets() was called for update {update} here and for other updates on other processes: expected a "
            f"sum of indices of {update * size}, found {updates}. Their gradients would not belong together; nothing "
            "was counted. Call it once per update on every process."
        )
    if excess:
        raise DisagreementError(
            f"peers of one data-parallel rank counted different target tokens in update {update} (this process {own}). "
            "Tensor-, context- and pipeline-parallel peers read the same rows: count over whole rows, before they are "
            "split among context-parallel ranks. Nothing was counted."
        )
    return total


def _sum(numbers: list[int], group: ProcessGroup) -> list[int]:
    """Sums over all processes. Collective."""
    device = torch.device("cuda") if "nccl" in dist.get_backend(group) else torch.device("cpu")
    summed = torch.tensor(numbers, dtype=torch.int64, device=device)
    dist.all_reduce(summed, group=group)
    result: list[int] = summed.tolist()
    return result
