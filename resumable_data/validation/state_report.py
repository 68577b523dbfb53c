"""What a check of a program's state says, for people and programs."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from resumable_data.findings import MISSING_EVIDENCE, VIOLATION
from resumable_data.ledger.frames import shown
from resumable_data.validation.state_findings import StateFinding

SCHEMA_VERSION = 1
COMPLETE = "complete"
WARM_START = "warm start"
UNPROVEN = "unproven"
VIOLATED = "violated"


class StateReport(msgspec.Struct, frozen=True, kw_only=True):
    """Whether a program holds what a checkpoint holds.

    Attributes:
        path: The checkpoint.
        verdict: ``"complete"``; ``"warm start"``, of models that are whole with an optimizer that begins anew, whatever
            else is lost; ``"unproven"``; or ``"violated"``.
        tensors: How many were compared, by digest.
        values: How many plain values were compared.
        findings: The worst first.
    """

    path: str
    verdict: str
    tensors: int
    values: int
    findings: tuple[StateFinding, ...]
    schema_version: int = SCHEMA_VERSION

    @property
    def exit_code(self) -> int:
        """0 where the state is complete, else 1."""
        return int(self.verdict != COMPLETE)

    def to_json(self) -> bytes:
        """As JSON."""
        return msgspec.json.encode(self)

    def to_text(self) -> str:
        """As a person reads it."""
        lines = [
            f"{self.verdict.upper()}: {self.tensors} tensors and {self.values} plain values compared with {self.path}"
        ]
        for one in self.findings:
            lines += ["", f"{one.code} {one.severity}: {one.title}", f"  where     {one.where}"]
            lines += [f"  expected  {one.expected}", f"  found     {one.found}", f"  remedy    {one.remedy}"]
        return "\n".join(map(shown, lines))


def judge_state(findings: Iterable[StateFinding]) -> str:
    """The verdict that findings lead to."""
    found = list(findings)
    is_new = any(one.code == "RD950" for one in found)
    # of a run that begins anew with loaded weights, the models must be whole; the rest is not expected to be
    if any(one.severity == VIOLATION and (one.is_of_model or not is_new) for one in found):
        return VIOLATED
    if is_new:
        return WARM_START
    return UNPROVEN if any(one.severity == MISSING_EVIDENCE for one in found) else COMPLETE
