"""Questions to a ledger: who got a sample, what an update held, and whether two runs were trained on the same."""

from resumable_data.lookup.diff import LedgerDiff, diff_ledgers
from resumable_data.lookup.export import export_rows
from resumable_data.lookup.walk import Status, Walk
from resumable_data.lookup.where import Delivery, find_document, find_sample, find_update

__all__ = [
    "Delivery",
    "LedgerDiff",
    "Status",
    "Walk",
    "diff_ledgers",
    "export_rows",
    "find_document",
    "find_sample",
    "find_update",
]
