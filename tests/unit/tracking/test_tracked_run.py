"""A tracked DataLoader over a ResumableSampler: update by update, to the end of the run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils.data

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.errors import (
    CommitError,
    RecipeMismatchError,
    SampleReadError,
    StaleIteratorError,
    UsageError,
)
from resumable_data.loader import ResumableLoader
from resumable_data.order import Shuffle
from resumable_data.sampler import ResumableSampler
from resumable_data.tracking import TrackedLoader, track
from tests.unit.tracking.loops import Numbers

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, GLOBAL_BATCH = 26, 6


def make(
    num_replicas: int = 1,
    microbatch: int = 2,
    *,
    state: Any = None,
    ledger: Path | None = None,
    num_workers: int = 0,
    optimizer: Any = None,
    tail: str = "drop",
    **options: Any,
) -> list[TrackedLoader]:
    """One tracked loader per rank."""
    made = []
    for rank in range(num_replicas):
        sampler = ResumableSampler(
            Shuffle(LENGTH, seed=3),
            global_batch=GLOBAL_BATCH,
            microbatch=microbatch,
            rank=rank,
            num_replicas=num_replicas,
            epochs=2,
            tail=tail,
        )
        dataloader = torch.utils.data.DataLoader(Numbers(LENGTH), batch_sampler=sampler, num_workers=num_workers)
        made.append(track(dataloader, optimizer=optimizer, ledger=ledger, **options))
        if state is not None:
            made[-1].load_state_dict(state)
    return made


def train(loaders: list[TrackedLoader], num_updates: int) -> list[int]:
    """Commit so many updates on simulated ranks; the samples, in the order of positions."""
    iterators = [iter(loader) for loader in loaders]
    samples = []
    for _ in range(num_updates):
        for _ in range(loaders[0].sampler.accumulation_steps):
            columns = [next(iterator).tolist() for iterator in iterators]
            samples += [column[row] for row in range(max(map(len, columns))) for column in columns if row < len(column)]
        for loader in loaders:
            loader.commit()
    return samples


@pytest.mark.parametrize("num_workers", [0, 2])
def test_any_chain_of_ranks_reads_the_order_and_is_proven(tmp_path: Path, num_workers: int) -> None:
    """1, 3, then 2 ranks: what the loops were handed is the order, and the ledger and the cursor prove it."""
    order, state, samples = Shuffle(LENGTH, seed=3), None, []
    for num_replicas, microbatch, num_updates in ((1, 2, 3), (3, 2, 2), (2, 1, 3)):
        loaders = make(num_replicas, microbatch, state=state, ledger=tmp_path / "ledger", num_workers=num_workers)
        samples += train(loaders, num_updates)
        loaders[0].check_agreement(peers=loaders)
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    offsets = torch.arange(24).numpy()
    assert samples == [*order.ids(0, offsets).tolist(), *order.ids(1, offsets).tolist()]
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples, report.dropped, report.updates) == ("proven", 48, 4, 8), report.to_text()
    assert audit_cursor(loaders[0].cursor).verdict == "proven"


def test_its_state_is_a_resumable_loaders(tmp_path: Path) -> None:
    """A run goes on from one kind of loader to the other and back, in one ledger."""
    (loader,) = make(ledger=tmp_path / "ledger")
    train([loader], 2)
    other = ResumableLoader(
        Numbers(LENGTH),
        order=Shuffle(LENGTH, seed=3),
        global_batch=GLOBAL_BATCH,
        microbatch=3,
        tail="drop",
        epochs=2,
        ledger=tmp_path / "ledger",
    )
    other.load_state_dict(loader.state_dict())
    for microbatch in other:
        if microbatch.is_last:
            other.commit()
            break
    (again,) = make(state=other.state_dict(), ledger=tmp_path / "ledger")
    train([again], 1)
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.updates, len(report.attempts)) == ("proven", 4, 3), report.to_text()


def test_the_optimizers_steps_commit_updates() -> None:
    """Each step after the update's last batch commits it; the sampler's scale is that of the update at the cursor."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    (loader,) = make(optimizer=optimizer, tail="carry")
    number, scales = 0, []
    for _ in loader:
        number += 1
        if number == loader.sampler.accumulation_steps:
            scales.append(loader.sampler.loss_scale)
            optimizer.step()
            number = 0
    assert (loader.cursor.applied, loader.cursor.samples, loader.cursor.epoch) == (9, 52, 2)
    assert scales == [1 / 6] * 8 + [1 / 4]
    assert loader.sampler.cursor is loader.cursor
    assert loader.sampler.state_dict().keys() == loader.state_dict().keys()


def test_a_step_in_the_middle_of_an_update_is_an_error() -> None:
    """After too few or too many batches it is unknown what was trained on; nothing is committed."""
    for num_batches, found in ((1, "a part of them"), (4, "4 batches, of 2 updates")):
        (loader,) = make()
        iterator = iter(loader)
        for _ in range(num_batches):
            next(iterator)
        with pytest.raises(CommitError, match=found):
            loader.commit()
        assert loader.cursor.updates == 0


def test_a_broken_off_loop_reads_again_what_was_not_committed() -> None:
    """The next iteration starts at the cursor; the old one is stale."""
    (loader,) = make()
    iterator = iter(loader)
    first = next(iterator).tolist()
    assert next(iter(loader)).tolist() == first
    with pytest.raises(StaleIteratorError):
        next(iterator)


def test_what_belongs_to_the_sampler_is_refused() -> None:
    """Two places that say the same could disagree; a tracked sampler leaves its cursor to the loader."""
    for options in ({"accumulation_steps": 3}, {"fingerprint": "x"}):
        with pytest.raises(UsageError, match="belong to the ResumableSampler"):
            make(**options)
    (loader,) = make()
    next(iter(loader))
    with pytest.raises(CommitError, match="commits for this sampler"):
        loader.sampler.commit()
    with pytest.raises(UsageError, match="load it into that"):
        loader.sampler.load_state_dict(loader.state_dict())
    with pytest.raises(UsageError, match="tracked already"):
        track(torch.utils.data.DataLoader(Numbers(LENGTH), batch_sampler=loader.sampler))
    sampler = ResumableSampler(Shuffle(25), global_batch=6, microbatch=2, rank=0, num_replicas=1)
    with pytest.raises(UsageError, match="the sampler has 25 samples and the DataLoader's dataset 26"):
        track(torch.utils.data.DataLoader(Numbers(LENGTH), batch_sampler=sampler))


def test_a_state_that_does_not_fit_is_refused() -> None:
    """Another recipe, or ranks that would have an empty share from there on."""
    (loader,) = make(tail="carry")
    train([loader], 1)
    with pytest.raises(RecipeMismatchError, match="tail"):
        make(state=loader.state_dict(), tail="short")
    with pytest.raises(UsageError, match="would have no row"):
        make(5, 1, tail="carry")


def test_a_collate_function_that_stops_the_iteration_is_named() -> None:
    """StopIteration in collate_fn ends a DataLoader early; that is not the end of the run."""

    def collate(items: list[int]) -> list[int]:
        raise StopIteration

    sampler = ResumableSampler(Shuffle(LENGTH), global_batch=6, microbatch=2, rank=0, num_replicas=1)
    loader = track(torch.utils.data.DataLoader(Numbers(LENGTH), batch_sampler=sampler, collate_fn=collate))
    with pytest.raises(SampleReadError, match="fewer batches"):
        next(iter(loader))
