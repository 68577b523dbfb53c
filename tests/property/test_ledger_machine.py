"""A run that lives through anything, step by step: the audit counts what plain Python counted.

The machine trains, prefetches, skips, saves, is killed between any two records, goes on from any save on any ranks and
with another batch, has jobs that wake up after their successors, and loses or repeats a record now and then. What was
delivered, trained on and recorded is kept as Counters of positions by the simulator.
"""

from __future__ import annotations

import contextlib
import copy
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from resumable_data.audit import audit_ledger
from resumable_data.plan import TAILS
from tests.examples import examples
from tests.unit.audit.simulator import Checkpoint, Killed, Run
from tests.unit.audit.test_clean_histories import make_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.audit import AuditReport

SECRET = "the run's secret"
KEEPING = st.sampled_from([("digest", ""), ("digest", SECRET), ("full", "")])


@pytest.fixture(scope="module", autouse=True)
def _without_waiting_for_the_disk() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        patch.setattr(os, "fdatasync", lambda descriptor: None)
        yield


class LedgerMachine(RuleBasedStateMachine):
    """A run, its saves, and the jobs that others think are dead."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="ledger-machine-"))
        self.saved: list[Checkpoint] = []
        self.older: list[Run] = []
        self.is_running = False
        self.has_lied = False

    @initialize(
        length=st.integers(1, 30), batch=st.integers(1, 20), tail=st.sampled_from(TAILS), epochs=st.none() | st.just(3)
    )
    def begin(self, length: int, batch: int, tail: str, epochs: int | None) -> None:
        batch = min(batch, length) if tail == "drop" else batch
        self.run = Run(self.folder / "ledger", make_recipe(length, batch, tail), epochs)

    @precondition(lambda self: not self.is_running)
    @rule(
        data=st.data(),
        num_replicas=st.integers(1, 4),
        microbatch=st.integers(1, 4),
        keeping=KEEPING,
        fold_rows=st.sampled_from([0, 64, 5, 2]),
        num_peers=st.sampled_from([0, 0, 1]),
    )
    def launch(
        self,
        data: st.DataObject,
        num_replicas: int,
        microbatch: int,
        keeping: tuple[str, str],
        fold_rows: int,
        num_peers: int,
    ) -> None:
        """From any save or none, with another batch or tail now and then."""
        start = data.draw(st.sampled_from([*reversed(self.saved), None]), label="start")
        recipe = None
        if start and data.draw(st.integers(0, 3), label="migrates") == 1:
            batch = data.draw(st.integers(1, self.run.recipe.length), label="batch")
            recipe = make_recipe(self.run.recipe.length, batch, data.draw(st.sampled_from(TAILS), label="tail"))
        run = self.run
        (run.ids, run.key), run.fold_rows, run.num_peers = keeping, fold_rows, num_peers
        run.launch(start, num_replicas=num_replicas, microbatch=microbatch, recipe=recipe)
        self.is_running = True

    @precondition(lambda self: self.is_running)
    @rule(ahead=st.integers(1, 3), num_commits=st.integers(0, 3), applied=st.booleans())
    def train(self, ahead: int, num_commits: int, applied: bool) -> None:
        """Deliver some updates, the later ones ahead of time, and commit some of them."""
        go_on(self.run, ahead, num_commits, applied=applied)

    @precondition(lambda self: self.is_running)
    @rule(applied=st.lists(st.booleans(), min_size=1, max_size=5), saves=st.booleans())
    def train_on(self, applied: list[bool], saves: bool) -> None:
        """Update after update, some of them skipped by the optimizer, and a save."""
        for one in applied:
            go_on(self.run, 1, 1, applied=one)
        if saves:
            self.saved.append(self.run.checkpoint(is_complete=True))

    @precondition(lambda self: self.is_running)
    @rule(stop_after=st.integers(0, 3))
    def deliver_a_part(self, stop_after: int) -> None:
        """The first microbatches of an update; then the loop begins again."""
        begin_again(self.run)
        self.run.deliver(stop_after=stop_after)

    @precondition(lambda self: self.is_running)
    @rule(agree=st.booleans(), is_complete=st.booleans())
    def checkpoint(self, agree: bool, is_complete: bool) -> None:
        self.saved.append(self.run.checkpoint(agree=agree, is_complete=is_complete))

    @precondition(lambda self: self.is_running)
    @rule(
        data=st.data(),
        how=st.sampled_from(["in order", "at rest", "in an update", "while delivering", "while committing"]),
    )
    def end(self, data: st.DataObject, how: str) -> None:
        """The launch ends: some ranks may be a record behind the others."""
        run = self.run
        if how == "while delivering":
            run.kill_at = data.draw(st.integers(0, 12), label="records")
            with contextlib.suppress(Killed):
                go_on(run, 2, 1, applied=True)
            run.kill_at = None
        elif how == "in an update":
            begin_again(run)
            run.deliver(stop_after=data.draw(st.integers(1, 3), label="microbatches"))
        elif how == "while committing" and run.claim.num_replicas > 1:
            begin_again(run)
            if run.deliver():
                with pytest.raises(Killed):
                    run.commit(ranks=data.draw(st.integers(1, run.claim.num_replicas - 1), label="ranks"))
        run.close() if how == "in order" else run.kill()
        self.is_running = False
        self.audit()

    @precondition(lambda self: self.is_running and len(self.older) < 3)
    @rule()
    def give_up(self) -> None:
        """The job hangs, and somebody launches another one."""
        self.older.append(copy.copy(self.run))
        self.is_running = False

    @precondition(lambda self: self.older)
    @rule(data=st.data(), ahead=st.integers(1, 2), num_commits=st.integers(0, 2), saves=st.booleans())
    def wake_up(self, data: st.DataObject, ahead: int, num_commits: int, saves: bool) -> None:
        """A job that was given up trains on; what it saves is as good as any other save."""
        if not self.is_running and self.older[-1].claim == self.run.claim:
            return  # no other was launched, so that nothing of what it does is a fork; `launch` comes first
        job = data.draw(st.sampled_from(self.older), label="job")
        go_on(job, ahead, num_commits, applied=True)
        if saves:
            self.saved.append(job.checkpoint(agree=False))

    @precondition(lambda self: self.is_running)
    @rule(data=st.data(), times=st.sampled_from([0, 2]))
    def lie(self, data: st.DataObject, times: int) -> None:
        """One microbatch of one rank is not recorded, or is recorded twice."""
        wanted = data.draw(st.integers(0, self.run.claim.num_replicas - 1), label="rank")
        left = [1]

        def tamper(rank: int, record: dict[str, int]) -> list[dict[str, int]]:
            if rank != wanted or not left:
                return [record]
            left.pop()
            self.has_lied = True
            return [record] * times

        honest, self.run.tamper = self.run.tamper, tamper
        begin_again(self.run)
        go_on(self.run, 1, 1, applied=True)
        self.run.tamper = honest

    @precondition(lambda self: hasattr(self.run, "claim"))
    @rule()
    def audit(self) -> None:
        """Also of a job that runs."""
        self.check(audit_ledger(self.run.path, key=SECRET))

    def teardown(self) -> None:
        try:
            if hasattr(self, "run") and hasattr(self.run, "claim"):
                for job in (self.run, *self.older):
                    job.kill()
                self.audit()
        finally:
            shutil.rmtree(self.folder)

    def check(self, report: AuditReport) -> None:
        """Hold a report against what the simulator counted."""
        run, jobs = self.run, [*self.older, *([self.run] if self.is_running else [])]
        unwritten = {job.claim.attempt: sum(map(len, job._folded)) for job in jobs}
        times = run.recorded
        replayed = sum(n - 1 for n in times.values() if n > 1)
        omitted = len(set(run.trained) - set(+times))
        assert set(run.trained.values()) <= {1}
        assert (report.replayed.low, report.replayed.high) == (replayed, replayed)
        assert (report.omitted.low, report.omitted.high) == (omitted, omitted)
        assert report.verdict == ("violated" if replayed or omitted else "proven")
        assert (report.updates, report.skipped) == (run.cursor.updates, run.cursor.skipped)
        assert (report.samples, report.position) == (run.trained.total(), run.cursor.position)
        assert (report.padding, report.dropped) == (run.cursor.padding, run.cursor.dropped)
        assert report.in_flight == run.in_flight
        delivered = Counter(run.delivered_in)
        delivered.subtract(unwritten)
        assert {one.attempt: one.delivered for one in report.attempts if one.delivered} == +delivered
        discarded = delivered.total() - times.total() - run.in_flight
        assert report.discarded.low == discarded
        assert report.discarded.high is not None
        assert report.discarded.high >= discarded + sum(run.unrecorded)
        self.check_findings(report, {"RD201": omitted, "RD202": replayed})

    def check_findings(self, report: AuditReport, samples: dict[str, int]) -> None:
        found = sorted((one.code, one.attempt) for one in report.findings if one.code not in samples)
        assert found == self.run.expected_notes()
        codes = {one.code for one in report.findings}
        # a record without samples, of filler or padding alone, may be missing or there twice too
        assert {code for code, number in samples.items() if number} <= codes
        assert self.has_lied or not codes & set(samples)
        if any(samples.values()):
            allowed = audit_ledger(
                self.run.path, key=SECRET, max_omitted=samples["RD201"], max_replayed=samples["RD202"]
            )
            assert allowed.verdict == "proven"


def begin_again(run: Run) -> None:
    """Iterate anew where something was delivered and not committed."""
    if run._ahead:
        run.rewind()


def go_on(run: Run, ahead: int, num_commits: int, *, applied: bool) -> None:
    """Deliver some updates and commit the first of them."""
    begin_again(run)
    for number in range(ahead):
        run.deliver(ahead=number)
    for _ in range(num_commits):
        if run.is_delivered:
            run.commit(applied=applied)


LedgerMachine.TestCase.settings = examples(80, quick=12, stateful_step_count=30)
test_the_audit_counts_what_was_delivered: Any = LedgerMachine.TestCase
