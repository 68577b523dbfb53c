"""What restarts did, from shadow files alone."""

from __future__ import annotations

from collections import Counter
from copy import copy
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.audit import Bounds
from resumable_data.errors import LedgerError
from resumable_data.shadowing import ShadowReport, audit_shadow, shadow
from resumable_data.shadowing.recorder import Recorder
from resumable_data.shadowing.records import Begin, End, Hashes, Ids, Record, Saved
from tests.unit.shadowing.jobs import Job, restart, shadowed_values

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def codes(report: ShadowReport) -> list[str]:
    return [finding.code for finding in report.findings]


def test_resumed_on_another_number_of_ranks_by_a_count_of_batches(tmp_path: Path) -> None:
    """Case 2: 16 ranks end after 128 of 960 samples; 10 go on at batch 6 and replay 8, or at batch 7 and omit 12."""
    for skip, replayed, omitted in ((6, 8, 0), (7, 0, 12)):
        path = tmp_path / str(skip)
        Job(path, 16).train(4)
        Job(path, 10, skip=skip).train()
        report = audit_shadow(path)
        assert report.verdict == "violated", report.to_text()
        assert (report.replayed, report.omitted) == (Bounds(replayed, replayed), Bounds(omitted, omitted))
        assert codes(report) == ["RD721" if replayed else "RD723"]
        assert [attempt.num_replicas for attempt in report.attempts] == [16, 10]


def test_exact_resume_is_clean(tmp_path: Path) -> None:
    """A job that goes on where its checkpoint was is clean once the epoch has ended, and unproven before."""
    Job(tmp_path, 4).train(60)
    job = Job(tmp_path, 4, skip=60)
    job.train(10)
    early = audit_shadow(tmp_path)
    assert (early.verdict, codes(early), early.replayed) == ("unproven", ["RD728"], Bounds(0, 0))
    assert early.omitted == Bounds(0, None)
    job.train()
    report = audit_shadow(tmp_path)
    assert (report.verdict, report.rows, codes(report)) == ("clean", 960, []), report.to_text()
    (epoch,) = report.epochs
    assert (epoch.epoch, epoch.attempts, epoch.by, epoch.has_end) == (0, (1, 2), "ids", True)


def test_lost_work_is_no_replay_where_saves_are_marked(tmp_path: Path) -> None:
    """What was read after the checkpoint and again after the restart may be either, unless the save was marked."""
    for mark in (False, True):
        path = tmp_path / str(mark)
        job = Job(path, 4)
        job.train(50)
        if mark:
            job.save()
        job.train(10)
        Job(path, 4, skip=50).train()
        report = audit_shadow(path)
        assert report.omitted == Bounds(0, 0)
        if mark:
            assert (report.verdict, report.discarded, report.replayed) == ("clean", 80, Bounds(0, 0))
        else:
            assert (report.verdict, codes(report), report.replayed) == ("unproven", ["RD722"], Bounds(0, 80))
            text = "80 read again, all of each rank's last 10 batches before the restart, and these whole"
            assert report.findings[0].found == text


def test_replay_beyond_the_marked_checkpoint(tmp_path: Path) -> None:
    """With the save marked, whole batches that are read again are replays."""
    job = Job(tmp_path, 4)
    job.train(50)
    job.save()
    job.train(10)
    Job(tmp_path, 4, skip=45).train()
    report = audit_shadow(tmp_path)
    assert (report.discarded, report.replayed, codes(report)) == (80, Bounds(40, 40), ["RD721"])


def test_epoch_begun_again(tmp_path: Path) -> None:
    """A script that cannot resume in mid-epoch reads it again from its start; the epoch before is untouched."""
    job = Job(tmp_path, 3)
    job.train()
    job.next_epoch()
    job.train(100)
    Job(tmp_path, 3, epoch=1).train()
    report = audit_shadow(tmp_path)
    assert (report.replayed, report.omitted, codes(report)) == (Bounds(0, 600), Bounds(0, 0), ["RD722"])
    assert [epoch.epoch for epoch in report.epochs] == [1]


def test_epoch_given_up(tmp_path: Path) -> None:
    """A script that goes on with the next epoch has omitted the rest of the one before."""
    job = Job(tmp_path, 2)
    job.train()
    job.next_epoch()
    job.train(100)
    Job(tmp_path, 2, epoch=2).train()
    report = audit_shadow(tmp_path)
    assert (report.omitted, codes(report)) == (Bounds(560, 560), ["RD723"])
    assert [(epoch.epoch, epoch.attempts) for epoch in report.epochs] == [(1, (1,))]


def test_restart_between_epochs(tmp_path: Path) -> None:
    """A restart at the end of an epoch is in no epoch."""
    Job(tmp_path, 2).train()
    Job(tmp_path, 2, epoch=1).train()
    report = audit_shadow(tmp_path)
    assert (report.verdict, codes(report), report.epochs) == ("clean", ["RD733"], ())


def test_loop_that_leaves_at_the_last_batch(tmp_path: Path) -> None:
    """An epoch has ended when its last batch was handed out, whether or not the loop asked for another one."""
    Job(tmp_path, 2).train(100)
    Job(tmp_path, 2, skip=101).train(139)
    report = audit_shadow(tmp_path)
    assert (report.omitted, codes(report)) == (Bounds(4, 4), ["RD723"])


def test_missing_rank_and_foreign_files(tmp_path: Path) -> None:
    """A rank without a file leaves the verdict open, and what is no shadow file is named."""
    Job(tmp_path, 4).train(60)
    Job(tmp_path, 4, skip=60).train()
    sorted(tmp_path.iterdir())[0].unlink()
    (tmp_path / "notes.txt").write_text("")
    report = audit_shadow(tmp_path)
    assert "RD725" in codes(report)
    assert codes(report)[-1] == "RD731"


def test_by_contents(tmp_path: Path) -> None:
    """Rows known by contents are counted by multiplicity, and missing ones by comparing with untouched epochs."""
    rows = [[one, one + 1] for one in range(0, 40, 2)] + [[7, 7]]
    restart()
    loader = shadow(rows, tmp_path)
    for _ in range(2):
        list(loader)
    for number, _ in enumerate(loader, 1):
        if number == 10:
            break
    restart()
    list(shadow(rows[9:15] + rows[16:], tmp_path))
    report = audit_shadow(tmp_path)
    # 18 and 19 were read again, the two further 7s are the epoch's own, and 30 and 31 never came
    assert (report.replayed, report.omitted) == (Bounds(0, 2), Bounds(2, 2)), report.to_text()
    assert codes(report) == ["RD723", "RD722"]
    assert report.epochs[0].by == "contents"


def test_contents_that_change(tmp_path: Path) -> None:
    """Rows that are augmented at random are never called replays, and that they are missing is never certain."""
    rows = iter([[one, one + 1] for one in range(0, 1000, 2)])
    for stop in (10, 10, 6, 4):
        restart()
        for number, _ in enumerate(shadow([next(rows) for _ in range(10 if stop != 4 else 4)], tmp_path)):
            if number == stop:
                break
    report = audit_shadow(tmp_path)
    assert report.replayed == Bounds(0, 0)
    assert report.omitted == Bounds(0, 20)
    assert codes(report) == ["RD724"]


def test_by_contents_without_comparison(tmp_path: Path) -> None:
    """Without an untouched epoch nobody knows what is missing, and equal rows may be meant."""
    shadowed_values(tmp_path, [[1, 2], [3, 4]])
    restart()
    iterator = iter(shadow([[1, 2], [3, 3]], tmp_path))
    next(iterator)
    restart()
    list(shadow([[2, 5]], tmp_path))
    first = audit_shadow(tmp_path)
    assert first.omitted == Bounds(0, 2)
    assert "RD724" in codes(first)
    for file in sorted(tmp_path.iterdir(), key=lambda file: file.name)[:1]:
        file.unlink()
    report = audit_shadow(tmp_path)
    assert (report.replayed, report.omitted) == (Bounds(1, 1), Bounds(0, None))
    assert codes(report) == ["RD721", "RD727"]


def test_epoch_of_two_kinds(tmp_path: Path) -> None:
    """IDs and contents cannot be compared."""
    begin, ids, hashes = Begin(None, None, 0, 0, None), Ids(bytes(8)), Hashes(bytes(8))
    launches: list[list[Record]] = [[begin, ids, hashes], [begin, ids, End()]]
    for records in launches:
        recorder = Recorder(tmp_path, 0, 1)
        for record in records:
            recorder.record(partial(copy, record))
    report = audit_shadow(tmp_path)
    assert (report.verdict, codes(report), report.replayed) == ("unproven", ["RD729"], Bounds(0, None))


def test_sampling_with_replacement(tmp_path: Path) -> None:
    """Where a sampler repeats IDs by itself, repeats after a restart are not called replays."""
    dataset = torch.utils.data.TensorDataset(torch.arange(30))
    for number in (5, None):
        restart()
        sampler = torch.utils.data.RandomSampler(dataset, replacement=True, num_samples=200)
        loader = shadow(torch.utils.data.DataLoader(dataset, batch_size=20, sampler=sampler), tmp_path)
        for at, _ in enumerate(loader, 1):
            if at == number:
                break
    report = audit_shadow(tmp_path)
    assert report.replayed.low == 0
    assert {"RD732", "RD727"} <= set(codes(report))


def launch_records(path: Path, order: NDArray[np.int64], *, start: int, num_ranks: int, saved: int | None) -> None:
    """A launch that reads `order` from `start`, a row per rank and step, and marks a save after so many steps."""
    for rank in range(num_ranks):
        recorder = Recorder(path, rank, num_ranks)
        recorder.record(partial(Begin, 0, None, 0, 0, None))
        own = order[start + rank :: num_ranks]
        for step in range(-(-(order.size - start) // num_ranks)):
            recorder.record(partial(Ids, own[step : step + 1].astype("<i8").tobytes()))
            if saved == step + 1:
                recorder.record(Saved)


@settings(max_examples=60)
@given(data=st.data())
def test_counts_are_those_of_a_counter(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """However often a job is killed and wherever it goes on, the true counts lie within the bounds."""
    path = tmp_path_factory.mktemp("shadow")
    length = data.draw(st.integers(1, 25))
    order = np.random.default_rng(0).permutation(length)
    kept: Counter[int] = Counter()
    start, has_marks, replayed = 0, True, 0
    for _ in range(data.draw(st.integers(1, 3))):
        num_ranks = data.draw(st.integers(1, 3))
        stop = data.draw(st.integers(start, length))
        num_steps = -(-(stop - start) // num_ranks)
        saved = data.draw(st.none() | st.integers(1, num_steps)) if num_steps else None
        has_marks &= saved is not None
        launch_records(path, order[:stop], start=start, num_ranks=num_ranks, saved=saved)
        stop = stop if saved is None else min(stop, start + saved * num_ranks)
        kept.update(order[start:stop].tolist())
        start = min(length, max(0, stop + data.draw(st.integers(-4, 4))))
    num_ranks = data.draw(st.integers(1, 3))
    for rank in range(num_ranks):
        recorder = Recorder(path, rank, num_ranks)
        recorder.record(partial(Begin, 0, length, 0, 0, None))
        for one in order[start + rank :: num_ranks]:
            recorder.record(partial(Ids, int(one).to_bytes(8, "little")))
        recorder.record(End)
    kept.update(order[start:].tolist())
    report = audit_shadow(path)
    replayed, omitted = sum(kept.values()) - len(kept), length - len(kept)
    assert report.omitted == Bounds(omitted, omitted), report.to_text()
    assert report.replayed.low <= replayed == report.replayed.high, report.to_text()
    assert report.replayed.low == replayed or not has_marks
    assert (report.verdict == "clean") == (not omitted and not replayed)


def test_no_shadow(tmp_path: Path) -> None:
    """A directory without shadow files, or none at all, is an error."""
    for path in (tmp_path, tmp_path / "nothing"):
        with pytest.raises(LedgerError, match=r"rd\.shadow"):
            audit_shadow(path)
