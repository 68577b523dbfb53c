"""The loader in one process: iterating, committing, length, closing, options."""

from __future__ import annotations

import gc
import os
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch

from resumable_data import ResumableLoader, Sequential, Shuffle
from resumable_data.errors import (
    CommitError,
    DisagreementError,
    StaleIteratorError,
    StateError,
    TopologyError,
    UsageError,
)
from tests.simulated_ranks import Job, Numbers, keep_list


def make(length: int = 20, **options: Any) -> ResumableLoader:
    settings: dict[str, Any] = {"global_batch": 4, "microbatch": 2, "rank": 0, "num_replicas": 1, "epochs": 2}
    settings |= {"collate_fn": keep_list, "order": Sequential(length), **options}
    return ResumableLoader(Numbers(length), **settings)


class PidDataset(Numbers):
    """A dataset whose items say which process read them."""

    def __getitem__(self, index: int) -> int:
        return os.getpid()


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_an_older_iterator_is_refused() -> None:
    """Whatever came after it, an iterator that is not the newest raises and never gives a sample."""
    loader = make()
    state = loader.state_dict()
    for make_stale in (lambda: iter(loader), lambda: loader.load_state_dict(state), loader.close):
        started = iter(loader)
        next(started)
        make_stale()
        with pytest.raises(StaleIteratorError, match=r"iterated again, loaded, remapped or closed.*Use the iterator"):
            next(started)
    loader = make()
    never_started = iter(loader)
    iter(loader)
    with pytest.raises(StaleIteratorError):
        next(never_started)


def test_a_new_iterator_reads_again_what_was_not_committed() -> None:
    """Each iter() starts at the cursor."""
    loader = make()
    first = [microbatch.data for microbatch in islice(loader, 5)]
    assert [microbatch.data for microbatch in islice(loader, 5)] == first
    stream = iter(loader)
    next(stream), next(stream)
    loader.commit()
    assert next(iter(loader)).data == [4, 5]


def test_leaving_the_loop_and_coming_back_goes_on() -> None:
    """A loop left by `break` after a commit goes on at the cursor."""
    loader, seen = make(epochs=1), []
    while loader.cursor.epoch == 0:
        for update in loader.updates():
            seen += [sample for microbatch in update for sample in microbatch.data]
            update.commit()
            break
    assert seen == list(range(20))


def test_a_finished_run_stays_finished() -> None:
    """After the last update there is nothing to read, and the length says so."""
    loader = make(epochs=1)
    for update in loader.updates():
        update.commit()
    assert list(loader) == []
    assert (len(loader), loader.num_updates) == (0, 5)
    with pytest.raises(CommitError, match="nothing of it was"):
        loader.commit()


def test_length_and_number_of_updates() -> None:
    """len() counts the microbatches left, num_updates the updates of the whole run; neither exists without an end."""
    loader = make()
    assert (len(loader), loader.num_updates) == (20, 10)
    next(iter(loader.updates())).commit()
    assert (len(loader), loader.num_updates) == (18, 10)
    endless = make(epochs=None)
    assert endless.num_updates is None
    with pytest.raises(TypeError, match=r"epochs=None never ends and has no len\(\)"):
        len(endless)


def test_a_forgotten_commit_is_found() -> None:
    """A loop that never commits is stopped after 64 updates."""
    stream = iter(make(length=1000))
    assert len(list(islice(stream, 2 * 64))) == 2 * 64
    with pytest.raises(CommitError, match="64 updates were delivered since update 0, none was committed"):
        next(stream)


def test_updates_come_whole_and_are_committed_in_order() -> None:
    """`updates()` gives each update with all its microbatches; one may be committed once, and only in its turn."""
    loader = make()
    stream = loader.updates()
    first, second = next(stream), next(stream)
    assert (len(first), first.index, second.index) == (2, 0, 1)
    assert [microbatch.data for microbatch in first] == [[0, 1], [2, 3]]
    with pytest.raises(CommitError, match="update 1 is to be committed, the cursor is at update 0"):
        second.commit()
    first.commit(applied=False)
    with pytest.raises(CommitError, match="update 0 is to be committed, the cursor is at update 1"):
        first.commit()
    second.commit()
    assert (loader.cursor.applied, loader.cursor.skipped) == (1, 1)


def test_a_closed_loader_says_so() -> None:
    """After close() the cursor can be read and saved; reading on or committing is refused."""
    with make() as loader:
        stream = loader.updates()
        next(stream).commit()
        left = next(stream)
    assert loader.cursor.updates == 1
    make().load_state_dict(loader.state_dict())
    for use in (lambda: iter(loader), loader.commit, left.commit, loader.updates):
        with pytest.raises(UsageError, match=r"this loader is closed; make a new one and load the state"):
            use()
    loader.close()


def test_close_ends_the_workers_even_where_an_iterator_is_held() -> None:
    """No worker outlives close(), persistent or not."""
    for persistent in (False, True):
        loader = ResumableLoader(
            PidDataset(20), global_batch=4, microbatch=1, num_workers=2, persistent_workers=persistent, epochs=1
        )
        stream = iter(loader)
        pids = {int(next(stream).data[0]) for _ in range(4)}
        assert len(pids) == 2
        assert all(map(is_running, pids))
        loader.close()
        assert not any(map(is_running, pids))
        del stream


def test_a_newer_iterator_ends_the_workers_of_an_older_one() -> None:
    """Workers that are not persistent end when their iterator becomes stale, even where that is held."""
    loader = ResumableLoader(PidDataset(20), global_batch=4, microbatch=1, num_workers=1)
    old = iter(loader)
    pid = int(next(old).data[0])
    new = iter(loader)
    next(new)
    assert not is_running(pid)
    loader.load_state_dict(loader.state_dict())
    loader.close()
    del old, new


def test_persistent_workers_stay_the_same() -> None:
    """Iterating again, loading and crossing an epoch keep the same worker processes."""
    with ResumableLoader(
        PidDataset(8), global_batch=4, microbatch=1, num_workers=2, persistent_workers=True, epochs=None
    ) as loader:
        seen = []
        for _ in range(3):
            seen.append({int(microbatch.data[0]) for microbatch in islice(loader, 20)})
        loader.load_state_dict(loader.state_dict())
        seen.append({int(microbatch.data[0]) for microbatch in islice(loader, 20)})
    assert len(seen[0]) == 2
    assert all(pids == seen[0] for pids in seen)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_global_random_state_is_left_alone(num_workers: int) -> None:
    """Making, iterating and loading draws nothing from torch's global generator, so a model's dropout is unmoved."""
    torch.manual_seed(5)
    before = torch.get_rng_state()
    choices: list[dict[str, Any]] = [{}, {"generator": None}]
    for options in choices:
        with make(num_workers=num_workers, order=Shuffle(20), **options) as loader:
            for update in islice(loader.updates(), 3):
                update.commit()
            loader.load_state_dict(loader.state_dict())
            next(iter(loader))
    assert torch.equal(torch.get_rng_state(), before)


class RandomNoise(Numbers):
    """A dataset that augments with torch's generator."""

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(2**40, ()).item())


def test_workers_seeds_follow_the_position() -> None:
    """Two launches from the same cursor seed their workers alike; ranks and seeds differ."""

    def first(**options: Any) -> Any:
        settings = {"rank": 0, "num_replicas": 2, "seed": 3, **options}
        with ResumableLoader(RandomNoise(20), global_batch=4, microbatch=1, num_workers=1, **settings) as loader:
            return next(iter(loader)).data.tolist()

    assert first() == first()
    assert len({tuple(x) for x in (first(), first(rank=1), first(seed=4))}) == 3


@pytest.mark.parametrize("option", ["batch_size", "shuffle", "sampler", "batch_sampler", "drop_last", "in_order"])
def test_options_that_the_loader_decides_are_refused(option: str) -> None:
    """An option of DataLoader that would break the order is refused by name, with what replaces it."""
    with pytest.raises(UsageError, match=rf"unknown options \['{option}'\].*order, global_batch"):
        make(**{option: 1})


def test_an_order_of_another_length_is_refused() -> None:
    """The lengths of order and dataset are compared, and both named."""
    with pytest.raises(UsageError, match="the order has 19 samples and the dataset 20"):
        make(order=Sequential(19))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"global_batch": 0}, "global_batch must be"),
        ({"microbatch": 0}, "microbatch must be"),
        ({"epochs": 0}, "epochs must be"),
        ({"tail": "keep"}, "tail must be one of"),
        ({"normalize": "rows"}, "normalize must be one of"),
        ({"normalize": "targets", "num_target_tokens": [1] * 20}, "num_target_tokens= was given too"),
        ({"normalize": "tokens"}, "needs num_target_tokens="),
        ({"num_target_tokens": [1]}, r"shape \(20,\)"),
        ({"gradient_reduction": "avg"}, "gradient_reduction must be one of"),
        ({"reduction_size": 0}, "reduction_size must be"),
        ({"fingerprint": 5}, "fingerprint must be printable text"),
        ({"order": None, "seed": -1}, "seed must be"),
        ({"tail": "drop", "global_batch": 21}, "would drop all 20 samples"),
        ({"ledger": __file__}, "found a file"),
    ],
)
def test_wrong_arguments_are_refused_when_the_loader_is_made(options: dict[str, Any], says: str) -> None:
    """No wrong argument waits for the first save to be found."""
    with pytest.raises(UsageError, match=says):
        make(**options)


def test_what_a_checkpoint_cannot_hold_is_refused_when_the_loader_is_made() -> None:
    """An order whose description is larger than the state is refused at once."""

    class Wordy(Sequential):
        def _arguments(self) -> dict[str, int | str]:
            return {"words": "w" * 5000}

        def describe(self) -> dict[str, int | str]:
            return {**super().describe(), "kind": "wordy"}

    with pytest.raises(StateError, match=r"at most 4072 bytes as JSON.*found one that may grow to 6\d\d\d"):
        make(order=Wordy(20))


def test_ranks_are_given_whole_or_not_at_all() -> None:
    """A rank without a size, or outside it, is refused."""
    choices: list[dict[str, Any]] = [{"rank": 0, "num_replicas": None}, {"rank": None, "num_replicas": 2}]
    for options in choices:
        with pytest.raises(TopologyError, match="rank and num_replicas go together"):
            make(**options)
    with pytest.raises(TopologyError, match=r"rank must be an integer in \[0, 2\), got 2"):
        make(rank=2, num_replicas=2)
    with pytest.raises(TopologyError, match="give mesh= as well"):
        make(data_axes="dp")


@pytest.mark.parametrize("variables", [{"WORLD_SIZE": "4"}, {"RANK": "1"}, {"RANK": "1", "WORLD_SIZE": "2"}])
def test_a_launcher_without_a_process_group_is_refused(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a launcher started several processes and no group was made, each would read everything."""
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(TopologyError, match=r"no process group: every process would read all samples. Call torch"):
        make(rank=None, num_replicas=None)
    assert len(make(rank=0, num_replicas=4)) > 0
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("RANK", "0")
    assert next(iter(make(rank=None, num_replicas=None))).data == [0, 1]


def test_a_single_process_needs_no_topology() -> None:
    """Without arguments, mesh and group there is one rank."""
    assert next(iter(make(rank=None, num_replicas=None))).data == [0, 1]


def test_agreement_names_who_differs_and_in_what() -> None:
    """A rank that did not commit, one missing, one with other settings: each is an error that says so."""
    job = Job(20, 3, global_batch=4, microbatch=2)
    job.update()
    for loader in job.loaders[:2]:
        loader.commit()
    with pytest.raises(DisagreementError) as caught:
        job.agree()
    for line in ("applied = 1  on process 0, 1", "applied = 0  on process 2", "offset = 4  on process 0, 1"):
        assert line in str(caught.value)
    assert job.loaders[0].cursor.coverage == (), "a failed agreement changes nothing"
    job.loaders[2].commit()
    assert [(span.start, span.stop) for span in job.agree().coverage] == [(0, 4)]
    with pytest.raises(DisagreementError, match=r"expected all data-parallel ranks 0 .. 2 .*none has rank 1"):
        job.loaders[0].check_agreement([job.loaders[0], job.loaders[2]])
    with pytest.raises(UsageError, match=r"rank 0 of 3 by its arguments.*peers="):
        job.loaders[0].check_agreement()
    for options in ({"epochs": 3}, {"microbatch": 3}, {"pad_microbatches": True}, {"gradient_reduction": "sum"}):
        others = [make(rank=rank, num_replicas=2, **(options if rank else {})) for rank in range(2)]
        with pytest.raises(DisagreementError, match="processes disagree on the loader's settings"):
            others[0].check_agreement(others)
    with pytest.raises(DisagreementError, match="disagree on the number of data-parallel ranks"):
        others[0].check_agreement([others[0], make(rank=1, num_replicas=3)])
    mixed = [make(rank=0, num_replicas=2), make(rank=1, num_replicas=2, order=Shuffle(20, seed=1))]
    with pytest.raises(DisagreementError, match=r"recipe.order.kind = 'shuffle'  on process 1"):
        mixed[0].check_agreement(mixed)


def test_agreeing_twice_and_on_every_rank_changes_nothing() -> None:
    """An agreement with nothing new between is the same cursor."""
    job = Job(20, 2, global_batch=4, microbatch=2)
    job.train(2)
    first = job.agree()
    assert [loader.check_agreement(job.loaders) for loader in job.loaders] == [first, first]
    alone = make()
    next(iter(alone.updates())).commit()
    assert alone.check_agreement() == alone.cursor == alone.check_agreement([alone])
    assert len(alone.cursor.coverage) == 1


def test_ids_and_positions_cannot_harm_what_comes_next() -> None:
    """IDs are read-only views; positions are the caller's own."""
    microbatch = next(iter(make()))
    assert microbatch.ids.dtype == microbatch.positions.dtype == np.int64
    with pytest.raises(ValueError, match="read-only"):
        microbatch.ids[0] = 1
    microbatch.positions[0] = 99
    assert microbatch.positions.tolist() == [0, 1]


def test_a_dropped_loader_leaves_nothing_behind() -> None:
    """A loader that is dropped without close() is freed with its workers."""
    loader = ResumableLoader(PidDataset(20), global_batch=4, microbatch=1, num_workers=1)
    stream = iter(loader)
    pid = int(next(stream).data[0])
    del stream, loader
    gc.collect()
    assert not is_running(pid)
