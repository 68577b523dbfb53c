"""Histories without a fault, of all shapes: no finding, and counts equal to plain Python's."""

from __future__ import annotations

import copy
import random
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.cursor import Recipe
from resumable_data.order import Sequential, Shuffle
from resumable_data.plan import TAILS
from tests.unit.audit.simulator import Checkpoint, Killed, Run

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit import AuditReport


SECRET = "a secret of the run"


def make_recipe(length: int, batch: int, tail: str, seed: int | None = 3) -> Recipe:
    order = Sequential(length) if seed is None else Shuffle(length, seed=seed)
    return Recipe(order=order.describe(), global_batch=batch, tail=tail)


def assert_clean(run: Run, report: AuditReport) -> None:
    """Nothing is found but notes, nothing is replayed or omitted, and all counts are the simulator's."""
    assert sorted((finding.code, finding.attempt) for finding in report.findings) == run.expected_notes()
    assert report.verdict == "proven"
    assert (report.replayed.low, report.replayed.high) == (0, 0)
    assert (report.omitted.low, report.omitted.high) == (0, 0)
    assert set(run.trained.values()) <= {1}
    assert report.samples == run.trained.total()
    assert_counts(run, report)


def assert_counts(run: Run, report: AuditReport) -> None:
    """Delivered, discarded, in flight, and where the history ends."""
    assert report.in_flight == run.in_flight
    discarded = run.delivered.total() - run.recorded.total() - run.in_flight
    assert report.discarded.low == discarded
    assert report.discarded.high is None or report.discarded.high >= discarded + sum(run.unrecorded)
    assert (report.updates, report.skipped) == (run.cursor.updates, run.cursor.skipped)
    assert (report.position, report.padding) == (run.cursor.position, run.cursor.padding)
    assert report.dropped == run.cursor.dropped
    assert {one.attempt: one.delivered for one in report.attempts if one.delivered} == +run.delivered_in


def live_through(run: Run, rng: random.Random) -> None:
    """One launch after another, each with its own ranks, options and end; now and then two at once."""
    saved: list[Checkpoint] = []
    for _ in range(rng.randint(1, 4)):
        start = rng.choice([*saved, saved[-1]]) if saved and rng.random() < 0.9 else None
        recipe = None
        if start and rng.random() < 0.3:
            recipe = make_recipe(run.recipe.length, rng.randint(1, run.recipe.length), rng.choice(TAILS))
        choose_options(run, rng)
        run.launch(start, num_replicas=rng.randint(1, 6), microbatch=rng.randint(1, 5), recipe=recipe)
        if start is None:
            saved.clear()
        if rng.random() < 0.1:
            live_two_at_once(run, rng, saved)
        else:
            live_to_the_end(run, rng, saved)


def live_two_at_once(run: Run, rng: random.Random, saved: list[Checkpoint]) -> None:
    """A job that was given up wakes up after its successor was launched, and goes on for a while."""
    try:
        live_one_launch(run, rng, saved)
    except Killed:
        run.kill()
        run.kill_at = None
        return
    saved.append(run.checkpoint(agree=rng.random() < 0.5))
    older = copy.copy(run)
    run.launch(rng.choice(saved), num_replicas=rng.randint(1, 3), microbatch=2)
    live_to_the_end(older, rng, [])
    live_to_the_end(run, rng, saved)


def choose_options(run: Run, rng: random.Random) -> None:
    run.ids, run.key = rng.choice([("digest", ""), ("digest", SECRET), ("full", "")])
    run.fold_rows = rng.choice([0, 0, 1, 3, 8, 64])
    run.num_peers = rng.choice([0, 0, 0, 1, 2])


def live_to_the_end(run: Run, rng: random.Random, saved: list[Checkpoint]) -> None:
    try:
        live_one_launch(run, rng, saved)
        run.close()
    except Killed:
        run.kill()
    run.kill_at = None


def live_one_launch(run: Run, rng: random.Random, saved: list[Checkpoint]) -> None:
    for _ in range(rng.randint(0, 6)):
        while rng.random() < 0.2:
            run.deliver(stop_after=rng.randint(0, 2))
            run.rewind()
        if rng.random() < 0.1:
            run.kill_at = rng.randint(0, 12)
        num_ahead = rng.choice([0, 0, 1, 2])
        for ahead in range(num_ahead + 1):
            run.deliver(ahead=ahead)
        run.kill_at = None
        for _ in range(rng.randint(1, num_ahead + 1)):
            if not run.is_delivered:
                return
            if rng.random() < 0.1 and run.claim.num_replicas > 1:
                run.commit(ranks=rng.randint(1, run.claim.num_replicas - 1))
            run.commit(applied=rng.random() < 0.9)
            if rng.random() < 0.5:
                saved.append(run.checkpoint(agree=rng.random() < 0.7, is_complete=rng.random() < 0.5))
        if run.in_flight:
            run.rewind()


HISTORIES = {
    "rng": st.randoms(use_true_random=False),
    "length": st.integers(1, 40),
    "batch": st.integers(1, 30),
    "tail": st.sampled_from(TAILS),
    "epochs": st.none() | st.integers(1, 3),
}


@settings(max_examples=50)
@given(**HISTORIES)
def test_no_history_of_restarts_leads_to_a_finding(
    tmp_path_factory: pytest.TempPathFactory,
    rng: random.Random,
    length: int,
    batch: int,
    tail: str,
    epochs: int | None,
) -> None:
    """Kills, rewinds, skips, old checkpoints, new rank sets and declared migrations are all proven."""
    check_history(tmp_path_factory.mktemp("run"), rng, length, batch, tail, epochs)


@pytest.mark.slow
@settings(max_examples=1000)
@given(**HISTORIES)
def test_no_history_among_a_thousand_leads_to_a_finding(
    tmp_path_factory: pytest.TempPathFactory,
    rng: random.Random,
    length: int,
    batch: int,
    tail: str,
    epochs: int | None,
) -> None:
    """The same, a thousand times."""
    check_history(tmp_path_factory.mktemp("run"), rng, length, batch, tail, epochs)


def check_history(path: Path, rng: random.Random, length: int, batch: int, tail: str, epochs: int | None) -> None:
    batch = min(batch, length) if tail == "drop" else batch
    run = Run(path / "ledger", make_recipe(length, batch, tail), epochs)
    live_through(run, rng)
    assert_clean(run, audit_ledger(run.path, key=SECRET))
    cursor = run.checkpoint().cursor
    report = audit_cursor(cursor)
    assert {finding.code for finding in report.findings} <= {"RD405"}
    has_gap = sum(span.stop - span.start for span in cursor.coverage) < cursor.position
    assert report.verdict == "proven" or has_gap


@pytest.mark.parametrize("tail", TAILS)
def test_restart_on_other_ranks_is_proven(tmp_path: Path, tail: str) -> None:
    """4 ranks, then 3, then 2, at positions that divide nothing."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, tail), epochs=3)
    run.launch(None, num_replicas=4, microbatch=2)
    run.train(2)
    run.deliver(stop_after=1)
    run.kill()
    first = run.checkpoint()
    run.launch(first, num_replicas=3, microbatch=2)
    run.train(1)
    second = run.checkpoint()
    run.train(1)
    run.kill()
    run.launch(second, num_replicas=2, microbatch=5)
    run.train(50)
    run.close()
    report = audit_ledger(run.path)
    assert_clean(run, report)
    assert [attempt.parent for attempt in report.attempts] == [0, 1, 2]
    assert report.discarded.low > 0
    assert audit_cursor(run.checkpoint().cursor).verdict == "proven"


def test_two_attempts_from_one_checkpoint(tmp_path: Path) -> None:
    """The newest one survives; what the other delivered is discarded."""
    run = Run(tmp_path / "ledger", make_recipe(50, 8, "carry"))
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(2)
    saved = run.checkpoint()
    run.close()
    for _ in range(2):
        run.launch(saved, num_replicas=3, microbatch=2)
        run.train(3)
        run.close()
    report = audit_ledger(run.path)
    assert_clean(run, report)
    assert [attempt.discarded.low for attempt in report.attempts] == [0, 24, 0]


def test_restart_from_scratch_discards_everything_before(tmp_path: Path) -> None:
    """A job without a checkpoint begins again at update 0; the first launch counts as discarded."""
    run = Run(tmp_path / "ledger", make_recipe(50, 8, "carry"))
    for _ in range(2):
        run.launch(None, num_replicas=2, microbatch=2)
        run.train(2)
        run.kill()
    report = audit_ledger(run.path)
    assert_clean(run, report)
    assert report.discarded.low == 16


def test_an_attempt_that_never_committed_is_proven_empty(tmp_path: Path) -> None:
    """Deliveries without a commit are in flight, and nothing is claimed about them."""
    run = Run(tmp_path / "ledger", make_recipe(50, 8, "carry"))
    run.launch(None, num_replicas=2, microbatch=2)
    run.deliver(stop_after=1)
    run.kill()
    report = audit_ledger(run.path)
    assert_clean(run, report)
    assert (report.updates, report.in_flight) == (0, 4)


def test_kill_between_the_commits_of_two_ranks(tmp_path: Path) -> None:
    """An update that not all ranks recorded as committed is in flight."""
    run = Run(tmp_path / "ledger", make_recipe(50, 8, "carry"))
    run.launch(None, num_replicas=4, microbatch=2)
    run.train(2)
    run.deliver()
    with pytest.raises(Killed):
        run.commit(ranks=3)
    run.kill()
    assert_clean(run, audit_ledger(run.path))


def test_full_ids_are_proven_too(tmp_path: Path) -> None:
    """A ledger that keeps the IDs themselves gives the same report."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, "pad"), ids="full")
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(7)
    run.close()
    assert_clean(run, audit_ledger(run.path))


def test_extended_run_is_proven(tmp_path: Path) -> None:
    """With carry, a run's last update is short; the run may be extended after it."""
    run = Run(tmp_path / "ledger", make_recipe(23, 10, "carry"), epochs=1)
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(10)
    saved = run.checkpoint()
    run.close()
    run.epochs = 2
    run.launch(saved, num_replicas=2, microbatch=2)
    run.train(10)
    run.close()
    assert_clean(run, audit_ledger(run.path))
    assert audit_cursor(run.checkpoint().cursor).verdict == "proven"
