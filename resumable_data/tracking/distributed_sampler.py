"""torch's DistributedSampler, able to go on in mid-epoch on another number of ranks."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np
import torch.utils.data

from resumable_data.errors import UsageError
from resumable_data.loader.options import refuse_iterable
from resumable_data.order import Sequential, TorchShuffle
from resumable_data.plan import Schedule, UpdateSpan
from resumable_data.sampler.padding import row_ids
from resumable_data.sampler.wrappers import refuse_accelerate

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from numpy.typing import NDArray

    from resumable_data.order import Order

_CHUNK = 65_536


class DistributedSampler(torch.utils.data.DistributedSampler[int]):
    """Drop-in for ``torch.utils.data.DistributedSampler``: the same constructor, the same indices on each rank.

    A sampler knows what it gave out, not what was trained on: with workers, the DataLoader fetches ahead. So it keeps
    no state of its own. `resumable_data.track` counts what the training loop was handed, and puts the sampler where
    the loop has to go on: the remainder of an epoch is then spread over any number of ranks, padded or cut to a
    multiple of it, as torch's sampler does with a whole epoch.

    Args:
        dataset: Anything with a length.
        num_replicas: Number of ranks; of the process group when None.
        rank: This rank; of the process group when None.
        shuffle: Whether each epoch is shuffled, by ``torch.randperm`` seeded with ``seed + epoch``.
        seed: Of the shuffle, at least 0.
        drop_last: Whether the rest of an epoch that the ranks do not divide is dropped, or filled with repeats.

    Raises:
        UsageError: The dataset is empty or an IterableDataset, or the seed is negative.

    >>> sampler = DistributedSampler(range(7), num_replicas=2, rank=0, shuffle=False)
    >>> list(sampler), len(sampler)
    ([0, 2, 4, 6], 4)
    """

    def __init__(
        self,
        dataset: Any,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
    ) -> None:
        refuse_iterable(dataset)
        super().__init__(dataset, num_replicas, rank, shuffle, seed, drop_last)
        length = len(dataset)
        self.order: Order = TorchShuffle(length, seed=seed) if shuffle else Sequential(length)
        self._offset = 0
        self._asked_for_epoch: Callable[[int], None] | None = None
        self.given_out: deque[NDArray[np.int64]] = deque()
        """What the newest iteration gave out, chunk by chunk, where `resumable_data.track` takes it from here."""

    def __iter__(self) -> Iterator[int]:
        refuse_accelerate(self)
        num_rows, rest = self._num_rows(), len(self.order) - self._offset
        start = self.epoch * len(self.order) + self._offset
        span = UpdateSpan(start, min(rest, num_rows), max(0, num_rows - rest))
        own = np.arange(self.rank, num_rows, self.num_replicas, dtype=np.int64)
        given_out: deque[NDArray[np.int64]] = deque()
        self.given_out = given_out
        for first in range(0, own.size, _CHUNK):
            ids = row_ids(self.order, start + own[first : first + _CHUNK], span)
            if self._asked_for_epoch is not None:
                given_out.append(ids)
            yield from ids.tolist()

    def __len__(self) -> int:
        """Indices of this rank that are left in the epoch, from where the next iteration starts."""
        return self._num_rows() // self.num_replicas

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, as for torch's sampler; under `resumable_data.track` see `TrackedLoader`."""
        refuse_accelerate(self)  # which calls this before its workers' first batches are handed out
        if self._asked_for_epoch is not None:
            self._asked_for_epoch(epoch)
        else:
            self.start_at(epoch, 0)

    def start_at(self, epoch: int, offset: int) -> None:
        """Make the next iteration start `offset` samples into `epoch`; for `resumable_data.track`."""
        self.epoch = epoch
        self._offset = offset

    def follow(self, asked_for_epoch: Callable[[int], None]) -> None:
        """Let somebody else decide what `set_epoch` does; for `resumable_data.track`.

        Raises:
            UsageError: Somebody does already.
        """
        if self._asked_for_epoch is not None:
            raise UsageError("this sampler is tracked already; make one sampler and one DataLoader for each track()")
        self._asked_for_epoch = asked_for_epoch

    def state_dict(self) -> NoReturn:
        """Refused: what a sampler gave out is not what was trained on.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a DistributedSampler has no state to save: it knows what it gave out, and workers fetch ahead of the "
            "training loop, so a restart from it would skip samples. Wrap torch's own DataLoader (torchdata's "
            "StatefulDataLoader asks the sampler too): loader = resumable_data.track(DataLoader(...), "
            "optimizer=optimizer), and save loader.state_dict()."
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> NoReturn:
        """Refused, like `state_dict`.

        Raises:
            UsageError: Always.
        """
        raise UsageError(
            "a DistributedSampler has no state to load. Load it into what resumable_data.track(DataLoader(...)) gave."
        )

    def _num_rows(self) -> int:
        """Rows of all ranks that are left in the epoch, repeats included."""
        rest = len(self.order) - self._offset
        of_a_rank = rest // self.num_replicas if self.drop_last else -(-rest // self.num_replicas)
        return of_a_rank * self.num_replicas


def sampler_schedule(sampler: DistributedSampler, *, batch_size: int, drop_last: bool, epochs: int | None) -> Schedule:
    """How a DataLoader over `sampler` cuts the run into batches of all ranks.

    Args:
        sampler: The sampler.
        batch_size: The DataLoader's.
        drop_last: The DataLoader's.
        epochs: Epochs of the run, None without an end.
    """
    tails = {
        (False, False): "pad_ranks",
        (True, False): "drop_ranks",
        (False, True): "pad_ranks_drop_batch",
        (True, True): "drop_batch",
    }
    return Schedule(
        length=len(sampler.order),
        global_batch=batch_size * sampler.num_replicas,
        tail=tails[sampler.drop_last, drop_last],
        epochs=epochs,
        num_replicas=sampler.num_replicas,
    )
