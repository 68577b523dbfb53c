"""Update by update over a ResumableSampler, to the end of the run."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from resumable_data.errors import CommitError
from resumable_data.loader.session import JobSettings
from resumable_data.tracking.tracked_loader import TrackedLoader

if TYPE_CHECKING:
    import torch.utils.data
    from torch.optim import Optimizer

    from resumable_data.cursor import Cursor
    from resumable_data.ledger import Ledger
    from resumable_data.sampler import MicrobatchRows, ResumableSampler


class TrackedRun(TrackedLoader):
    """A tracked DataLoader over a `ResumableSampler`.

    One iteration gives the rest of the run. An update has ``sampler.accumulation_steps`` batches; the optimizer's step
    after the last of them commits it. The sampler's cursor, and with it its `loss_scale` and `accumulation_steps`, are
    this loader's.
    """

    def __init__(
        self,
        dataloader: torch.utils.data.DataLoader[Any],
        sampler: ResumableSampler,
        *,
        optimizer: Optimizer | None,
        scaler: Any,
        ledger: Ledger | None,
    ) -> None:
        self._sampler = sampler
        self._given: deque[MicrobatchRows] = deque()
        super().__init__(
            dataloader,
            start=sampler.cursor,
            settings=JobSettings(
                topology=sampler.topology,
                layout=sampler.layout,
                epochs=sampler.schedule.epochs,
                loss_factor=sampler.loss_factor,
                ledger=ledger,
                schedule=sampler.schedule,
            ),
            optimizer=optimizer,
            scaler=scaler,
        )
        sampler.follow(self)

    @property
    def sampler(self) -> ResumableSampler:
        """The sampler underneath."""
        return self._sampler

    def _check_start(self, start: Cursor) -> None:
        self._sampler.check_shares(start)

    def _begin_iteration(self) -> None:
        self._given = self._sampler.start_giving()

    def _next_rows(self) -> MicrobatchRows | None:
        return self._given.popleft() if self._given else None

    def _end_iteration(self) -> None:
        """Nothing comes after the run's end."""

    def _commit_step(self, applied: bool) -> None:
        updates = {rows.update for rows in self._pending}
        if len(updates) == 1 and self._pending[-1].is_last:
            self._commit_pending(applied=applied)
            return
        found = f"{len(self._pending)} batches, of {len(updates)} updates" if len(updates) != 1 else "a part of them"
        raise CommitError(
            f"expected a step after the {self._sampler.accumulation_steps} batches of update {self.cursor.updates}, "
            f"found one after {found}. Which of them were trained on is unknown, so nothing was committed. Step after "
            "sampler.accumulation_steps batches; if a GradScaler skipped a step, give it to track(scaler=)."
        )

    def _commit_pending(self, *, applied: bool) -> None:
        self._pending.clear()
        self._session.commit(applied=applied)
