"""Cases 10-15 and 40, as far as one process shows them: commit, prefetch, states."""

from __future__ import annotations

import gc
import io
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from resumable_data import Sequential, Shuffle, audit_cursor, audit_ledger
from resumable_data.errors import MissingStateError, OtherRunError, StateError
from tests.simulated_ranks import Job, ids_in_order

if TYPE_CHECKING:
    from pathlib import Path

SETTINGS: dict[str, Any] = {"global_batch": 4, "microbatch": 1, "epochs": 2}


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("persistent", [False, True])
def test_case_10_what_was_prefetched_is_read_again(persistent: bool) -> None:
    """Workers 4, prefetch 8; 3 updates trained, then all is lost: the next ID is position 3G."""
    options = {"num_workers": 4, "prefetch_factor": 8, "persistent_workers": persistent}
    job = Job(200, 1, order=Sequential(200), **SETTINGS, **options)
    job.train(3)
    state = job.loaders[0].state_dict()
    job.microbatch()
    del job  # nothing is closed, nothing is said
    gc.collect()
    for num_workers in (0, 4):
        resumed = Job(200, 1, order=Sequential(200), num_workers=num_workers, **SETTINGS)
        resumed.load(state)
        step = resumed.microbatch()
        assert step is not None
        assert (step[0].data, step[0].positions.tolist()) == ([12], [12])
        resumed.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_case_11_loading_after_a_batch_was_drawn(num_workers: int) -> None:
    """`iter(loader)` and one batch drawn, then load_state_dict: the stream goes on from the loaded cursor."""
    saved = Job(20, 1, order=Sequential(20), **SETTINGS)
    saved.train(2)
    with Job(20, 1, order=Sequential(20), num_workers=num_workers, **SETTINGS) as job:
        (loader,) = job.loaders
        next(iter(loader))
        loader.load_state_dict(saved.save())
        assert [microbatch.data for microbatch in islice(loader, 3)] == [[8], [9], [10]]


def test_case_12_the_state_is_the_same_where_nothing_was_committed() -> None:
    """Load, save, load before a single batch; save twice; resume five times with one update between."""
    job = Job(40, 2, **SETTINGS)
    job.train(1)
    state = job.save()
    assert state_bytes(job.save()) == state_bytes(state)
    seen: list[list[int]] = []
    for _ in range(5):
        job = Job(40, 2, **SETTINGS)
        for _ in range(2):
            job.load(state)
            assert state_bytes(job.save()) == state_bytes(state)
        job.microbatch()
        assert state_bytes(job.save()) == state_bytes(state)
        job.restart_iteration()
        seen += job.train(1)
        assert state_bytes(job.save()) != state_bytes(state)
        state = job.save()
    assert seen == Job(40, 2, **SETTINGS).train()[1:6]


def state_bytes(state: dict[str, torch.Tensor]) -> bytes:
    return bytes(state["resumable_data.cursor"].tolist())


def test_case_13_an_update_that_was_begun_is_rolled_back_and_counted(tmp_path: Path) -> None:
    """A=4, lost after microbatch 2, without in-flight gradients: 0 omitted, the phase's samples discarded."""
    job = Job(40, 1, ledger=tmp_path, **SETTINGS)
    job.train(2)
    state = job.save()
    job.microbatch(), job.microbatch()
    later = Job(40, 3, ledger=tmp_path, **SETTINGS)
    later.load(state)
    later.train()
    report = audit_ledger(tmp_path)
    assert (report.verdict, report.discarded.low, report.discarded.high) == ("proven", 2, 2)
    assert (report.samples, report.omitted.high, report.replayed.high) == (80, 0, 0)


def test_case_14_a_skipped_step_consumes_its_samples(tmp_path: Path) -> None:
    """Samples advance, applied updates do not, and the audit shows it."""
    job = Job(40, 2, ledger=tmp_path, **SETTINGS)
    for number in range(5):
        job.update()
        job.commit(applied=number != 2)
    cursor = job.agree()
    assert (cursor.applied, cursor.skipped, cursor.samples, cursor.updates) == (4, 1, 20, 5)
    job.close()
    report = audit_ledger(tmp_path)
    assert (report.verdict, report.updates, report.skipped, report.samples) == ("proven", 5, 1, 20)
    assert report.attempts[0].skipped == 1
    assert (audit_cursor(cursor).verdict, audit_cursor(cursor).skipped) == ("proven", 1)


def test_case_15_states_that_are_none_of_ours() -> None:
    """Empty state, state without our key, state from another run: refused, each with its own message."""
    job, other = Job(40, 1, **SETTINGS), Job(40, 1, **SETTINGS)
    job.train(1)
    other.train(2)
    messages = set()
    for state, error in (
        ({}, MissingStateError),
        ({"optimizer": {}}, MissingStateError),
        (other.save(), OtherRunError),
    ):
        with pytest.raises(StateError) as caught:
            job.loaders[0].load_state_dict(state)
        assert type(caught.value) is error
        messages.add(str(caught.value))
    assert len(messages) == 3
    assert job.train(1) == Job(40, 1, **SETTINGS).train()[1:2], "nothing was changed by what was refused"


def test_case_40_the_state_of_one_rank_is_the_state_of_all() -> None:
    """`state_dict()` on rank 0 only, saved with torch.save: works without the other ranks, and resumes all."""
    job = Job(40, 3, order=Shuffle(40, seed=2), **SETTINGS)
    job.train(4)
    job.agree()
    buffer = io.BytesIO()
    torch.save(job.loaders[0].state_dict(), buffer)
    buffer.seek(0)
    resumed = Job(40, 5, order=Shuffle(40, seed=2), **SETTINGS)
    resumed.load(torch.load(buffer, weights_only=True))
    update = resumed.update()
    assert update is not None
    assert ids_in_order(update) == Job(40, 1, order=Shuffle(40, seed=2), **SETTINGS).train()[4]
