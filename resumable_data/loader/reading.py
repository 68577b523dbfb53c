"""From the rows that a rank reads to its microbatches, for one iterator at a time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable_data.errors import StaleIteratorError, UsageError
from resumable_data.loader.dataloader import WorkerSeeds, fetch_all, make_dataloader
from resumable_data.loader.fetch import (
    ReadFailure,
    Substituted,
    ended_early,
    other_samples,
    unreadable,
)
from resumable_data.loader.microbatch import Microbatch
from resumable_data.loader.packed import StoredMicrobatch
from resumable_data.loader.parcel import Parcel

if TYPE_CHECKING:
    from collections.abc import Iterator

    import torch.utils.data

    from resumable_data.loader.fetch import Fetched, RequestQueue
    from resumable_data.loader.session import Session
    from resumable_data.loader.unreadable import UnreadableSamples
    from resumable_data.sampler import MicrobatchRows


class Reader:
    """Has rows read by a DataLoader, and hands out what comes back.

    Args:
        dataset: Reads a microbatch at a time.
        requests: What it is asked for.
        seed: The loader's seed, for those of the workers where the user gives no `generator`.
        replaced: Counts samples that were replaced; None where one that cannot be read is an error.
        **options: Those of the DataLoader.

    Raises:
        UsageError: See `make_dataloader`.
    """

    def __init__(
        self,
        dataset: torch.utils.data.Dataset[Fetched],
        requests: RequestQueue,
        *,
        seed: int,
        replaced: UnreadableSamples | None,
        **options: Any,
    ) -> None:
        self._replaced = replaced
        self._iteration = 0
        self._requests = requests
        self._fetched: Iterator[Fetched] | None = None
        self._seeds = WorkerSeeds(seed) if options.get("generator") is None else None
        if self._seeds is not None:
            options["generator"] = self._seeds.generator
        dataloader = make_dataloader(dataset, self._requests, **options)
        self._dataloader: torch.utils.data.DataLoader[Fetched] | None = dataloader

    def read(self, rows: Iterator[MicrobatchRows], session: Session, *, rank: int) -> Iterator[Microbatch]:
        """The microbatches of `rows`, each delivered to `session`, until `stop` is called.

        Args:
            rows: What to read, from the session's cursor on.
            session: Begins with the first microbatch.
            rank: The data-parallel rank.
        """
        return self._read(self._iteration, rows, session, rank)

    def _read(
        self, iteration: int, rows_to_read: Iterator[MicrobatchRows], session: Session, rank: int
    ) -> Iterator[Microbatch]:
        if iteration != self._iteration:
            raise _stale()
        if self._seeds is not None:
            self._seeds.restart(rank, session.cursor.position + session.num_behind)
        pending = self._requests.start(rows_to_read)
        session.begin()
        # kept by the reader, not by this generator: to let go of it ends the workers, whoever holds this generator
        self._fetched = fetch_all(self.require_open(), self._requests)
        try:
            while True:
                if iteration != self._iteration:
                    raise _stale()
                fetched = next(self._fetched, None)
                if fetched is None:
                    if pending:
                        raise ended_early(pending[0].rows)
                    return
                (rows, expected, packed), (data, digest) = pending.popleft(), fetched
                if type(data) is StoredMicrobatch or type(data) is Parcel:
                    data = data.data()
                if type(data) is ReadFailure:
                    raise unreadable(rows, data, packed)
                if digest != expected:
                    raise other_samples(rows)
                if type(data) is Substituted:
                    assert self._replaced is not None
                    omitted = self._replaced.add(rows, data.failures)
                    session.deliver(rows, digest, omitted)
                    yield Microbatch(data.data, rows, unreadable=omitted)
                    continue
                session.deliver(rows, digest, packed=packed)
                yield Microbatch(data, rows, packed=packed)
        finally:
            if iteration == self._iteration:
                self._fetched = None

    def stop(self) -> None:
        """Make all iterators invalid, and end their workers where these are not persistent."""
        self._iteration += 1
        self._fetched = None

    def close(self) -> None:
        """End the workers for good."""
        self.stop()
        self._dataloader = None

    def require_open(self) -> torch.utils.data.DataLoader[Fetched]:
        """The DataLoader.

        Raises:
            UsageError: It was closed.
        """
        if self._dataloader is None:
            raise UsageError("this loader is closed; make a new one and load the state to go on")
        return self._dataloader


def _stale() -> StaleIteratorError:
    return StaleIteratorError(
        "this iterator was made before the loader was iterated again, loaded, remapped or closed; what it would give "
        "is not what comes next. Use the iterator of a new iter(loader)."
    )
