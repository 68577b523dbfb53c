"""What an audit says of a run that was taken over from another loader."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from resumable_data import Cursor, Sequential, Shuffle, audit_cursor, audit_ledger
from resumable_data.cli import main
from tests.simulated_ranks import Job

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data import AuditReport


def taken_over(**options: Any) -> Cursor:
    options = {"consumed_samples": 24, "global_batch": 4, **options}
    return Cursor.from_consumed_samples(Sequential(20), **options)


def launch(state: Any, *, num_updates: int = 3, **options: Any) -> Cursor:
    """One launch of two ranks."""
    options = {"order": Sequential(20), "global_batch": 4, "microbatch": 2, **options}
    with Job(20, 2, **options) as job:
        job.load(state, allow={"global_batch", "tail"})
        job.train(num_updates)
        return job.agree()


def said(report: AuditReport) -> tuple[str, list[str]]:
    return report.verdict, [one.code for one in report.findings]


def test_a_cursor_is_unproven_for_what_was_declared() -> None:
    """The digest covers all since the take-over; without the person's word the rest is missing evidence."""
    cursor = launch(taken_over())
    assert (cursor.position, cursor.coverage[0].start, cursor.coverage[0].stop) == (36, 24, 36)
    report = audit_cursor(cursor)
    assert said(report) == ("unproven", ["RD112"])
    assert "taken over at position 24" in report.findings[0].found
    assert (report.samples, report.replayed.high) == (36, None)
    report = audit_cursor(cursor, since_take_over=True)
    assert said(report) == ("proven", ["RD112"])
    assert report.replayed.high == 0


def test_the_persons_word_covers_nothing_but_the_beginning() -> None:
    """A gap or a wrong digest after the take-over is found with and without it."""
    cursor = launch(taken_over())
    for since in (False, True):
        gap = msgspec.structs.replace(cursor, coverage=())
        verdict, codes = said(audit_cursor(gap, since_take_over=since))
        assert (verdict, set(codes)) == ("unproven", {"RD112", "RD405"})
        span = msgspec.structs.replace(cursor.coverage[0], lanes=(1, 2))
        wrong = msgspec.structs.replace(cursor, coverage=(span,))
        report = audit_cursor(wrong, since_take_over=since)
        assert report.verdict == "violated"
        assert "RD403" in said(report)[1]


def test_the_option_changes_nothing_elsewhere() -> None:
    """A run from position 0 is judged the same."""
    cursor = launch(Cursor(recipe=taken_over().recipe))
    assert said(audit_cursor(cursor, since_take_over=True)) == ("proven", [])


def test_counts_that_do_not_follow_from_the_take_over() -> None:
    """The numbers since the take-over are replayed as those of any run."""
    cursor = launch(taken_over())
    edited = msgspec.structs.replace(cursor, applied=cursor.applied + 1)
    assert said(audit_cursor(edited, since_take_over=True)) == ("violated", ["RD404", "RD112"])


def test_a_migration_after_the_take_over(tmp_path: Path) -> None:
    """Recipe changes at the take-over itself, and later, are replayed in both audits."""
    state = launch(taken_over(), global_batch=3, num_updates=1, ledger=tmp_path)
    cursor = launch(state, global_batch=5, tail="drop", ledger=tmp_path)
    assert [one.position for one in cursor.migrations] == [24, 27]
    assert audit_cursor(cursor, since_take_over=True).verdict == "proven"
    assert audit_ledger(tmp_path, since_take_over=True).verdict == "proven"


@pytest.mark.parametrize("updates", [0, 6])
def test_a_ledger_that_begins_at_the_take_over(tmp_path: Path, updates: int) -> None:
    """It holds all there is of the run, and says what it does not; a count of 0 updates makes it no new run."""
    state = launch(taken_over(updates=updates), ledger=tmp_path)
    launch(state, ledger=tmp_path)
    report = audit_ledger(tmp_path)
    assert said(report) == ("unproven", ["RD112"])
    report = audit_ledger(tmp_path, since_take_over=True)
    assert said(report) == ("proven", ["RD112"])
    assert (report.samples, report.position, report.omitted.high) == (48, 48, 0)


def test_a_ledger_that_begins_after_the_take_over(tmp_path: Path) -> None:
    """What lies between is proven by the cursor's digest, or not at all."""
    state = launch(taken_over())
    launch(state, ledger=tmp_path / "a")
    assert said(audit_ledger(tmp_path / "a", since_take_over=True)) == ("proven", ["RD112"])
    launch(msgspec.structs.replace(state, coverage=()), ledger=tmp_path / "b")
    assert said(audit_ledger(tmp_path / "b", since_take_over=True)) == ("unproven", ["RD109", "RD112"])


def test_a_take_over_cannot_change_within_a_run(tmp_path: Path) -> None:
    """A later attempt that declares another beginning is found: it would excuse what is missing."""
    state = launch(taken_over(), ledger=tmp_path)
    later = msgspec.structs.replace(taken_over(consumed_samples=36), attempt=1, run_id=state.run_id)
    launch(later, ledger=tmp_path)
    report = audit_ledger(tmp_path, since_take_over=True)
    assert report.verdict == "violated"
    assert "RD401" in said(report)[1]


def test_a_take_over_loaded_again_is_a_rollback(tmp_path: Path) -> None:
    """A script that loads the take-over at each launch starts over there: what it had done is discarded."""
    for _ in range(2):
        launch(taken_over(), ledger=tmp_path)
    report = audit_ledger(tmp_path, since_take_over=True)
    assert (report.verdict, report.samples, report.discarded.low) == ("proven", 36, 12)


def test_what_the_old_run_dropped_is_not_said_to_be_the_tails(tmp_path: Path) -> None:
    """The text names both of what may have dropped samples."""
    cursor = Cursor.from_consumed_samples(Shuffle(20), consumed_samples=36, global_batch=4, samples_per_epoch=18)
    text = audit_cursor(cursor, since_take_over=True).to_text()
    assert text.startswith("PROVEN: every committed sample was delivered exactly once, since the run was taken over")
    assert 'dropped    4, as tail="drop" declares, or what the run was taken over from' in text


def test_the_command_takes_the_same_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """--since-take-over works for a ledger and for a cursor."""
    cursor = launch(taken_over(), ledger=tmp_path / "ledger")
    (tmp_path / "cursor.json").write_bytes(cursor.to_json())
    for what in ([str(tmp_path / "ledger")], ["--cursor", str(tmp_path / "cursor.json")]):
        assert main(["audit", "--json", *what]) == 1
        assert json.loads(capsys.readouterr().out)["verdict"] == "unproven"
        assert main(["audit", "--json", "--since-take-over", *what]) == 0
        assert json.loads(capsys.readouterr().out)["verdict"] == "proven"
