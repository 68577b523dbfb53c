"""What is decided about a move: the checks that were made, what they lead to, and what they do not prove.

Nothing here imports torch.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

import msgspec

from resumable_data.checkpoint.migration.changes import find_changes
from resumable_data.checkpoint.migration.declaration import Declaration
from resumable_data.checkpoint.migration.migration_file import MigrationManifest
from resumable_data.checkpoint.migration.records import RunChange
from resumable_data.checkpoint.run_manifest import BatchInfo, RunManifest
from resumable_data.validation.batches import changed_batch
from resumable_data.validation.checks import CHECKS, FAILED, PASSED, UNPROVEN, WARM_START, Check

SCHEMA_VERSION = 1

PROMOTE = "promote"
REJECT = "reject"
"""Beside `PASSED`, `WARM_START` and `UNPROVEN`, which are statuses of checks too."""


class Ranks(msgspec.Struct, frozen=True, kw_only=True):
    """The ranks of a job: all axes of its mesh, and not a count of devices alone.

    Attributes:
        world_size: All processes.
        dp_size: Those that read different samples.
        axes: Names and sizes of the axes of the mesh.
        data_axes: Those along which different samples are read.
    """

    world_size: int
    dp_size: int
    axes: tuple[tuple[str, int], ...]
    data_axes: tuple[str, ...]

    @classmethod
    def of(cls, run: RunManifest) -> Ranks:
        """Those of a run manifest."""
        return cls(world_size=run.world_size, dp_size=run.dp_size, axes=run.mesh.axes, data_axes=run.mesh.data_axes)


class WarmStart(msgspec.Struct, frozen=True, kw_only=True):
    """A new experiment that begins with the weights of another.

    Attributes:
        identity: What tells it from the run that it comes from: 16 hexadecimal digits, drawn for this verdict.
        run_id: The run that it comes from; empty where that is not known.
        lost: What of that run is not in it.
    """

    identity: str
    run_id: str
    lost: tuple[str, ...]


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What is decided about a move. `to_json` and `to_text` show it.

    Attributes:
        verdict: ``"promote"``: all of the state is there, the global batch is the saved one, samples go on within the
            declared bound, and the trace is within its tolerances. ``"reject"``: a check failed. ``"warm start"``:
            weights are whole, and what made the run what it was is not: a new experiment. ``"unproven"``: nothing
            failed, and what a promotion needs was not shown. ``"passed"``: nothing failed of the part of a rehearsal
            that was asked for.
        checkpoint: The checkpoint.
        checks: In the order in which they were made.
        declaration: What was declared to survive.
        saved: The ranks that saved; None where not known.
        now: The ranks that this holds for; None where it did not come to any.
        batch: The batch equation on these ranks.
        tolerances: Relative deviations that were allowed, by name, of what was compared.
        changes: What differs between the program that saved and this one; empty where it did not come to any.
        migration_xxh3: xxh3_64 of the migration that declared the move; None without one.
        not_proven: What the verdict does not say.
        warm_start: Of a warm start, its identity and what was lost.
        is_synthetic: Whether the checkpoint was made for an exercise.
    """

    verdict: str
    checkpoint: str
    checks: tuple[Check, ...]
    declaration: Declaration = Declaration()
    saved: Ranks | None = None
    now: Ranks | None = None
    batch: BatchInfo | None = None
    tolerances: dict[str, float] = {}
    changes: tuple[RunChange, ...] = ()
    migration_xxh3: str | None = None
    not_proven: tuple[str, ...] = ()
    warm_start: WarmStart | None = None
    is_synthetic: bool = False
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the verdict is ``"promote"``, or ``"passed"`` of a part; else 1."""
        return 0 if self.verdict in (PROMOTE, PASSED) else 1

    @property
    def failed(self) -> tuple[Check, ...]:
        """The checks that failed."""
        return tuple(check for check in self.checks if check.status == FAILED)

    def check(self, name: str) -> Check | None:
        """The check of a name; None where it was not come to."""
        return next((check for check in self.checks if check.name == name), None)

    def to_json(self) -> bytes:
        """The verdict as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    @classmethod
    def from_json(cls, data: bytes) -> Verdict:
        """What `to_json` gave."""
        return msgspec.json.decode(data, type=cls)

    def to_text(self) -> str:
        """The verdict for people."""
        from resumable_data.validation.verdict_text import format_verdict

        return format_verdict(self)


def judge_checks(checks: Sequence[Check], *, is_part: bool = False) -> str:
    """The verdict that checks lead to.

    Args:
        checks: What was made.
        is_part: Whether no more than these was asked for.
    """
    statuses = {check.status for check in checks}
    if FAILED in statuses:
        return REJECT
    if WARM_START in statuses:
        return WARM_START
    if is_part:
        return UNPROVEN if UNPROVEN in statuses else PASSED
    passed = {check.name for check in checks if check.status == PASSED}
    required = {name for name, kind in CHECKS.items() if kind.is_required}
    return PROMOTE if UNPROVEN not in statuses and required <= passed else UNPROVEN


_NEVER_PROVEN = (
    "final convergence: that a few updates are the same does not say where thousands of them end",
    "throughput: nothing was held to a speed",
)
_NO_BATCH = (
    "what a material change of the global batch does to quality, which takes a run that is judged by its quality"
)
_BATCH = (
    "what a global batch of {now}, where it was {then}, does to quality: a material batch change needs a quality run"
)
_NO_LOGITS = "forward results from before the save: no logits were compared"
_NO_BOUNDARY = "what happens at a boundary of logging and at one of evaluation: not both were crossed"
_OTHER_MODELS = "what the window makes of models beside the one that is trained: a trace is of that one"
_SYNTHETIC = "anything about the real checkpoint: this one was made for the exercise"


def make_verdict(
    checkpoint: str,
    checks: Sequence[Check],
    *,
    declaration: Declaration,
    saved: RunManifest | None = None,
    now: RunManifest | None = None,
    tolerances: dict[str, float] | None = None,
    migration: MigrationManifest | None = None,
    is_synthetic: bool = False,
    is_part: bool = False,
) -> Verdict:
    """The verdict, with all that a record of it needs.

    Args:
        checkpoint: The checkpoint.
        checks: What was made, in that order.
        declaration: What was declared to survive.
        saved: What the program was made of that saved.
        now: What it is made of on the ranks that it was moved to.
        tolerances: Relative deviations that were allowed.
        migration: What was declared of the move.
        is_synthetic: Whether the checkpoint was made for an exercise.
        is_part: Whether no more than these checks was asked for.
    """
    verdict = judge_checks(checks, is_part=is_part)
    by_name = {check.name: check.status for check in checks}
    not_proven = [*_NEVER_PROVEN, _about_batch(saved, now)]
    not_proven += [_NO_LOGITS] if by_name.get("logits") != PASSED else []
    not_proven += [_NO_BOUNDARY] if by_name.get("boundaries") != PASSED else []
    not_proven += [_OTHER_MODELS] if now is not None and len(now.models) > 1 else []
    not_proven += [_SYNTHETIC] if is_synthetic else []
    return Verdict(
        verdict=verdict,
        checkpoint=checkpoint,
        checks=tuple(checks),
        declaration=declaration,
        saved=None if saved is None else Ranks.of(saved),
        now=None if now is None else Ranks.of(now),
        batch=None if now is None else now.batch,
        tolerances=tolerances or {},
        changes=() if saved is None or now is None else find_changes(saved, now),
        migration_xxh3=None if migration is None else migration.xxh3,
        not_proven=tuple(not_proven),
        warm_start=_warm_start(checks, saved) if verdict == WARM_START else None,
        is_synthetic=is_synthetic,
    )


def _about_batch(saved: RunManifest | None, now: RunManifest | None) -> str:
    changed = changed_batch(saved, now)
    return _NO_BATCH if changed is None else _BATCH.format(then=changed[0], now=changed[1])


def _warm_start(checks: Sequence[Check], saved: RunManifest | None) -> WarmStart:
    """An identity of its own, and what findings say is lost."""
    lost = [
        f"{one.where}: {one.title} (expected {one.expected}, found {one.found})"
        for check in checks
        if check.status == WARM_START
        for one in check.findings
    ]
    cursor = None if saved is None else saved.decode_cursor()
    return WarmStart(identity=os.urandom(8).hex(), run_id="" if cursor is None else cursor.run_id, lost=tuple(lost))
