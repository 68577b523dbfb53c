"""The audit of updates that are parted among launches: what a claim says is looked for in the files."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import pytest

from resumable_data import Shuffle, audit_ledger
from resumable_data.cli import main
from resumable_data.ledger import Delivered, Ledger
from resumable_data.ledger.layout import attempt_name, rank_name
from resumable_data.lookup import Walk, diff_ledgers, export_rows, find_sample, find_update
from tests.simulated_ranks import Job
from tests.unit.audit.test_lies import change, edit_claim, edit_rank, edit_start

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from resumable_data.audit import AuditReport
    from resumable_data.cursor import Phase
    from resumable_data.ledger import Claim

RECIPE: dict[str, Any] = {"order": Shuffle(23), "global_batch": 12, "epochs": 4}


class Written(NamedTuple):
    """A ledger, as the helpers of `test_lies` take it."""

    path: Path


class Saved(NamedTuple):
    """What a checkpoint holds."""

    state: dict[str, torch.Tensor]
    phase: Phase


def launch(path: Path | None, num_replicas: int, saved: Saved | None = None, **options: Any) -> Job:
    """A job of microbatches of 2 rows that goes on from a checkpoint."""
    job = Job(23, num_replicas, microbatch=2, ledger=None if path is None else Ledger(path, **options), **RECIPE)
    if saved is not None:
        job.load(saved.state)
        for loader in job.loaders:
            loader.start_inside(saved.phase)
    return job


def save(job: Job) -> Saved:
    phase = job.loaders[0].gather_phase(job.loaders)
    return Saved(job.save(), phase)


def parted_run(path: Path, *, is_orderly: bool = True, num_launches: int = 2, **options: Any) -> Written:
    """Updates 0 and 1, and rows [0, 6) of update 2 by 3 ranks; then by 2 ranks its rest, and updates 3 and 4.

    The rest is rows [6, 10) and [10, 12). Of three launches the second one reads the first of these two only. After the
    first one's save the rest of update 2 was delivered too, and lost.
    """
    job = launch(path, 3, **options)
    job.train(2)
    job.microbatch()
    saved = save(job)
    job.microbatch()
    if is_orderly:
        job.close()
    for _ in range(num_launches - 2):
        job = launch(path, 2, saved, **options)
        job.microbatch()
        saved = save(job)
        job.close()
    job = launch(path, 2, saved, **options)
    job.train(3)
    job.agree()
    job.close()
    return Written(path)


def claimed(**changes: int) -> Any:
    """Changes what a claim says that it took over."""

    def edit(claim: Claim) -> Claim:
        assert claim.inside is not None
        return claim.starting_inside(msgspec.structs.replace(claim.inside, **changes))

    return edit


def shown(report: AuditReport) -> list[str]:
    return [f"{one.code} a{one.attempt}" + (f" r{one.ranks}" if one.ranks else "") for one in report.findings]


def counts(report: AuditReport) -> tuple[Any, ...]:
    """Verdict, replayed, omitted and discarded."""
    found = (report.replayed, report.omitted, report.discarded)
    return (report.verdict, *(str(one) for one in found))


@pytest.mark.parametrize("num_launches", [2, 3])
@pytest.mark.parametrize("options", [{}, {"ids": "full"}, {"fold_rows": 64}], ids=str)
def test_a_parted_update_is_proven(tmp_path: Path, num_launches: int, options: dict[str, Any]) -> None:
    """What was taken over is committed, and what came after the save is discarded."""
    run = parted_run(tmp_path / "ledger", num_launches=num_launches, **options)
    report = audit_ledger(run.path)
    assert (*counts(report), report.findings) == ("proven", "0", "0", "6", ())
    assert (report.updates, report.samples, report.in_flight) == (5, 60, 0)
    assert [one.taken_over or 0 for one in report.attempts] == [0, 6, 10][:num_launches]
    assert [one.parent for one in report.attempts] == list(range(num_launches))
    assert [(one.first_position, one.stop_position) for one in report.attempts][-1][1] == 60
    assert "(from row 6 of 2)" in report.to_text()
    assert ("taken_over" in msgspec.json.decode(report.to_json())["attempts"][0]) is False


def test_the_questions_know_what_was_taken_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Shown, exported and compared as committed: the same rows as those of a run that nothing interrupted."""
    run = parted_run(tmp_path / "ledger", num_launches=3)
    whole = launch(tmp_path / "whole", 1)
    whole.train(5)
    whole.close()
    walk = Walk(run.path)
    assert diff_ledgers(walk, Walk(tmp_path / "whole")).is_same
    assert export_rows(walk, tmp_path / "rows.npy") == 60
    rows = [(one.position, one.attempt) for one in find_update(walk, 2) if one.status == "committed"]
    assert sorted(rows) == [(24 + row, 1 if row < 6 else 2 if row < 10 else 3) for row in range(12)]
    assert main(["ledger", "show", str(run.path)]) == 0
    assert "attempt 3 (after 2): from update 2 after 10 rows of it, position 24" in capsys.readouterr().out
    sample = find_update(walk, 2)[0]
    assert {one.status for one in find_sample(walk, sample.id) if one.position == sample.position} == {"committed"}


@pytest.mark.parametrize("options", [{}, {"ids": "full", "fold_rows": 64}], ids=str)
def test_updates_that_are_fetched_whole_are_parted_too(tmp_path: Path, options: dict[str, Any]) -> None:
    """All of an update is delivered then, perhaps in one record; what was not trained on at the save is discarded."""
    first = launch(tmp_path / "ledger", 1, **options)
    update = next(first.loaders[0].updates())
    assert [microbatch.ids.size for microbatch in islice(update, 4)] == [2] * 4
    saved = save(first)
    first.close()
    with launch(tmp_path / "ledger", 2, saved, **options) as job:
        job.train(2)
    report = audit_ledger(tmp_path / "ledger")
    assert (*counts(report), report.findings, report.samples) == ("proven", "0", "0", "4", (), 24)
    walk = Walk(tmp_path / "ledger")
    found = [(one.position, one.attempt, one.status) for one in find_update(walk, 0)]
    wanted = [(row, 1, "committed" if row < 8 else "rolled back") for row in range(12)]
    assert sorted(found) == sorted(wanted + [(row, 2, "committed") for row in range(8, 12)])
    assert export_rows(walk, tmp_path / "rows.npy") == 24
    assert audit_ledger(tmp_path / "ledger", jobs=2) == report


def test_an_update_under_way_is_in_flight(tmp_path: Path) -> None:
    """Until somebody commits the update, what was taken over is neither committed nor discarded."""
    first = launch(tmp_path / "ledger", 3)
    first.train(2)
    first.microbatch()
    job = launch(tmp_path / "ledger", 2, save(first))
    job.microbatch()
    report = audit_ledger(tmp_path / "ledger")
    assert (*counts(report), report.in_flight) == ("proven", "0", "0", "0", 10)
    assert [one.in_flight for one in report.attempts] == [6, 4]
    assert {one.status for one in find_update(Walk(tmp_path / "ledger"), 2)} == {"in flight"}


def test_a_phase_that_is_not_restored_is_discarded(tmp_path: Path) -> None:
    """A launch that loads the cursor alone reads the update again; the first part of it counts as discarded."""
    first = launch(tmp_path / "ledger", 3)
    first.train(2)
    first.microbatch()
    saved = save(first)
    job = launch(tmp_path / "ledger", 2)
    job.load(saved.state)
    job.train(1)
    report = audit_ledger(tmp_path / "ledger")
    assert (*counts(report), report.findings) == ("proven", "0", "0", "6", ())


def test_a_run_may_be_taken_on_inside_its_first_update(tmp_path: Path) -> None:
    """Before the first commit a cursor has no run ID; the launches belong to one run all the same."""
    first = launch(tmp_path / "ledger", 3)
    first.microbatch()
    job = launch(tmp_path / "ledger", 2, save(first))
    job.train(2)
    report = audit_ledger(tmp_path / "ledger")
    assert (*counts(report), report.findings, report.samples) == ("proven", "0", "0", "0", (), 24)


def test_a_part_that_was_read_without_a_ledger_is_unproven(tmp_path: Path) -> None:
    """No attempt delivered what this one took over, so that it is open what it was."""
    first = launch(tmp_path / "ledger", 3)
    first.train(2)
    before = Saved(first.save(), first.loaders[0].gather_phase(first.loaders))
    unseen = launch(None, 3, before)
    unseen.microbatch()
    saved = save(unseen)
    assert saved.phase.attempt == 0
    job = launch(tmp_path / "ledger", 2, saved)
    job.train(1)
    report = audit_ledger(tmp_path / "ledger")
    assert (*counts(report), shown(report)) == ("unproven", "0 to 6", "0 to 6", "0", ["RD118 a2"])


def before_the_part(records: list[Any]) -> list[Any]:
    """Without its deliveries of update 2, and what follows."""
    first = next(n for n, one in enumerate(records) if isinstance(one, Delivered) and one.update == 2)
    return records[:first]


LIES: list[tuple[str, Any, tuple[str, str, str, str], list[str]]] = [
    # name, what is done to the ledger, verdict with replayed, omitted and discarded, findings
    (
        "a delivery of the part is taken out",
        lambda run: edit_rank(run, 1, 1, change(Delivered, 4)),
        ("violated", "0", "2", "6"),
        ["RD306 a1 r1"],
    ),
    (
        "the file ends before the part",
        lambda run: edit_rank(run, 1, 1, before_the_part),
        ("unproven", "0 to 2", "0 to 2", "4"),
        ["RD106 a1 r1"],
    ),
    (
        "the file is missing",
        lambda run: (run.path / attempt_name(1) / rank_name(1, 0)).unlink(),
        ("unproven", "0 to 10", "0 to 10", "at least 4"),
        ["RD105 a1 r1"],
    ),
    (
        "the part is delivered twice",
        lambda run: edit_rank(run, 1, 1, lambda records: [*records[:8], records[6], *records[8:]]),
        ("violated", "2", "0", "6"),
        ["RD202 a1 r1"],
    ),
    (
        "more is claimed than was accumulated, and was read again",
        lambda run: edit_claim(run, 2, claimed(samples=8)),
        ("violated", "2", "0", "4"),
        ["RD201 a2 r0-1", "RD203 a2 r0-1", "RD306 a1"],
    ),
    (
        "less is claimed than was accumulated, and was not read again",
        lambda run: edit_claim(run, 2, claimed(samples=3)),
        ("violated", "0", "3", "9"),
        ["RD201 a2 r0-1", "RD203 a2 r0-1", "RD306 a1"],
    ),
    (
        "all of the update is claimed",
        lambda run: edit_claim(run, 2, claimed(samples=12)),
        ("violated", "6", "0", "0"),
        ["RD203 a2 r0-1", "RD401 a2"],
    ),
    (
        "no attempt is named",
        lambda run: edit_claim(run, 2, claimed(attempt=0)),
        ("unproven", "0 to 6", "0 to 6", "12"),
        ["RD118 a2"],
    ),
    (
        "a younger attempt is named",
        lambda run: edit_claim(run, 2, claimed(attempt=2)),
        ("violated", "at least 0", "at least 0", "0 to 36"),
        ["RD401 a2", "RD109 a2", "RD118 a2"],
    ),
    (
        "nothing is claimed",
        lambda run: edit_claim(run, 2, lambda claim: claim.starting_inside(None)),
        ("violated", "0", "6", "12"),
        ["RD201 a2 r0-1", "RD203 a2 r0-1"],
    ),
]


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie[0])
def test_a_claim_is_not_taken_at_its_word(tmp_path: Path, lie: Any) -> None:
    """Each lie about a parted update leads to its findings, and to counts that hold the truth."""
    _, tell, wanted, findings = lie
    run = parted_run(tmp_path / "ledger")
    tell(run)
    report = audit_ledger(run.path)
    assert (counts(report), shown(report)) == (wanted, findings)


def test_an_attempt_that_committed_in_between_is_no_parent(tmp_path: Path) -> None:
    """A part is taken over from the attempt that committed last, or from one that starts at the same cursor."""
    run = parted_run(tmp_path / "ledger", num_launches=3)
    edit_start(run, 3, attempt=2)
    edit_claim(run, 3, claimed(attempt=1))
    assert "RD401 a3" in shown(audit_ledger(run.path))
