"""An update at a time, its microbatches already fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resumable_data.loader.microbatch import Microbatch


class Update:
    """One optimizer update of one rank.

    Iterating it gives its microbatches in order.

    Attributes:
        microbatches: All of them, fetched.
    """

    def __init__(self, microbatches: list[Microbatch], commit: Callable[..., None]) -> None:
        self.microbatches = microbatches
        self._commit = commit

    @property
    def index(self) -> int:
        """Index of the update in the run."""
        return self.microbatches[0].update

    def __iter__(self) -> Iterator[Microbatch]:
        return iter(self.microbatches)

    def __len__(self) -> int:
        return len(self.microbatches)

    def commit(self, *, applied: bool = True) -> None:
        """Commit this update after the optimizer step, see `ResumableLoader.commit`."""
        self._commit(applied=applied, update=self.index)


def group_updates(microbatches: Iterable[Microbatch], commit: Callable[..., None]) -> Iterator[Update]:
    """The updates that a stream of microbatches makes up."""
    fetched: list[Microbatch] = []
    for microbatch in microbatches:
        fetched.append(microbatch)
        if microbatch.is_last:
            yield Update(fetched, commit)
            fetched = []
