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

import pytest

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.ledger import TakenOver
from resumable_data.ledger.layout import list_attempt, list_attempts
from resumable_data.ledger.reader import read_claim, read_rank

GOLDEN = Path(__file__).parent


@pytest.mark.parametrize("version", ["v1", "v1-all", "v1-tracked", "v1-inside"])
def test_audit_says_what_it_said(version: str) -> None:
    """Verdict, counts and attempts of a ledger do not change with the version that audits it."""
    report = json.loads(audit_ledger(GOLDEN / f"ledger-{version}", key="golden").to_json())
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
