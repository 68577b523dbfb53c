"""What is counted in logs: against one Counter, and against torch's own sampler."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import UsageError
from resumable_data.logs import Fields, IdsReport, audit_ids
from resumable_data.order import Sequential, Shuffle, TorchShuffle
from tests.unit.logs.oracle import count, epoch_rows
from tests.unit.logs.writing import WRITERS, Row, write_csv, write_npy, write_text

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.order import Order


def codes(report: IdsReport) -> list[str]:
    return [finding.code for finding in report.findings]


def run_rows(order: Order, num_replicas: int, *, epochs: range = range(1), drop_last: bool = False) -> list[Row]:
    """What a whole run of torch's DistributedSampler logs, one row per step and rank."""
    return [
        Row(one, at % num_replicas, at // num_replicas, epoch)
        for epoch in epochs
        for at, one in enumerate(epoch_rows(order, epoch, num_replicas, drop_last))
    ]


@pytest.mark.parametrize("name", WRITERS)
def test_every_format_says_the_same(tmp_path: Path, name: str) -> None:
    """Rows, ranks, steps and epochs are read from every format, and a replay is found where it is."""
    order = Shuffle(103, seed=1)
    rows = run_rows(order, 3, epochs=range(2))
    again = rows[7]
    fields = WRITERS[name](tmp_path / name, [*rows, again])
    report = audit_ids(tmp_path / name, order=order, num_replicas=3, fields=fields)
    assert (report.rows, report.replayed, report.omitted) == (2 * 105 + 1, 1, 0)
    assert (report.replayed_by_rank, codes(report)) == (((again.rank, 1),), ["RD701", "RD703"])
    (replay,) = report.replays
    assert (replay.id, replay.epoch, replay.again.rank, replay.again.step) == (again.id, 0, again.rank, again.step)
    assert replay.first is not None
    assert (replay.first.rank, replay.first.step) == (again.rank, again.step)
    assert audit_ids(tmp_path / name, order=order, fields=fields).epochs[1].histogram == ((1, 101), (2, 2))


@given(data=st.data())
def test_counts_are_those_of_a_counter(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Replayed, omitted, missing padding and the histogram are those of plain counting, whatever was lost."""
    length, num_replicas = data.draw(st.integers(1, 30)), data.draw(st.integers(1, 7))
    drop_last, names_epochs = data.draw(st.booleans()), data.draw(st.booleans())
    epochs = range(first := data.draw(st.integers(0, 3)), first + data.draw(st.integers(1, 3)))
    order: Order = data.draw(st.sampled_from([Shuffle(length, 5), Sequential(length)]))
    rows = run_rows(order, num_replicas, epochs=epochs, drop_last=drop_last)
    kept = [data.draw(st.sampled_from([1, 1, 1, 1, 0, 2, 3])) for _ in rows]
    rows = [row for row, times in zip(rows, kept, strict=True) for _ in range(times)]
    rows.append(Row(data.draw(st.integers(0, length - 1)), epoch=data.draw(st.sampled_from(epochs))))
    path = tmp_path_factory.mktemp("log") / "log"
    fields = write_csv(path, rows) if names_epochs else write_text(path, rows)
    report = audit_ids(
        path,
        order=order,
        num_replicas=num_replicas,
        drop_last=drop_last,
        epochs=len(epochs),
        first_epoch=epochs.start,
        format="csv" if names_epochs else "text",
        fields=fields if names_epochs else Fields(columns=("id", "rank", "step", "_")),
    )
    expected = count(
        rows, order, num_replicas=num_replicas, drop_last=drop_last, epochs=epochs, names_epochs=names_epochs
    )
    missing_padding = sum(one.missing_padding for one in report.epochs)
    found = (report.replayed, report.omitted, missing_padding, dict(report.histogram))
    assert found == expected
    assert report.replayed == sum(number for _, number in report.replayed_by_rank)
    in_epochs = sum(one.omitted for one in report.epochs)  # the others are those of an epoch missing as a whole
    assert report.omitted == in_epochs or "RD706" in codes(report)
    numbers = {"RD701": report.replayed, "RD702": in_epochs, "RD707": missing_padding}
    assert numbers.keys() & set(codes(report)) == {code for code, number in numbers.items() if number}


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize(("length", "num_replicas"), [(23, 4), (24, 4), (3, 8), (100, 7)])
def test_torch_sampler_is_as_planned(tmp_path: Path, length: int, num_replicas: int, drop_last: bool) -> None:
    """Every rank's log of torch's DistributedSampler is clean, with its padding or without its remainder."""
    paths = []
    for rank in range(num_replicas):
        dataset: Any = range(length)
        sampler: torch.utils.data.DistributedSampler[int] = torch.utils.data.DistributedSampler(
            dataset, num_replicas=num_replicas, rank=rank, seed=3, drop_last=drop_last
        )
        ids = []
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            ids += list(sampler)
        if ids:
            paths.append(tmp_path / f"rank{rank}.npy")
            np.save(paths[-1], np.array(ids))
    if not paths:
        return
    plan: dict[str, Any] = {
        "order": TorchShuffle(length, 3),
        "num_replicas": num_replicas,
        "drop_last": drop_last,
        "epochs": 2,
    }
    report = audit_ids(paths, rank_per_file=True, **plan)
    assert (report.verdict, codes(report)) == ("clean", []), report.to_text()
    if num_replicas == 8:
        assert report.histogram[-1][0] == 6  # 3 samples fill 8 rows in each of two epochs
    swapped = audit_ids([paths[1], paths[0], *paths[2:]], rank_per_file=True, **plan)
    assert codes(swapped) == ["RD703"]


def test_resumed_on_another_number_of_ranks_by_a_count_of_microbatches(tmp_path: Path) -> None:
    """Case 2: after 128 samples on 16 ranks, 10 ranks that go on at batch 6 replay 8, and at batch 7 omit 12."""
    order = TorchShuffle(960)
    first = [row for row in run_rows(order, 16) if row.step < 8]
    write_csv(tmp_path / "first.csv", first)
    for start, replayed, omitted in ((6, 8, 0), (7, 0, 12)):
        second = [row for row in run_rows(order, 10) if row.step >= 2 * start]
        write_csv(tmp_path / "second.csv", second)
        report = audit_ids([tmp_path / "first.csv", tmp_path / "second.csv"], order=order)
        assert (report.replayed, report.omitted, report.rows) == (replayed, omitted, 960 + replayed - omitted)
        assert ("offsets 120-127" if replayed else "offsets 128-139") in report.findings[0].found
        assert codes(report)[1:] == ["RD712"]


def test_coverage_alone(tmp_path: Path) -> None:
    """Without a plan, IDs up to the largest one are expected once, and the report says that more may be missing."""
    (tmp_path / "log").write_text("3 0\n[1, 4]; 4,(4)\n")
    report = audit_ids(tmp_path / "log")
    assert (report.replayed, report.omitted, report.num_samples) == (2, 1, 5)
    assert dict(report.histogram) == {0: 1, 1: 3, 3: 1}
    assert codes(report) == ["RD701", "RD702", "RD710"]
    assert [str(replay.again) for replay in report.replays] == [f"{tmp_path / 'log'} line 2"] * 2
    assert audit_ids(tmp_path / "log", num_samples=9).omitted == 5
    clean = audit_ids(tmp_path / "log", num_samples=5, epochs=1)
    assert clean.verdict == "violated"


def test_many_repeats_of_one_id(tmp_path: Path) -> None:
    """Counts go on past one byte and past two."""
    np.save(tmp_path / "log.npy", np.concatenate([np.full(70_000, 2), np.arange(3), np.full(300, 1)]))
    report = audit_ids(tmp_path / "log.npy", num_samples=4)
    assert dict(report.histogram) == {0: 1, 1: 1, 301: 1, 70_001: 1}
    assert (report.replayed, report.omitted) == (70_300, 1)


def test_growing_without_a_number_of_samples(tmp_path: Path) -> None:
    """Where N is not given, counts survive that larger IDs come later."""
    ids = np.arange(0, 3_000_000, 3)
    np.save(tmp_path / "log.npy", np.concatenate([ids[:10], ids[::-1]]))
    report = audit_ids(tmp_path / "log.npy")
    assert (report.num_samples, report.replayed, report.omitted) == (2_999_998, 10, 2_999_998 - 1_000_000)
    np.save(tmp_path / "log.npy", np.array([1 << 40]))
    with pytest.raises(UsageError, match="--samples"):
        audit_ids(tmp_path / "log.npy")


def test_unfinished(tmp_path: Path) -> None:
    """Of a run that goes on, what comes after the furthest sample is not missed, and holes before it are."""
    order = Shuffle(100, seed=2)
    rows = run_rows(order, 4, epochs=range(2))
    kept = [row for row in rows if (row.epoch, row.step) < (1, 12)]
    del kept[130]
    write_csv(tmp_path / "log.csv", kept)
    report = audit_ids(tmp_path / "log.csv", order=order, num_replicas=4, unfinished=True)
    assert (report.omitted, report.remaining, codes(report)) == (1, 100 - 48, ["RD702", "RD703", "RD711"])
    whole = audit_ids(tmp_path / "log.csv", order=order, num_replicas=4)
    assert (whole.omitted, whole.remaining) == (53, 0)
    write_text(tmp_path / "log.txt", kept)
    fields = Fields(columns=("id", "_", "_", "_"))
    blind = audit_ids(tmp_path / "log.txt", order=order, epochs=2, unfinished=True, fields=fields)
    assert (blind.omitted, blind.remaining) == (1, 100 - 48)


def test_breaks_of_order_are_counted_and_placed(tmp_path: Path) -> None:
    """A rank that jumps is found once, at its place; what follows the jump is in order again."""
    order = Shuffle(10_000, seed=2)
    rows = run_rows(order, 4)
    moved = rows[:8000] + rows[8400:] + rows[8000:8400]
    write_npy(tmp_path / "log.npy", moved)
    fields = Fields(columns=("id", "rank", "step", "_"))
    report = audit_ids(tmp_path / "log.npy", order=order, num_replicas=4, fields=fields)
    (finding,) = report.findings
    assert (finding.code, finding.count, finding.ranks) == ("RD703", 8, "0-3")
    assert finding.where == f"rank 0, {tmp_path / 'log.npy'} row 8000"
    assert "offset 8000" in finding.expected
    assert "offset 8400" in finding.found
    other = audit_ids(tmp_path / "log.npy", order=Shuffle(10_000, seed=3), num_replicas=4, fields=fields)
    assert "at least 400" in other.findings[0].found


def test_ranks_and_epochs_that_are_not_planned(tmp_path: Path) -> None:
    """Ranks and epochs beyond the plan, or missing from the log, are findings of their own."""
    order = Shuffle(12)
    rows = run_rows(order, 3, epochs=range(4))
    write_csv(tmp_path / "log.csv", [row for row in rows if row.epoch != 1])
    plan: dict[str, Any] = {"order": order, "num_replicas": 3}
    assert codes(audit_ids(tmp_path / "log.csv", **plan)) == ["RD706", "RD703"]
    report = audit_ids(tmp_path / "log.csv", **plan, epochs=3)
    assert codes(report) == ["RD705", "RD706", "RD703"]
    assert report.omitted == 12
    write_csv(tmp_path / "log.csv", [row._replace(rank=row.rank + row.rank // 2) for row in rows if row.epoch == 0])
    assert codes(audit_ids(tmp_path / "log.csv", **plan)) == ["RD704", "RD708"]


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    """A plan with ranks and a log without them leaves the verdict open."""
    (tmp_path / "log").write_text("0 1 2 3 4 5")
    report = audit_ids(tmp_path / "log", order=Sequential(6), num_replicas=2)
    assert (report.verdict, report.exit_code, codes(report)) == ("unproven", 1, ["RD709"])
    assert audit_ids(tmp_path / "log", order=Sequential(6)).verdict == "clean"


@pytest.mark.parametrize(
    "arguments",
    [
        {"num_replicas": 2},
        {"num_samples": 6, "drop_last": True},
        {"num_samples": 6, "unfinished": True},
        {"num_samples": 5, "order": Sequential(6)},
        {"order": Sequential(6), "drop_last": True},
        {"num_samples": 0},
        {"epochs": 0},
        {"first_epoch": -1},
        {"format": "xml"},
        {"fields": Fields(columns=("id", "rank")), "rank_per_file": True},
    ],
)
def test_plans_that_contradict_themselves(tmp_path: Path, arguments: dict[str, object]) -> None:
    """What has no meaning is refused before anything is counted."""
    (tmp_path / "log").write_text("0 1\n2 3\n4 5\n")
    with pytest.raises(UsageError):
        audit_ids(tmp_path / "log", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("columns", [("id", "ids"), ("ids", "rank"), ("rank",), ("id", "id"), ("id", "loss"), ()])
def test_columns_that_have_no_meaning(columns: tuple[str, ...]) -> None:
    """Columns name the ID once, and nothing that is not known."""
    with pytest.raises(UsageError):
        Fields(columns=columns)


def test_logs_of_different_kinds(tmp_path: Path) -> None:
    """Logs of which only some name epochs or ranks cannot be counted together."""
    (tmp_path / "a.csv").write_text("id,epoch\n1,0\n")
    (tmp_path / "b.csv").write_text("id\n2\n")
    (tmp_path / "c.csv").write_text("id,rank\n2,0\n")
    with pytest.raises(UsageError, match="epochs or none"):
        audit_ids([tmp_path / "a.csv", tmp_path / "b.csv"])
    with pytest.raises(UsageError, match="ranks or none"):
        audit_ids([tmp_path / "b.csv", tmp_path / "c.csv"])
