"""What changed between the program that saved and the one that loads, as it is written down."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec

from resumable_data.checkpoint.manifest import Hex64, Topology

Count = Annotated[int, msgspec.Meta(ge=0)]
Value = int | str | None
Risk = Literal["dp only", "schedule", "recipe", "precision", "CP", "TP", "other axis", "PP"]
RISKS: tuple[Risk, ...] = get_args(Risk)
"""What a change may do to a run, the least first."""


class RunChange(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One thing that differs.

    Attributes:
        field: ``"dp"``, ``"microbatch"``, ``"data_axes"``, ``"mesh.tp"``, ``"global_batch"``, ``"recipe.tail"``,
            ``"precision.model.parameters"``, ``"schedule.scheduler.kind"``, ``"schedule_unit"`` and so on.
        saved: What it was.
        now: What it is.
        risk: Its class.
        needs_migration: Whether a load without a declaration refuses it.
        effect: What it does to the run.
    """

    field: str
    saved: Value
    now: Value
    risk: Risk
    needs_migration: bool
    effect: str

    @property
    def values(self) -> tuple[str, Value, Value]:
        """What a declaration of it must name."""
        return self.field, self.saved, self.now


class Transition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A load at which something changed, or may have.

    Attributes:
        update: Index of the update before which it was; None where nothing counts them.
        saved: The processes that saved.
        now: Those that loaded.
        changes: What differed.
        unknown: What could not be compared, since the checkpoint does not tell it.
        migration_xxh3: xxh3_64 of the migration that declared it; None without one.
        allowances: Names that declared it in code.
    """

    update: Count | None
    saved: Topology
    now: Topology
    changes: tuple[RunChange, ...] = ()
    unknown: tuple[str, ...] = ()
    migration_xxh3: Hex64 | None = None
    allowances: tuple[str, ...] = ()


def worst_risk(changes: tuple[RunChange, ...]) -> Risk | None:
    """The worst class among changes; None where there are none."""
    return max((change.risk for change in changes), key=RISKS.index, default=None)
