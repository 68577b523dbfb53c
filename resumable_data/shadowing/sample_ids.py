"""Seeing the IDs that torch's DataLoader asks for, without touching the DataLoader."""

from __future__ import annotations

import contextlib
import copy
import sys
from collections import deque
from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.shadowing.records import Begin

if TYPE_CHECKING:
    from collections.abc import Iterator

_LABEL_MAX = 1 << 61


class Twin:
    """A DataLoader's twin: the same dataset, workers and samplers, and whatever its sampler says is noted.

    The DataLoader's batches come in the order in which its sampler, which runs in this process, makes them.

    Args:
        loader: One for which `can_see_ids` holds.
    """

    def __init__(self, loader: Any) -> None:
        self._loader = loader
        self._twin = copy.copy(loader)
        self._name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        self._noting = _Noting(getattr(loader, self._name))
        # The loader's own workers, where they persist, stay its own. A DataLoader refuses to have its parts exchanged.
        for name, value in (("_iterator", None), (self._name, self._noting)):
            object.__setattr__(self._twin, name, value)

    def iterate(self) -> tuple[Iterator[Any], deque[Any]]:
        """The DataLoader's batches, and what its sampler gave for them, oldest first."""
        # What a script changed in its DataLoader since the last iteration holds for the twin too.
        for name, value in vars(self._loader).items():
            if name not in ("_iterator", self._name):
                object.__setattr__(self._twin, name, value)
        self._noting.given = deque()
        return iter(self._twin), self._noting.given


def ids_of(given: Any) -> bytes | None:
    """What a sampler gave for one batch as `Ids.values`; None where it is not made of IDs."""
    try:
        ids = [index(one) for one in given] if isinstance(given, (list, tuple)) else [index(given)]
        return np.array(ids, "<i8").tobytes() if all(one >= 0 for one in ids) else None
    except (TypeError, OverflowError):
        return None


class _Noting:
    """A sampler that notes what it gives."""

    def __init__(self, sampler: Any) -> None:
        self._sampler = sampler
        self.given: deque[Any] = deque()

    def __iter__(self) -> Iterator[Any]:
        return self._iterate(iter(self._sampler), self.given)

    def _iterate(self, batches: Iterator[Any], given: deque[Any]) -> Iterator[Any]:
        """A generator of its own, so that one from before goes on with what was its own."""
        for one in batches:
            given.append(one)
            yield one

    def __len__(self) -> int:
        return len(self._sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._sampler, name)


def can_see_ids(loader: Any) -> bool:
    """Whether this is torch's own DataLoader over a map-style dataset, with its batches in the sampler's order."""
    data = _torch_data()
    return (
        data is not None
        and type(loader) is data.DataLoader
        and not isinstance(loader.dataset, data.IterableDataset)
        and getattr(loader, "in_order", True)
    )


def describe_epoch(loader: Any, num_replicas: int) -> Begin:
    """What the loader's sampler says about the epoch that begins."""
    batch_sampler = getattr(loader, "batch_sampler", None)
    sampler = _innermost(loader, batch_sampler)
    label = getattr(sampler, "epoch", getattr(batch_sampler, "epoch", None))
    if not isinstance(label, int) or isinstance(label, bool) or not 0 <= label <= _LABEL_MAX:
        label = None
    num_samples, padding, droppable = _extent(loader, sampler, num_replicas)
    batch_size = getattr(loader, "batch_size", None)
    if getattr(loader, "drop_last", False) and isinstance(batch_size, int):
        droppable += batch_size - 1
    return Begin(label, num_samples, padding, droppable, _num_batches(loader))


def _num_batches(loader: Any) -> int | None:
    """Batches of an iteration; only of loaders whose length is that of their sampler, as other ones may do anything."""
    with contextlib.suppress(Exception):
        return len(loader) if can_see_ids(loader) else None
    return None


def _innermost(loader: Any, batch_sampler: Any) -> Any:
    return getattr(batch_sampler, "sampler", None) or getattr(loader, "sampler", None)


def _extent(loader: Any, sampler: Any, num_replicas: int) -> tuple[int | None, int, int]:
    """Samples of an epoch, rows of padding, and rows that this rank may drop; of samplers that read all samples."""
    data = _torch_data()
    if data is None or not can_see_ids(loader) or type(loader.batch_sampler) not in (data.BatchSampler, type(None)):
        return None, 0, 0
    if isinstance(sampler, data.DistributedSampler) and sampler.num_replicas == num_replicas:
        length = len(sampler.dataset)
        padding = max(0, sampler.total_size - length)
        return length, padding, int(sampler.drop_last and length % num_replicas != 0)
    if num_replicas > 1:
        return None, 0, 0
    if type(sampler) is data.SequentialSampler:
        return len(sampler), 0, 0
    if type(sampler) is data.RandomSampler and not sampler.replacement and len(sampler) == len(loader.dataset):
        return len(sampler), 0, 0
    return None, 0, 0


def _torch_data() -> Any:
    return sys.modules.get("torch.utils.data")
