"""What any loop is handed by any loader, noted beside it, to see what restarts do to it."""

from resumable_data.shadowing.audit import audit_shadow
from resumable_data.shadowing.findings import KINDS
from resumable_data.shadowing.loader import Shadow, shadow
from resumable_data.shadowing.report import RestartedEpoch, ShadowAttempt, ShadowReport

__all__ = ["KINDS", "RestartedEpoch", "Shadow", "ShadowAttempt", "ShadowReport", "audit_shadow", "shadow"]
