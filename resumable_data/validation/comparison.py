"""What a comparison of two traces says."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.findings import MISSING_EVIDENCE, VIOLATION
from resumable_data.validation.findings import DEVIATES, NOT_DISTINGUISHABLE, PASS, UNPROVEN, TraceFinding

if TYPE_CHECKING:
    from collections.abc import Iterable

SCHEMA_VERSION = 1


class TracedRun(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two runs.

    Attributes:
        path: The trace.
        run_id: The run.
        num_replicas: Data-parallel ranks.
        axes: Names and sizes of its mesh's axes.
        dtype: What it computes in.
        samples_per_s: Over the compared updates but the first; None where it is not recorded.
        samples_per_device_s: The same per device.
    """

    path: str
    run_id: str
    num_replicas: int
    axes: tuple[tuple[str, int], ...]
    dtype: str
    samples_per_s: float | None
    samples_per_device_s: float | None


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """How far one quantity is apart.

    Attributes:
        name: ``"loss"``, ``"gradient_norm"`` or ``"update_norm"``.
        largest: The largest relative deviation; None where one of two is not finite.
        at_update: Where.
        first: The relative deviation of the first update.
        limit: What is allowed.
        limit_source: ``"given"``; ``"repeats"`` of the control; or ``"rounding"``, where there are none.
        noise: The largest deviation among the control and its repeats; None without any.
        first_excess: The first update beyond the limit.
        excesses: How many are.
    """

    name: str
    largest: float | None
    at_update: int
    first: float | None
    limit: float
    limit_source: str
    noise: float | None
    first_excess: int | None
    excesses: int


class Excess(msgspec.Struct, frozen=True):
    """Where the two first differed by more than they may, and what did.

    Attributes:
        update: The first such update.
        quantity: Of those that differed in it, the one that is known first in an update: its samples, then what the
            optimizer was set to, then loss, gradient norm, and what the step made.
    """

    update: int
    quantity: str


class TraceComparison(msgspec.Struct, frozen=True, kw_only=True):
    """What a comparison says. `to_json` and `to_text` show it.

    Attributes:
        verdict: ``"pass"``: equal in what must be equal, and within limits in the rest. ``"deviates"``: not so.
            ``"not distinguishable"``: within limits that would hide a fault. ``"unproven"``: other evidence is missing.
        control: The run that is compared with.
        candidate: The run that is judged.
        repeats: Further traces of the control that were used.
        first_update: The first update compared.
        updates: How many.
        quantities: Loss and norms, as far as both have them.
        hidden_faults: Faults of known size that the limits would hide.
        first_excess: Where something first was not as it should be; None where nothing was.
        findings: What was found, violations first.
    """

    verdict: str
    control: TracedRun
    candidate: TracedRun
    repeats: int
    first_update: int
    updates: int
    quantities: tuple[Compared, ...] = ()
    hidden_faults: tuple[str, ...] = ()
    first_excess: Excess | None = None
    findings: tuple[TraceFinding, ...] = ()
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the verdict is ``"pass"``, else 1."""
        return 0 if self.verdict == PASS else 1

    def to_json(self) -> bytes:
        """The comparison as JSON; `schema_version` says which fields there are."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """The comparison for people."""
        from resumable_data.validation.text import format_comparison

        return format_comparison(self)


def judge(findings: Iterable[TraceFinding]) -> str:
    """The verdict that findings lead to."""
    found = tuple(findings)
    if any(finding.severity == VIOLATION for finding in found):
        return DEVIATES
    missing = {finding.code for finding in found if finding.severity == MISSING_EVIDENCE}
    if missing & {"RD921", "RD922"}:
        return NOT_DISTINGUISHABLE
    return UNPROVEN if missing else PASS
