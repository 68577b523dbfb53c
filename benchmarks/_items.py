"""A dataset whose items take a known time to read."""

from __future__ import annotations

import time

import torch.utils.data


class BusyItems(torch.utils.data.Dataset[int]):
    """Items that keep a core busy while they are read.

    Args:
        num_samples: How many there are.
        cost_s: Seconds that each takes.
    """

    def __init__(self, num_samples: int, cost_s: float) -> None:
        self._num_samples = num_samples
        self._cost_s = cost_s

    def __len__(self) -> int:
        return self._num_samples

    def __getitem__(self, index: int) -> int:
        stop = time.perf_counter() + self._cost_s
        while self._cost_s and time.perf_counter() < stop:
            pass
        return index
