"""What was really delivered: append-only files, one per attempt and data-parallel rank."""

from resumable_data.ledger.attempts import ON_ERROR_CHOICES, Ledger
from resumable_data.ledger.records import (
    ID_MODES,
    Claim,
    Commit,
    Delivered,
    End,
    Mesh,
    RankHeader,
    Rewind,
    TakenOver,
    digest_ids,
)
from resumable_data.ledger.writer import RankWriter

__all__ = [
    "ID_MODES",
    "ON_ERROR_CHOICES",
    "Claim",
    "Commit",
    "Delivered",
    "End",
    "Ledger",
    "Mesh",
    "RankHeader",
    "RankWriter",
    "Rewind",
    "TakenOver",
    "digest_ids",
]
