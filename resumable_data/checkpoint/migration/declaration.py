"""What a user declares of a move before it is made: what must survive, and within which bounds."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from resumable_data.checkpoint.run_manifest import Invariant
from resumable_data.errors import UsageError

Count = Annotated[int, msgspec.Meta(ge=0)]
ContinuityKind = Literal["exact", "bounded", "none"]


class Continuity(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much of the data's order may be lost by a move.

    Attributes:
        kind: ``"exact"``: nothing is replayed and nothing omitted. ``"bounded"``: at most so many samples. ``"none"``:
            anything goes, and what the run reads after the move is another experiment's.
        replayed: Samples that may be read twice; of use with ``"bounded"``.
        omitted: Samples that may never be read.

    Raises:
        UsageError: Bounds are given where there are none.
    """

    kind: ContinuityKind = "exact"
    replayed: Count = 0
    omitted: Count = 0

    def __post_init__(self) -> None:
        if self.kind != "bounded" and (self.replayed or self.omitted):
            raise UsageError(
                f'bounds of replayed and omitted samples go with data continuity "bounded", and not with {self.kind!r}'
            )

    def holds(self, replayed: int, omitted: int) -> bool:
        """Whether a move that replayed and omitted so many samples is within it."""
        return self.kind == "none" or (replayed <= self.replayed and omitted <= self.omitted)


class Declaration(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must survive a move.

    Attributes:
        continuity: Of the data.
        invariant: What stays the same when ranks change: ``"samples"`` or ``"tokens"`` of an update, or the position of
            the ``"schedule"``.
        tolerances: Relative deviations of ``"loss"``, ``"gradient_norm"`` and ``"update_norm"`` from the control; those
            that are not named are derived from repeats of the control.
    """

    continuity: Continuity = Continuity()
    invariant: Invariant = "samples"
    tolerances: dict[str, float] = {}
