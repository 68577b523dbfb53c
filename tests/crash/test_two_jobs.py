"""Two jobs of one run at the same time."""

from __future__ import annotations

import os
import signal
from multiprocessing import get_context
from typing import TYPE_CHECKING

import pytest

from resumable_data.audit import audit_ledger
from resumable_data.cursor import Cursor, Recipe
from resumable_data.ledger import Ledger
from resumable_data.ledger.reader import read_claim
from resumable_data.order import Sequential
from tests.crash.training import LAST, NUM_UPDATES, Job, begin, resume

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from multiprocessing.synchronize import Barrier
    from pathlib import Path

pytestmark = pytest.mark.slow

NUM_RACES = 200


def _race(path: Path, run_id: str, barrier: Barrier, connection: Connection) -> None:
    """Claim attempts, each at the moment when the other process does."""
    start = Cursor(recipe=Recipe(order=Sequential(100).describe(), global_batch=8))
    ledger = Ledger(path, on_error="raise")
    numbers = []
    for _ in range(NUM_RACES):
        barrier.wait(60)
        claim = ledger.claim(start, num_replicas=2, microbatch=4, epochs=None, run_id=run_id)
        numbers.append(claim.attempt)
    connection.send(numbers)


def test_two_processes_race_for_an_attempt(tmp_path: Path) -> None:
    """Each number is claimed once, by one of them, whose claim is in the file; and none is left out."""
    context = get_context("forkserver")
    barrier = context.Barrier(2)
    connections, processes = [], []
    for run_id in ("aa", "bb"):
        ours, theirs = context.Pipe()
        process = context.Process(target=_race, args=(tmp_path / "ledger", run_id, barrier, theirs), daemon=True)
        process.start()
        theirs.close()
        connections.append(ours)
        processes.append(process)
    claimed = {run_id: connection.recv() for run_id, connection in zip(("aa", "bb"), connections, strict=True)}
    for process in processes:
        process.join()
    assert sorted(claimed["aa"] + claimed["bb"]) == list(range(1, 2 * NUM_RACES + 1))
    for run_id, numbers in claimed.items():
        for number in numbers:
            directory = tmp_path / "ledger" / f"attempt-{number:06d}"
            assert [entry.name for entry in directory.iterdir()] == ["claim"]
            claim = read_claim(directory / "claim")
            assert (claim.run_id, claim.attempt) == (run_id, number)
    assert all(numbers == sorted(numbers) for numbers in claimed.values())


def test_a_stopped_job_wakes_up_after_its_successor_committed(tmp_path: Path) -> None:
    """It is told at its next agreement, what it wrote meanwhile is reported and discarded, and the run is proven."""
    root = tmp_path / "run"
    agreed = begin(root)
    old = Job(root, agreed, LAST, pause_at=6)
    old.go()
    old.wait_for_pause()
    os.kill(old.pid, signal.SIGSTOP)
    checkpoint = old.diary().agreed
    assert Cursor.from_json(checkpoint).updates == 6
    successor = resume(root, checkpoint)
    assert (successor.attempt, successor.updates) == (3, NUM_UPDATES)
    old.go()
    os.kill(old.pid, signal.SIGCONT)
    diary = old.wait()
    assert (diary.outcome, diary.updates, diary.agreed) == ("FencedError", LAST, checkpoint)
    report = audit_ledger(root / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert [(one.code, one.attempt) for one in report.findings] == [("RD117", 2)]
    assert [one.stop_update for one in report.attempts] == [4, 6, NUM_UPDATES]
    assert (report.samples, report.replayed.high, report.omitted.high) == (4 * NUM_UPDATES, 0, 0)
