"""on_unreadable="filler": a row of weight zero in place of a sample that cannot be read."""

from __future__ import annotations

import logging
from itertools import islice
from typing import TYPE_CHECKING, Any

import pytest
import torch

from resumable_data import ResumableLoader, Sequential, audit_cursor, audit_ledger
from resumable_data.errors import SampleReadError, UsageError
from tests.simulated_ranks import Numbers

if TYPE_CHECKING:
    from pathlib import Path


class Damaged(Numbers):
    """A dataset some of whose samples cannot be read."""

    def __init__(self, length: int, bad: set[int]) -> None:
        super().__init__(length)
        self.bad = bad

    def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
        if index in self.bad:
            raise OSError("bad sector")
        return torch.tensor(index)


class DamagedBatched(Damaged):
    """The same, read in one call."""

    def __getitems__(self, indices: list[int]) -> list[torch.Tensor]:
        return [self[index] for index in indices]


def make(path: Path, dataset: Any, **options: Any) -> ResumableLoader:
    settings: dict[str, Any] = {"global_batch": 8, "microbatch": 4, "rank": 0, "num_replicas": 1, "epochs": 1}
    settings |= {"ledger": path / "ledger", "on_unreadable": "filler", "max_unreadable": 3, **options}
    return ResumableLoader(dataset, order=Sequential(len(dataset)), **settings)


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("kind", [Damaged, DamagedBatched])
def test_a_row_of_weight_zero_takes_the_place(
    tmp_path: Path, kind: type[Damaged], num_workers: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Other rows stay where they are, the denominator too; the sample is logged and listed, and the run proven."""
    with (
        caplog.at_level(logging.ERROR),
        make(tmp_path, kind(16, {0, 2, 9}), num_workers=num_workers) as loader,
    ):
        seen = []
        for microbatch in loader:
            seen.append((microbatch.data.tolist(), microbatch.weights.tolist(), microbatch.unreadable))
            assert microbatch.loss_scale == 1 / 8
            assert microbatch.to("cpu").weights.tolist() == microbatch.weights.tolist()
            assert microbatch.ids.size == 4
            if microbatch.is_last:
                loader.commit()
    assert seen == [
        ([1, 1, 1, 3], [0, 1, 0, 1], (0, 2)),
        ([4, 5, 6, 7], [1, 1, 1, 1], ()),
        ([8, 8, 10, 11], [1, 0, 1, 1], (1,)),
        ([12, 13, 14, 15], [1, 1, 1, 1], ()),
    ]
    messages = [record.getMessage() for record in caplog.records]
    assert len(messages) == 3
    assert "sample 9 (position 9 of the run) cannot be read: OSError: bad sector. A filler row" in messages[2]
    assert "(3 of at most 3 on this rank)" in messages[2]
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.omitted.high, report.unreadable.low, report.unreadable.high) == ("proven", 0, 3, 3)
    assert [(one.position, one.id, one.update, one.rank) for one in report.unreadable_samples] == [
        (0, 0, 0, 0),
        (2, 2, 0, 0),
        (9, 9, 1, 0),
    ]
    assert "but for 3 that could not be read, as declared" in report.to_text()
    assert "sample 0 (position 0), sample 2 (position 2), sample 9 (position 9)" in report.to_text()
    assert audit_cursor(loader.cursor).verdict == "proven", "its digest is of what was handed out in its place"


def test_the_audit_holds_the_whole_run_to_a_bound(tmp_path: Path) -> None:
    """More unreadable samples than the audit was told to accept are a violation."""
    with make(tmp_path, Damaged(16, {0, 2, 9})) as loader:
        for update in loader.updates():
            update.commit()
    assert audit_ledger(tmp_path / "ledger", max_unreadable=3).verdict == "proven"
    report = audit_ledger(tmp_path / "ledger", max_unreadable=2)
    assert report.verdict == "violated"
    assert [one.code for one in report.findings] == ["RD502", "RD209"]


def test_one_more_than_allowed_raises(tmp_path: Path) -> None:
    """The bound is of distinct samples of one rank in one launch: reading one again does not count twice."""
    with make(tmp_path, Damaged(16, {1, 2, 5, 9})) as loader:
        for _ in range(3):
            list(islice(loader, 2))
        stream = loader.updates()
        next(stream).commit()
        with pytest.raises(
            SampleReadError, match=r"sample 9 .*at most 3 .*\(max_unreadable\), found one more"
        ) as caught:
            next(stream)
        assert "bad sector" in "".join(caught.value.__notes__)
        assert loader.cursor.updates == 1
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.unreadable.low, report.discarded.low) == ("proven", 3, 24)


def test_what_was_read_after_a_rewind_is_not_declared(tmp_path: Path) -> None:
    """A sample that could be read the second time was trained on, and is not listed."""
    dataset = Damaged(16, {1, 2})
    with make(tmp_path, dataset) as loader:
        list(loader)
        dataset.bad = {2}
        for update in loader.updates():
            update.commit()
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven"
    assert [one.id for one in report.unreadable_samples] == [2]


def test_a_microbatch_with_nothing_to_read_raises(tmp_path: Path) -> None:
    """Where no sample of a microbatch can be read there is nothing to stand in."""
    with (
        make(tmp_path, Damaged(16, {4, 5, 6, 7}), max_unreadable=99) as loader,
        pytest.raises(SampleReadError, match=r"sample 4 .*nor can any other of its microbatch"),
    ):
        list(loader)


def test_rows_that_repeat_are_no_omission(tmp_path: Path) -> None:
    """A filler row that cannot be read changes nothing; a padding row weighs nothing, and no sample is listed."""
    dataset = Damaged(10, {8})
    with make(tmp_path, dataset, global_batch=10, microbatch=8, pad_microbatches=True, max_unreadable=1) as loader:
        first, second = (microbatch for microbatch in loader)  # rows 0-4, and 5-9, each with 3 of filler
        assert (first.weights.tolist(), first.unreadable) == ([1] * 5 + [0] * 3, ())
        assert (second.weights.tolist(), second.unreadable) == ([1, 1, 1, 0, 1] + [0] * 3, (3,))
        loader.commit()
    assert [one.id for one in audit_ledger(tmp_path / "ledger").unreadable_samples] == [8]

    class OnlyOnce(Damaged):
        def __getitem__(self, index: int) -> torch.Tensor:  # type: ignore[override]
            sample = super().__getitem__(index)
            self.bad = {*self.bad, index}
            return sample

    path = tmp_path / "padded"
    with make(path, OnlyOnce(6, set()), global_batch=8, microbatch=8, tail="pad") as loader:
        (microbatch,) = loader
        assert (microbatch.weights.tolist(), microbatch.unreadable) == ([1] * 6 + [0] * 2, (6, 7))
        loader.commit()
    report = audit_ledger(path / "ledger")
    assert (report.verdict, report.unreadable.high, report.padding) == ("proven", 0, 2)


def test_an_error_of_the_collate_fn_is_not_filled_in(tmp_path: Path) -> None:
    """What is not about a sample raises as ever, filler or not."""

    def collate(samples: list[Any]) -> Any:
        raise RuntimeError("different lengths")

    for bad in (set(), {1}):
        loader = make(tmp_path, Damaged(16, bad), collate_fn=collate)
        with loader, pytest.raises(SampleReadError, match="collate_fn raised RuntimeError: different lengths"):
            next(iter(loader))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"on_unreadable": "skip"}, "on_unreadable must be one of"),
        ({"max_unreadable": None}, r'"filler" needs max_unreadable=.*got None'),
        ({"max_unreadable": -1}, "at least 0; got -1"),
        ({"on_unreadable": "raise"}, "give both or neither"),
        ({"ledger": None}, 'on_unreadable="filler" needs ledger='),
    ],
)
def test_half_an_allowance_is_refused(tmp_path: Path, options: dict[str, Any], says: str) -> None:
    """Neither without a bound nor without a place to record it."""
    with pytest.raises(UsageError, match=says):
        make(tmp_path, Damaged(16, set()), **options)
