"""What other packages put around our samplers, with stand-ins for the packages; tests/interop has the real ones."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch.utils.data

import resumable_data as rd
from resumable_data.errors import UsageError


def make_sampler() -> rd.ResumableSampler:
    return rd.ResumableSampler(rd.Sequential(8), global_batch=2, microbatch=2, epochs=1, rank=0, num_replicas=1)


def over(sampler: Any) -> Any:
    if isinstance(sampler, rd.ResumableSampler):
        return torch.utils.data.DataLoader(range(8), batch_sampler=sampler)  # type: ignore[arg-type]
    return torch.utils.data.DataLoader(range(8), batch_size=2, sampler=sampler)  # type: ignore[arg-type]


def prepared(dataloader: Any, **attributes: Any) -> SimpleNamespace:
    """What Accelerate makes of a DataLoader: its batch sampler is inside of one that takes every n-th batch."""
    inner = SimpleNamespace(batch_sampler=dataloader.batch_sampler)
    return SimpleNamespace(sampler=None, batch_sampler=inner, **attributes)


def pretend_accelerate(monkeypatch: pytest.MonkeyPatch, *active: Any, num_processes: int = 2) -> None:
    module = SimpleNamespace(
        GradientState=lambda: SimpleNamespace(dataloader_references=[None, *active]),
        PartialState=lambda: SimpleNamespace(num_processes=num_processes),
    )
    monkeypatch.setitem(sys.modules, "accelerate.state", module)


SAMPLERS = [make_sampler, lambda: rd.DistributedSampler(range(8), 1, 0)]


@pytest.mark.parametrize("make", SAMPLERS, ids=["ResumableSampler", "DistributedSampler"])
def test_what_accelerate_deals_out_again_is_refused(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A sampler found in a prepared DataLoader that is being iterated gives no sample, on several processes."""
    sampler, other = make(), make()
    pretend_accelerate(monkeypatch, prepared(over(other)))
    assert len(list(over(sampler))) == 4  # another loader is prepared, this one is not
    pretend_accelerate(monkeypatch, prepared(over(other)), prepared(over(sampler)))
    with pytest.raises(UsageError, match=r"only one batch of 2 would ever be seen. Prepare the model"):
        list(over(sampler))
    if isinstance(sampler, rd.DistributedSampler):
        with pytest.raises(UsageError, match="prepare"):
            sampler.set_epoch(1)
    pretend_accelerate(monkeypatch, prepared(over(sampler)), num_processes=1)
    assert len(list(over(sampler))) == 4
    pretend_accelerate(monkeypatch, prepared(over(sampler), use_stateful_dataloader=True), num_processes=1)
    with pytest.raises(UsageError, match="StatefulDataLoader"):
        list(over(sampler))


def test_an_iterators_state_is_refused() -> None:
    """Only a StatefulDataLoader asks an iterator for its state; it is told what to use."""
    iterator: Any = iter(make_sampler())
    assert next(iterator) == [0, 1]
    for ask in (iterator.state_dict, lambda: iterator.load_state_dict({})):
        with pytest.raises(UsageError, match=r"found torchdata's StatefulDataLoader.*Use torch's own DataLoader"):
            ask()
