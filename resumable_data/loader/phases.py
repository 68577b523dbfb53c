"""What ranks tell each other about an unfinished update, before the gradient accumulated for it is saved."""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.cursor import NO_ROWS, Phase, recipe_hash
from resumable_data.errors import CommitError, DisagreementError
from resumable_data.loader.agreement import all_gather_bytes, sum_lanes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup

    from resumable_data.cursor import Cursor
    from resumable_data.sampler.open_part import OpenPart

_FORMAT = struct.Struct("<6Q2?q")
_UNKNOWN = -1


class PhaseReport(NamedTuple):
    """What one process tells the others.

    Attributes:
        rank: Its data-parallel rank.
        num_replicas: How many it believes there are.
        cursor: A hash of its cursor.
        samples: Rows of the update at the cursor that it believes all ranks together were handed.
        lane_0: First lane of the digest of its own among them.
        lane_1: Second lane.
        is_complete: Whether these are all rows of the update.
        is_fetched: Whether the update was fetched whole, and it is not known how much of it was used.
        targets: Target tokens of the whole update; -1 where they are not counted.
    """

    rank: int
    num_replicas: int
    cursor: int
    samples: int
    lane_0: int
    lane_1: int
    is_complete: bool
    is_fetched: bool
    targets: int

    @classmethod
    def of(cls, part: OpenPart, *, rank: int, num_replicas: int, cursor: int) -> PhaseReport:
        """The report of one process."""
        targets = _UNKNOWN if part.targets is None else part.targets
        state = (part.samples, *part.lanes, part.is_complete, part.is_fetched)
        return cls(rank, num_replicas, cursor, *state, targets)


def exchange_phases(report: PhaseReport, group: ProcessGroup) -> list[PhaseReport]:
    """All processes' reports, in the order of their ranks in `group`. Collective."""
    gathered = all_gather_bytes(_FORMAT.pack(*report), group)
    return [PhaseReport(*_FORMAT.unpack(part)) for part in gathered]


def check_phases(reports: Sequence[PhaseReport]) -> None:
    """Make sure that the processes are at the same place inside an update, and that it is one to go on from.

    Raises:
        DisagreementError: They are not; names the processes and their counts.
        CommitError: All of the update was delivered; or it is not known how much of it was used.
    """
    for name, what in (("num_replicas", "data-parallel ranks"), ("cursor", "hash of the cursor")):
        _check_same(reports, name, what)
    _check_same(reports, "samples", "rows of the update at the cursor that were delivered")
    for name in ("is_complete", "is_fetched", "targets"):
        _check_same(reports, name, {"targets": "target tokens of the update"}.get(name, name))
    first = reports[0]
    if first.is_complete:
        raise CommitError(
            "gather_phase() expects to be called inside an update, or where nothing is delivered; all microbatches of "
            "the update at the cursor were. Its gradient is complete: nothing was gathered. Step, and commit() first."
        )
    if first.is_fetched:
        raise CommitError(
            "gather_phase() expects to know which microbatches of an update have had their backward; the update at "
            "the cursor was fetched, and none was taken out of it by iterating it. Nothing was gathered. Train in "
            "`for microbatch in update:`, and not over a list of its microbatches; or save before it is fetched."
        )


def phase_of(reports: Sequence[PhaseReport], cursor: Cursor, *, run_id: str, attempt: int, num_rows: int) -> Phase:
    """What all processes together were handed of the update at the cursor.

    Args:
        reports: Of all processes, found good.
        cursor: The cursor of each of them.
        run_id: The run.
        attempt: The ledger's attempt that delivered it.
        num_rows: Rows of the whole update.

    Raises:
        DisagreementError: Peers of one data-parallel rank read different samples.
    """
    samples, targets = reports[0].samples, reports[0].targets
    return Phase(
        run_id=run_id,
        update=cursor.updates,
        start=cursor.position,
        samples=samples,
        attempt=attempt if samples else 0,
        lanes=sum_lanes([(report.rank, (report.lane_0, report.lane_1)) for report in reports]) if samples else NO_ROWS,
        targets=targets if samples and targets != _UNKNOWN else None,
        num_rows=num_rows,
        recipe=recipe_hash(cursor.recipe),
    )


def _check_same(reports: Sequence[PhaseReport], name: str, what: str) -> None:
    by_value: dict[object, list[int]] = {}
    for process, report in enumerate(reports):
        by_value.setdefault(getattr(report, name), []).append(process)
    if len(by_value) == 1:
        return
    table = "\n".join(f"  {value}  on process {', '.join(map(str, where))}" for value, where in by_value.items())
    raise DisagreementError(
        f"processes disagree on {what}:\n{table}\nThe gradients that they accumulated do not belong together. Nothing "
        "was gathered or changed; call gather_phase() on all processes after the backward of the same microbatch."
    )
