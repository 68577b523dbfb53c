"""Ledgers written by earlier versions: every later version reads them, and says the same of them.

`ledger-v1` was written by version 0.1.0: 3 ranks that recorded digests, killed in update 3 after a checkpoint at
update 2, then 2 ranks that recorded full IDs and skipped update 4. `ledger-v1-all` holds every kind of record that
updates have: 2 ranks with keyed digests, rewound and killed after a checkpoint; 3 with full IDs, folded; 2 that fold
more and skip an update. `ledger-v1-tracked` is of a tracked loop that left epochs early, on 2 ranks and then on 4.
`ledger-v1-inside` is of three launches that share an update: 3 ranks killed after a save inside it, 2, and 2 again.
Never change them; add a directory for each later format.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from resumable_data import Concat, PackedTokens, open_tokens
from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.ledger import TakenOver
from resumable_data.ledger.frames import PIECES_VERSION, RANK_KIND, make_head
from resumable_data.ledger.layout import list_attempt, list_attempts
from resumable_data.ledger.reader import read_claim, read_rank

if TYPE_CHECKING:
    from resumable_data import AuditReport

GOLDEN = Path(__file__).parent


def packed_of_golden() -> PackedTokens:
    """What the run in `ledger-v2-pieces` read."""
    lengths = np.array([5, 3, 0, 12, 300, 1, 30, 7, 2, 0, 9, 16, 4, 11, 6])
    source = open_tokens(np.arange(lengths.sum(), dtype=np.int32), lengths=lengths)
    return PackedTokens(source, sequence_length=16, window=6, policy=Concat())


@pytest.mark.parametrize("version", ["v1", "v1-all", "v1-tracked", "v1-inside"])
def test_audit_says_what_it_said(version: str) -> None:
    """Verdict, counts and attempts of a ledger do not change with the version that audits it."""
    expect_report(version, audit_ledger(GOLDEN / f"ledger-{version}", key="golden"))


def expect_report(version: str, found: AuditReport) -> None:
    report = json.loads(found.to_json())
    expected = json.loads((GOLDEN / f"ledger-{version}.json").read_text())
    attempts, expected_attempts = report.pop("attempts"), expected.pop("attempts")
    assert {name: report[name] for name in expected} == expected
    for attempt, wanted in zip(attempts, expected_attempts, strict=True):
        assert {name: attempt[name] for name in wanted} == wanted


def test_records_of_version_1() -> None:
    """Fields of each kind of record, as they lie in the files."""
    attempts, unknown = list_attempts(GOLDEN / "ledger-v1")
    assert (list(attempts), unknown) == ([1, 2], ())
    claims = [read_claim(path / "claim") for path in attempts.values()]
    assert [(claim.num_replicas, claim.microbatch, claim.epochs) for claim in claims] == [(3, 2, 3), (2, 4, 3)]
    assert [(claim.start.attempt, claim.start.updates) for claim in claims] == [(0, 0), (1, 2)]
    assert audit_cursor(claims[1].start).verdict == "proven"
    inside = read_claim(GOLDEN / "ledger-v1-inside" / "attempt-000003" / "claim").inside
    assert (claims[0].inside, inside) == (None, TakenOver(10, 2))
    logs = [read_rank(path) for n, folder in attempts.items() for path in list_attempt(n, folder).ranks.values()]
    assert [log.header.ids for log in logs if log.header] == ["digest"] * 3 + ["full"] * 2
    assert [log.has_end for log in logs] == [False] * 3 + [True] * 2
    assert logs[0].rewinds.update.tolist() == [1]
    assert logs[3].commits.applied.tolist() == [True, True, False, True]
    assert logs[3].all_deliveries().start.tolist()[:3] == [20, 26, 23]
    assert sum(int(log.all_deliveries().padding.sum()) for log in logs[3:]) == 14


def test_records_of_version_2() -> None:
    """Pieces of packed rows, as they lie in the files; the audit counts tokens by them."""
    ledger, packed = GOLDEN / "ledger-v2-pieces", packed_of_golden()
    expect_report("v2-pieces", audit_ledger(ledger, packed=packed))
    files = sorted(ledger.rglob("*.ledger"))
    assert {file.read_bytes()[:16] for file in files} == {make_head(RANK_KIND, PIECES_VERSION)}
    rows = [row.pieces for epoch in range(4) for row in packed.rows(epoch)]
    num_rows, widths = 0, set()
    for log in map(read_rank, files):
        for deliveries, pieces in log.deliveries_with_pieces():
            columns = (deliveries.start.tolist(), deliveries.stride.tolist(), deliveries.count.tolist())
            positions = [
                start + n * stride for start, stride, count in zip(*columns, strict=True) for n in range(count)
            ]
            assert [pieces.of_row(row) for row in range(len(pieces))] == [rows[position] for position in positions]
            num_rows += len(positions)
            widths |= set(deliveries.parts.tolist())
    assert (num_rows, len(widths) > 1) == (69, True)
