"""A loader that goes on inside an update, and what it refuses."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from resumable_data import Sequential, audit_ledger
from resumable_data.errors import CommitError, DisagreementError, OtherRunError, StateError, UsageError
from resumable_data.ledger import Ledger
from tests.packed_jobs import PackedJob, make_packed
from tests.simulated_ranks import Job, flat, ids_in_order

if TYPE_CHECKING:
    from pathlib import Path

    import torch

    from resumable_data.cursor import Cursor, Phase

RECIPE: dict[str, Any] = {"order": Sequential(20), "global_batch": 12, "epochs": 3}


def make(num_replicas: int = 3, microbatch: int = 2, **options: Any) -> Job:
    return Job(20, num_replicas, microbatch=microbatch, **{**RECIPE, **options})


def save(job: Job) -> tuple[dict[str, torch.Tensor], Phase]:
    phase = job.loaders[0].gather_phase(job.loaders)
    return job.save(), phase


def go_on(job: Job, saved: tuple[dict[str, torch.Tensor], Phase], allow: Any = ()) -> Job:
    job.load(saved[0], allow)
    for loader in job.loaders:
        loader.start_inside(saved[1])
    return job


def interrupted(num_updates: int = 1, **options: Any) -> tuple[dict[str, torch.Tensor], Phase]:
    """After so many updates, and 6 of 12 rows of the next one."""
    with make(**options) as job:
        job.train(num_updates)
        job.microbatch()
        return save(job)


def without_run(cursor: Cursor) -> Cursor:
    return msgspec.structs.replace(cursor, run_id="", attempt=0)


def test_at_an_updates_border_there_is_no_phase() -> None:
    """Before the first microbatch and after a commit nothing is open, and such a phase changes nothing."""
    with make() as job:
        assert [loader.phase for loader in job.loaders] == [0, 0, 0]
        job.train(1)
        phase = job.loaders[0].gather_phase(job.loaders)
        assert (phase.samples, phase.update, phase.start, phase.lanes, phase.attempt) == (0, 1, 12, (0, 0), 0)
        go_on(job, (job.save(), msgspec.structs.replace(phase, update=5)))
        assert flat(job.train(1)) == [*range(12, 20), *range(4)]


def test_the_phase_is_that_of_the_update_at_the_cursor() -> None:
    """What is delivered of later updates does not count; a complete one is to be committed, not saved."""
    with make() as job:
        job.microbatch()
        assert job.loaders[2].phase == 6
        for rows in (12, 12, 12):
            job.microbatch()
            assert job.loaders[2].phase == rows
            with pytest.raises(CommitError, match="Step, and commit"):
                job.loaders[0].gather_phase(job.loaders)
        job.commit()
        assert job.loaders[2].phase == 12
        job.commit()
        assert job.loaders[2].phase == 0


def test_an_iterator_goes_back_to_the_phase() -> None:
    """What was delivered of the rest is read again, what was taken over is not; a remap reads all of it again."""
    with go_on(make(2), interrupted()) as job:
        assert {len(loader) for loader in job.loaders} == {2 + 3 + 3 + 3}
        for _ in range(2):
            step = job.microbatch()
            assert step is not None
            assert ids_in_order([step]) == [18, 19, 0, 1]
            assert (step[0].index, step[0].count, job.loaders[0].phase) == (0, 2, 10)
            job.restart_iteration()
            assert job.loaders[0].phase == 6
        for loader in job.loaders:
            with pytest.raises(CommitError, match="taken over from a checkpoint"):
                loader.remap(microbatch=1)
            loader.remap(microbatch=12, rollback=True)
            assert loader.phase == 0
        job.restart_iteration()
        assert flat(job.train(1)) == [*range(12, 20), *range(4)]
        assert job.agree().samples == 24


def test_a_phase_is_gathered_again_as_it_was() -> None:
    """A loader that has read nothing since gives the same phase, whatever its rank set."""
    saved = interrupted()
    assert go_on(make(5), saved).loaders[0].gather_phase(go_on(make(1), saved).loaders) == saved[1]


def test_what_does_not_belong_together_is_refused() -> None:
    """Another run, place or recipe, and a loader that has read: each is said, and nothing changes."""
    state, phase = saved = interrupted()
    job = make(2)
    job.load(state)
    loader = job.loaders[0]
    for changes, error in (
        ({"run_id": "0" * 16}, OtherRunError),
        ({"update": 0}, StateError),
        ({"start": 0}, StateError),
        ({"samples": 12}, StateError),
    ):
        with pytest.raises(error, match="Nothing was changed"):
            loader.start_inside(msgspec.structs.replace(phase, **changes))
    next(iter(loader))
    with pytest.raises(StateError, match="has read nothing since"):
        loader.start_inside(phase)
    with pytest.raises(StateError, match="under another recipe"):
        go_on(make(2, global_batch=8), saved, allow={"global_batch"})
    with pytest.raises(StateError, match="under another recipe"):
        go_on(make(2, tail="pad"), saved, allow={"tail"})


def test_the_last_update_may_not_grow() -> None:
    """A short last update cannot be gone on with in a run that was extended: its first part weighs too much."""
    with make(2, 1, epochs=1) as job:
        job.train(1)
        job.microbatch()
        saved = save(job)
    assert saved[1].num_rows == 8
    with pytest.raises(StateError, match="an update of 8 rows"):
        go_on(make(2, epochs=2), saved)
    assert flat(go_on(make(3, epochs=1), saved).train()) == [14, 15, 16, 17, 18, 19]


def test_ranks_at_other_microbatches_are_named() -> None:
    """A gradient accumulated from other rows on other ranks is no gradient; counts and processes are told."""
    with make(microbatch=1) as job:
        job.microbatch()
        next(job._iterators[1])  # type: ignore[index]
        with pytest.raises(DisagreementError, match=r"3  on process 0, 2\n  6  on process 1"):
            job.loaders[0].gather_phase(job.loaders)
        with pytest.raises(UsageError, match="nobody to ask"):
            job.loaders[0].gather_phase()


@pytest.mark.parametrize("num_workers", [0, 2])
def test_updates_count_what_is_taken_out_of_them(num_workers: int) -> None:
    """An update is fetched whole; its phase is what the newest loop over it was handed."""
    with make(1, 4) as job:
        (loader,) = job.loaders
        update = next(loader.updates())
        assert loader.phase == 0
        with pytest.raises(CommitError, match="none was taken out of it by iterating it"):
            loader.gather_phase()
        assert [loader.phase for _ in update] == [4, 8, 12]
        assert [loader.phase for _ in islice(update, 2)] == [4, 8]
        saved = loader.state_dict(), loader.gather_phase()
        for _ in update:
            pass
        with pytest.raises(CommitError, match="Its gradient is complete"):
            loader.gather_phase()
    with go_on(make(1, 3, num_workers=num_workers), saved) as job:
        (loader,) = job.loaders
        update = next(loader.updates())
        assert [microbatch.ids.tolist() for microbatch in update] == [[8, 9], [10, 11]]
        assert loader.phase == 12
        update.commit()
        assert loader.cursor.coverage[0].stop == 12
        assert loader.phase == 0


def test_the_target_tokens_are_those_of_the_whole_update() -> None:
    """The rest has the denominator that was agreed on, whatever is counted in it; a commit counts it too."""
    with make(2, 3, normalize="targets") as job:
        updates = [next(loader.updates()) for loader in job.loaders]
        for update in updates:
            update.set_targets(global_count=120)
            next(iter(update))
        saved = save(job)
    assert (saved[1].targets, saved[1].samples) == (120, 6)
    with pytest.raises(StateError, match="expected target tokens"):
        go_on(make(3, normalize="targets"), (saved[0], msgspec.structs.replace(saved[1], targets=None)))
    with go_on(make(3, normalize="targets"), saved) as job:
        updates = [next(loader.updates()) for loader in job.loaders]
        for rank, update in enumerate(updates):
            with pytest.raises(UsageError, match="expects the number of target tokens"):
                update.set_targets(-1)
            update.set_targets(rank)
            assert [microbatch.loss_scale for microbatch in update] == [3 / 120]
            update.commit()
        assert {loader.cursor.tokens for loader in job.loaders} == {120}


@pytest.mark.parametrize("batch", [{"global_batch": 5}, {"global_batch_tokens": 37}], ids=str)
def test_packed_rows_go_on_inside_an_update(tmp_path: Path, batch: dict[str, int]) -> None:
    """Interrupted after every microbatch, on ever other rank sets: rows, cursor and digest are an undisturbed run's."""
    packed = make_packed()
    options: dict[str, Any] = {**batch, "epochs": 2}
    with PackedJob(packed, 1, microbatch=9, **options) as whole:
        rows, wanted = flat(whole.train()), without_run(whole.agree())
    found: list[int] = []
    saved: tuple[dict[str, torch.Tensor], Phase] | None = None
    for number in range(200):
        options["ledger"] = Ledger(tmp_path / "ledger", fold_rows=number % 2 * 8)
        with PackedJob(packed, 1 + number % 3, microbatch=1 + number % 2, **options) as job:
            if saved is not None:
                go_on(job, saved)
            step = job.microbatch()
            if step is None:
                break
            found += ids_in_order([step])
            if step[0].is_last:
                job.commit()
            saved = save(job)
    assert found == rows
    assert without_run(job.loaders[0].cursor) == wanted
    report = audit_ledger(tmp_path / "ledger", packed=packed)
    assert (report.verdict, report.discarded.high, report.samples) == ("proven", 0, len(rows))
