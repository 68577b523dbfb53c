"""The audit's result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.audit.unreadable import UnreadableSample
from resumable_data.findings import MISSING_EVIDENCE, VIOLATION, Finding
from resumable_data.plan import PackedPlace

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA_VERSION = 1
PROVEN = "proven"
VIOLATED = "violated"
UNPROVEN = "unproven"


class Bounds(msgspec.Struct, frozen=True):
    """A count of samples that evidence leaves open: at least `low`, at most `high` (None: unknown)."""

    low: int
    high: int | None

    def __add__(self, other: Bounds) -> Bounds:
        high = None if self.high is None or other.high is None else self.high + other.high
        return Bounds(self.low + other.low, high)

    def __str__(self) -> str:
        if self.low == self.high:
            return str(self.low)
        return f"at least {self.low}" if self.high is None else f"{self.low} to {self.high}"


NOTHING = Bounds(0, 0)


class AttemptReport(msgspec.Struct, frozen=True, kw_only=True):
    """One launch of the job.

    Attributes:
        attempt: Its number.
        parent: The attempt it goes on from, 0 for none.
        num_replicas: Data-parallel ranks.
        microbatch: Largest microbatch of a rank, rows.
        global_batch: Rows of one update.
        survives: Whether what it committed is in the surviving history, up to the start of the attempt after it.
        first_update: The update it starts at.
        stop_update: Its updates [first_update, stop_update) are in the surviving history; or were committed, where
            nothing of it survives.
        first_position: Position at which it starts, after what it took over.
        stop_position: Where its part of the surviving history ends, what was taken over from it included;
            `first_position` where nothing of it survives.
        reached_position: The position after the last one that it delivered.
        is_newest: Whether it is the newest of the surviving ones.
        skipped: How many of those updates the optimizer skipped.
        delivered: Samples handed to training loops, all ranks, repeats after rewinds included.
        replayed: Samples that the surviving history has once more because of what this attempt delivered.
        omitted: Samples that are missing from it because of what this attempt did not deliver.
        discarded: Samples delivered and rolled back.
        in_flight: Samples delivered and not committed yet; of the newest attempt only, and of those whose part of the
            update that is under way it took over.
        taken_over: Rows of its first update that it took over from the attempt before, and did not read;
            `msgspec.UNSET`, and not in the JSON, where it started at the update's start.
    """

    attempt: int
    parent: int
    num_replicas: int
    microbatch: int
    global_batch: int
    survives: bool
    first_update: int
    stop_update: int
    first_position: int
    stop_position: int
    reached_position: int
    is_newest: bool
    skipped: int
    delivered: int
    discarded: Bounds
    in_flight: int
    replayed: Bounds = NOTHING
    omitted: Bounds = NOTHING
    taken_over: int | msgspec.UnsetType = msgspec.UNSET


class CheckpointProof(msgspec.Struct, frozen=True, kw_only=True):
    """What the cursor of one of several checkpoints proves.

    Attributes:
        path: The checkpoint.
        attempt: The attempt that committed last before it was saved; 0 where no ledger counts attempts.
        updates: Updates committed.
        position: Place of the next sample.
        proven: Ranges of positions ``[start, stop)`` whose digest in it is that of the order.
    """

    path: str
    attempt: int
    updates: int
    position: int
    proven: tuple[tuple[int, int], ...]


class AuditReport(msgspec.Struct, frozen=True, kw_only=True):
    """What an audit says. `to_json` and `to_text` show it.

    Attributes:
        subject: ``"ledger"``, ``"cursor"``, or ``"checkpoints"``: several of one run. What is said is then of the one
            with the most updates, whose digests cover what came before it.
        path: What was audited.
        verdict: ``"proven"``: each committed sample was delivered exactly once, within the bounds asked for, but for
            those that the run declared unreadable.
            ``"violated"``: it was not, or the evidence contradicts itself. ``"unproven"``: evidence is missing.
        run_id: The run.
        updates: Updates in the surviving history.
        skipped: How many of them the optimizer skipped.
        position: Place of the next sample, ``epoch * N + offset``; all before it was audited.
        epoch: Epoch of the next sample.
        offset: Place of the next sample in its epoch.
        samples: Samples committed.
        padding: Rows committed that repeat a sample to fill an update.
        dropped: Samples skipped at the ends of epochs, as the recipe declares, or in epochs that a loop left early.
        is_tracked: Whether a loop over torch's DataLoader was tracked; findings then number its batches.
        replayed: Samples more than once in the surviving history; each repeat counts.
        omitted: Samples in its range that were never delivered.
        unreadable: Samples committed that could not be read: rows of weight 0 took their places, as the run declared.
            They are not among the omitted ones.
        unreadable_samples: Which they are.
        discarded: Samples delivered and rolled back by a restart.
        in_flight: Samples delivered and not committed yet.
        attempts: All launches, oldest first.
        packed: Of a run over packed rows, the place of the next one, with the documents and tokens committed;
            `msgspec.UNSET`, and not in the JSON, of others.
        piece_rows: Committed packed rows whose tokens were held against the documents by the pieces that the ledger
            holds; `msgspec.UNSET`, and not in the JSON, where there are none.
        checkpoints: Of several checkpoints, what each of them proves, by their updates; `msgspec.UNSET`, and not in the
            JSON, of others.
        findings: What was found, violations first.
    """

    subject: str
    path: str
    verdict: str
    run_id: str
    updates: int
    skipped: int
    position: int
    epoch: int
    offset: int
    samples: int
    padding: int
    dropped: int
    is_tracked: bool = False
    replayed: Bounds
    omitted: Bounds
    unreadable: Bounds = NOTHING
    unreadable_samples: tuple[UnreadableSample, ...] = ()
    discarded: Bounds = NOTHING
    in_flight: int = 0
    attempts: tuple[AttemptReport, ...] = ()
    packed: PackedPlace | msgspec.UnsetType = msgspec.UNSET
    piece_rows: int | msgspec.UnsetType = msgspec.UNSET
    checkpoints: tuple[CheckpointProof, ...] | msgspec.UnsetType = msgspec.UNSET
    findings: tuple[Finding, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the verdict is ``"proven"``, else 1."""
        return 0 if self.verdict == PROVEN else 1

    def to_json(self) -> bytes:
        """The report as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The report for people."""
        from resumable_data.audit.text import format_report

        return format_report(self)


def judge(findings: Iterable[Finding]) -> str:
    """The verdict that findings lead to."""
    severities = {finding.severity for finding in findings}
    if VIOLATION in severities:
        return VIOLATED
    return UNPROVEN if MISSING_EVIDENCE in severities else PROVEN
