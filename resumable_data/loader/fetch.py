"""Reading a microbatch's samples, in a worker or in the training process."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch.utils.data
import xxhash

from resumable_data.errors import SampleReadError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.sampler import MicrobatchRows


class FetchRequest(NamedTuple):
    """What a worker is asked for: IDs as the bytes of int64, and what an error needs to name a position."""

    ids: bytes
    num_padding: int
    num_filler: int
    filler_id: int
    start: int
    stride: int


class Fetched(NamedTuple):
    """What a worker gives back: collated samples, and the digest of the IDs that it read them by."""

    data: Any
    digest: int


class FetchDataset(torch.utils.data.Dataset[Fetched]):
    """Turns a user's dataset into one whose items are whole microbatches.

    Args:
        dataset: Map-style; its ``__getitems__`` is used where it has one.
        collate_fn: Makes a batch of a list of samples.
    """

    def __init__(self, dataset: Any, collate_fn: Callable[[list[Any]], Any]) -> None:
        self._dataset = dataset
        self._collate = collate_fn
        self._get_items = getattr(dataset, "__getitems__", None)

    def __getitem__(self, request: FetchRequest) -> Fetched:
        """Read and collate the samples of one microbatch.

        Raises:
            SampleReadError: The dataset raised; names the sample's ID and position.
        """
        ids: list[int] = np.frombuffer(request.ids, np.int64).tolist()
        digest = xxhash.xxh3_64_intdigest(request.ids)
        if request.num_filler:
            ids = ids + [request.filler_id] * request.num_filler
        return Fetched(self._collate(self._read(ids, request)), digest)

    def _read(self, ids: list[int], request: FetchRequest) -> list[Any]:
        samples: list[Any] = []
        if self._get_items is not None:
            try:
                samples = self._get_items(ids)
            except Exception as error:
                raise self._locate(ids, request, error) from error
            if len(samples) != len(ids):
                raise SampleReadError(
                    f"expected {len(ids)} samples from the dataset's __getitems__, found {len(samples)}: which of the "
                    f"IDs {ids} they belong to is unknown. Make it return one sample per index, in order."
                )
            return samples
        try:
            for sample_id in ids:
                samples.append(self._dataset[sample_id])
        except Exception as error:
            raise _unreadable(ids, len(samples), request, error) from error
        return samples

    def _locate(self, ids: list[int], request: FetchRequest, error: Exception) -> SampleReadError:
        """Find the sample at fault by reading one at a time."""
        assert self._get_items is not None
        for row, sample_id in enumerate(ids):
            try:
                self._get_items([sample_id])
            except Exception as own_error:
                return _unreadable(ids, row, request, own_error)
        return SampleReadError(
            f"the dataset's __getitems__ failed on the samples {ids} together, though each can be read alone: "
            f"{type(error).__name__}: {error}. The cursor did not move."
        )


def _unreadable(ids: list[int], row: int, request: FetchRequest, error: Exception) -> SampleReadError:
    num_rows = len(ids) - request.num_filler
    if row >= num_rows:
        place = "repeated as a filler row"
    elif row >= num_rows - request.num_padding:
        place = "repeated as a padding row"
    else:
        place = f"position {request.start + request.stride * row} of the run"
    return SampleReadError(
        f"sample {ids[row]} ({place}) cannot be read: {type(error).__name__}: {error}. The cursor did not "
        "move: mend the sample and resume from the last checkpoint, nothing is skipped."
    )


class RequestQueue:
    """What the DataLoader asks its workers for, and what they were asked for and did not deliver yet.

    The DataLoader runs ahead of the training loop and keeps the order, so the oldest request that is pending is
    always the one whose data comes next.
    """

    def __init__(self) -> None:
        self._rows: Iterator[MicrobatchRows] = iter(())
        self._pending: deque[tuple[MicrobatchRows, int]] = deque()

    def start(self, rows: Iterator[MicrobatchRows]) -> deque[tuple[MicrobatchRows, int]]:
        """Ask for `rows` from now on; the queue returned fills with them and the digests of their IDs."""
        self._rows = rows
        self._pending = deque()
        return self._pending

    def __iter__(self) -> Iterator[FetchRequest]:
        pending = self._pending
        for rows in self._rows:
            ids = rows.ids.tobytes()
            pending.append((rows, xxhash.xxh3_64_intdigest(ids)))
            yield FetchRequest(ids, rows.num_padding, rows.num_filler, rows.filler_id, rows.start, rows.stride)


def check_dataset(dataset: Any) -> int:
    """The number of samples of a map-style dataset.

    Raises:
        UsageError: It is an IterableDataset, is empty, or lacks ``__len__`` or ``__getitem__``.
    """
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise UsageError(
            f"{type(dataset).__name__} is an IterableDataset: it decides itself what comes next, so no cursor can say "
            "what was read. Give a map-style dataset, with __len__ and __getitem__, over the same items."
        )
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"expected a map-style dataset, with __len__ and __getitem__; got {type(dataset).__name__}")
    length = len(dataset)
    if length < 1:
        raise UsageError(f"the dataset is empty (len is {length}); there is nothing to train on")
    return length
