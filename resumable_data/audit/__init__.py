"""The proof: what a run was really trained on, from its ledger or from a cursor alone."""

from resumable_data.audit.checkpoint_audit import audit_checkpoints
from resumable_data.audit.cursor_audit import audit_cursor
from resumable_data.audit.findings import KINDS
from resumable_data.audit.ledger_audit import audit_ledger
from resumable_data.audit.report import AttemptReport, AuditReport, Bounds, CheckpointProof
from resumable_data.audit.unreadable import UnreadableSample
from resumable_data.findings import Finding

__all__ = [
    "KINDS",
    "AttemptReport",
    "AuditReport",
    "Bounds",
    "CheckpointProof",
    "Finding",
    "UnreadableSample",
    "audit_checkpoints",
    "audit_cursor",
    "audit_ledger",
]
