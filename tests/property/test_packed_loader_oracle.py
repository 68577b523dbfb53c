"""Loaders over packed rows beside the oracle: any number of ranks, any chain of restarts, by rows and by tokens."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data import BestFit, Concat, Fill, NoPacking, Sequential, Shuffle
from tests.packed_jobs import PackedJob, PackedProgress, expect_update, make_oracle, make_packed

if TYPE_CHECKING:
    from collections.abc import Sequence

    import torch

    from resumable_data.packing import Policy
    from tests.simulated_ranks import Job

# None for all updates that are left
Launch = tuple[int | None, int, int]


class Chain:
    """A run that is launched again and again, beside the oracle.

    Args:
        recipe: For `make_packed` and `make_oracle`.
        epochs: Of the run.
        batch: ``global_batch=`` or ``global_batch_tokens=``.
        **options: More for the loaders.
    """

    def __init__(self, recipe: dict[str, Any], epochs: int, batch: dict[str, int], **options: Any) -> None:
        self.packed = make_packed(**recipe)
        self.progress = PackedProgress(
            make_oracle(**recipe),
            epochs,
            num_rows=batch.get("global_batch", 0),
            num_tokens=batch.get("global_batch_tokens", 0),
        )
        self.options: dict[str, Any] = {**batch, **options}
        self.state: dict[str, torch.Tensor] | None = None

    def launch(self, num_updates: int | None, num_replicas: int, microbatch: int, **options: Any) -> None:
        """Go on from the last save, commit so many updates, read some more, save and die."""
        progress = self.progress
        options = {**self.options, "epochs": progress.epochs, "microbatch": microbatch, **options}
        workers = {"num_workers", "prefetch_factor", "persistent_workers"}
        of_update = {name: value for name, value in options.items() if name in ("pad_microbatches", "normalize")}
        assert set(options) - workers <= {"global_batch", "global_batch_tokens", "epochs", "microbatch", *of_update}
        with PackedJob(self.packed, num_replicas, **options) as job:
            job.load(self.state, allow={"fresh_start"})
            self.expect_ahead(job, microbatch)
            for _, stop in progress.upcoming()[:num_updates]:
                steps = job.update()
                assert steps is not None
                expect_update(steps, progress, (progress.position, stop), microbatch=microbatch, **of_update)
                applied = progress.updates % 3 != 2
                job.commit(applied=applied)
                progress.commit(stop, applied=applied)
                progress.expect_cursor(job.loaders[-1].cursor)
            if num_updates is None:
                assert job.update() is None
            job.microbatch()  # read and forgotten: whoever comes next must read it again
            self.state = job.save()
            progress.expect_cursor(job.loaders[0].cursor)
            progress.expect_coverage(job.loaders[-1].cursor)

    def expect_ahead(self, job: Job, microbatch: int) -> None:
        """Make sure that the loaders know how many updates and microbatches are left."""
        progress, left = self.progress, self.progress.upcoming()
        busiest = [-(-(stop - start) // job.num_replicas) for start, stop in left]
        for loader in job.loaders[:2]:
            assert loader.num_updates == progress.updates + len(left)
            assert len(loader) == sum(-(-rows // microbatch) for rows in busiest)

    def finish(self) -> None:
        """Run to the end on one rank; then every token was committed once an epoch."""
        self.launch(None, 1, 4)
        self.progress.expect_tokens(self.progress.epochs)


POLICIES = st.one_of(
    st.builds(BestFit, st.booleans()),
    st.integers(1, 100).map(lambda percent: Fill(percent / 100)),
    st.just(Concat()),
    st.builds(NoPacking, st.booleans()),
)
LENGTHS = st.one_of(
    st.lists(st.integers(0, 12), min_size=1, max_size=16),
    st.lists(st.integers(0, 50), min_size=1, max_size=6),
    st.lists(st.sampled_from([0, 1, 6, 8, 30]), min_size=1, max_size=12),
).filter(any)
BATCHES = st.one_of(
    st.builds(lambda rows: {"global_batch": rows}, st.integers(1, 9)),
    st.builds(lambda tokens: {"global_batch_tokens": tokens}, st.integers(1, 60)),
)


@st.composite
def chains(draw: st.DrawFn) -> Chain:
    """A run of any kind."""
    lengths = draw(LENGTHS)
    recipe = {
        "lengths": lengths,
        "sequence_length": draw(st.integers(1, 12)),
        "window": draw(st.integers(1, 8)),
        "policy": draw(POLICIES),
        "order": draw(st.sampled_from([Sequential(len(lengths)), Shuffle(len(lengths), seed=2)])),
        "seed": draw(st.integers(0, 3)),
    }
    options = {
        "pad_microbatches": draw(st.booleans()),
        "normalize": draw(st.sampled_from(["tokens", "samples"])),
    }
    return Chain(recipe, draw(st.integers(1, 3)), draw(BATCHES), **options)


LAUNCHES = st.lists(st.tuples(st.integers(0, 6), st.integers(1, 9), st.integers(1, 4)), max_size=4)


def run_chain(chain: Chain, launches: Sequence[Launch]) -> None:
    for launch in launches:
        chain.launch(*launch)
    chain.finish()


@settings(max_examples=6)
@given(chain=chains(), launches=LAUNCHES)
def test_any_chain_of_restarts_agrees_with_the_oracle(chain: Chain, launches: list[Launch]) -> None:
    """Rows, data, loss scales, counters and digests are the oracle's; no token is lost or repeated."""
    run_chain(chain, launches)


@pytest.mark.slow
@settings(max_examples=300)
@given(chain=chains(), launches=LAUNCHES)
def test_any_chain_of_restarts_agrees_with_the_oracle_for_long(chain: Chain, launches: list[Launch]) -> None:
    """As above, with more examples."""
    run_chain(chain, launches)


WORLD_SIZES = (1, 2, 3, 4, 5, 6, 7, 8, 9, 64)


BY_ROWS, BY_TOKENS = {"global_batch": 7}, {"global_batch_tokens": 50}


@pytest.mark.parametrize(
    ("policy", "batch"),
    [
        (Concat(), BY_TOKENS),
        *(
            pytest.param(policy, batch, marks=pytest.mark.slow)
            for policy in (BestFit(), Fill(), Concat(), NoPacking(truncate=True))
            for batch in (BY_ROWS, BY_TOKENS)
        ),
    ],
    ids=str,
)
def test_rows_do_not_depend_on_the_number_of_ranks(policy: Policy, batch: dict[str, int]) -> None:
    """One epoch and a half of the run on each of 1 to 9 and 64 ranks: the oracle's rows in the oracle's order."""
    for num_replicas in WORLD_SIZES:
        chain = Chain({"policy": policy}, 2, batch)
        rows = len(chain.progress.rows)
        chain.launch(len(chain.progress.upcoming()) * 3 // 4, num_replicas, 2)
        assert chain.progress.position > rows // 2


@pytest.mark.parametrize("policy", [Concat(), pytest.param(BestFit(), marks=pytest.mark.slow)], ids=repr)
def test_every_place_to_stop_at(policy: Policy) -> None:
    """Updates of one row, stopped after each: in mid-window, at borders of windows and of epochs, on other ranks."""
    chain = Chain({"policy": policy, "window": 7}, 2, {"global_batch": 1})
    rows = chain.progress.rows
    for number in range(len(rows)):
        chain.launch(1, number % 3 + 1, 1)
    borders = Counter(row.is_last_of_window for row in rows)
    assert borders[True] == 6
    assert borders[False] > 6
    chain.progress.expect_tokens(2)


@pytest.mark.parametrize("policy", [BestFit(), Concat(), NoPacking(truncate=True)], ids=repr)
def test_a_run_that_ended_is_extended(policy: Policy) -> None:
    """A finished run goes on when it is given more epochs, from where its last, short update ended."""
    for batch in ({"global_batch": 4}, {"global_batch_tokens": 45}):
        chain = Chain({"policy": policy}, 1, batch)
        for epochs in (1, 2, 4):
            chain.progress.epochs = epochs
            chain.finish()


@pytest.mark.filterwarnings("ignore:This DataLoader will create .* worker processes")
@pytest.mark.parametrize(
    ("workers", "persistent"),
    [((1, 0, 2), False), pytest.param((2, 3, 0, 4, 1), True, marks=pytest.mark.slow)],
)
def test_workers_change_nothing(workers: tuple[int, ...], persistent: bool) -> None:
    """The oracle's rows, tensors and counters whatever number of workers reads them."""
    chain = Chain({"policy": Concat()}, 2, {"global_batch_tokens": 40})
    for num_workers in workers:
        options = {"num_workers": num_workers}
        if num_workers:
            options |= {"prefetch_factor": 2, "persistent_workers": persistent}
        chain.launch(2, 2, 1, **options)
