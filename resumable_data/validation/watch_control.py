"""What a run that goes on is compared with."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from resumable_data.errors import TraceError, UsageError
from resumable_data.validation.compare import compare_traces
from resumable_data.validation.trace import Trace

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    from resumable_data.validation.comparison import TraceComparison

    TraceLike = Trace | str | os.PathLike[str]

_logger = logging.getLogger(__name__)


class Control:
    """A control and its repeats. One that cannot be used must not end a run that goes on: there is then none.

    Args:
        control: The control; None without one.
        repeats: Further traces of it.
        first_update: Where the run is meant to go on; where the control starts when None.
        limits: See `compare_traces`.
        min_updates: See there.

    Attributes:
        error: Why there is no control, where one was given.
    """

    def __init__(
        self,
        control: TraceLike | None,
        repeats: Sequence[TraceLike],
        *,
        first_update: int | None,
        limits: Mapping[str, float] | None,
        min_updates: int,
    ) -> None:
        self._first_update, self._limits, self._min_updates = first_update, limits, min_updates
        self._control: Trace | None = None
        self._repeats: tuple[Trace, ...] = ()
        self.error = ""
        if control is not None:
            self._read(control, repeats)

    def _read(self, control: TraceLike, repeats: Sequence[TraceLike]) -> None:
        try:
            self._control = control if isinstance(control, Trace) else Trace.read(control)
            self._repeats = tuple(one if isinstance(one, Trace) else Trace.read(one) for one in repeats)
            if self._first_update is None and self._control.updates:
                self._first_update = self._control.updates[0].update
        except TraceError as error:
            self._forget(error)

    def leave_out(self, update: int) -> None:
        """Expect the run at the next update where this is its first one: it was begun elsewhere."""
        if self._first_update == update:
            self._first_update += 1

    def compare(self, candidate: Trace) -> TraceComparison | None:
        """What was recorded so far beside the control; None without one."""
        if self._control is None:
            return None
        try:
            return compare_traces(
                self._control,
                candidate,
                repeats=self._repeats,
                first_update=self._first_update,
                limits=self._limits,
                min_updates=self._min_updates,
            )
        except UsageError as error:
            self._forget(error)
            return None

    def _forget(self, error: Exception) -> None:
        self._control, self.error = None, str(error)
        _logger.error("the updates after the move cannot be compared, there is no control: %s", error)
