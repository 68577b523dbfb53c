"""Questions to a ledger, answered by counting rows one after another."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest

from resumable_data.cli import main
from resumable_data.errors import LedgerCorruptError, UsageError
from resumable_data.ledger import Delivered
from resumable_data.lookup import Walk, diff_ledgers, export_rows, find_sample, find_update
from resumable_data.order import ids_at
from tests.unit.audit.simulator import Run
from tests.unit.audit.test_clean_histories import make_recipe
from tests.unit.audit.test_lies import edit_rank

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.ledger.records import RankRecord

TAILS = ("carry", "short", "drop", "pad")


def make_run(path: Path, tail: str = "carry", *, resumes: bool = True) -> Run:
    """23 samples, 10 rows an update: 3 ranks for 4 updates, 2 of them rolled back; then 2 ranks for 4."""
    run = Run(path, make_recipe(23, 10, tail))
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(2)
    if not resumes:
        run.train(4)
        run.close()
        return run
    saved = run.checkpoint()
    run.deliver(stop_after=1)
    run.rewind()
    run.train(2)
    run.kill()
    run.launch(saved, num_replicas=2, microbatch=4)
    run.train(4)
    run.deliver(stop_after=1)
    run.kill()
    return run


def rows_of(run: Run, *, everything: bool = True) -> list[dict[str, Any]]:
    path = run.path.parent / f"rows-{everything}.npy"
    export_rows(Walk(run.path), path, everything=everything)
    table = np.load(path)
    path.unlink()
    return [dict(zip(table.dtype.names, row, strict=True)) for row in table.tolist()]


@pytest.mark.parametrize("tail", TAILS)
def test_committed_rows_are_what_was_trained_on(tmp_path: Path, tail: str) -> None:
    """Each position once, with the order's sample, padding apart and pointing to the sample it repeats."""
    run = make_run(tmp_path / "ledger", tail)
    rows = rows_of(run, everything=False)
    committed = [row for row in rows if not row["is_padding"]]
    assert Counter(row["position"] for row in committed) == run.trained
    assert sum(row["is_padding"] for row in rows) == run.cursor.padding
    positions = np.array([row["position"] for row in rows])
    assert ids_at(run.order, positions).tolist() == [row["id"] for row in rows]


def test_all_rows_have_a_fate(tmp_path: Path) -> None:
    """Committed, rewound, rolled back by the restart, and in flight: as many as the run delivered."""
    run = make_run(tmp_path / "ledger")
    rows = rows_of(run)
    assert Counter(row["position"] for row in rows) == run.delivered
    assert Counter(row["status"] for row in rows) == {0: 60, 1: 6, 2: 20, 3: 6}


@pytest.mark.parametrize("tail", TAILS)
def test_a_sample_is_found_wherever_it_was_delivered(tmp_path: Path, tail: str) -> None:
    """All deliveries of each sample, those as padding and those that were discarded among them."""
    run = make_run(tmp_path / "ledger", tail)
    rows = rows_of(run)
    for sample in range(23):
        expected = [row for row in rows if row["id"] == sample]
        found = find_sample(Walk(run.path), sample)
        assert [(one.attempt, one.rank, one.update, one.microbatch, one.position) for one in found] == [
            (row["attempt"], row["rank"], row["update"], row["microbatch"], row["position"]) for row in expected
        ]
        assert [one.is_padding for one in found] == [row["is_padding"] for row in expected]
        assert {one.epoch for one in found} == {row["position"] // 23 for row in expected}


def test_an_update_is_listed_row_by_row(tmp_path: Path) -> None:
    """All launches that delivered it, and what became of it."""
    run = make_run(tmp_path / "ledger")
    found = find_update(Walk(run.path), 2)
    assert Counter(one.status for one in found) == {"rewound": 6, "rolled back": 10, "committed": 10}
    assert {one.position for one in found} == set(range(20, 30))
    assert find_update(Walk(run.path), 99) == []
    with pytest.raises(UsageError, match="counted from 0"):
        find_update(Walk(run.path), -1)
    with pytest.raises(UsageError, match="no sample 23"):
        find_sample(Walk(run.path), 23)


def test_two_runs_of_the_same_data_are_the_same(tmp_path: Path) -> None:
    """Whatever their ranks and restarts; a run that goes on further, or of another seed, is told apart."""
    resumed, straight = make_run(tmp_path / "a"), make_run(tmp_path / "b", resumes=False)
    assert diff_ledgers(Walk(resumed.path), Walk(straight.path)).is_same
    straight = Run(tmp_path / "c", make_recipe(23, 10, "carry"))
    straight.launch(None, num_replicas=1, microbatch=10)
    straight.train(7)
    further = diff_ledgers(Walk(resumed.path), Walk(straight.path))
    assert (further.is_same, further.num_common_positions, further.first_difference) == (False, 60, None)
    assert (further.only_in_a, further.only_in_b) == (0, 10)
    dropping = diff_ledgers(Walk(resumed.path), Walk(make_run(tmp_path / "d", "drop").path))
    assert (dropping.num_common_positions, dropping.first_difference) == (20, 20)
    assert (dropping.sample_a is None, dropping.sample_b) == (False, None)


def test_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What the command line prints, and its exit codes."""
    run = make_run(tmp_path / "ledger")
    assert main(["ledger", "show", str(run.path)]) == 0
    text = capsys.readouterr().out
    assert "attempt 2 (after 1): from update 2, position 20, 2 ranks of dp 2, microbatch 4, 2 files" in text
    assert main(["ledger", "show", str(run.path), "--json"]) == 0
    assert [one["files"] for one in json.loads(capsys.readouterr().out)["attempts"]] == [3, 2]
    sample = find_update(Walk(run.path), 2)[0].id
    assert main(["ledger", "show", str(run.path), "--sample", str(sample)]) == 0
    text = capsys.readouterr().out
    assert f"sample {sample}: " in text
    assert "update 2" in text
    assert main(["ledger", "show", str(run.path), "--update", "2", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["deliveries"]) == 26
    assert main(["ledger", "diff", str(run.path), str(run.path)]) == 0
    assert "the same: 60 samples" in capsys.readouterr().out
    other = make_run(tmp_path / "other", "drop")
    assert main(["ledger", "diff", str(run.path), str(other.path)]) == 1
    assert "at position 20 the one has sample" in capsys.readouterr().out
    assert main(["ledger", "diff", str(run.path), str(tmp_path / "nothing")]) == 3


def test_export_to_json_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A row a line, as in the table; an existing file or another ending is refused, and nothing is left behind."""
    run = make_run(tmp_path / "ledger")
    output = tmp_path / "rows.jsonl"
    assert main(["ledger", "export", str(run.path), "-o", str(output)]) == 0
    assert "60 rows in" in capsys.readouterr().out
    rows = [json.loads(line) for line in output.read_text().splitlines()]
    assert [row.pop("status") for row in rows] == ["committed"] * 60
    assert rows == [{k: v for k, v in row.items() if k != "status"} for row in rows_of(run, everything=False)]
    assert main(["ledger", "export", str(run.path), "-o", str(output)]) == 2
    assert main(["ledger", "export", str(run.path), "-o", str(tmp_path / "rows.txt")]) == 2
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger", "rows.jsonl"]


def test_export_to_parquet(tmp_path: Path) -> None:
    """With pyarrow the table comes back; without it the error says what to install."""
    run = make_run(tmp_path / "ledger")
    output = tmp_path / "rows.parquet"
    try:
        import pyarrow.parquet
    except ImportError:
        with pytest.raises(UsageError, match=r"resumable_data\[arrow\]"):
            export_rows(Walk(run.path), output)
        assert not output.exists()
        return
    assert export_rows(Walk(run.path), output) == 60
    table = pyarrow.parquet.read_table(output)
    assert table["position"].to_pylist() == [row["position"] for row in rows_of(run, everything=False)]
    assert set(table["status"].to_pylist()) == {"committed"}


@pytest.mark.parametrize("changes", [{"count": 1 << 40}, {"stride": 1 << 61}, {"parts": 1 << 40}, {"start": 1 << 61}])
def test_numbers_beyond_any_run_are_damage(tmp_path: Path, changes: dict[str, int]) -> None:
    """They are named, and not computed with: neither memory nor time goes by what a file says of itself."""
    run = make_run(tmp_path / "ledger")

    def forge(records: list[RankRecord]) -> list[RankRecord]:
        first = next(n for n, record in enumerate(records) if isinstance(record, Delivered))
        return [*records[:first], msgspec.structs.replace(records[first], **changes), *records[first + 1 :]]

    edit_rank(run, 1, 0, forge)
    if "start" in changes:  # a position that a run may have: what is there is listed, and the audit finds it
        assert any(one.position >= 1 << 61 for one in find_update(Walk(run.path), 0))
        return
    with pytest.raises(LedgerCorruptError, match="rows that a run can reach"):
        find_update(Walk(run.path), 0)
