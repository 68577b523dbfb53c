"""Other people's logs: what any training script printed as sample IDs, counted and compared with a plan."""

from resumable_data.logs.audit import audit_ids
from resumable_data.logs.epochs import EpochCounts
from resumable_data.logs.findings import KINDS
from resumable_data.logs.plan import LogPlan
from resumable_data.logs.reading import FORMATS
from resumable_data.logs.replays import Replay, Seen
from resumable_data.logs.report import IdsReport
from resumable_data.logs.rows import Fields

__all__ = [
    "FORMATS",
    "KINDS",
    "EpochCounts",
    "Fields",
    "IdsReport",
    "LogPlan",
    "Replay",
    "Seen",
    "audit_ids",
]
