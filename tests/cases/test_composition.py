"""What is put together wrongly is named, on one process; tests/interop has case 39 with the real packages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.utils.data

import resumable_data as rd
from resumable_data.errors import RecipeMismatchError, StaleIteratorError, TopologyError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LENGTH = 12


class Numbers(torch.utils.data.Dataset[int]):
    """Sample i is i."""

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


class Stream(torch.utils.data.IterableDataset[int]):
    """Has a length and items too, as some have."""

    def __iter__(self) -> Iterator[int]:
        yield from range(LENGTH)

    def __len__(self) -> int:
        return LENGTH

    def __getitem__(self, index: int) -> int:
        return index


def resumable_loader(dataset: Any = None, **options: Any) -> rd.ResumableLoader:
    return rd.ResumableLoader(dataset or Numbers(), global_batch=2, microbatch=2, epochs=1, **options)


def resumable_sampler(**options: Any) -> rd.ResumableSampler:
    order = options.pop("order", rd.Sequential(LENGTH))
    return rd.ResumableSampler(order, global_batch=2, microbatch=2, epochs=1, **options)


def dataloader(dataset: Any, sampler: Any) -> torch.utils.data.DataLoader[int]:
    if isinstance(sampler, rd.ResumableSampler):
        return torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
    return torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)


def tracked(dataset: Any = None) -> Any:
    dataset = dataset or Numbers()
    return rd.track(dataloader(dataset, rd.DistributedSampler(dataset, 1, 0)))


@pytest.mark.parametrize(
    "make",
    [
        resumable_loader,
        lambda dataset: rd.evaluation_loader(dataset, microbatch=2),
        lambda dataset: rd.DistributedSampler(dataset, 1, 0),
        tracked,
    ],
)
def test_an_iterable_dataset_is_refused_by_name(make: Callable[[Any], object]) -> None:
    """A dataset that decides itself what comes next cannot be counted; the message says what to give."""
    with pytest.raises(UsageError, match=r"Stream is an IterableDataset.*Give a map-style dataset"):
        make(Stream())


def test_torch_refuses_an_iterable_dataset_with_a_sampler() -> None:
    """Samplers that never see the dataset are covered by torch's own DataLoader."""
    for sampler in (resumable_sampler(), rd.DistributedSampler(Numbers(), 1, 0)):
        with pytest.raises(ValueError, match="DataLoader with IterableDataset"):
            dataloader(Stream(), sampler)


@pytest.mark.parametrize("make", [resumable_loader, resumable_sampler])
def test_a_launcher_without_a_process_group_is_refused(
    make: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started by a launcher, and made before init_process_group, each process would read everything."""
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(TopologyError, match=r"no process group.*Call torch\.distributed\.init_process_group"):
        make()
    with pytest.raises(ValueError, match="init_process_group"):
        rd.DistributedSampler(Numbers())


def state_and_rest(make: Callable[[], Any]) -> tuple[Any, list[list[int]]]:
    """A state after two batches, and the batches that are left there."""
    saved = make()
    stream = iter(saved)
    for _ in range(2):
        next(stream)
        saved.commit()
    return saved.state_dict(), [read(batch) for batch in stream]


def read(batch: Any) -> list[int]:
    values = batch.data if hasattr(batch, "ids") else batch
    return list(map(int, values))


@pytest.mark.parametrize("make", [resumable_loader, resumable_sampler, tracked])
@pytest.mark.parametrize("has_drawn", [False, True])
def test_case_11_iter_before_load_state_dict(make: Callable[[], Any], has_drawn: bool) -> None:
    """An iterator from before the load is an error at its next use; a new one goes on from the loaded cursor."""
    state, left = state_and_rest(make)
    loader = make()
    early = iter(loader)
    if has_drawn:
        next(early)
    loader.load_state_dict(state)
    with pytest.raises(StaleIteratorError, match=r"iter\("):
        next(early)
    assert [read(batch) for batch in loader] == left
    assert len(left) == LENGTH // 2 - 2


def test_an_order_of_another_length_is_refused() -> None:
    """Samples that would never be seen, or are not there, are found before the first one is read."""
    for length in (LENGTH - 1, LENGTH + 1):
        with pytest.raises(UsageError, match=rf"{length} samples and the dataset {LENGTH}"):
            resumable_loader(order=rd.Sequential(length))
        with pytest.raises(UsageError, match=rf"{length} samples and the DataLoader's dataset {LENGTH}"):
            rd.track(dataloader(Numbers(), rd.DistributedSampler(range(length), 1, 0)))


class Wrapped(torch.optim.Optimizer):
    """An optimizer around another one, as Accelerate makes it: without hooks of its own."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer


def test_an_optimizer_without_hooks_is_refused() -> None:
    """Steps that nobody could see would commit nothing; the message says which optimizer to give."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1)
    with pytest.raises(UsageError, match=r"Wrapped has none.*Give the optimizer inside of it"):
        rd.track(dataloader(Numbers(), rd.DistributedSampler(Numbers(), 1, 0)), optimizer=Wrapped(optimizer))


def test_a_state_of_another_seed_is_refused() -> None:
    """Where ranks cannot talk, a rank whose sampler has another seed is found when the saved state is loaded."""
    saved = resumable_sampler(order=rd.Shuffle(LENGTH, seed=0), rank=0, num_replicas=1)
    other = resumable_sampler(order=rd.Shuffle(LENGTH, seed=1), rank=0, num_replicas=1)
    with pytest.raises(RecipeMismatchError, match=r"order\.seed +0 +1"):
        other.load_state_dict(saved.state_dict())
