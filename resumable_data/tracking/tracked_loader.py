"""A DataLoader whose progress is counted by what the training loop was handed and the optimizer's steps."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from typing import TYPE_CHECKING, Any, Self

import xxhash

from resumable_data.errors import CommitError, SampleReadError, StaleIteratorError
from resumable_data.loader.session import Session
from resumable_data.sampler.state import make_state, start_cursor, tell_unchecked
from resumable_data.tracking.steps import StepWatch

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping, Sequence

    import torch
    import torch.utils.data
    from torch.optim import Optimizer

    from resumable_data.cursor import Cursor
    from resumable_data.loader.session import JobSettings
    from resumable_data.sampler import MicrobatchRows


class TrackedLoader(ABC):
    """What `resumable_data.track` returns: iterate it in place of the DataLoader.

    After a loop that broke off, by ``break`` or an exception, the next iteration starts at the cursor.

    Args:
        dataloader: The DataLoader.
        start: Where it starts before a state is loaded, with the recipe that it counts under.
        settings: The job's settings.
        optimizer: The optimizer whose steps commit, or None.
        scaler: The loop's GradScaler, or None.
    """

    def __init__(
        self,
        dataloader: torch.utils.data.DataLoader[Any],
        *,
        start: Cursor,
        settings: JobSettings,
        optimizer: Optimizer | None,
        scaler: Any,
    ) -> None:
        self._dataloader = dataloader
        self._recipe = start.recipe
        self._settings = settings
        self._iteration = 0
        self._start_session(start)
        self._steps = None if optimizer is None else StepWatch(optimizer, scaler, self._commit_step)

    def __iter__(self) -> Iterator[Any]:
        """The batches from the cursor on. Iterators made before become invalid.

        Raises:
            StaleIteratorError: From an older iterator, at its next use.
            SampleReadError: The DataLoader gave other batches than its sampler makes.
            CommitError: Many batches were handed out and nothing was committed.
        """
        self._iteration += 1
        self._rewind_if_running()
        return self._iterate(self._iteration)

    def _iterate(self, iteration: int) -> Iterator[Any]:
        self._check_current(iteration)
        self._is_running = True
        self._session.begin()
        self._begin_iteration()
        batches = iter(self._dataloader)
        while True:
            self._check_current(iteration)
            batch = next(batches, _END)
            rows = self._next_rows()
            if rows is None and batch is _END:
                break
            if rows is None or batch is _END:
                raise _other_number(rows is None)
            self._session.deliver(rows, xxhash.xxh3_64_intdigest(rows.ids_bytes))
            self._pending.append(rows)
            yield batch
        self._is_running = False
        self._end_iteration()

    @abstractmethod
    def _check_start(self, start: Cursor) -> None:
        """Refuse a cursor from which the sampler cannot go on.

        Raises:
            UsageError: It cannot.
        """

    @abstractmethod
    def _begin_iteration(self) -> None:
        """Put the sampler where the DataLoader's next iteration has to start."""

    @abstractmethod
    def _next_rows(self) -> MicrobatchRows | None:
        """What the batch that the DataLoader just gave holds; None where its sampler made no further batch."""

    @abstractmethod
    def _end_iteration(self) -> None:
        """After an iteration that came to its end."""

    @abstractmethod
    def _commit_step(self, applied: bool) -> None:
        """Commit the batches of one step of the optimizer.

        Raises:
            CommitError: The step came after another number of batches than declared.
        """

    def commit(self, applied: bool = True) -> None:
        """Commit all batches that the loop was handed since the last commit, as one step of the optimizer.

        Args:
            applied: False where the step was skipped.

        Raises:
            CommitError: There are none, they are not those of one step, or `track` was given an optimizer, whose steps
                commit.
        """
        if self._steps is not None:
            raise CommitError("the optimizer given to track() commits with each of its steps; do not call commit() too")
        self._commit_by_hand(applied)

    def _commit_by_hand(self, applied: bool) -> None:
        self._commit_step(applied)

    @property
    def cursor(self) -> Cursor:
        """Committed progress."""
        return self._session.cursor

    @property
    @abstractmethod
    def sampler(self) -> Any:
        """The sampler underneath."""

    def __len__(self) -> int:
        """Batches of this rank that are left, from where the next iteration starts."""
        return len(self._dataloader)

    def __getattr__(self, name: str) -> Any:
        """Whatever else a script asks a DataLoader for."""
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._dataloader, name)

    def state_dict(self) -> dict[str, torch.Tensor]:
        """The committed cursor as one uint8 tensor of fixed size. Not collective, no side effect."""
        return make_state(self.cursor)

    def load_state_dict(self, state: Mapping[str, Any] | Cursor | None, allow: Collection[str] = ()) -> None:
        """Go on from a saved cursor; see `ResumableLoader.load_state_dict` for arguments and errors."""
        start = start_cursor(state, self._recipe, allow=allow, schedule=self._settings.schedule)
        self._check_start(start)
        self._session.check_run(start)
        self._session.close()
        self._start_session(start)
        tell_unchecked(state, start)

    def check_agreement(self, peers: Sequence[TrackedLoader] | None = None) -> Cursor:
        """As `ResumableLoader.check_agreement`: call it on every rank right before a save. Collective."""
        return self._session.agree(None if peers is None else [peer._session for peer in peers])

    def mark_saved(self) -> None:
        """As `ResumableLoader.mark_saved`: call it after a save."""
        self._session.mark_saved()

    def close(self) -> None:
        """Stop watching the optimizer, and end the ledger's file. The cursor stays readable."""
        self._iteration += 1
        if self._steps is not None:
            self._steps.close()
            self._steps = None
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_session(self, start: Cursor) -> None:
        self._session = Session(start, self._settings)
        self._iteration += 1
        self._is_running = False
        self._pending: deque[MicrobatchRows] = deque()

    def _rewind_if_running(self) -> None:
        """After a loop that broke off: what it was handed and did not step is read again."""
        if self._is_running:
            self._session.rewind()
            self._pending.clear()
            self._is_running = False

    def _commit_pending(self, *, applied: bool) -> None:
        """Commit all batches handed out as one step."""
        if not self._pending:
            raise CommitError("there is no batch to commit: the loop was handed none since the last commit")
        while self._pending:
            self._pending.popleft()
            self._session.commit(applied=applied, ends_step=not self._pending)

    def _check_current(self, iteration: int) -> None:
        if iteration != self._iteration:
            raise StaleIteratorError(
                "this iterator was made before the loader was iterated again, loaded or closed; what it would give is "
                "not what comes next. Use the iterator of a new iter(loader)."
            )


_END = object()


def _other_number(has_more: bool) -> SampleReadError:
    found = "more" if has_more else "fewer"
    return SampleReadError(
        f"the DataLoader gave {found} batches than its sampler made: what they hold cannot be counted. The cursor did "
        "not move. Give track() torch's own DataLoader, with no sampler in between, and a collate_fn that raises no "
        "StopIteration."
    )
