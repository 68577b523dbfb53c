"""What a watch over the first updates after a move says, and the file that it is in."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

import msgspec

from resumable_data.checkpoint.files.opening import read_small
from resumable_data.errors import TraceError
from resumable_data.ledger.frames import shown
from resumable_data.validation.comparison import Excess, TraceComparison
from resumable_data.validation.findings import DEVIATES, PASS, UNPROVEN

if TYPE_CHECKING:
    from pathlib import Path

SCHEMA_VERSION = 1
WATCH_BYTES_MAX = 4 << 20

NO_CONTROL = "no control"
RUNNING, COMPLETE, INTERRUPTED = "running", "complete", "interrupted"


class WatchCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Whether what the loop was handed is what the run's order has at these positions.

    Attributes:
        updates: How many updates were held against the order.
        samples: Samples that were handed out in them, on all ranks.
        expected_samples: Samples that the order has there.
        first_difference: The first update whose samples are not the order's; None where all are.
        reason: Why the rest was not looked at; empty where all was.
    """

    updates: int = 0
    samples: int = 0
    expected_samples: int = 0
    first_difference: int | None = None
    reason: str = ""


class DeviceThroughput(msgspec.Struct, frozen=True, kw_only=True):
    """Speed, which is not judged [samples/s per device]; None where it is not known.

    Attributes:
        control: Of the control.
        candidate: Of the run that is watched.
    """

    control: float | None = None
    candidate: float | None = None


class WatchReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a watch says. `to_json` shows it.

    Attributes:
        verdict: That of the comparison, or ``"no control"``; ``"deviates"`` where samples are not the order's.
        can_promote: Whether the run may take the place of the control: all updates were compared, the verdict is
            ``"pass"``, and the coverage of all of them is the order's.
        state: ``"running"``, also where the process was killed; ``"complete"``; or ``"interrupted"``.
        run_id: The run.
        attempt: Its attempt in the ledger; 0 where there is none.
        first_update: The first update that was recorded; None before there is one.
        updates: How many were recorded.
        wanted_updates: How many are wanted.
        coverage: What was handed out, held against the order.
        throughput: Apart from all that is judged.
        first_alarm: What was wrong first, and where; None where nothing was.
        interruption: What ended it before its time; empty where nothing did.
        control_error: Why the control could not be used; empty where it could, or none was given.
        comparison: The whole comparison; None without a control.
        schema_version: Which fields there are.
    """

    verdict: str
    can_promote: bool
    state: str
    run_id: str
    attempt: int
    first_update: int | None
    updates: int
    wanted_updates: int
    coverage: WatchCoverage
    throughput: DeviceThroughput
    first_alarm: Excess | None = None
    interruption: str = ""
    control_error: str = ""
    comparison: TraceComparison | None = None
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the run can be promoted, else 1."""
        return 0 if self.can_promote else 1

    def to_json(self) -> bytes:
        """The report as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The report in a file; None where there is none.

        Raises:
            TraceError: It is no report of this version.
            CheckpointError: It cannot be read.
        """
        data = read_small(path, WATCH_BYTES_MAX)
        if data is None:
            return None
        try:
            report = msgspec.json.decode(data, type=cls)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise _bad(path, f"something else ({error})") from None
        if report.schema_version != SCHEMA_VERSION:
            raise _bad(path, f"schema version {report.schema_version}")
        return report


def judge_watch(comparison: TraceComparison | None, coverage: WatchCoverage) -> str:
    """The verdict of both together."""
    if coverage.first_difference is not None:
        return DEVIATES
    if comparison is None:
        return NO_CONTROL
    return UNPROVEN if coverage.reason and comparison.verdict == PASS else comparison.verdict


def first_alarm(comparison: TraceComparison | None, coverage: WatchCoverage) -> Excess | None:
    """What was wrong first: samples before anything else of the same update."""
    found = []
    if coverage.first_difference is not None:
        found.append(Excess(coverage.first_difference, "coverage"))
    if comparison is not None and comparison.verdict == DEVIATES:
        found.append(comparison.first_excess or Excess(comparison.first_update, "first update"))
    return min(found, key=lambda one: one.update, default=None)


def _bad(path: Path, found: str) -> TraceError:
    return TraceError(
        f"{shown(path)}: expected the report of a watch, schema version {SCHEMA_VERSION}, found {shown(found)}. What "
        "it said of the updates after a move is not known. Read it with the version that wrote it."
    )
