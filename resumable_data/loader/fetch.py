"""Reading a microbatch's samples, in a worker or in the training process."""

from __future__ import annotations

import copy
import sys
import traceback
from collections import deque
from threading import get_ident
from typing import TYPE_CHECKING, Any, NamedTuple

import torch.utils.data
from xxhash import xxh3_64_intdigest

from resumable_data.errors import SampleReadError
from resumable_data.loader.parcel import pack
from resumable_data.rng import ACTIVE, Fetch, sample_stream
from resumable_data.sampler import repeated_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.packing import PackedRows
    from resumable_data.rng import Request
    from resumable_data.sampler import MicrobatchRows


_SHOWN_DOCUMENTS = 8


class ReadFailure(NamedTuple):
    """What a worker gives back in place of samples that it could not read.

    Attributes:
        row: The row at fault, None where no single one is.
        reason: What the dataset raised, in a line.
        details: The traceback.
    """

    row: int | None
    reason: str
    details: str


class Substituted(NamedTuple):
    """What a worker gives back where some samples could not be read and others stand in their rows.

    Attributes:
        data: The collated samples.
        failures: What happened to each row that could not be read, in ascending order.
    """

    data: Any
    failures: tuple[ReadFailure, ...]


# What a worker gives back: the collated samples, a Substituted or a ReadFailure, or a Parcel of one; and xxh3_64 of the
# IDs that it read them by, filler rows' included.
Fetched = tuple[Any, int]


class FetchDataset(torch.utils.data.Dataset[Fetched]):
    """Turns a user's dataset into one whose items are whole microbatches, asked for by a `Request`.

    Args:
        dataset: Map-style; its ``__getitems__`` is used where it has one.
        collate_fn: Makes a batch of a list of samples.
        seed: The loader's seed, which keys the samples' random generators.
        substitutes: Whether a sample that can be read stands in for one that cannot.
    """

    def __init__(
        self, dataset: Any, collate_fn: Callable[[list[Any]], Any], *, seed: int = 0, substitutes: bool = False
    ) -> None:
        self._dataset = dataset
        self._collate = collate_fn
        self._get_items = _batched_read(dataset)
        self._stream = sample_stream("rng.sample_generator", seed)
        self._substitutes = substitutes

    def __getitem__(self, request: Request) -> Fetched:
        """Read and collate the samples of one microbatch."""
        samples: list[Any] = []
        fetch = Fetch(self._stream, request, samples, self._get_items is not None)
        thread = get_ident()
        outer = ACTIVE.get(thread)  # of a dataset that reads from a loader itself
        ACTIVE[thread] = fetch
        try:
            data = self._read(memoryview(request[0]).cast("q").tolist(), samples, fetch)
            if torch.utils.data.get_worker_info() is not None:
                data = pack(data)
            return data, xxh3_64_intdigest(request[0])
        finally:
            if outer is None:
                del ACTIVE[thread]
            else:
                ACTIVE[thread] = outer

    def _read(self, ids: list[int], samples: list[Any], fetch: Fetch) -> Any:
        try:
            if self._get_items is None:
                for sample_id in ids:
                    samples.append(self._dataset[sample_id])  # where it stops is the row at fault
            else:
                samples = self._get_items(ids)
            return self._collate(samples) if len(samples) == len(ids) else _wrong_number(samples, ids)
        except Exception as error:  # raised here, a StopIteration would pass for the end of the run
            if self._substitutes and len(samples) < len(ids):
                return self._substitute(samples, ids, error, fetch)
            return self._explain(samples, ids, error, fetch)

    def _explain(self, samples: list[Any], ids: list[int], error: Exception, fetch: Fetch) -> ReadFailure:
        if len(samples) == len(ids):
            failure = _failure(None, error)
            return failure._replace(reason=f"collate_fn raised {failure.reason}")
        return _failure(len(samples), error) if self._get_items is None else self._locate(ids, error, fetch)

    def _substitute(
        self, samples: list[Any], ids: list[int], error: Exception, fetch: Fetch
    ) -> Substituted | ReadFailure:
        """Read the rest row by row, and put a copy of the first sample that can be read where one cannot."""
        failures: list[ReadFailure] = []
        if self._get_items is None:  # that one failed just now
            failures.append(_failure(len(samples), error))
            samples.append(None)
        for row in range(len(samples), len(ids)):
            if self._get_items is not None:
                fetch.read_again(row)
            try:
                samples.append(self._read_one(ids[row]))
            except Exception as own_error:
                failures.append(_failure(row, own_error))
                samples.append(None)
        fetch.alone = None
        bad = [failure.row for failure in failures if failure.row is not None]
        good = [row for row in range(len(ids)) if row not in bad]
        if not good:
            return failures[0]._replace(
                reason=f"{failures[0].reason}; nor can any other of its microbatch, so there is nothing to fill in"
            )
        try:
            for row in bad:
                samples[row] = copy.deepcopy(samples[good[0]])
            return Substituted(self._collate(samples), tuple(failures))
        except Exception as own_error:
            return self._explain(samples, ids, own_error, fetch)

    def _read_one(self, sample_id: int) -> Any:
        if self._get_items is None:
            return self._dataset[sample_id]
        (sample,) = self._get_items([sample_id])
        return sample

    def _locate(self, ids: list[int], error: Exception, fetch: Fetch) -> ReadFailure:
        """Find the sample at fault by reading one at a time."""
        assert self._get_items is not None
        for row, sample_id in enumerate(ids):
            fetch.read_again(row)
            try:
                self._get_items([sample_id])
            except Exception as own_error:
                return _failure(row, own_error)
        failure = _failure(None, error)
        return failure._replace(reason=f"each can be read alone, together {failure.reason}")


def _batched_read(dataset: Any) -> Callable[[list[int]], list[Any]] | None:
    """The dataset's ``__getitems__``; None where it has none, or one that only reads a row at a time.

    torch's Subset and StackDataset have such a one. A dataset inside them could not know which row it reads, and so
    not which random numbers are its own.
    """
    own = getattr(dataset, "__getitems__", None)
    kind = getattr(type(dataset), "__getitems__", None)
    if kind is torch.utils.data.Subset.__getitems__:
        return own if _batched_read(dataset.dataset) else None
    if kind is torch.utils.data.StackDataset.__getitems__:
        parts = dataset.datasets.values() if isinstance(dataset.datasets, dict) else dataset.datasets
        return own if any(map(_batched_read, parts)) else None
    return own if callable(own) else None


def _wrong_number(samples: list[Any], ids: list[int]) -> ReadFailure:
    reason = (
        f"expected {len(ids)} samples from the dataset's __getitems__, found {len(samples)}: which is which is "
        "unknown. Make it return one sample per index, in order"
    )
    return ReadFailure(None, reason, "")


def _failure(row: int | None, error: Exception) -> ReadFailure:
    return ReadFailure(row, f"{type(error).__name__}: {error}", "".join(traceback.format_exception(error)))


def unreadable(rows: MicrobatchRows, failure: ReadFailure, packed: PackedRows | None = None) -> SampleReadError:
    """The error for a microbatch with a sample that cannot be read; its note is the dataset's own traceback."""
    what = name_sample(rows, failure.row) if packed is None else _name_rows(rows, packed)
    error = SampleReadError(
        f"{what} cannot be read: {failure.reason}. The cursor did not move: mend the "
        "dataset and resume from the last checkpoint, nothing is skipped."
    )
    if failure.details:
        error.add_note(failure.details)
    return error


def ended_early(rows: MicrobatchRows) -> SampleReadError:
    """The error for a DataLoader that ended before it gave `rows`."""
    return SampleReadError(
        f"expected the data of update {rows.update}, microbatch {rows.microbatch}; found that the DataLoader had "
        "ended, because collate_fn raised StopIteration. The cursor did not move; mend collate_fn and resume from the "
        "last checkpoint, nothing is skipped."
    )


def other_samples(rows: MicrobatchRows) -> SampleReadError:
    """The error for a worker that read something else than `rows`."""
    return SampleReadError(
        f"a worker read other samples than the {rows.num_rows} it was asked for in update {rows.update}, microbatch "
        f"{rows.microbatch}. The cursor did not move; this machine's memory may be at fault."
    )


def name_sample(rows: MicrobatchRows, row: int | None) -> str:
    """A row's sample in words, or the microbatch's where no single row is at fault."""
    if row is None:
        return f"the samples {rows.ids.tolist()} together, from position {rows.start} of the run,"
    if row >= rows.num_rows:
        return f"sample {rows.filler_id} (repeated as a filler row)"
    if row >= rows.num_samples:
        return f"sample {rows.ids[row]} (repeated as a padding row)"
    return f"sample {rows.ids[row]} (position {rows.positions()[row]} of the run)"


def _name_rows(rows: MicrobatchRows, packed: PackedRows) -> str:
    documents = packed.document[:_SHOWN_DOCUMENTS].tolist()
    more = " ..." if packed.num_pieces > _SHOWN_DOCUMENTS else ""
    return f"packed rows of documents {', '.join(map(str, documents))}{more}, from row {rows.start} of the run on,"


class Pending(NamedTuple):
    """What was asked for and is not delivered yet.

    Attributes:
        rows: The rows.
        digest: xxh3_64 of the IDs asked for, filler rows' included.
        packed: Their pieces, where they are packed rows.
    """

    rows: MicrobatchRows
    digest: int
    packed: PackedRows | None = None


class RequestQueue:
    """What the DataLoader asks its workers for, and what they were asked for and did not deliver yet.

    The DataLoader runs ahead of the training loop and keeps the order, so the oldest request that is pending is
    always the one whose data comes next.

    Args:
        length: Samples of the dataset.
    """

    def __init__(self, length: int) -> None:
        self._length = length
        self._rows: Iterator[MicrobatchRows] = iter(())
        self._pending: deque[Pending] = deque()

    def start(self, rows: Iterator[MicrobatchRows]) -> deque[Pending]:
        """Ask for `rows` from now on; the queue returned fills with what is asked for."""
        self._rows = rows
        self._pending = deque()
        return self._pending

    def __iter__(self) -> Iterator[Any]:
        """What a fetching dataset is asked for: a `Request` for each microbatch."""
        pending = self._pending
        for rows in self._rows:
            ids, repeats = rows.ids_bytes, b""
            if rows.num_filler or rows.num_padding:
                ids += rows.filler_id.to_bytes(8, sys.byteorder) * rows.num_filler
                repeats = repeated_positions(rows, self._length).tobytes()
            pending.append(Pending(rows, xxh3_64_intdigest(ids)))
            yield ids, rows.start, rows.shape.stride, repeats
