"""What a person asks of the audit of a ledger."""

from __future__ import annotations

import msgspec

from resumable_data.errors import UsageError


class Limits(msgspec.Struct, frozen=True):
    """What a person declared acceptable, in samples; None for any number."""

    replayed: int = 0
    omitted: int = 0
    discarded: int | None = None
    unreadable: int | None = None

    def __post_init__(self) -> None:
        if min(self.replayed, self.omitted, self.discarded or 0, self.unreadable or 0) < 0:
            raise UsageError(f"limits must be at least 0 samples, got {self}")


class Options(msgspec.Struct, frozen=True):
    """How files are read.

    Attributes:
        key: What keyed digests are keyed with, see `resumable_data.ledger.records.secret_key`; 0 where not known.
        salvage: Whether a damaged file is read up to the damage.
        jobs: Processes that read files.
    """

    key: int = 0
    salvage: bool = False
    jobs: int = 1

    def __post_init__(self) -> None:
        if isinstance(self.jobs, bool) or not isinstance(self.jobs, int) or self.jobs < 1:
            raise UsageError(f"jobs must be an integer of at least 1, got {self.jobs!r}")
