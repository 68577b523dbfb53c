"""What a loader carries from the checkpoint that it was loaded from into those that are saved after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.checkpoint.migration.records import Transition

if TYPE_CHECKING:
    from resumable_data.checkpoint.run_manifest import ScheduleUnit
    from resumable_data.loader import ResumableLoader


class Carried(msgspec.Struct, frozen=True, kw_only=True):
    """See `RunManifest` for both."""

    transitions: tuple[Transition, ...] = ()
    schedule_unit: ScheduleUnit | None = None


def carried_by(loader: ResumableLoader | None) -> Carried:
    """What a loader carries; nothing without one."""
    return (loader.carried if loader is not None else None) or Carried()
