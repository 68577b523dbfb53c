"""Cursors of several checkpoints: one run, one history, and what each proves of it."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from resumable_data import ResumableLoader
from resumable_data.audit import audit_checkpoints
from resumable_data.cursor import CoverageSpan, Cursor, Recipe, sum_lanes
from resumable_data.errors import CorruptStateError, UsageError
from resumable_data.order import Shuffle, ids_at
from resumable_data.plan import TAILS
from tests.packed_jobs import make_packed
from tests.unit.audit.simulator import Run
from tests.unit.audit.test_clean_histories import make_recipe
from tests.unit.tracking.loops import Setup, next_of_all

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit import AuditReport


def codes(*cursors: Cursor, **options: Any) -> tuple[str, list[str]]:
    report = audit(*cursors, **options)
    return report.verdict, [one.code for one in report.findings]


def audit(*cursors: Cursor, **options: Any) -> AuditReport:
    return audit_checkpoints([(f"step-{at}", cursor) for at, cursor in enumerate(cursors)], **options)


def live(path: Path, tail: str, seed: int, recipe: Recipe | None = None) -> list[Cursor]:
    """Cursors of one history, saved with and without an agreement, with restarts from the newest one."""
    rng = random.Random(seed)
    run, saved = Run(path / "ledger", recipe or make_recipe(23, 10, tail)), None
    cursors = []
    for _ in range(rng.randint(1, 3)):
        if saved is not None and rng.random() < 0.5:
            recipe = make_recipe(23, rng.choice([5, 7, 10]), tail)
            run.launch(saved, num_replicas=rng.randint(1, 4), microbatch=3, recipe=recipe)
        else:
            run.launch(saved, num_replicas=rng.randint(1, 4), microbatch=3)
        for _ in range(rng.randint(1, 3)):
            for _ in range(rng.randint(0, 4)):
                run.deliver()
                run.commit(applied=rng.random() < 0.9)
            saved = run.checkpoint()
            cursors.append(saved.cursor)
        run.kill()
    return cursors


@pytest.mark.parametrize("tail", TAILS)
def test_checkpoints_of_one_history_are_proven(tmp_path: Path, tail: str) -> None:
    """In any order, with migrations, restarts and skipped updates; each proves all positions before it."""
    for seed in range(12):
        cursors = live(tmp_path / str(seed), tail, seed)
        random.Random(seed).shuffle(cursors)
        report = audit(*cursors)
        assert (report.verdict, report.findings) == ("proven", ()), seed
        newest = max(cursors, key=lambda cursor: cursor.updates)
        assert (report.subject, report.position, report.samples) == ("checkpoints", newest.position, newest.samples)
        assert report.checkpoints
        for proof in report.checkpoints:
            cursor = cursors[int(proof.path.removeprefix("step-"))]
            assert (proof.updates, proof.position, proof.attempt) == (cursor.updates, cursor.position, cursor.attempt)
            assert proof.proven == (((0, cursor.position),) if cursor.position else ())
        assert [one.updates for one in report.checkpoints] == sorted(cursor.updates for cursor in cursors)


@pytest.fixture
def cursors(tmp_path: Path) -> list[Cursor]:
    """After 2, 4 and 6 updates of 10 samples; attempt 1, and the last of attempt 2."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, "carry"))
    saved = None
    cursors = []
    for updates in (2, 4, 6):
        if updates != 4:
            run.launch(saved, num_replicas=2, microbatch=5)
        run.train(2)
        saved = run.checkpoint()
        cursors.append(saved.cursor)
        if updates != 2:
            run.kill()
    return cursors


def span(start: int, stop: int, *, seed: int = 3) -> CoverageSpan:
    positions = np.arange(start, stop, dtype=np.int64)
    return CoverageSpan(start, stop, sum_lanes(positions, ids_at(Shuffle(23, seed=seed), positions)))


def edited(cursor: Cursor, **changes: Any) -> Cursor:
    return msgspec.structs.replace(cursor, **changes)


def test_text(cursors: list[Cursor]) -> None:
    """The report says where the proven coverage starts and ends, and which checkpoint proves what."""
    text = audit(*cursors).to_text()
    assert "proven      positions [0, 60) of [0, 60), by step-2\n" in text
    assert (
        """\
  checkpoint  attempt  updates  position  proves positions
  step-0            1        2        20           [0, 20)
  step-1            1        4        40           [0, 40)
  step-2            2        6        60           [0, 60)"""
        in text
    )


def test_two_runs(cursors: list[Cursor]) -> None:
    """Checkpoints of two runs are a finding that names both, though each proves itself; a run's beginning is any's."""
    other = edited(cursors[2], run_id="0" * 16)
    report = audit(cursors[0], other, cursors[1])
    assert (report.verdict, [one.code for one in report.findings]) == ("violated", ["RD408"])
    assert report.findings[0].found == "run 0000000000000000 in step-1"
    assert report.to_text().startswith("VIOLATED: the checkpoints are not of one history\n")
    assert report.checkpoints
    assert [one.proven for one in report.checkpoints] == [((0, 20),), ((0, 40),), ((0, 60),)]
    assert codes(Cursor(recipe=make_recipe(23, 10, "carry")), cursors[0]) == ("proven", [])


def test_forks_that_disagree(tmp_path: Path) -> None:
    """Of two jobs that went on from one checkpoint in two ways, the checkpoints lie in no one history."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, "carry"))
    run.launch(None, num_replicas=2, microbatch=5)
    run.train(2)
    saved = run.checkpoint()
    ends = []
    for batch, updates, applied in ((10, 3, True), (5, 4, True), (10, 4, False), (7, 5, True)):
        run.launch(saved, num_replicas=2, microbatch=5, recipe=make_recipe(23, batch, "carry"))
        for _ in range(updates):
            run.deliver()
            run.commit(applied=applied)
        ends.append(run.checkpoint().cursor)
        run.kill()
        assert codes(saved.cursor, ends[-1]) == ("proven", [])
    for one in range(4):
        for other in range(one):
            verdict, found = codes(saved.cursor, ends[one], ends[other])
            assert (verdict, set(found)) == ("violated", {"RD409"})


def test_forks_that_agree(tmp_path: Path) -> None:
    """An older attempt's checkpoint that is further on than a newer one's is noted: both delivered the same."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, "carry"))
    run.launch(None, num_replicas=2, microbatch=5)
    run.train(2)
    saved = run.checkpoint()
    run.train(3)
    further = run.checkpoint()
    run.kill()
    run.launch(saved, num_replicas=3, microbatch=5)
    run.train(1)
    behind = run.checkpoint()
    assert codes(saved.cursor, further.cursor, behind.cursor) == ("proven", ["RD410"])


@pytest.mark.parametrize("name", ["applied", "skipped", "tokens", "padding"])
def test_counts_that_shrink(cursors: list[Cursor], name: str) -> None:
    """What a run has counted never becomes less."""
    first = edited(cursors[0], tokens=50, applied=1, skipped=1)
    rest = [edited(one, tokens=50 * one.updates, applied=one.updates - 1, skipped=1) for one in cursors[1:]]
    assert codes(first, *rest) == ("proven", [])
    first = edited(first, **{name: getattr(rest[0], name) + 1})
    verdict, found = codes(first, *rest)
    assert (verdict, "RD409" in found) == ("violated", True)


def test_changed_recipe(cursors: list[Cursor]) -> None:
    """Another order, and a change of the recipe that was not declared, are violations."""
    recipe = cursors[2].recipe
    assert "RD402" in codes(*cursors[:2], edited(cursors[2], recipe=make_recipe(23, 20, "carry")))[1]
    other = msgspec.structs.replace(recipe, order=Shuffle(23, seed=4).describe())
    report = audit(*cursors[:2], edited(cursors[2], recipe=other, coverage=(span(0, 60, seed=4),)))
    assert {one.code for one in report.findings} == {"RD409"}
    assert any(one.found == "order.seed 3 and 4" for one in report.findings)


def test_digest_of_other_samples(cursors: list[Cursor]) -> None:
    """The checkpoint whose digest is not that of the order is named; others prove what they proved."""
    wrong = edited(cursors[1], coverage=(span(0, 40, seed=4),))
    report = audit(cursors[0], wrong, edited(cursors[2], coverage=(span(0, 40), span(40, 60))))
    assert {one.code for one in report.findings} == {"RD403", "RD409"}
    assert [one.where for one in report.findings if one.code == "RD403"] == ["step-1: cursor, positions [0, 40)"]
    assert report.checkpoints
    assert [one.proven for one in report.checkpoints] == [((0, 20),), (), ((0, 60),)]


def test_order_of_the_users_own(cursors: list[Cursor]) -> None:
    """Digests that contradict each other are found without the order; those that agree prove nothing without it."""
    recipe = msgspec.structs.replace(cursors[0].recipe, order={"kind": "mine", "length": 23})
    a, b, c = (edited(one, recipe=recipe) for one in cursors)
    assert codes(a, b, c) == ("unproven", ["RD108"])
    parts = (span(0, 20), span(20, 60))
    assert codes(a, b, edited(c, coverage=parts)) == ("unproven", ["RD108"])
    # [20, 60) and [0, 40) tell of [0, 20) and [40, 60) what nothing contradicts, until [40, 60) is told.
    late = edited(b, coverage=(span(20, 40),))
    wrong = (span(0, 20, seed=4), span(20, 60))
    verdict, found = codes(a, late, edited(c, coverage=wrong))
    assert (verdict, "RD409" in found) == ("violated", True)
    shifted = (span(0, 40), CoverageSpan(40, 60, (1, 2)))
    assert codes(a, b, edited(c, coverage=shifted)) == ("unproven", ["RD108"])
    further = edited(c, applied=7, samples=70, epoch=3, offset=1, coverage=(span(0, 40), span(40, 60), span(60, 70)))
    assert "RD409" in codes(a, b, edited(c, coverage=shifted), further)[1]


def test_gaps(cursors: list[Cursor]) -> None:
    """What the newest has no digest of is unproven, also where an older one has it; older gaps it may fill."""
    late = edited(cursors[1], coverage=(span(0, 20),))
    report = audit(cursors[0], late, cursors[2])
    assert (report.verdict, report.findings) == ("proven", ())
    assert report.checkpoints
    assert [one.proven for one in report.checkpoints] == [((0, 20),), ((0, 20),), ((0, 60),)]
    report = audit(cursors[0], cursors[1], edited(cursors[2], coverage=(span(0, 20), span(40, 60))))
    assert (report.verdict, [one.code for one in report.findings]) == ("unproven", ["RD405"])
    assert report.findings[0].where == "step-2, positions [20, 40)"
    assert "step-1 has one, and whether the run went on from there" in report.findings[0].found
    assert "proven      positions [0, 20) [40, 60) of [0, 60), by step-2\n" in report.to_text()


def test_one_without_a_cursor(cursors: list[Cursor]) -> None:
    """A checkpoint that has no such cursor is named."""
    report = audit(*cursors, lacking=["step-7"])
    assert (report.verdict, [(one.code, one.where) for one in report.findings]) == ("unproven", [("RD411", "step-7")])


def test_numbers_of_no_run(cursors: list[Cursor]) -> None:
    """A cursor that no run reaches is an error, wherever it stands."""
    with pytest.raises(CorruptStateError, match="no run reaches"):
        audit(*cursors, edited(cursors[0], applied=1 << 62))
    with pytest.raises(CorruptStateError, match="add up"):
        audit(edited(cursors[0], samples=3), cursors[1])


def test_packed_rows(tmp_path: Path) -> None:
    """Checkpoints of a run over packed rows are proven with its documents, and refused without them."""
    packed = make_packed()
    loader = ResumableLoader(packed, global_batch=5, microbatch=5, epochs=2)
    cursors = []
    for microbatch in loader:
        if microbatch.is_last:
            loader.commit()
            cursors.append(loader.check_agreement())
    assert len(cursors) > 5
    report = audit(*cursors[::3], packed=packed)
    assert (report.verdict, report.findings) == ("proven", ())
    assert report.checkpoints
    assert [one.proven for one in report.checkpoints] == [((0, cursor.position),) for cursor in cursors[::3]]
    with pytest.raises(UsageError, match="packed rows"):
        audit(*cursors)
    place = cursors[2].packed
    assert place
    wrong = edited(cursors[2], packed=msgspec.structs.replace(place, row=1 << 20))
    verdict, found = codes(cursors[0], wrong, cursors[4], packed=packed)
    assert (verdict, "RD409" in found) == ("violated", True)


def test_tracked_loops(tmp_path: Path) -> None:
    """Checkpoints of a loop over torch's DataLoader, counted by batches and saved on other ranks, are proven."""
    state, cursors = None, []
    for setup in (Setup(24, 2, 2, 2), Setup(24, 4, 1, 2)):
        loaders = setup.loaders(state)
        for loader in loaders:
            loader.sampler.set_epoch(0)
        iterators = [iter(loader) for loader in loaders]
        for _ in range(3):
            next_of_all(iterators)
            for loader in loaders:
                loader.commit()
            cursors.append(loaders[0].check_agreement(peers=loaders))
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    report = audit(*reversed(cursors))
    assert (report.verdict, report.findings) == ("proven", ())
    assert report.checkpoints
    assert [one.proven for one in report.checkpoints] == [((0, 4 * count),) for count in range(1, 7)]
