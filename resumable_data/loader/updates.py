"""An update at a time, its microbatches already fetched."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable_data.errors import CommitError, UsageError
from resumable_data.loader.targets import UpdateScale

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from resumable_data.loader.loader import ResumableLoader
    from resumable_data.loader.microbatch import Microbatch
    from resumable_data.sampler import MicrobatchRows

    CountTargets = Callable[[int, Any, Any], float]
    HandOut = Callable[[MicrobatchRows], None]


class Update:
    """One optimizer update of one rank.

    Iterating it gives its microbatches in order. What the newest iterator gave is what `ResumableLoader.phase` counts.

    Attributes:
        microbatches: All of them, fetched.
    """

    def __init__(
        self,
        microbatches: list[Microbatch],
        loader: ResumableLoader,
        hand_out: HandOut,
        count_targets: CountTargets | None = None,
    ) -> None:
        self.microbatches = microbatches
        self._hand_out = hand_out
        self._loader = loader
        self._count_targets = count_targets
        self._scale = UpdateScale(self.index)
        if count_targets is not None:
            for microbatch in microbatches:
                microbatch._scale = self._scale

    @property
    def index(self) -> int:
        """Index of the update in the run."""
        return self.microbatches[0].update

    def __iter__(self) -> Iterator[Microbatch]:
        for microbatch in self.microbatches:
            self._hand_out(microbatch._rows)
            yield microbatch

    def __len__(self) -> int:
        return len(self.microbatches)

    def set_targets(self, local_count: Any = None, *, global_count: Any = None) -> None:
        """Give the update's target tokens, and with them each microbatch its `loss_scale`. Collective.

        For ``normalize="targets"``, once per update on every rank, before the first backward. One all-reduce of four
        integers sums the counts over the data-parallel ranks; tensor-, context- and pipeline-parallel peers give the
        same count, that of whole rows, and are counted once. The sum goes into `cursor.tokens` with the commit. In the
        rest of an update that was begun before a restart, the sum is the one that was agreed on then, and no count is
        used.

        Args:
            local_count: Target tokens of this rank's rows whose weight is 1, over all microbatches: an integer, or
                an integer tensor of one element on any device.
            global_count: In its place the sum over all data-parallel ranks, where the caller has it: no communication
                then.

        Raises:
            UsageError: The loader normalises otherwise, the count is none or was given before, or no process group has
                the ranks and only `local_count` was given.
            CommitError: The update is committed, or is not delivered any more.
            DisagreementError: Processes are at different updates, peers counted differently, or another's count is
                none.
        """
        if self._count_targets is None:
            raise UsageError(
                'set_targets() expects a loader with normalize="targets"; this one knows its denominator already. '
                "Leave the call out, or make the loader with it."
            )
        if (local_count is None) == (global_count is None):
            raise UsageError("set_targets() expects either the count of this rank's rows or global_count=")
        if self._scale.is_known:
            raise UsageError(
                f"the targets of update {self.index} were given already; its loss_scale did not change. Count over all "
                "microbatches of the update, and call set_targets() once."
            )
        self._scale.set(self._count_targets(self.index, local_count, global_count))

    def commit(self, *, applied: bool = True) -> None:
        """Commit this update after the optimizer step, see `ResumableLoader.commit`."""
        expected = self._loader.cursor.updates
        if self.index != expected:
            raise CommitError(
                f"update {self.index} is to be committed, the cursor is at update {expected}. Updates are committed "
                "once each, in order; the cursor did not move."
            )
        self._loader.commit(applied)


def group_updates(
    microbatches: Iterable[Microbatch],
    loader: ResumableLoader,
    hand_out: HandOut,
    count_targets: CountTargets | None = None,
) -> Iterator[Update]:
    """The updates that a stream of the loader's microbatches makes up."""
    fetched: list[Microbatch] = []
    for microbatch in microbatches:
        fetched.append(microbatch)
        if microbatch.is_last:
            yield Update(fetched, loader, hand_out, count_targets)
            fetched = []
