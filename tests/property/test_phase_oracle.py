"""Interrupted inside an update and gone on with on other rank sets: the loader and its ledger against the oracle."""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from hypothesis import assume, given
from hypothesis import strategies as st

from resumable_data import Shuffle, audit_cursor, audit_ledger
from resumable_data.cursor import decode_phase, encode_phase
from resumable_data.lookup import Walk, find_update
from resumable_data.plan import TAILS
from tests.examples import examples
from tests.oracle import OracleCursor, OracleUpdate, coverage_lanes, end_of_microbatch, loss_scale, split_update
from tests.simulated_ranks import Job, expect_cursor, expect_full_coverage, task_of

if TYPE_CHECKING:
    import torch

    from resumable_data import AuditReport, Microbatch
    from resumable_data.cursor import Phase


@dataclass
class Run:
    """A job that is interrupted inside updates, beside the oracle.

    Attributes:
        length: Samples.
        recipe: Of all loaders.
        oracle: What is committed.
        ledger: Where it is recorded.
        normalize: What the gradient is a mean over.
        tokens: Target tokens of each sample.
    """

    length: int
    recipe: dict[str, Any]
    oracle: OracleCursor
    ledger: str | None = None
    normalize: str = "samples"
    tokens: list[int] = field(default_factory=list)
    state: dict[str, torch.Tensor] | None = None
    phase: Phase | None = None
    num_behind: int = 0  # rows of the open update that are accumulated
    weight: Fraction = Fraction(0)  # of the gradient of the open update, accumulated and saved
    num_delivered: int = 0

    def launch(self, num_replicas: int, microbatch: int) -> Job:
        """A job that starts where the last one was saved."""
        job = Job(self.length, num_replicas, microbatch=microbatch, ledger=self.ledger, **self.recipe)
        job.load(self.state, allow={"fresh_start"})
        if self.phase is not None:
            for loader in job.loaders:
                loader.start_inside(self.phase)
        assert {loader.phase for loader in job.loaders} == {self.num_behind}
        return job

    def read(self, job: Job, update: OracleUpdate, num_microbatches: int | None, microbatch: int) -> bool:
        """Read some microbatches of the update at the cursor, or its rest; whether it is complete."""
        behind = self.num_behind
        split = split_update(
            update.rows,
            num_replicas=job.num_replicas,
            microbatch=microbatch,
            phase=behind,
            pad_microbatches=self.recipe["pad_microbatches"],
        )
        wanted = len(split) if num_microbatches is None else min(num_microbatches, len(split))
        for index in range(wanted):
            step = job.microbatch()
            assert step is not None
            for got, hand in zip(step, split[index], strict=True):
                assert (got.ids.tolist(), got.positions.tolist(), got.data) == (hand.ids, hand.positions, hand.data)
                assert (got.update, got.index, got.count) == (self.oracle.updates, index, len(split))
                assert got.is_last == (index == len(split) - 1)
            self.count(step, update)
            self.num_behind = end_of_microbatch(
                update.rows, num_replicas=job.num_replicas, microbatch=microbatch, phase=behind, index=index
            )
            assert {loader.phase for loader in job.loaders} == {self.num_behind}
        return wanted == len(split)

    def count(self, step: list[Microbatch], update: OracleUpdate) -> None:
        """Add up what the rows of one microbatch weigh in the mean over the whole update."""
        self.num_delivered += sum(len(got.ids) for got in step)
        total = len(update.rows)
        if self.normalize == "tokens":
            total = max(1, sum(self.tokens[row.id] for row in update.rows))
        for got in step:
            assert got.loss_scale == loss_scale(total, num_replicas=len(step), gradient_reduction="mean")
            real = [sample for sample, weight in zip(got.data, got.weights.tolist(), strict=True) if weight]
            of_rows = sum(self.tokens[sample] for sample in real) if self.normalize == "tokens" else len(real)
            self.weight += Fraction(of_rows, total)

    def save(self, job: Job, update: OracleUpdate) -> None:
        """Save cursor and phase, through their bytes."""
        phase = job.loaders[0].gather_phase(job.loaders)
        assert phase == decode_phase(encode_phase(phase))
        assert (phase.update, phase.start, phase.samples) == (
            self.oracle.updates,
            self.oracle.position,
            self.num_behind,
        )
        behind = [row for row in update.rows[: self.num_behind] if not row.is_padding]
        assert phase.lanes == coverage_lanes(behind)
        self.state, self.phase = job.save(), phase

    def waste(self, job: Job, num_microbatches: int, *, rewinds: bool) -> None:
        """Go on after the save and lose it all: what is read, committed even, is not in the checkpoint."""
        for _ in range(num_microbatches):
            step = job.microbatch()
            if step is None:
                return
            self.num_delivered += sum(len(got.ids) for got in step)
            if step[0].is_last:
                job.commit()
            elif rewinds:
                job.restart_iteration()
                assert {loader.phase for loader in job.loaders} == {job.loaders[0]._session.num_behind}

    def finish(self, job: Job, update: OracleUpdate) -> None:
        """Commit the update, which is whole."""
        assert self.weight == (1 if self.normalize == "samples" or any(self.tokens[r.id] for r in update.rows) else 0)
        job.commit()
        self.oracle.commit(update)
        self.num_behind, self.weight, self.phase = 0, Fraction(0), None
        expect_cursor(job.loaders[0].cursor, self.oracle)

    def expect_proof(self, *, in_flight: int = 0) -> AuditReport:
        """The ledger's audit counts what the oracle counts."""
        discarded = self.num_delivered - self.oracle.samples - in_flight
        assert self.ledger is not None
        report = audit_ledger(self.ledger)
        assert report.verdict == "proven", report.to_text()
        assert (report.replayed.high, report.omitted.high) == (0, 0)
        assert (report.discarded.low, report.discarded.high) == (discarded, discarded)
        assert (report.samples, report.padding, report.in_flight) == (
            self.oracle.samples,
            self.oracle.padding,
            in_flight,
        )
        assert report.updates == self.oracle.updates
        assert report.to_text()
        return report


sizes = st.tuples(st.integers(1, 5), st.integers(1, 4))


@examples(60, quick=20)
@given(
    length=st.integers(1, 24),
    global_batch=st.integers(1, 20),
    tail=st.sampled_from(TAILS),
    normalize=st.sampled_from(["samples", "tokens"]),
    pad_microbatches=st.booleans(),
    num_before=st.integers(0, 2),
    chain=st.lists(st.tuples(sizes, st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=4),
    last=sizes,
    rewinds=st.booleans(),
    orderly=st.booleans(),
)
def test_an_update_interrupted_any_number_of_times_is_whole(
    length: int,
    global_batch: int,
    tail: str,
    normalize: str,
    pad_microbatches: bool,
    num_before: int,
    chain: list[tuple[tuple[int, int], int, int]],
    last: tuple[int, int],
    rewinds: bool,
    orderly: bool,
) -> None:
    """Each row is read once, with its weight in the whole update; digest and audit are those of an undisturbed run."""
    if tail == "drop":
        global_batch = min(global_batch, length)
    order, tokens = Shuffle(length, seed=3), [(5 * i) % 4 for i in range(length)]
    task = task_of(order, global_batch=global_batch, tail=tail, epochs=2)
    recipe: dict[str, Any] = {
        "order": order,
        "global_batch": global_batch,
        "tail": tail,
        "epochs": 2,
        "normalize": normalize,
        "num_target_tokens": tokens,
        "pad_microbatches": pad_microbatches,
    }
    with TemporaryDirectory() as directory:
        oracle = OracleCursor(task, target_tokens=tokens)
        run = Run(length, recipe, oracle, f"{directory}/ledger", normalize, tokens)
        job = run.launch(*chain[0][0])
        for update, _ in zip(oracle.upcoming(), range(num_before), strict=False):
            run.read(job, update, None, chain[0][0][1])
            run.finish(job, update)
        upcoming = list(oracle.upcoming())
        assume(upcoming)
        update = upcoming[0]
        for number, ((num_replicas, microbatch), count, wasted) in enumerate(chain):
            if number:
                job = run.launch(num_replicas, microbatch)
            if run.read(job, update, count, microbatch):  # it cannot be saved inside, so that it is committed
                break
            run.save(job, update)
            num_samples = sum(not row.is_padding for row in update.rows[: run.num_behind])
            run.expect_proof(in_flight=num_samples)
            run.waste(job, wasted, rewinds=rewinds)
            if orderly:
                job.close()
        else:
            job = run.launch(*last)
            assert run.read(job, update, None, last[1])
        run.finish(job, update)
        for rest in oracle.upcoming():
            run.read(job, rest, None, job.loaders[0].layout.microbatch)
            run.finish(job, rest)
        job.save()
        expect_full_coverage(job.loaders[0].cursor, oracle)
        assert audit_cursor(job.loaders[0].cursor).verdict == "proven"
        run.expect_proof()
        found = find_update(Walk(f"{directory}/ledger"), num_before)
        positions = [one.position for one in found if one.status == "committed" and not one.is_padding]
        assert sorted(positions) == [row.position for row in update.rows if not row.is_padding]
        job.close()
