"""A batch sampler with a cursor."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import Any

import pytest
import torch
from torch.utils.data import BatchSampler, DataLoader, Sampler

from resumable_data import Cursor, ResumableLoader, ResumableSampler, Sequential, Shuffle
from resumable_data.cursor import STATE_KEY
from resumable_data.errors import (
    CommitError,
    MissingStateError,
    RecipeMismatchError,
    StaleIteratorError,
    TopologyError,
    UsageError,
)
from resumable_data.sampler import batch_sampler
from resumable_data.sampler.seal import SEAL_KEY
from tests.simulated_ranks import Numbers, flat, keep_list


def make(length: int = 20, **options: Any) -> ResumableSampler:
    order = options.pop("order", Sequential(length))
    settings = {"global_batch": 4, "microbatch": 2, "rank": 0, "num_replicas": 1, "epochs": 2, **options}
    return ResumableSampler(order, **settings)


def trained(num_updates: int, **options: Any) -> ResumableSampler:
    sampler = make(**options)
    train(sampler, num_updates)
    return sampler


def train(sampler: ResumableSampler, num_updates: int) -> list[list[int]]:
    """The loop of the documentation, without a DataLoader: batches of so many updates."""
    seen, stream = [], iter(sampler)
    for _ in range(num_updates):
        seen += list(islice(stream, sampler.accumulation_steps))
        sampler.commit()
    return seen


def test_it_is_a_batch_sampler_of_torch() -> None:
    """Frameworks test for a Sampler; what it gives are lists of Python integers."""
    sampler = make(order=Shuffle(20))
    assert isinstance(sampler, Sampler)
    assert not isinstance(sampler, BatchSampler)
    batch = next(iter(sampler))
    assert [type(index) for index in batch] == [int, int]


def test_it_goes_on_through_epochs_to_the_end_of_the_run() -> None:
    """One pass is the whole run, in as many lists as len() says; after the last commit there is nothing more."""
    sampler = make(10)
    assert len(sampler) == len(list(sampler)) == 10
    assert sampler.num_updates == 5
    assert flat(train(sampler, 5)) == [*range(10), *range(10)]
    assert (len(sampler), list(sampler), sampler.num_updates) == (0, [], 5)
    assert (sampler.cursor.epoch, sampler.cursor.offset, sampler.cursor.samples) == (2, 0, 20)


def test_each_iter_starts_at_the_cursor() -> None:
    """What was not committed comes again, whatever was handed out before."""
    sampler = trained(2)
    for _ in range(3):
        assert next(iter(sampler)) == [8, 9]
        assert len(sampler) == 16


def test_an_endless_run_has_no_length() -> None:
    """As for an endless loader."""
    sampler = make(epochs=None)
    assert sampler.num_updates is None
    with pytest.raises(TypeError, match="epochs=None never ends"):
        len(sampler)
    assert len(list(islice(sampler, 50))) == 50


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_accumulation_steps_and_loss_scale_are_those_of_the_update_at_the_cursor(rank: int) -> None:
    """They are the same on all ranks and change where an update is short."""
    sampler = make(23, rank=rank, num_replicas=3, global_batch=14, microbatch=3, epochs=1)
    assert (sampler.accumulation_steps, sampler.loss_scale) == (2, 3 / 14)
    stream = iter(sampler)
    next(stream)
    assert (sampler.accumulation_steps, sampler.loss_scale) == (2, 3 / 14)
    next(stream)
    next(stream)  # fetched ahead
    assert sampler.loss_scale == 3 / 14
    sampler.commit()
    assert (sampler.accumulation_steps, sampler.loss_scale) == (1, 3 / 9)
    sampler.commit()
    for name in ("accumulation_steps", "loss_scale"):
        with pytest.raises(CommitError, match="the run of 1 epochs is over after 2 updates"):
            getattr(sampler, name)


def test_the_loss_scale_follows_the_reduction() -> None:
    """As the loader's does."""
    assert make(gradient_reduction="sum", num_replicas=2).loss_scale == 1 / 4
    assert make(reduction_size=6, num_replicas=2).loss_scale == 6 / 4
    with pytest.raises(UsageError, match="reduction_size must be"):
        make(reduction_size=0)
    with pytest.raises(UsageError, match="gradient_reduction must be"):
        make(gradient_reduction="max")


def test_a_skipped_update_consumes_its_samples() -> None:
    """It is counted apart from applied ones."""
    sampler = trained(1)
    list(islice(sampler, 2))
    sampler.commit(applied=False)
    assert (sampler.cursor.applied, sampler.cursor.skipped, sampler.cursor.samples) == (1, 1, 8)


def test_padding_and_dropped_samples_are_counted() -> None:
    """As the tail says, in the cursor."""
    cursor = trained(6, length=10, tail="pad").cursor
    assert (cursor.epoch, cursor.samples, cursor.padding, cursor.dropped) == (2, 20, 4, 0)
    cursor = trained(4, length=10, tail="drop").cursor
    assert (cursor.epoch, cursor.samples, cursor.padding, cursor.dropped) == (2, 16, 0, 4)


def test_commit_refuses_what_was_not_handed_out() -> None:
    """A commit per microbatch, or before any, does not skip samples in silence."""
    sampler = make()
    stream = iter(sampler)
    for _ in range(2):
        with pytest.raises(CommitError, match=r"all microbatches of update 0 were handed out; they were not.*move"):
            sampler.commit()
        next(stream)
    sampler.commit()
    with pytest.raises(CommitError, match="of update 1"):
        sampler.commit()
    assert sampler.cursor.position == 4
    with pytest.raises(CommitError, match="is over after 10 updates"):
        trained(10).commit()


def test_commit_after_a_new_iter_needs_new_batches() -> None:
    """What an older iterator handed out is read again, so it is not there to be committed."""
    sampler = make()
    list(islice(sampler, 2))
    iter(sampler)
    with pytest.raises(CommitError, match="of update 0"):
        sampler.commit()


def test_commit_that_is_never_called_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """An endless run whose checkpoints would all be of position 0 ends with an error, not with the job."""
    monkeypatch.setattr(batch_sampler, "MAX_AHEAD", 5)
    stream = iter(make(epochs=None))
    assert len(list(islice(stream, 10))) == 10
    with pytest.raises(CommitError, match="5 updates were handed out since update 0, none was committed"):
        next(stream)


def test_older_iterators_are_refused() -> None:
    """After a new iter() or a load they would give what does not come next."""
    sampler = make()
    old = iter(sampler)
    next(old)
    new = iter(sampler)
    for stream in (old, sampler.__iter__()):
        if stream is not old:
            sampler.load_state_dict(trained(2).state_dict())
        with pytest.raises(StaleIteratorError, match="before the sampler was iterated again or loaded"):
            next(stream)
    with pytest.raises(StaleIteratorError):
        next(new)
    assert next(iter(sampler)) == [8, 9]


def test_the_state_is_the_loaders() -> None:
    """Cursor and seal, and the same for a run that did the same; each goes on from the other's."""
    sampler = trained(3)
    state = sampler.state_dict()
    assert list(state) == [STATE_KEY, SEAL_KEY]
    assert (state[STATE_KEY].dtype, tuple(state[STATE_KEY].shape)) == (torch.uint8, (4096,))
    loader = ResumableLoader(
        Numbers(20), order=Sequential(20), global_batch=4, microbatch=1, rank=0, num_replicas=1, collate_fn=keep_list
    )
    loader.load_state_dict(state)
    update = next(loader.updates())
    assert [microbatch.data for microbatch in update] == [[12], [13], [14], [15]]
    update.commit()
    other = make()
    other.load_state_dict(loader.state_dict())
    assert next(iter(other)) == [16, 17]
    assert other.cursor.coverage == loader.cursor.coverage
    train(other, 1)
    assert (other.cursor.run_id, other.cursor.attempt) == (loader.cursor.run_id, 0)


def test_a_state_of_another_recipe_is_refused() -> None:
    """As by the loader: nothing is loaded, and what may change must be named."""
    state = trained(2).state_dict()
    sampler = trained(1, global_batch=5)
    with pytest.raises(RecipeMismatchError, match=r"global_batch\s+4\s+5"):
        sampler.load_state_dict(state)
    assert sampler.cursor.position == 5
    sampler.load_state_dict(state, allow={"global_batch"})
    assert (sampler.cursor.position, len(sampler.cursor.migrations)) == (8, 1)
    with pytest.raises(MissingStateError):
        sampler.load_state_dict({})
    sampler.load_state_dict(None, allow="fresh_start")
    assert sampler.cursor.position == 0
    with pytest.raises(RecipeMismatchError, match="fingerprint"):
        make(fingerprint="b").load_state_dict(make(fingerprint="a").state_dict())


def test_a_cursor_is_loaded_as_it_is() -> None:
    """A run that is taken over needs no detour through a state dict, here and in the loader."""
    cursor = Cursor.from_consumed_samples(Sequential(20), consumed_samples=8, global_batch=4)
    sampler = make()
    sampler.load_state_dict(cursor)
    assert next(iter(sampler)) == [8, 9]
    loader = ResumableLoader(Numbers(20), order=Sequential(20), global_batch=4, microbatch=2, rank=0, num_replicas=1)
    loader.load_state_dict(cursor)
    assert loader.cursor == cursor


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"global_batch": 12, "num_replicas": 5, "microbatch": 1}, r"12 rows for 5 ranks.*3 of the ranks.*10 or 15"),
        ({"global_batch": 2, "num_replicas": 3}, r"position 0 has 2 rows .*ResumableLoader.*global_batch of 6 fills"),
        # the run's last update
        ({"length": 21, "num_replicas": 4, "epochs": 1}, r"position 20 has 1 rows.*3 of.*ResumableLoader.*\"drop\" or"),
        # the last one of each epoch; without tail="short" they add up to whole updates
        ({"length": 22, "num_replicas": 4, "epochs": 2, "tail": "short"}, "position 20 has 2 rows"),
        ({"length": 3, "num_replicas": 4, "epochs": None, "tail": "short"}, "position 0 has 3 rows"),
    ],
)
def test_a_layout_with_an_empty_share_is_refused(options: dict[str, Any], says: str) -> None:
    """An update of any size that the run has would leave a rank without rows; every rank says so."""
    for rank in range(options["num_replicas"]):
        with pytest.raises(UsageError, match=says):
            make(**{**options, "rank": rank})


@pytest.mark.parametrize(
    "options",
    [
        {"global_batch": 256, "num_replicas": 10, "length": 2560},  # uneven, and nobody is without
        {"length": 21, "num_replicas": 4, "epochs": None},
        {"length": 21, "num_replicas": 4, "epochs": 4},
        {"length": 22, "num_replicas": 4, "epochs": 2},
        {"length": 21, "num_replicas": 4, "tail": "drop"},
        {"length": 21, "num_replicas": 4, "tail": "pad"},
        {"length": 23, "num_replicas": 3, "tail": "short"},
    ],
)
def test_a_layout_without_one_is_not(options: dict[str, Any]) -> None:
    """Nothing is refused that the sampler can do."""
    batches = [list(islice(make(**options, rank=rank), 1000)) for rank in range(options["num_replicas"])]
    assert all(min(map(len, one)) > 0 for one in batches)


def test_an_empty_share_from_the_loaded_place_on_is_refused() -> None:
    """A state may bring short updates that a run from the beginning has not; nothing is loaded then."""
    sampler = make(20, num_replicas=4, epochs=2)
    cursor = Cursor.from_consumed_samples(Sequential(20), consumed_samples=7, updates=2, global_batch=4)
    with pytest.raises(UsageError, match="position 39 has 1 rows"):
        sampler.load_state_dict(cursor)
    assert sampler.cursor.position == 0


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"rank": 4, "num_replicas": 4}, TopologyError),
        ({"rank": None}, TopologyError),
        ({"microbatch": 0}, UsageError),
        ({"global_batch": 0}, UsageError),
        ({"epochs": 0}, UsageError),
        ({"tail": "wrap"}, UsageError),
        ({"order": 20}, UsageError),
        ({"fingerprint": "x" * 600}, UsageError),
        ({"data_axes": "dp"}, TopologyError),
    ],
)
def test_wrong_arguments_are_refused(options: dict[str, Any], error: type[Exception]) -> None:
    """Each before anything is read."""
    with pytest.raises(error):
        make(**options)


def test_rank_and_size_are_found_as_the_loader_finds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a process group it is a single process, unless the environment says otherwise."""
    assert len(make(rank=None, num_replicas=None)) == 20
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TopologyError, match="there is no process group"):
        make(rank=None, num_replicas=None)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_prefetching_does_not_move_the_cursor(num_workers: int) -> None:
    """The loop of the documentation, stopped in mid-update while workers are far ahead, goes on where it committed."""
    seen: Counter[int] = Counter()
    state, num_updates = None, 0
    for num_replicas in (1, 2):
        samplers = [make(22, order=Shuffle(22), rank=r, num_replicas=num_replicas) for r in range(num_replicas)]
        for sampler in samplers:
            sampler.load_state_dict(state, allow={"fresh_start"})
        loaders: list[DataLoader[int]] = [
            DataLoader(Numbers(22), batch_sampler=one, num_workers=num_workers, collate_fn=keep_list)  # type: ignore[arg-type]
            for one in samplers
        ]
        assert len(loaders[0]) == len(samplers[0])
        batches: list[list[int]] = []
        for step in zip(*loaders, strict=True):
            batches += step
            if len(batches) // num_replicas == samplers[0].accumulation_steps:
                if num_replicas == 1 and num_updates == 3:
                    break
                seen.update(flat(batches))
                batches, num_updates = [], num_updates + 1
                for sampler in samplers:
                    sampler.commit()
        assert samplers[0].cursor == samplers[-1].cursor
        state = samplers[-1].state_dict()
    assert seen == Counter(dict.fromkeys(range(22), 2))
    assert (num_updates, samplers[0].cursor.epoch) == (11, 2)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_load_during_iteration_is_an_error(num_workers: int) -> None:
    """A DataLoader that is under way does not go on with batches of the place before."""
    sampler = make()
    loader: DataLoader[int] = DataLoader(Numbers(20), batch_sampler=sampler, num_workers=num_workers)  # type: ignore[arg-type]
    stream = iter(loader)
    next(stream)
    sampler.load_state_dict(trained(3).state_dict())
    with pytest.raises(StaleIteratorError):
        next(stream)
    assert next(iter(loader)).tolist() == [12, 13]
