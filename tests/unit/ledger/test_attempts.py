"""Attempts: who writes where."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest

from resumable_data.cursor import Cursor, Recipe
from resumable_data.errors import LedgerCorruptError, LedgerError, LedgerWriteError, TopologyError, UsageError
from resumable_data.ledger import Ledger
from resumable_data.ledger.layout import attempt_number, list_attempt, list_attempts, rank_and_peer
from resumable_data.ledger.reader import read_claim, read_rank
from resumable_data.order import Sequential

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.ledger import Claim

START = Cursor(recipe=Recipe(order=Sequential(100).describe(), global_batch=8))
JOB = {"num_replicas": 2, "microbatch": 4, "epochs": 3, "run_id": "aa"}


def claim(ledger: Ledger, **changes: object) -> Claim:
    return ledger.claim(START, **{**JOB, **changes})  # type: ignore[arg-type]


def join(ledger: Ledger, rank: int, **changes: object) -> Claim:
    return ledger.join(**{"start": START, "rank": rank, **JOB, **changes})  # type: ignore[arg-type]


def test_claims_are_numbered_and_read_back(tmp_path: Path) -> None:
    """Each launch gets the next number; what it claimed is in the ledger."""
    ledger = Ledger(tmp_path / "a" / "ledger")
    assert ledger.newest() is None
    claims = [claim(ledger, microbatch=size) for size in (1, 2, 3)]
    assert [one.attempt for one in claims] == [1, 2, 3]
    assert read_claim(ledger.path / "attempt-000002" / "claim") == claims[1]
    assert ledger.newest() == claims[2]
    assert sorted(os.listdir(ledger.path / "attempt-000002")) == ["claim"]


def test_nothing_is_written_before_the_first_claim(tmp_path: Path) -> None:
    """Opening a ledger to look at it does not make one."""
    Ledger(tmp_path / "ledger").newest()
    assert not (tmp_path / "ledger").exists()


def test_claims_at_once_get_different_numbers(tmp_path: Path) -> None:
    """Jobs that start at the same time never share an attempt."""
    ledger = Ledger(tmp_path / "ledger")
    barrier = threading.Barrier(8)
    numbers: list[int] = []

    def start() -> None:
        barrier.wait()
        numbers.extend(claim(ledger).attempt for _ in range(5))

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(numbers) == list(range(1, 41))


def test_a_number_without_a_claim_is_used_again(tmp_path: Path) -> None:
    """A launch that was killed while claiming leaves its number to the next one."""
    ledger = Ledger(tmp_path / "ledger")
    claim(ledger)
    (ledger.path / "attempt-000002").mkdir()
    assert claim(ledger).attempt == 2


def test_ranks_join_one_attempt(tmp_path: Path) -> None:
    """Ranks without a process group meet in the attempt with their start and topology."""
    ledger = Ledger(tmp_path / "ledger")
    attempts = []
    for rank in (0, 1):
        joined = join(ledger, rank)
        ledger.open_rank(joined, rank=rank)
        attempts.append(joined.attempt)
    assert attempts == [1, 1]
    assert join(ledger, 0).attempt == 2


@pytest.mark.parametrize(
    "changes",
    [
        {"num_replicas": 3},
        {"microbatch": 5},
        {"epochs": None},
        {"run_id": "bb"},
        {"start": Cursor(recipe=START.recipe, applied=1, samples=8, offset=8)},
    ],
)
def test_ranks_of_another_job_do_not_join(tmp_path: Path, changes: dict[str, object]) -> None:
    """Another start, topology or run opens the next attempt."""
    ledger = Ledger(tmp_path / "ledger")
    assert join(ledger, 0).attempt == 1
    assert join(ledger, 1, **changes).attempt == 2


def test_a_ledger_that_cannot_be_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A disk that fails after the claim stops no job, unless it is asked to."""
    ledger, strict = Ledger(tmp_path / "ledger"), Ledger(tmp_path / "ledger", on_error="raise")
    claim(ledger)

    def fail(path: object) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "scandir", fail)
    assert not ledger.is_fenced(1)
    assert ledger.newest() is None
    assert len(caplog.records) == 2
    with pytest.raises(LedgerError, match="Input/output error"):
        strict.is_fenced(1)


def test_a_rank_file_is_created_once(tmp_path: Path) -> None:
    """A second writer of the same rank is refused, and the first one's file stays as it was."""
    ledger = Ledger(tmp_path / "ledger", on_error="raise")
    first = ledger.open_rank(claim(ledger), rank=1)
    first.commit(0, True)
    newest = ledger.newest()
    assert newest is not None
    with pytest.raises(LedgerWriteError, match=r"rank-00001\.ledger could not be written: .*File exists"):
        ledger.open_rank(newest, rank=1)
    first.close()
    log = read_rank(ledger.path / "attempt-000001" / "rank-00001.ledger")
    assert log.commits.update.tolist() == [0]


def test_rank_outside_the_claim(tmp_path: Path) -> None:
    """A rank that the attempt does not have is an error of the caller."""
    ledger = Ledger(tmp_path / "ledger")
    with pytest.raises(TopologyError, match="rank 2"):
        ledger.open_rank(claim(ledger), rank=2)


def test_peer_files_have_their_own_names(tmp_path: Path) -> None:
    """Further readers of a rank's samples do not get in the way of the first."""
    ledger = Ledger(tmp_path / "ledger")
    job = claim(ledger)
    for peer in (0, 1):
        ledger.open_rank(job, rank=1, peer=peer).close()
    files = list_attempt(1, ledger.path / "attempt-000001")
    assert (list(files.ranks), [path.name for path in files.peers]) == ([1], ["rank-00001-peer-00001.ledger"])


def test_trouble_with_the_directory_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A ledger that cannot be made is logged once; writers then do nothing."""
    (tmp_path / "file").write_text("x")
    ledger = Ledger(tmp_path / "file" / "ledger")
    job = claim(ledger)
    writer = ledger.open_rank(job, rank=0)
    writer.delivered(0, 0, 0, 1, 4, 0, 0, 1)
    writer.commit(0, True)
    writer.sync()
    writer.close()
    assert (job.attempt, writer.broken) == (0, True)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    assert "unproven" in caplog.text


def test_trouble_with_the_directory_raises_where_asked(tmp_path: Path) -> None:
    """With on_error="raise" the job stops."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(LedgerWriteError, match="no attempt could be claimed"):
        claim(Ledger(tmp_path / "file" / "ledger", on_error="raise"))


def test_damaged_claim_does_not_stop_training(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A newest claim that cannot be read is logged, and the next attempt is claimed."""
    ledger = Ledger(tmp_path / "ledger")
    claim(ledger)
    (ledger.path / "attempt-000001" / "claim").write_bytes(b"x")
    assert join(ledger, 0).attempt == 2
    assert "byte 0" in caplog.text
    (ledger.path / "attempt-000002" / "claim").write_bytes(b"x")
    with pytest.raises(LedgerCorruptError):
        Ledger(ledger.path, on_error="raise").newest()


@pytest.mark.parametrize("arguments", [{"ids": "all"}, {"on_error": "ignore"}])
def test_arguments_are_checked(tmp_path: Path, arguments: dict[str, Any]) -> None:
    """Words without a meaning are refused at once."""
    with pytest.raises(UsageError, match="must be one of"):
        Ledger(tmp_path / "ledger", **arguments)


def test_a_file_in_place_of_the_directory(tmp_path: Path) -> None:
    """A ledger is a directory."""
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="found a file"):
        Ledger(tmp_path / "file")


def test_names_have_one_spelling() -> None:
    """Each number has one name, so that no two files can stand for the same rank."""
    assert [attempt_number(n) for n in ("attempt-000001", "attempt-1234567")] == [1, 1234567]
    assert [rank_and_peer(n) for n in ("rank-00007.ledger", "rank-123456.ledger")] == [(7, 0), (123456, 0)]
    assert rank_and_peer("rank-00007-peer-00001.ledger") == (7, 1)
    others = ["attempt-1", "attempt-0000001", "attempt-000000", "attempt-\u0661\u0661\u0661\u0661\u0661\u0661"]
    assert [attempt_number(name) for name in others] == [None] * len(others)
    others = [
        "rank-7.ledger",
        "rank-000007.ledger",
        "rank-00007-peer-00000.ledger",
        "rank-00007",
    ]
    assert [rank_and_peer(name) for name in others] == [None] * len(others)


def test_links_in_a_ledger_are_refused(tmp_path: Path) -> None:
    """Neither an attempt nor a file of one may be a link to something else."""
    ledger = Ledger(tmp_path / "ledger")
    claim(ledger)
    (ledger.path / "attempt-000001" / "rank-00000.ledger").symlink_to("/dev/zero")
    with pytest.raises(LedgerCorruptError, match="a symbolic link"):
        list_attempt(1, ledger.path / "attempt-000001")
    (ledger.path / "attempt-000002").symlink_to("attempt-000001")
    with pytest.raises(LedgerCorruptError, match="a symbolic link in place of an attempt's directory"):
        list_attempts(ledger.path)


def test_no_ledger(tmp_path: Path) -> None:
    """A path without a ledger is an error that says what was expected."""
    with pytest.raises(LedgerError, match="expected the directory of a ledger"):
        list_attempts(tmp_path / "nothing")
