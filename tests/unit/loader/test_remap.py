"""remap(): another rank set in the same process."""

from __future__ import annotations

import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Self

import pytest
import torch

from resumable_data import ResumableLoader, Shuffle, audit_cursor, audit_ledger
from resumable_data.errors import CommitError, StaleIteratorError, TopologyError, UsageError
from tests.simulated_ranks import Job, Numbers, flat, keep_list, lists_of

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 61


class WithPid(Numbers):
    """A dataset whose items say which process read them, too."""

    def __getitem__(self, index: int) -> Any:
        return index, os.getpid()


class Elastic(Job):
    """A job whose first ranks go on as another rank set, with new ones where there are not enough."""

    def __init__(self, num_replicas: int, **options: Any) -> None:
        self.options = {
            "order": Shuffle(LENGTH),
            "global_batch": 7,
            "microbatch": 2,
            "epochs": 2,
            "collate_fn": keep_list,
            **options,
        }
        super().__init__(LENGTH, num_replicas, **self.options)
        for loader in self.loaders:
            loader.close()
        self.loaders = [self.rank(rank, num_replicas) for rank in range(num_replicas)]
        self.pids: list[set[int]] = [set() for _ in self.loaders]

    def __enter__(self) -> Self:
        return self

    def rank(self, rank: int, num_replicas: int) -> ResumableLoader:
        return ResumableLoader(WithPid(LENGTH), rank=rank, num_replicas=num_replicas, **self.options)

    def run(self, num_updates: int | None) -> list[int]:
        ids: list[int] = []
        while num_updates is None or num_updates > 0:
            update = self.update()
            if update is None:
                break
            rows: list[tuple[int, int]] = []
            for step in update:
                for rank, microbatch in enumerate(step):
                    rows += zip(microbatch.positions.tolist(), microbatch.ids.tolist(), strict=True)
                    assert [index for index, _ in microbatch.data[: microbatch.ids.size]] == microbatch.ids.tolist()
                    self.pids[rank] |= {pid for _, pid in microbatch.data}
            ids += [sample_id for _, sample_id in sorted(rows)]
            self.commit()
            num_updates = None if num_updates is None else num_updates - 1
        return ids

    def remap(self, num_replicas: int, **options: Any) -> None:
        state = self.save()
        self._iterators = None
        for rank, loader in enumerate(self.loaders[:num_replicas]):
            loader.remap(rank=rank, num_replicas=num_replicas, **options)
        for loader in self.loaders[num_replicas:]:
            loader.close()
        new = [self.rank(rank, num_replicas) for rank in range(len(self.loaders), num_replicas)]
        for loader in new:
            loader.load_state_dict(state)
        self.loaders = [*self.loaders[:num_replicas], *new]
        self.pids = [set() for _ in self.loaders]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_4_2_3_ranks_read_each_sample_once(tmp_path: Path, num_workers: int) -> None:
    """4, then 2, then 3 ranks: the global order goes on unchanged, with the same workers, and the audit proves it."""
    options: dict[str, Any] = {"num_workers": num_workers, "ledger": tmp_path / "ledger"}
    if num_workers:
        options["persistent_workers"] = True
    with Elastic(4, **options) as job:
        ids = job.run(3)
        before = job.pids
        job.remap(2)
        ids += job.run(3)
        assert job.pids == before[:2]
        job.remap(3)
        ids += job.run(None)
        assert job.pids[:2] == before[:2]
        if num_workers:
            assert {len(pids) for pids in job.pids} == {2}, "else the comparison says nothing"
        cursor = job.agree()
    assert ids == flat(lists_of(Shuffle(LENGTH), epochs=2))
    assert audit_cursor(cursor).verdict == "proven"
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples) == ("proven", 2 * LENGTH), report.to_text()
    assert (report.replayed.high, report.omitted.high, report.discarded.high) == (0, 0, 0)
    assert [(one.num_replicas, one.first_update, one.stop_update) for one in report.attempts] == [
        (4, 0, 3),
        (2, 3, 6),
        (3, 6, 18),
    ]


@pytest.mark.parametrize("committed", [0, 2])
@pytest.mark.parametrize("rest", ["a part of an update", "a whole update"])
def test_what_is_open_is_rolled_back_only_where_asked(tmp_path: Path, committed: int, rest: str) -> None:
    """Delivered and not committed: refused and nothing changes, or read again by the new ranks and discarded."""
    with Elastic(4, ledger=tmp_path / "ledger", microbatch=1) as job:
        ids = job.run(committed)
        step = job.microbatch() if rest == "a part of an update" else job.update()
        assert step is not None
        for loader in job.loaders:
            with pytest.raises(CommitError, match=rf"update's start; microbatches of update {committed} or later"):
                loader.remap(rank=0, num_replicas=2)
        job.remap(2, rollback=True)
        ids += job.run(None)
    assert ids == flat(lists_of(Shuffle(LENGTH), epochs=2))
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples) == ("proven", 2 * LENGTH), report.to_text()
    assert report.discarded.low == report.discarded.high == (4 if rest == "a part of an update" else 7)


def test_iterators_of_the_old_ranks_are_invalid() -> None:
    """What the old rank would have read next is not what comes next."""
    loader = Elastic(2).loaders[0]
    stream = iter(loader)
    loader.remap(rank=1, num_replicas=3)
    with pytest.raises(StaleIteratorError, match="remapped"):
        next(stream)


def test_microbatch_and_reduction_follow() -> None:
    """The split, its loss scale and the length are those of a loader made for the new ranks."""
    for options in ({}, {"gradient_reduction": "sum"}):
        remapped, made = Elastic(4, **options).loaders[1], Elastic(3, microbatch=1, **options).loaders[2]
        remapped.remap(rank=2, num_replicas=3, microbatch=1)
        assert len(remapped) == len(made)
        for one, other in zip(islice(remapped, 20), islice(made, 20), strict=True):
            assert (one.positions.tolist(), one.loss_scale) == (other.positions.tolist(), other.loss_scale)


def test_only_the_microbatch_changes_where_nothing_else_is_given() -> None:
    """Rank and size stay those that were given."""
    loader = Elastic(4).loaders[3]
    loader.remap(microbatch=1)
    other = Elastic(4, microbatch=1).loaders[3]
    assert [m.positions.tolist() for m in islice(loader, 8)] == [m.positions.tolist() for m in islice(other, 8)]


def test_a_reduction_size_is_not_carried_over_to_other_ranks() -> None:
    """One that was given for 4 ranks is wrong for 2: it must be given again."""
    loader = Elastic(4, reduction_size=8).loaders[0]
    with pytest.raises(UsageError, match=r"reduction_size=8 was given for 4 data-parallel ranks.*there are 2"):
        loader.remap(rank=0, num_replicas=2)
    loader.remap(microbatch=1)
    assert next(iter(loader)).loss_scale == 8 / 7
    loader.remap(rank=0, num_replicas=2, reduction_size=4, rollback=True)
    assert next(iter(loader)).loss_scale == 4 / 7


def test_wrong_arguments_change_nothing() -> None:
    """A remap that is refused leaves rank, iterators and deliveries as they were."""
    loader = Elastic(2).loaders[0]
    stream = iter(loader)
    first = next(stream)
    wrong: list[dict[str, Any]] = [{"rank": 2, "num_replicas": 2}, {"rank": 0}, {"microbatch": 0}, {"data_axes": "dp"}]
    for options in wrong:
        with pytest.raises((TopologyError, UsageError)):
            loader.remap(**options, rollback=True)
    assert next(stream).positions.tolist() == [p + 4 for p in first.positions.tolist()]
    loader.close()
    with pytest.raises(UsageError, match="this loader is closed"):
        loader.remap(rank=0, num_replicas=1)


class Noise(Numbers):
    """A dataset that augments with torch's generator."""

    def __getitem__(self, index: int) -> int:
        return int(torch.randint(2**40, ()).item())


def test_workers_are_seeded_as_those_of_the_new_rank() -> None:
    """Workers that are started after a remap draw what they would in a loader made for the new rank."""

    def make(rank: int) -> ResumableLoader:
        place: dict[str, Any] = {"rank": rank, "num_replicas": 3}
        return ResumableLoader(Noise(30), global_batch=6, microbatch=2, num_workers=1, collate_fn=keep_list, **place)

    with make(0) as remapped, make(2) as made:
        unmoved = next(iter(remapped)).data
        remapped.remap(rank=2, num_replicas=3, rollback=True)
        assert next(iter(remapped)).data == next(iter(made)).data != unmoved
