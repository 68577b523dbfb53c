"""Tracked loops against plain lists: the cursor is what was trained on."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st
from torch.distributed.checkpoint.state_dict import get_state_dict

from resumable_data.audit import audit_cursor, audit_ledger
from resumable_data.cursor import Cursor
from resumable_data.errors import CommitError, RecipeMismatchError, StaleIteratorError, UsageError
from resumable_data.loader import ResumableLoader
from resumable_data.tracking import DistributedSampler, track
from tests.examples import examples
from tests.unit.tracking.loops import SEED, Numbers, Setup, Trained, next_of_all

if TYPE_CHECKING:
    from collections.abc import Collection

    from resumable_data.audit import AuditReport

Batch = list[tuple[int, bool]]


@st.composite
def setups(draw: st.DrawFn) -> list[Setup]:
    """A chain of launches over one dataset, most with the same samples per step."""
    length = draw(st.integers(6, 40))
    drops = {"sampler_drops": draw(st.booleans()), "loader_drops": draw(st.booleans())}
    layouts = [(1, 4, 1), (2, 2, 1), (4, 1, 1), (1, 2, 2), (2, 1, 2), (1, 1, 4), (3, 2, 1), (3, 1, 2)]
    chain = draw(st.lists(st.sampled_from(layouts), min_size=1, max_size=4))
    return [Setup(length, *layout, **drops) for layout in chain]


@examples(100, quick=25)
@given(chain=setups(), data=st.data())
def test_any_chain_of_launches_counts_what_was_trained_on(chain: list[Setup], data: st.DataObject) -> None:
    """Over any ranks, steps skipped or not, and loops broken off at any batch, the cursor is what plain lists say.

    The ledger proves it, epochs that were left early included.
    """
    with tempfile.TemporaryDirectory() as directory:
        _check_chain(chain, data, Path(directory))


def _check_chain(chain: list[Setup], data: st.DataObject, ledger: Path) -> None:
    trained, state, committed, rows = Trained(), None, (0, 0), chain[0].rows_per_step
    for setup in chain:
        loaders, before = setup.loaders(state, ledger), trained.delivered
        if setup.rows_per_step != rows and not list(setup.batches(*committed)):
            committed = (committed[0] + 1, 0)  # where another batch size is declared, the place is settled for it
        place, rows = committed, setup.rows_per_step
        for _ in range(data.draw(st.integers(1, 3), label="loops")):
            if data.draw(st.booleans(), label="leaves the epoch"):
                place = (place[0] + 1, 0)
                for loader in loaders:
                    loader.sampler.set_epoch(place[0])
            place, committed = _train(setup, loaders, trained, place, committed, data)
        if setup.num_replicas > 1:
            loaders[0].check_agreement(peers=loaders)
        cursor = loaders[0].cursor
        assert (cursor.epoch, cursor.offset) == committed
        assert (cursor.samples, cursor.padding) == (sum(trained.samples.values()), trained.padding)
        assert (cursor.applied, cursor.skipped) == (trained.applied, trained.skipped)
        assert all(loader.cursor == cursor for loader in loaders)
        state = loaders[-1].state_dict()
        if trained.delivered > before:
            _check_report(audit_ledger(ledger), cursor, trained)
    assert set(trained.samples.values()) <= {1}


def _check_report(report: AuditReport, cursor: Cursor, trained: Trained) -> None:
    assert report.verdict == "proven", report.to_text()
    assert (report.updates, report.skipped) == (cursor.updates, cursor.skipped)
    counts = (report.position, report.samples, report.padding, report.dropped)
    assert counts == (cursor.position, cursor.samples, cursor.padding, cursor.dropped)
    assert report.discarded.low == trained.delivered - cursor.samples - report.in_flight


Place = tuple[int, int]


def _train(
    setup: Setup, loaders: list[Any], trained: Trained, place: Place, committed: Place, data: st.DataObject
) -> tuple[Place, Place]:
    """One loop over the rest of an epoch, perhaps broken off; where the next one starts, and what is committed."""
    epoch, offset = place
    batches = list(setup.batches(epoch, offset))
    stop = data.draw(st.integers(0, len(batches)), label="broken off after")
    iterators = [iter(loader) for loader in loaders]
    window: list[Batch] = []
    for number, batch in enumerate(batches[:stop], 1):
        assert next_of_all(iterators) == [sample for sample, _ in batch]
        trained.delivered += sum(not is_repeat for _, is_repeat in batch)
        window.append(batch)
        if len(window) == setup.accumulation_steps or number == len(batches):
            applied = data.draw(st.booleans(), label="applied")
            for loader in loaders:
                loader.commit(applied)
            trained.step([(epoch, batch) for batch in window], applied=applied)
            offset += sum(not is_repeat for batch in window for _, is_repeat in batch)
            committed = (epoch, offset) if list(setup.batches(epoch, offset)) else (epoch + 1, 0)
            window.clear()
    if stop < len(batches):
        return (committed if stop else place), committed
    assert next_of_all(iterators) is None
    return (epoch + 1, 0), committed


@pytest.mark.parametrize("num_workers", [0, 2])
def test_case_38_what_the_dataloader_drops_is_not_counted(num_workers: int) -> None:
    """The loop gets 100 samples where the sampler gave out 103."""
    (loader,) = Setup(103, 1, 10, loader_drops=True, num_workers=num_workers).loaders()
    assert len(list(loader.sampler)) == 103
    seen = 0
    for batch in loader:
        seen += len(batch)
        loader.commit()
    assert (seen, loader.cursor.samples, loader.cursor.dropped, loader.cursor.epoch) == (100, 100, 3, 1)


def test_case_42_what_set_epoch_does() -> None:
    """Forgotten, it is the next epoch; the same epoch goes on; the next drops the rest; another is refused."""
    (loader,) = Setup(12, 1, 4).loaders()
    first = [batch.tolist() for batch in _stepped(loader)]
    assert [batch.tolist() for batch in _stepped(loader)] != first
    assert loader.cursor.epoch == 2
    next(_stepped(loader, stop=1))
    loader.sampler.set_epoch(2)
    assert len(list(_stepped(loader))) == 2
    next(_stepped(loader, stop=1))
    loader.sampler.set_epoch(4)
    next(_stepped(loader, stop=1))
    assert (loader.cursor.epoch, loader.cursor.offset, loader.cursor.dropped) == (4, 4, 8)
    for epoch in (3, 6):
        with pytest.raises(UsageError, match="expected 4, to go on, or 5, to drop its rest"):
            loader.sampler.set_epoch(epoch)


def _stepped(loader: Any, stop: int | None = None) -> Any:
    for number, batch in enumerate(loader, 1):
        loader.commit()
        yield batch
        if number == stop:
            return


def train_steps(
    loader: Any, optimizer: torch.optim.Optimizer, *, skip: Collection[int] = (), scaler: Any = None
) -> None:
    """One epoch of the usual loop, one step a batch; steps in `skip` have infinite gradients."""
    (parameter,) = optimizer.param_groups[0]["params"]
    for number, _ in enumerate(loader):
        loss = (parameter * (float("inf") if number in skip else 1.0)).sum()
        if scaler is None:
            loss.backward()
            optimizer.step()
        else:
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
        optimizer.zero_grad()


def make(optimizer: Any = None, *, length: int = 12, steps: int = 1, scaler: Any = None, **options: Any) -> Any:
    dataset = Numbers(length)
    sampler = DistributedSampler(dataset, 1, 0)
    dataloader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler, **options)
    return track(dataloader, optimizer=optimizer, accumulation_steps=steps, scaler=scaler)


def adamw(**options: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))], **options)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_the_optimizers_steps_commit(num_workers: int) -> None:
    """Nothing in the loop is changed: each real step commits what the loop was handed, prefetching or not."""
    optimizer = adamw()
    loader = make(optimizer, num_workers=num_workers)
    train_steps(loader, optimizer)
    assert (loader.cursor.applied, loader.cursor.samples, loader.cursor.epoch) == (6, 12, 1)


@pytest.mark.parametrize("fused", [False, True])
def test_case_41_steps_that_a_scaler_skips_are_counted_as_skipped(fused: bool) -> None:
    """Fused or not, a skipped step consumes its batch and is counted apart."""
    optimizer, scaler = adamw(fused=fused), torch.amp.GradScaler("cpu", init_scale=8.0)
    loader = make(optimizer, scaler=scaler)
    train_steps(loader, optimizer, skip={0, 3}, scaler=scaler)
    assert (loader.cursor.applied, loader.cursor.skipped, loader.cursor.samples) == (4, 2, 12)


def test_a_skipped_step_that_nobody_told_of_is_an_error() -> None:
    """Without scaler=, what a step took is unknown, and the message says what to give."""
    optimizer, scaler = adamw(), torch.amp.GradScaler("cpu", init_scale=8.0)
    loader = make(optimizer)
    with pytest.raises(CommitError, match=r"after 2 batches.*track\(scaler=\)"):
        train_steps(loader, optimizer, skip={0}, scaler=scaler)
    assert loader.cursor.applied == 0


def test_the_last_window_of_an_epoch_may_be_stepped_or_carried() -> None:
    """Five batches, two a step: the fifth is stepped alone, or with the first two of the next epoch."""
    for carries in (False, True):
        optimizer = adamw()
        loader = make(optimizer, length=10, steps=2)
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for number, _ in enumerate(loader, 1):
                if number % 2 == 0 or (number == 5 and not carries):
                    optimizer.step()
        cursor = loader.cursor
        expected = (4, 18, 1, 8) if carries else (6, 20, 2, 0)
        assert (cursor.applied, cursor.samples, cursor.epoch, cursor.offset) == expected


def test_a_step_after_another_number_of_batches_is_an_error() -> None:
    """A loop that accumulates otherwise than declared is found at its first step."""
    optimizer = adamw()
    loader = make(optimizer, steps=3)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(CommitError, match="after 1 batches, where accumulation_steps=3 was declared"):
        optimizer.step()
    with pytest.raises(CommitError, match="do not call commit"):
        loader.commit()


def test_a_loop_that_breaks_off_reads_again_what_it_did_not_step() -> None:
    """After a break or an exception the next iteration starts at the cursor, and the old iterator is stale."""
    loader = make()
    iterator = iter(loader)
    first = [next(iterator).tolist(), next(iterator).tolist()]
    loader.commit()
    lost = next(iterator).tolist()
    again = iter(loader)
    assert next(again).tolist() == lost
    assert lost not in first
    with pytest.raises(StaleIteratorError):
        next(iterator)


def test_state_goes_into_a_fresh_script() -> None:
    """What one script saves, another goes on from, the epoch included; another sampler is refused."""
    loader = make()
    next(_stepped(loader, stop=1))
    list(zip(range(2), _stepped(loader), strict=False))
    state = loader.state_dict()
    other = make()
    other.load_state_dict(state)
    assert other.cursor == loader.cursor
    assert len(other) == len(list(other))
    (another,) = Setup(12, 1, 2).loaders()
    with pytest.raises(RecipeMismatchError, match=r"order\.seed"):
        another.load_state_dict(state)


def test_another_number_of_samples_per_step_is_refused_until_allowed() -> None:
    """A script moved to half the ranks without more accumulation would halve the global batch by accident."""
    (loader,) = Setup(12, 1, 4).loaders()
    next(_stepped(loader, stop=1))
    (halved,) = Setup(12, 1, 2).loaders()
    with pytest.raises(RecipeMismatchError, match="global_batch"):
        halved.load_state_dict(loader.state_dict())
    halved.load_state_dict(loader.state_dict(), allow={"global_batch"})
    assert (halved.cursor.offset, len(halved)) == (4, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sampler": [[0], [1]]}, "over a resumable_data.DistributedSampler"),
        (
            {"sampler": torch.utils.data.DistributedSampler(Numbers(12), 1, 0)},
            "Replace torch.utils.data.DistributedSampler",
        ),
        ({"batch_size": None, "sampler": DistributedSampler(range(12), 1, 0)}, "batch_size="),
        ({"sampler": DistributedSampler(range(11), 1, 0)}, "the sampler has 11 samples"),
        ({"sampler": DistributedSampler(range(12), 1, 0), "num_workers": 1, "in_order": False}, "in_order=True"),
    ],
)
def test_what_cannot_be_counted_is_refused(options: dict[str, Any], message: str) -> None:
    """Every composition whose batches are not the sampler's is named, with the way out."""
    with pytest.raises(UsageError, match=message):
        track(torch.utils.data.DataLoader(Numbers(12), **options))


def test_other_loaders_are_refused_by_name() -> None:
    """A subclass of DataLoader may restore a place of its own; a list is no DataLoader."""

    class Stateful(torch.utils.data.DataLoader[int]):
        pass

    sampler = DistributedSampler(Numbers(12), 1, 0)
    for loader in (Stateful(Numbers(12), sampler=sampler), [1, 2]):
        with pytest.raises(UsageError, match=type(loader).__qualname__.split(".")[-1]):
            track(loader)  # type: ignore[arg-type]
    track(torch.utils.data.DataLoader(Numbers(12), sampler=sampler))
    with pytest.raises(UsageError, match="tracked already"):
        track(torch.utils.data.DataLoader(Numbers(12), sampler=sampler))


def test_the_rest_of_a_script_sees_the_dataloader() -> None:
    """Attributes that scripts read are the DataLoader's."""
    loader = make()
    assert (loader.batch_size, loader.drop_last, len(loader.dataset)) == (2, False, 12)
    with pytest.raises(AttributeError):
        _ = loader.nothing_like_it


@pytest.mark.parametrize(("drops", "verdict", "codes"), [(False, "proven", []), (True, "unproven", ["RD406"])])
def test_the_cursor_proves_what_was_delivered(drops: bool, verdict: str, codes: list[str]) -> None:
    """On 2 ranks, then on 3, the digest alone proves the run where nothing was dropped, and claims nothing else."""
    state = None
    for setup in (Setup(22, 2, 3, loader_drops=drops), Setup(22, 3, 2, loader_drops=drops)):
        loaders = setup.loaders(state)
        for _ in zip(range(4), *(_stepped(loader) for loader in loaders), strict=False):
            pass
        loaders[0].check_agreement(peers=loaders)
        state = loaders[0].state_dict()
    report = audit_cursor(loaders[0].cursor)
    assert (report.verdict, [one.code for one in report.findings]) == (verdict, codes)


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_a_run_taken_over_from_torchs_sampler_goes_on_under_track(tmp_path: Path, num_replicas: int) -> None:
    """10 batches of 4 on 8 ranks of epoch 2 were read by torch's sampler; the rest of it comes next, and is proven."""
    start = Cursor.from_distributed_sampler(
        length=1003,
        seed=SEED,
        epoch=2,
        batches_per_rank=10,
        batch_size=4,
        num_replicas=8,
        global_batch=12 * num_replicas,
        tail="pad_ranks",
    )
    setup = Setup(1003, num_replicas, 12)
    loaders = setup.loaders(start, tmp_path / "ledger")
    seen = []
    for batches in zip(*(_stepped(loader) for loader in loaders), strict=True):
        seen += [sample for row in zip(*(batch.tolist() for batch in batches), strict=True) for sample in row]
    assert seen == [sample for batch in setup.batches(2, 320) for sample, _ in batch]
    for loader in loaders:
        loader.close()
    assert (loaders[0].cursor.epoch, loaders[0].cursor.samples) == (3, 3009)
    report = audit_ledger(tmp_path / "ledger", since_take_over=True)
    assert (report.verdict, report.samples) == ("proven", 3009), report.to_text()
    assert audit_ledger(tmp_path / "ledger").verdict == "unproven"


def test_a_run_that_moves_to_a_resumable_loader_is_one_history(tmp_path: Path) -> None:
    """Batches of a tracked loop, then updates of a ResumableLoader from its cursor: one ledger proves both."""
    setup = Setup(22, 2, 3, loader_drops=True)
    loaders = setup.loaders(None, tmp_path / "ledger")
    for loader in loaders:
        loader.sampler.set_epoch(1)
    for _ in zip(range(2), *(_stepped(loader) for loader in loaders), strict=False):
        pass
    loaders[0].check_agreement(peers=loaders)
    order = loaders[0].sampler.order
    other = ResumableLoader(
        Numbers(22), order=order, global_batch=6, microbatch=4, epochs=3, ledger=tmp_path / "ledger"
    )
    other.load_state_dict(loaders[0].state_dict(), allow={"tail"})
    for microbatch in other:
        if microbatch.is_last:
            other.commit()
    other.close()
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.samples, report.dropped, report.updates) == (44, 22, other.cursor.updates)


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_steps_by_which_dcp_makes_an_optimizers_state_are_not_counted(momentum: float) -> None:
    """get_state_dict steps an optimizer without state at rate 0, at each save where it never has any."""
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0, momentum=momentum)  # a warm-up that begins at rate 0
    loader = make(optimizer)
    for number, batch in enumerate(loader):
        if number < 2:
            get_state_dict(model, optimizer)
        model(batch[:, None].float()).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        get_state_dict(model, optimizer)
        assert loader.cursor.applied == number + 1
        optimizer.param_groups[0]["lr"] = 0.1 * number
    assert loader.cursor.samples == 12
