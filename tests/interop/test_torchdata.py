"""Case 39 with torchdata: what a StatefulDataLoader would save of our samplers is refused by name."""

from __future__ import annotations

from itertools import islice
from typing import Any

import pytest
import torch.utils.data

import resumable_data as rd
from resumable_data.errors import StateError, UsageError
from tests.interop.jobs import MICROBATCH, Numbers, make_sampler

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")]

SAMPLERS = ["DistributedSampler", "ResumableSampler"]


def make_stateful(sampler: str, **options: Any) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    if sampler == "ResumableSampler":
        return StatefulDataLoader(Numbers(), batch_sampler=make_sampler(rank=0, num_replicas=1), **options)
    kinds = {"DistributedSampler": rd.DistributedSampler, "torch": torch.utils.data.DistributedSampler}
    return StatefulDataLoader(Numbers(), batch_size=MICROBATCH, sampler=kinds[sampler](Numbers(), 1, 0), **options)


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("every", [1, 5])
def test_with_workers_the_first_batch_is_refused(sampler: str, every: int) -> None:
    """Nothing is read by a loader that saves where its workers are; the error names it and the way out."""
    loader = make_stateful(sampler, num_workers=2, snapshot_every_n_steps=every)
    with pytest.raises(UsageError, match=r"StatefulDataLoader.*state_dict\(\)"):
        next(iter(loader))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_without_workers_the_first_state_is_refused(sampler: str) -> None:
    """No checkpoint holds what a StatefulDataLoader would save, before or after a batch."""
    loader = make_stateful(sampler)
    for _ in range(2):
        with pytest.raises(UsageError, match=r"StatefulDataLoader.*state_dict\(\)"):
            loader.state_dict()
        next(iter(loader))


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_without_workers_and_states_it_is_a_dataloader(sampler: str) -> None:
    """A StatefulDataLoader whose state nobody asks for gives what torch's DataLoader gives."""
    stateful = make_stateful(sampler)
    plain: torch.utils.data.DataLoader[int]
    if sampler == "ResumableSampler":
        plain = torch.utils.data.DataLoader(Numbers(), batch_sampler=make_sampler(rank=0, num_replicas=1))
    else:
        plain = torch.utils.data.DataLoader(Numbers(), MICROBATCH, sampler=rd.DistributedSampler(Numbers(), 1, 0))
    assert [batch.tolist() for batch in stateful] == [batch.tolist() for batch in plain]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_state_saved_over_torchs_sampler_is_not_gone_on_from(sampler: str, num_workers: int) -> None:
    """An old StatefulDataLoader's state leads to no checkpoint: at the latest, the next state is refused."""
    old = make_stateful("torch", num_workers=num_workers)
    list(islice(old, 2))
    new = make_stateful(sampler, num_workers=num_workers)
    new.load_state_dict(old.state_dict())
    with pytest.raises((UsageError, StateError)):  # noqa: PT012  # either of the two may raise
        next(iter(new))
        new.state_dict()


def test_track_refuses_it() -> None:
    """A StatefulDataLoader cannot be counted, and the message says what can."""
    with pytest.raises(UsageError, match=r"got torchdata\.stateful_dataloader\..*give torch's own DataLoader"):
        rd.track(make_stateful("DistributedSampler"))
