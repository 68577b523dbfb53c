"""Cases 17-23 and 28: the ends of epochs."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from resumable_data import BlockShuffle, ResumableLoader, Sequential, Shuffle, TorchShuffle
from resumable_data.errors import UsageError
from tests.simulated_ranks import Job, Numbers, flat

if TYPE_CHECKING:
    import torch

    from resumable_data.order import Order


@pytest.mark.parametrize("tail", ["carry", "short", "pad"])
@pytest.mark.parametrize(("length", "num_replicas"), [(10, 3), (5, 2), (3, 2), (1, 2), (1, 1)])
def test_case_17_few_samples(length: int, num_replicas: int, tail: str) -> None:
    """N=10 on 3 ranks, 5, 3 and 1 on 2, b=2: every rank takes the same number of steps, each sample once."""
    for global_batch in (2, 2 * num_replicas, 7):
        job = Job(length, num_replicas, global_batch=global_batch, microbatch=2, tail=tail, epochs=1)
        assert Counter(flat(job.train())) == Counter(range(length))


def test_case_17_no_samples() -> None:
    """N=0 is a clear error."""
    with pytest.raises(UsageError, match="the dataset is empty"):
        ResumableLoader(Numbers(0), global_batch=2, microbatch=2)


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
def test_case_18_the_same_number_of_steps_on_every_rank(tail: str) -> None:
    """N=23, G=8, W=4: no rank ends early, which would hang a collective."""
    job = Job(23, 4, global_batch=8, microbatch=1, tail=tail, epochs=2)
    assert len({len(loader) for loader in job.loaders}) == 1
    steps = [0] * 4
    while update := job.update():
        for step in update:
            for rank, microbatch in enumerate(step):
                assert len(microbatch.data) >= 1
                steps[rank] += 1
        job.commit()
    assert len(set(steps)) == 1


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
@pytest.mark.parametrize(("length", "num_replicas", "global_batch"), [(500, 32, 64), (5, 4, 4)])
def test_case_19_no_duplicates_but_padding_that_was_asked_for(
    length: int, num_replicas: int, global_batch: int, tail: str
) -> None:
    """N=500 on 32 ranks and 5 on 4: duplicates only with tail="pad", and then exactly counted."""
    job = Job(length, num_replicas, global_batch=global_batch, microbatch=2, tail=tail, epochs=1)
    rows, ids = 0, Counter[int]()
    while update := job.update():
        rows += sum(int(rank.weights.sum()) for step in update for rank in step)
        ids.update(sample_id for step in update for rank in step for sample_id in rank.ids.tolist())
        job.commit()
    cursor = job.agree()
    rest = length % global_batch
    assert max(ids.values()) == 1
    assert cursor.samples == ids.total() == length - (rest if tail == "drop" else 0)
    assert cursor.dropped == (rest if tail == "drop" else 0)
    assert cursor.padding == (global_batch - rest if tail == "pad" else 0)
    assert rows == cursor.samples + cursor.padding


def test_case_20_saved_at_the_end_of_an_epoch() -> None:
    """Saved at N of N the next epoch has N samples; saved at 2N+3, the run goes on there; three epochs each."""
    length = 12
    whole = Job(length, 1, global_batch=3, microbatch=3, epochs=3).train()
    for num_updates in (length // 3, 2 * length // 3 + 1, 1, 6, 11):
        first = Job(length, 2, global_batch=3, microbatch=1, epochs=3)
        first.train(num_updates)
        state = first.save()
        cursor = first.loaders[0].cursor
        assert (cursor.epoch, cursor.offset) == divmod(3 * num_updates, length)
        second = Job(length, 3, global_batch=3, microbatch=1, epochs=3)
        second.load(state)
        assert second.train() == whole[num_updates:]
    for epoch in range(3):
        assert sorted(flat(whole[4 * epoch : 4 * epoch + 4])) == list(range(length))


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
@pytest.mark.parametrize("make_order", [Shuffle, TorchShuffle])
def test_case_21_epochs_differ_by_themselves(make_order: type[Shuffle], options: dict[str, Any]) -> None:
    """Without any set_epoch each epoch has its own order, persistent workers included."""
    order = make_order(16)
    with Job(16, 1, order=order, global_batch=8, microbatch=8, epochs=3, **options) as job:
        ids = job.train()
    epochs = [ids[0] + ids[1], ids[2] + ids[3], ids[4] + ids[5]]
    assert len({tuple(epoch) for epoch in epochs}) == 3
    assert epochs == [order.ids(epoch, np.arange(16)).tolist() for epoch in range(3)]


def test_case_22_a_short_batch_advances_by_what_it_held() -> None:
    """With N=10, G=4 the third update moves the cursor by 2, to the next epoch's start."""
    job = Job(10, 2, global_batch=4, microbatch=2, tail="short", epochs=2)
    job.train(3)
    cursor = job.agree()
    assert (cursor.samples, cursor.epoch, cursor.offset) == (10, 1, 0)
    job = Job(10, 2, global_batch=4, microbatch=2, tail="carry", epochs=1)
    job.train()
    assert (job.loaders[0].cursor.samples, job.loaders[0].cursor.epoch) == (10, 1)


def test_case_23_len_is_the_number_of_steps_delivered() -> None:
    """For a grid of N, G, W and tails, at the start and after each update."""
    for length, global_batch, num_replicas, tail in product(
        (1, 5, 12), (1, 4, 9), (1, 2, 5), ("carry", "short", "drop", "pad")
    ):
        if tail == "drop" and global_batch > length:
            continue
        job = Job(length, num_replicas, global_batch=global_batch, microbatch=2, tail=tail, epochs=2)
        lengths, num_steps = [len(job.loaders[-1])], [0]
        while update := job.update():
            job.commit()
            lengths.append(len(job.loaders[-1]))
            num_steps.append(num_steps[-1] + len(update))
        assert lengths == [num_steps[-1] - done for done in num_steps]
        assert {loader.num_updates for loader in job.loaders} == {len(num_steps) - 1}


@pytest.mark.parametrize(
    "order",
    [
        Sequential(10),
        Shuffle(10, seed=4),
        TorchShuffle(10),
        *(BlockShuffle(10, block=b, window=4) for b in (1, 2, 3, 10)),
    ],
    ids=repr,
)
def test_case_28_resumed_at_each_of_ten_positions(order: Order) -> None:
    """n=10, G=1: a run stopped at each position goes on with the rest of the same sequence."""
    whole = Job(10, 1, order=order, global_batch=1, microbatch=1, epochs=1).train()
    for position in range(11):
        state: dict[str, torch.Tensor]
        first = Job(10, 3, order=order, global_batch=1, microbatch=1, epochs=1)
        assert first.train(position) == whole[:position]
        state = first.save()
        second = Job(10, 2, order=order, global_batch=1, microbatch=4, epochs=1)
        second.load(state)
        assert second.train() == whole[position:]
