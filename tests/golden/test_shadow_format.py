"""Shadow files written by earlier versions: every later version reads them, and says the same of them.

`shadow-v1` was written by version 0.1.0: 2 ranks, a mark after 2 batches and one batch more; then 1 rank that reads a
row too many, ends the epoch, and stops in the next one, which it knows by contents. Never change it; add a directory
for each later format.
"""

from __future__ import annotations

from pathlib import Path

from resumable_data.audit import Bounds
from resumable_data.shadowing import audit_shadow
from resumable_data.shadowing.reader import read_directory, read_values
from resumable_data.shadowing.records import Begin, Header

GOLDEN = Path(__file__).parent / "shadow-v1"


def test_audit_says_what_it_said() -> None:
    """Verdict, counts and findings of shadow files do not change with the version that audits them."""
    report = audit_shadow(GOLDEN)
    assert (report.verdict, report.rows, report.discarded) == ("violated", 15, 2)
    assert (report.replayed, report.omitted) == (Bounds(1, 1), Bounds(0, 0))
    assert [finding.code for finding in report.findings] == ["RD721", "RD726"]


def test_records_of_version_1() -> None:
    """Fields of each kind of record, as they lie in the files."""
    first, last, _ = read_directory(GOLDEN).files
    assert first.header == Header("store 00ff", 0, 2, 1000, "0.1.0")
    (iteration,) = first.iterations
    assert iteration.begin == Begin(0, 10, 0, 0, 3)
    assert (iteration.saved, iteration.has_end, iteration.num_hashed) == (2, False, 0)
    assert read_values(first, 0).value.tolist() == [0, 2, 4, 6, 8]
    assert (last.stopped, [one.has_end for one in last.iterations]) == ("disk full", [True, False])
    assert (last.iterations[1].num_hashed, read_values(last, 1).value.tolist()) == (1, [5, 2**64 - 1])
