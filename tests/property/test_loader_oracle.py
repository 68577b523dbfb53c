"""The loader against the oracle: grids, chains of restarts, and a state machine of everything a job may do."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import product
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from resumable_data import BlockShuffle, Sequential, Shuffle, TorchShuffle, audit_ledger
from resumable_data.errors import RecipeMismatchError
from resumable_data.plan import TAILS
from tests.examples import examples
from tests.oracle import OracleCursor, OracleUpdate, split_update
from tests.simulated_ranks import Job, expect_cursor, expect_full_coverage, expect_step, task_of

if TYPE_CHECKING:
    import torch

    from resumable_data import AuditReport, Microbatch
    from resumable_data.order import Order

ORDERS = (Shuffle, Sequential, TorchShuffle, lambda n: BlockShuffle(n, block=3, window=5))


def expect_update(
    job: Job, cursor: OracleCursor, update: OracleUpdate, *, microbatch: int, **expected: Any
) -> list[list[Microbatch]]:
    """Run one update and make sure that every microbatch of every rank is the oracle's."""
    steps = job.update()
    assert steps is not None
    for index, step in enumerate(steps):
        expect_step(
            step, cursor=cursor, update=update, number=cursor.updates, index=index, microbatch=microbatch, **expected
        )
    return steps


def run_chain(
    order: Order,
    chain: list[tuple[int, int, int]],
    *,
    global_batch: int,
    tail: str,
    epochs: int,
    options: dict[str, Any] | None = None,
    expected: dict[str, Any] | None = None,
) -> None:
    """Run (updates, ranks, microbatch) after (updates, ranks, microbatch), then the rest on the first rank set."""
    options, expected = options or {}, expected or {}
    cursor = OracleCursor(task_of(order, global_batch=global_batch, tail=tail, epochs=epochs))
    state, seen = None, Counter[tuple[int, int]]()
    for num_updates, num_replicas, microbatch in [*chain, (10**6, *chain[0][1:])]:
        recipe = {"order": order, "global_batch": global_batch, "tail": tail, "epochs": epochs}
        with Job(len(order), num_replicas, microbatch=microbatch, **recipe, **options) as job:
            job.load(state, allow={"fresh_start"})
            assert job.loaders[0].num_updates == len(list(cursor.upcoming())) + cursor.updates
            left = sum(
                len(split_update(update.rows, num_replicas=num_replicas, microbatch=microbatch))
                for update in cursor.upcoming()
            )
            assert {len(loader) for loader in job.loaders} == {left}
            for update, _ in zip(cursor.upcoming(), range(num_updates), strict=False):
                steps = expect_update(job, cursor, update, microbatch=microbatch, **expected)
                for step in steps:
                    for rank in step:
                        seen.update(zip(rank.positions.tolist(), rank.ids.tolist(), strict=True))
                applied = cursor.updates % 3 != 2
                job.commit(applied=applied)
                cursor.commit(update, applied=applied)
            # Read one microbatch more and forget it: whoever comes next must read it again.
            job.microbatch()
            state = job.save()
            expect_cursor(job.loaders[0].cursor, cursor)
            expect_full_coverage(job.loaders[-1].cursor, cursor)
    assert seen == Counter((row.position, row.id) for row in cursor.committed)
    if tail in ("carry", "short", "pad"):
        whole = Counter(dict.fromkeys(range(len(order)), epochs))
        assert Counter(row.id for row in cursor.committed) == whole


@pytest.mark.parametrize("tail", TAILS)
def test_chains_of_restarts_agree_with_the_oracle_on_a_grid(tail: str) -> None:
    """A run moved over three rank sets reads what the oracle deals, each sample once per epoch."""
    grid = product((1, 5, 8, 11), (1, 3, 4, 8), ((1, 2, 3), (4, 2, 4), (2, 4, 1), (3, 5, 2)))
    for number, (length, global_batch, (first, second, third)) in enumerate(grid):
        if tail == "drop" and global_batch > length:
            continue
        chain = [(1, first, 2), (2, second, 1), (1, third, 3)]
        order = ORDERS[number % len(ORDERS)](length)
        run_chain(order, chain, global_batch=global_batch, tail=tail, epochs=2)


@examples(60, quick=20)
@given(
    length=st.integers(1, 40),
    global_batch=st.integers(1, 20),
    tail=st.sampled_from(TAILS),
    epochs=st.integers(1, 3),
    chain=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 6), st.integers(1, 5)), min_size=1, max_size=5),
    pad_microbatches=st.booleans(),
    reduction=st.sampled_from([("mean", None), ("sum", None), ("mean", 12)]),
    normalize=st.sampled_from(["samples", "tokens"]),
)
def test_any_chain_of_restarts_agrees_with_the_oracle(
    length: int,
    global_batch: int,
    tail: str,
    epochs: int,
    chain: list[tuple[int, int, int]],
    pad_microbatches: bool,
    reduction: tuple[str, int | None],
    normalize: str,
) -> None:
    """Whatever the rank sets, the tail, the loss and the filler: rows, weights and counters are the oracle's."""
    if tail == "drop":
        global_batch = min(global_batch, length)
    tokens = [(7 * i) % 4 for i in range(length)]
    order = Shuffle(length, seed=length)
    cursor = OracleCursor(task_of(order, global_batch=global_batch, tail=tail, epochs=epochs), target_tokens=tokens)
    shared: dict[str, Any] = {
        "pad_microbatches": pad_microbatches,
        "gradient_reduction": reduction[0],
        "reduction_size": reduction[1],
        "normalize": normalize,
    }
    state = None
    for num_updates, num_replicas, microbatch in chain:
        recipe = {"order": order, "global_batch": global_batch, "tail": tail, "epochs": epochs}
        job = Job(length, num_replicas, microbatch=microbatch, num_target_tokens=tokens, **recipe, **shared)
        with job:
            job.load(state, allow={"fresh_start"})
            for update, _ in zip(cursor.upcoming(), range(num_updates), strict=False):
                expect_update(job, cursor, update, microbatch=microbatch, **shared)
                job.commit()
                cursor.commit(update)
            state = job.save()
            expect_cursor(job.loaders[0].cursor, cursor)
            expect_full_coverage(job.loaders[0].cursor, cursor)


# torch advises against more workers than the machine has cores; what is tested here is that they change nothing
@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize(("workers", "persistent"), [((1, 2, 0), False), ((2, 4), True)])
def test_workers_change_nothing(workers: tuple[int, ...], persistent: bool) -> None:
    """The sequence, the counters and the digest are the oracle's whatever number of workers fetches."""
    order = Shuffle(17, seed=3)
    cursor = OracleCursor(task_of(order, global_batch=5, epochs=3))
    state = None
    for num_workers in workers:
        options: dict[str, Any] = {"num_workers": num_workers}
        if num_workers:
            options |= {"prefetch_factor": 2, "persistent_workers": persistent}
        with Job(17, 2, order=order, global_batch=5, microbatch=1, epochs=3, **options) as job:
            job.load(state, allow={"fresh_start"})
            for update, _ in zip(cursor.upcoming(), range(3), strict=False):
                expect_update(job, cursor, update, microbatch=1)
                job.commit()
                cursor.commit(update)
            state = job.save()
            expect_full_coverage(job.loaders[0].cursor, cursor)


# epochs of which the oracle has lists in an endless run
NUM_LISTS = 200


class JobMachine(RuleBasedStateMachine):
    """A job that trains, skips, forgets, saves, dies and comes back on other rank sets, beside the oracle."""

    def __init__(self) -> None:
        super().__init__()
        self.job: Job | None = None
        self.ahead: list[OracleUpdate] = []
        self.next_index = 0
        self.num_delivered = 0
        self.num_microbatches = 0
        self.num_migrations = 0

    def options(self) -> dict[str, Any]:
        """More options for the loaders."""
        return {}

    @initialize(
        length=st.integers(1, 24),
        global_batch=st.integers(1, 12),
        tail=st.sampled_from(TAILS),
        epochs=st.sampled_from([None, 1, 2, 4]),
        pad_microbatches=st.booleans(),
        num_replicas=st.integers(1, 5),
        microbatch=st.integers(1, 4),
    )
    def start(
        self,
        length: int,
        global_batch: int,
        tail: str,
        epochs: int | None,
        pad_microbatches: bool,
        num_replicas: int,
        microbatch: int,
    ) -> None:
        if tail == "drop":
            global_batch = min(global_batch, length)
        order = Shuffle(length, seed=1)
        self.pad_microbatches = pad_microbatches
        self.recipe = {"order": order, "global_batch": global_batch, "tail": tail, "epochs": epochs}
        self.task = task_of(order, global_batch=global_batch, tail=tail, epochs=epochs)
        if epochs is None:
            self.task = task_of(order, global_batch=global_batch, tail=tail, epochs=NUM_LISTS)
        self.oracle = OracleCursor(self.task)
        self.saved: tuple[dict[str, torch.Tensor] | None, OracleCursor] = (None, OracleCursor(self.task))
        self.launch(num_replicas, microbatch)

    def launch(self, num_replicas: int, microbatch: int) -> None:
        self.microbatch_rows = microbatch
        self.job = self.make_job(num_replicas, microbatch)
        state, oracle = self.saved
        self.job.load(state, allow={"fresh_start", "global_batch", "tail"})
        self.oracle = copy_of(oracle)
        self.forget()

    def make_job(self, num_replicas: int, microbatch: int) -> Job:
        return Job(
            self.task.length,
            num_replicas,
            microbatch=microbatch,
            pad_microbatches=self.pad_microbatches,
            **self.recipe,
            **self.options(),
        )

    def forget(self) -> None:
        self.ahead, self.next_index = [], 0

    @property
    def running(self) -> Job:
        assert self.job is not None
        return self.job

    @rule(count=st.integers(1, 7))
    def deliver(self, count: int) -> None:
        """Read some microbatches, perhaps far ahead of what is committed."""
        for _ in range(count):
            if len(self.ahead) == 60 or (self.next_index == 0 and self.is_at_the_lists_end()):
                return
            step = self.running.microbatch()
            if self.next_index == 0:
                update = self.update_ahead()
                if update is None:
                    assert step is None
                    return
                self.ahead.append(update)
            assert step is not None
            self.num_microbatches += 1
            self.num_delivered += sum(len(microbatch.ids) for microbatch in step)
            expect_step(
                step,
                cursor=self.oracle,
                update=self.ahead[-1],
                number=self.oracle.updates + len(self.ahead) - 1,
                index=self.next_index,
                microbatch=self.microbatch_rows,
                pad_microbatches=self.pad_microbatches,
            )
            self.next_index = 0 if step[0].is_last else self.next_index + 1

    def is_at_the_lists_end(self) -> bool:
        """Whether the next update of an endless run is beyond the epochs that the oracle has lists of."""
        if self.recipe["epochs"] is not None:
            return False
        update = self.update_ahead()
        if update is None:
            return True
        return max(row.position for row in update.rows) >= NUM_LISTS * self.task.length - 2 * len(update.rows)

    def update_ahead(self) -> OracleUpdate | None:
        for number, update in enumerate(self.oracle.upcoming()):
            if number == len(self.ahead):
                return update
        return None

    @precondition(lambda self: len(self.ahead) > (self.next_index > 0))
    @rule(applied=st.booleans())
    def commit(self, applied: bool) -> None:
        """Commit the oldest update that was delivered whole."""
        self.running.commit(applied=applied)
        self.oracle.commit(self.ahead.pop(0), applied=applied)

    @rule(count=st.integers(1, 5), then_save=st.booleans())
    def train(self, count: int, then_save: bool) -> None:
        """Do what a job does most of the time: read and commit, then perhaps save."""
        for _ in range(count):
            while len(self.ahead) <= (self.next_index > 0):
                before = self.num_microbatches
                self.deliver(1)
                if self.num_microbatches == before:
                    return
            self.commit(applied=True)
        if then_save:
            self.save()

    @precondition(lambda self: len(self.ahead) <= (self.next_index > 0))
    @rule()
    def commit_too_early(self) -> None:
        """Refuse to commit what was not delivered whole."""
        with pytest.raises(RuntimeError, match="The cursor did not move"):
            self.running.loaders[0].commit()

    @rule()
    def iterate_again(self) -> None:
        """Start again at the cursor; what was not committed comes again."""
        self.running.restart_iteration()
        self.forget()

    @rule()
    def save(self) -> None:
        """Save; training goes on undisturbed."""
        state = self.running.save()
        expect_full_coverage(self.running.loaders[0].cursor, self.oracle)
        self.saved = (state, copy_of(self.oracle))

    @rule()
    def load_in_place(self) -> None:
        """Go back to the last save in the same loaders."""
        state, oracle = self.saved
        if state is None:
            return
        self.running.load(state)
        self.oracle = copy_of(oracle)
        self.forget()

    @rule(num_replicas=st.integers(1, 5), microbatch=st.integers(1, 4), orderly=st.booleans())
    def restart(self, num_replicas: int, microbatch: int, orderly: bool) -> None:
        """Close or simply drop the job, and go on from the last save on another rank set."""
        if orderly:
            self.running.close()
        self.launch(num_replicas, microbatch)

    @rule(global_batch=st.integers(1, 12), tail=st.sampled_from(TAILS), num_replicas=st.integers(1, 5))
    def migrate(self, global_batch: int, tail: str, num_replicas: int) -> None:
        """Go on from the last save with another global batch and tail, which must be allowed by name."""
        state, oracle = self.saved
        if state is None or self.num_migrations == 4:
            return
        if tail == "drop":
            global_batch = min(global_batch, self.task.length)
        before = self.recipe
        self.recipe = {**before, "global_batch": global_batch, "tail": tail}
        changes = {name for name in ("global_batch", "tail") if before[name] != self.recipe[name]}
        if changes:
            self.job = self.make_job(num_replicas, 2)
            with pytest.raises(RecipeMismatchError, match=changes.pop()):
                self.job.load(state)
            self.num_migrations += 1
        self.task = replace(self.task, global_batch=global_batch, tail=tail)
        oracle = replace(copy_of(oracle), task=self.task)
        oracle.epoch, oracle.offset, dropped = self.task.settle(oracle.epoch, oracle.offset)
        oracle.dropped += dropped
        self.saved = (state, oracle)
        self.launch(num_replicas, 2)
        self.save()

    @invariant()
    def counters_are_the_oracles(self) -> None:
        if self.job is not None:
            for loader in self.job.loaders:
                expect_cursor(loader.cursor, self.oracle)

    def teardown(self) -> None:
        if self.job is not None:
            expect_cursor(self.job.agree(), self.oracle)
            expect_full_coverage(self.job.loaders[0].cursor, self.oracle)
            self.job.close()


def copy_of(cursor: OracleCursor) -> OracleCursor:
    return replace(cursor, committed=list(cursor.committed))


TestJobMachine = JobMachine.TestCase
TestJobMachine.settings = settings(max_examples=20, stateful_step_count=30)


class AuditedJobMachine(JobMachine):
    """The same with a ledger, whose audit must count what the oracle counts, after every way to stop and go on."""

    def __init__(self) -> None:
        super().__init__()
        self.directory = TemporaryDirectory()

    def options(self) -> dict[str, Any]:
        return {"ledger": f"{self.directory.name}/ledger"}

    def teardown(self) -> None:
        with self.directory:
            if self.job is not None:
                self.deliver(1)  # a launch that delivered nothing is not in the ledger
                super().teardown()
                self.expect_proof(audit_ledger(f"{self.directory.name}/ledger"))

    def expect_proof(self, report: AuditReport) -> None:
        num_committed, num_ahead = self.oracle.samples, self.num_ahead()
        assert report.verdict == "proven", report.to_text()
        assert (report.replayed.high, report.omitted.high) == (0, 0)
        assert (report.samples, report.position) == (num_committed, self.oracle.position)
        assert (report.updates, report.skipped) == (self.oracle.updates, self.oracle.skipped)
        assert (report.padding, report.dropped) == (self.oracle.padding, self.oracle.dropped)
        assert report.in_flight == num_ahead
        assert report.discarded.low == report.discarded.high == self.num_delivered - num_committed - num_ahead

    def num_ahead(self) -> int:
        """Samples delivered since the last commit, load or iter()."""
        total = 0
        for number, update in enumerate(self.ahead):
            split = split_update(update.rows, num_replicas=self.running.num_replicas, microbatch=self.microbatch_rows)
            is_open = number == len(self.ahead) - 1 and self.next_index > 0
            for step in split[: self.next_index if is_open else None]:
                total += sum(len(rank.ids) for rank in step)
        return total


TestAuditedJobMachine = AuditedJobMachine.TestCase
TestAuditedJobMachine.settings = settings(max_examples=12, stateful_step_count=25)


@pytest.mark.slow
@pytest.mark.parametrize("machine", [JobMachine, AuditedJobMachine])
def test_job_machine_for_long(machine: type[JobMachine]) -> None:
    """As above, with more and longer lives of a job."""
    run_state_machine_as_test(machine, settings=settings(max_examples=400, stateful_step_count=60))
