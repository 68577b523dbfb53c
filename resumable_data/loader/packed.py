"""Reading rows of packed tokens, in a worker or in the training process. Nothing here carries state."""

from __future__ import annotations

import sys
import traceback
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.utils.data
from torch.utils.data._utils.pin_memory import pin_memory
from xxhash import xxh3_64_intdigest

from resumable_data.ledger.row_ids import row_ids
from resumable_data.loader.fetch import Pending, ReadFailure, RequestQueue
from resumable_data.loader.parcel import pack
from resumable_data.packing.batch import IGNORED_LABEL
from resumable_data.packing.gather import prefetch_checked
from resumable_data.packing.stored_rows import StoredRows
from resumable_data.plan.packed_place import PACKED_LENGTH
from resumable_data.sampler import repeated_positions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.loader.content import PackedContent
    from resumable_data.loader.fetch import Fetched
    from resumable_data.packing.checked_rows import CheckedRows
    from resumable_data.sampler import MicrobatchRows
    from resumable_data.sources import TokenSource


class PackedRequest(NamedTuple):
    """A microbatch to be read.

    Attributes:
        rows: Its rows, filler rows last.
        num_filler: How many these are.
    """

    rows: CheckedRows
    num_filler: int


class StoredMicrobatch:
    """A microbatch's rows as their source stores them, which become the data where they are handed over.

    Sent from a worker so, a token takes the bytes that it has in the source and travels through the worker's pipe. As
    the tensors that a model takes it would take 20, and each of the four tensors a shared memory of its own, which
    takes a process longer to open than all else that is done for a microbatch (`benchmarks.packed_loader`).

    Args:
        rows: The rows, filler rows last.
        num_filler: How many these are.
        pad_token: Where a row holds no token of a document.
    """

    __slots__ = ("num_filler", "pad_token", "rows")

    def __init__(self, rows: StoredRows, num_filler: int, pad_token: int) -> None:
        self.rows = rows
        self.num_filler = num_filler
        self.pad_token = pad_token

    def data(self) -> dict[str, Any]:
        """The data, see `PackedFetchDataset`."""
        batch = self.rows.write(pad_token=self.pad_token)
        if self.num_filler:
            batch.labels[-self.num_filler :] = IGNORED_LABEL
        data: dict[str, Any] = {
            name: torch.from_numpy(getattr(batch, name)) for name in ("tokens", "labels", "position_ids", "cu_seqlens")
        }
        data["max_seqlen"] = batch.max_seqlen
        return data

    def pin_memory(self) -> Any:
        """The data in pinned memory: what a DataLoader's pinning thread calls."""
        return pin_memory(self.data())  # type: ignore[no-untyped-call]  # torch's has no types


class PackedFetchDataset(torch.utils.data.Dataset["Fetched"]):
    """Turns a source of tokens into one whose items are whole microbatches, asked for by a `PackedRequest`.

    The data is a dictionary: ``tokens`` and ``labels`` (rows, length) int64, ``position_ids`` (rows, length) int32,
    ``cu_seqlens`` (sequences + 1,) int32 and ``max_seqlen`` int, see `resumable_data.packing.gather`. Filler rows have
    no labels. An item is a `StoredMicrobatch` of it, or what `transform` made of it.

    Args:
        source: The documents.
        pad_token: Where a row holds no token of a document.
        transform: Is given the dictionary, and returns the data; None for the dictionary itself.
    """

    def __init__(self, source: TokenSource, *, pad_token: int, transform: Callable[[Any], Any] | None) -> None:
        self._source = source
        self._pad_token = pad_token
        self._transform = transform

    def __getitem__(self, request: PackedRequest) -> Fetched:
        """Read the rows of one microbatch."""
        rows, num_filler = request
        try:
            stored = StoredMicrobatch(StoredRows.read(self._source, rows), num_filler, self._pad_token)
            data = stored if self._transform is None else self._transformed(stored)
        except Exception as error:  # raised here, a StopIteration would pass for the end of the run
            details = "".join(traceback.format_exception(error))
            return ReadFailure(None, f"{type(error).__name__}: {error}", details), 0
        return data, xxh3_64_intdigest(row_ids(rows.rows).tobytes())

    def _transformed(self, stored: StoredMicrobatch) -> Any:
        assert self._transform is not None
        data = self._transform(stored.data())
        return data if torch.utils.data.get_worker_info() is None else pack(data)


class PackedRequests(RequestQueue):
    """What the workers are asked for, see `RequestQueue`; the pages of the next microbatch are asked for ahead.

    Args:
        content: Knows the rows.
    """

    def __init__(self, content: PackedContent) -> None:
        super().__init__(PACKED_LENGTH)
        self._content = content

    def __iter__(self) -> Iterator[PackedRequest]:
        pending, source = self._pending, self._content.source
        ahead = ((rows, self._request(rows)) for rows in self._rows)
        current = next(ahead, None)
        while current is not None:
            following = next(ahead, None)
            if following is not None:
                prefetch_checked(source, following[1].rows)
            rows, request = current
            ids = rows.ids_bytes + rows.filler_id.to_bytes(8, sys.byteorder) * rows.num_filler
            pending.append(Pending(rows, xxh3_64_intdigest(ids), request.rows.rows))
            yield request
            current = following

    def _request(self, rows: MicrobatchRows) -> PackedRequest:
        run, stride = self._content.run, rows.shape.stride
        if not (rows.num_filler or rows.num_padding):
            return PackedRequest(run.stretch(range(rows.start, rows.start + stride * rows.num_rows, stride)), 0)
        positions = np.concatenate((rows.positions(), repeated_positions(rows, PACKED_LENGTH)))
        return PackedRequest(run.checked(positions), rows.num_filler)
