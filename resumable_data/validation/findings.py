"""What a comparison of traces can find."""

from __future__ import annotations

from typing import Self

import msgspec

from resumable_data.findings import MISSING_EVIDENCE, NOTE, VIOLATION, WARNING, Kind, PlainFinding
from resumable_data.ledger.frames import shown

PASS = "pass"
DEVIATES = "deviates"
NOT_DISTINGUISHABLE = "not distinguishable"
UNPROVEN = "unproven"

_STATE = "Load the optimizer's state, and start again from the checkpoint."
_SCHEDULE = "Load the scheduler's state after the optimizer's, and step it once per update, not per microbatch."
_DATA = "Load the loader's state, and audit its ledger: resumable-data audit."
_MOVED = (
    "Look at what moved first: the first loss depends on weights and data alone, the first gradient norm on how losses "
    "are summed and gradients reduced too, the first update norm on the optimizer's state and settings, and what comes "
    "later on all of it."
)

KINDS = {
    "RD901": Kind(VIOLATION, "the candidate starts at another update", _DATA),
    "RD902": Kind(VIOLATION, "updates read other samples", _DATA),
    "RD903": Kind(VIOLATION, "values are not finite", "Look for the first one; do not go on from there."),
    "RD904": Kind(VIOLATION, "learning rates differ", _SCHEDULE),
    "RD905": Kind(VIOLATION, "loss scales differ", "Load the scaler's state with the checkpoint."),
    "RD906": Kind(VIOLATION, "steps were skipped by one run only", "Load the scaler's state with the checkpoint."),
    "RD907": Kind(VIOLATION, "the optimizer's step counters differ", _STATE),
    "RD908": Kind(VIOLATION, "the scheduler's steps differ", _SCHEDULE),
    "RD909": Kind(VIOLATION, "numbers of samples or target tokens differ", _DATA),
    "RD911": Kind(VIOLATION, "losses are further apart than the limit", _MOVED),
    "RD912": Kind(VIOLATION, "gradient norms are further apart than the limit", _MOVED),
    "RD913": Kind(VIOLATION, "update norms are further apart than the limit", _MOVED),
    "RD921": Kind(
        MISSING_EVIDENCE,
        "the limits are so wide that faults would hide in them",
        "Compute in float32 with deterministic algorithms for these updates, or compare the states by their digests.",
    ),
    "RD922": Kind(
        MISSING_EVIDENCE,
        "values are apart by more than rounding, and how much the control varies by itself is not known",
        "Record the same updates again on the control's ranks, at least twice, and give them as repeats.",
    ),
    "RD923": Kind(
        MISSING_EVIDENCE,
        "too few updates were compared",
        "Record the same updates in both; 20 unless you say otherwise.",
    ),
    "RD924": Kind(MISSING_EVIDENCE, "a quantity was not recorded in both", "Record both with the same settings."),
    "RD925": Kind(
        MISSING_EVIDENCE,
        "a trace is no repeat of the control, and was not used",
        "Give traces of the same updates, on the control's ranks, from the same checkpoint.",
    ),
    "RD926": Kind(MISSING_EVIDENCE, "a trace was compared with itself", "Give the trace of another launch."),
    "RD931": Kind(
        WARNING,
        "the control was not repeated: limits are what rounding may do, and not what it was seen to do",
        "Record the same updates again on the control's ranks, at least twice, and give them as repeats.",
    ),
    "RD932": Kind(NOTE, "a torn last line was left out", "None needed: it is what a kill leaves."),
    "RD933": Kind(WARNING, "the two compute in different dtypes", "Declare the change, or compute in the same."),
    "RD934": Kind(NOTE, "releases differ", "Rule them out first where something deviates."),
    "RD935": Kind(NOTE, "the traces are of different runs", "None needed where the control was a run of its own."),
}


class TraceFinding(PlainFinding, frozen=True, kw_only=True):
    """One thing that a comparison found.

    Attributes:
        count: Updates concerned.
        first_update: The first of them; None where it is not about updates.
    """

    count: int = 1
    first_update: int | None = None

    @classmethod
    def about(
        cls, code: str, where: str, *, expected: str, found: str, count: int = 1, first_update: int | None = None
    ) -> Self:
        """A finding by its code; names from files are shown as what prints."""
        plain = cls.of(KINDS, code, shown(where), expected=shown(expected), found=shown(found))
        return msgspec.structs.replace(plain, count=count, first_update=first_update)
