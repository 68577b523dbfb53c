"""The order of torch's DistributedSampler, for runs that must repeat what they did with it."""

from __future__ import annotations

from threading import Lock
from typing import ClassVar

import numpy as np

from resumable_data.order.arguments import checked_length, checked_seed
from resumable_data.order.base import DescribedOrder
from resumable_data.order.protocol import Int64Array
from resumable_data.order.table import TablePermutation

_MAX_LENGTH = 2**40
_NUM_CACHED_EPOCHS = 2


class TorchShuffle(DescribedOrder):
    """Exactly the order of ``torch.utils.data.DistributedSampler(shuffle=True, seed=seed)``, before its padding.

    Use it to go on with a run that began with torch's sampler; for a new one `Shuffle` is better in every way.
    It costs what torch's sampler costs, O(n) time and memory in every epoch: the first question about an epoch
    draws the whole ``torch.randperm(n)``, 10 ns per sample or more (a second at 10^8), with 12 bytes per sample
    while it is drawn and 4 kept (8 above 2^31 samples), and as many again once `offsets` was called. The last
    two epochs are kept.

    The generator's seed is ``seed + epoch``, as in torch, so seed 5 in epoch 1 equals seed 6 in epoch 0. The
    version counts what this class does. That ``randperm`` gives the same in every torch release is torch's
    affair: neither it nor this class promises it.

    Torch is imported at the first question, not before.

    Args:
        n: number of samples, from 1 to 2**40.
        seed: from 0 to 2**63 - 1.

    Raises:
        UsageError: when an argument is not as described.
    """

    kind: ClassVar[str] = "torch_shuffle"
    version: ClassVar[int] = 1

    def __init__(self, n: int, seed: int = 0) -> None:
        super().__init__(checked_length(n, _MAX_LENGTH))
        self._seed = checked_seed(seed)
        self._lock = Lock()
        self._permutations: dict[int, TablePermutation] = {}

    @property
    def seed(self) -> int:
        """Seed of the order, to which torch's sampler adds the epoch."""
        return self._seed

    def _ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        return self._permutation_of(epoch).ids(offsets)

    def _offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        return self._permutation_of(epoch).offsets(ids)

    def _arguments(self) -> dict[str, int | str]:
        return {"seed": self._seed}

    def _permutation_of(self, epoch: int) -> TablePermutation:
        """The permutation of an epoch; made under a lock, so that threads do not each make one."""
        with self._lock:
            found = self._permutations.pop(epoch, None)
            if found is None:
                while len(self._permutations) >= _NUM_CACHED_EPOCHS:
                    del self._permutations[next(iter(self._permutations))]  # the least recently used
                found = _torch_permutation(self._length, self._seed + epoch)
            self._permutations[epoch] = found
            return found


def _torch_permutation(length: int, seed: int) -> TablePermutation:
    import torch

    generator = torch.Generator()
    generator.manual_seed(seed)
    drawn = torch.randperm(length, generator=generator).numpy()
    return TablePermutation(drawn.astype(np.int32) if length <= 2**31 else drawn)
