"""The ledger under a process group: one attempt per launch, one file per data rank."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh

from resumable_data.audit import audit_ledger
from resumable_data.errors import LedgerError, LedgerWriteError
from resumable_data.ledger import Claim, Ledger, RankWriter
from resumable_data.ledger.reader import read_claim
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, GLOBAL_BATCH = 41, 10
FILE = "in the way"


def make_loader(ledger: Ledger | str, **changes: Any) -> ResumableLoader:
    arguments: dict[str, Any] = {"global_batch": GLOBAL_BATCH, "microbatch": 2, "epochs": 2}
    dataset = torch.utils.data.TensorDataset(torch.arange(LENGTH))
    return ResumableLoader(dataset, ledger=ledger, **{**arguments, **changes})


def train(loader: ResumableLoader, num_updates: int | None = None) -> int:
    done = 0
    for item in loader:
        if item.is_last:
            loader.commit()
            done += 1
            if done == num_updates:
                break
    return done


def attempt(root: str, num_updates: int | None, load: bool, ids: str = "digest") -> tuple[int, str]:
    """One launch of a job: perhaps load, train, save, and leave one update half done."""
    with make_loader(Ledger(f"{root}/ledger", ids=ids)) as loader:
        if load:
            dcp.load({"loader": loader}, checkpoint_id=f"{root}/checkpoint")
        train(loader, num_updates)
        loader.check_agreement()
        if num_updates is not None:
            dcp.save({"loader": loader}, checkpoint_id=f"{root}/checkpoint")
            next(iter(loader))
        return loader.cursor.attempt, loader.cursor.run_id


def test_each_launch_is_one_attempt_with_a_file_per_rank(tmp_path: Path) -> None:
    """4, then 3, then 2 ranks: attempts 1, 2, 3 of one run, a file per rank, and the audit proves the whole run."""
    launches = [
        run_ranks(attempt, 4, str(tmp_path), 2, False),
        run_ranks(attempt, 3, str(tmp_path), 3, True, "full"),
        run_ranks(attempt, 2, str(tmp_path), None, True),
    ]
    for number, results in enumerate(launches, start=1):
        assert {attempt_number for attempt_number, _ in results} == {number}
        directory = tmp_path / "ledger" / f"attempt-{number:06d}"
        assert sorted(p.name for p in directory.iterdir()) == [
            "claim",
            *(f"rank-{rank:05d}.ledger" for rank in range(len(results))),
        ]
    assert len({run_id for results in launches for _, run_id in results}) == 1
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    assert (report.samples, report.replayed.high, report.omitted.high) == (2 * LENGTH, 0, 0)
    assert [one.discarded.low for one in report.attempts] == [8, 6, 0]


def with_peers(root: str, by_arguments: bool) -> int:
    """A (dp 2, tp 2) job, its data ranks by the mesh or as arguments."""
    if by_arguments:
        place: dict[str, Any] = {"rank": dist.get_rank() // 2, "num_replicas": 2}
    else:
        place = {"mesh": init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp")), "data_axes": "dp"}
    with make_loader(f"{root}/ledger", **place) as loader:
        return train(loader)


@pytest.mark.parametrize("by_arguments", [False, True])
def test_peers_of_a_data_rank_write_nothing(tmp_path: Path, by_arguments: bool) -> None:
    """On (dp 2, tp 2) one peer of each data rank writes, in one attempt, and each sample is counted once."""
    assert run_ranks(with_peers, 4, str(tmp_path), by_arguments) == [9, 9, 9, 9]
    files = sorted(str(p.relative_to(tmp_path / "ledger")) for p in (tmp_path / "ledger").rglob("*") if p.is_file())
    assert files == [f"attempt-000001/{name}" for name in ("claim", "rank-00000.ledger", "rank-00001.ledger")]
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples) == ("proven", 2 * LENGTH), report.to_text()


def train_without_ledger(path: str) -> tuple[int, int, list[str]]:
    errors: list[str] = []

    class Collect(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            errors.append(record.getMessage())

    logging.getLogger("resumable_data").addHandler(Collect())
    loader = make_loader(path)
    done = train(loader)
    loader.check_agreement()
    return done, loader.cursor.attempt, errors


def test_a_ledger_that_cannot_be_written_does_not_stop_training(tmp_path: Path) -> None:
    """With on_error="unproven", a ledger below a file is logged once, by one rank, and training goes on."""
    (tmp_path / FILE).touch()
    results = run_ranks(train_without_ledger, 3, str(tmp_path / FILE / "ledger"))
    assert [(done, attempt_number) for done, attempt_number, _ in results] == [(9, 0)] * 3
    messages = [message for _, _, errors in results for message in errors]
    assert sum("could be claimed" in message for message in messages) == 1


def refuse_to_train(path: str) -> tuple[str, int]:
    loader = make_loader(Ledger(path, on_error="raise"))
    with pytest.raises(LedgerError) as caught:
        next(iter(loader))
    return type(caught.value).__name__, loader.cursor.position


def test_a_ledger_that_cannot_be_written_stops_all_ranks_where_asked_to(tmp_path: Path) -> None:
    """With on_error="raise", the claim that fails on rank 0 raises on all ranks, and nobody waits."""
    (tmp_path / FILE).touch()
    results = run_ranks(refuse_to_train, 3, str(tmp_path / FILE / "ledger"), timeout_s=60)
    assert all(position == 0 for _, position in results)
    assert results[0][0] == "LedgerWriteError"


class LedgerOfAFullDisk(Ledger):
    """Claims, and cannot make the file of rank 1."""

    def open_rank(self, claim: Claim, *, rank: int, peer: int = 0, process: int = 0) -> RankWriter:
        if rank == 1:
            raise LedgerWriteError("no space left")
        return super().open_rank(claim, rank=rank, peer=peer, process=process)


def refuse_together(path: str) -> str:
    with pytest.raises(LedgerError) as caught:
        next(iter(make_loader(LedgerOfAFullDisk(path, on_error="raise"))))
    return str(caught.value)


def test_a_file_that_one_rank_cannot_open_stops_all_ranks(tmp_path: Path) -> None:
    """With on_error="raise", a rank that cannot open its own file raises on all ranks, and nobody waits."""
    messages = run_ranks(refuse_together, 3, str(tmp_path / "ledger"), timeout_s=60)
    assert messages[1] == "no space left"
    assert messages[0] == messages[2]
    assert "process 1 could not open its file" in messages[0]


def fork_of_history(root: str) -> int:
    """Load the same checkpoint a second time."""
    with make_loader(f"{root}/ledger") as loader:
        dcp.load({"loader": loader}, checkpoint_id=f"{root}/checkpoint")
        train(loader)
        return loader.cursor.attempt


def test_an_attempt_that_lost_is_no_part_of_the_history(tmp_path: Path) -> None:
    """Two launches from one checkpoint are two attempts; the newer one counts and the older is discarded."""
    run_ranks(attempt, 2, str(tmp_path), 2, False)
    assert run_ranks(fork_of_history, 3, str(tmp_path)) == [2, 2, 2]
    assert run_ranks(fork_of_history, 2, str(tmp_path)) == [3, 3]
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.replayed.high, report.omitted.high) == ("proven", 0, 0), report.to_text()
    assert report.attempts[1].discarded.low == 2 * LENGTH - 20


def train_with_peers(root: str, liar: int) -> None:
    """A mesh of 2 data-parallel ranks with 2 tensor-parallel peers each; one process writes down something else."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    with make_loader(Ledger(f"{root}/ledger", peers=True), mesh=mesh, data_axes="dp") as loader:
        if dist.get_rank() == liar:
            recording = loader._session._recording
            deliver = recording.deliver
            vars(recording)["deliver"] = lambda rows, digest, *rest: deliver(rows, digest ^ (rows.update == 3), *rest)
        train(loader)


@pytest.mark.parametrize(("liar", "verdict", "codes"), [(-1, "proven", []), (3, "violated", ["RD210"])])
def test_peers_write_files_of_their_own_and_are_compared(
    tmp_path: Path, liar: int, verdict: str, codes: list[str]
) -> None:
    """With peers=True each process has a file; one that was handed other samples than its rank is named."""
    run_ranks(train_with_peers, 4, str(tmp_path), liar)
    names = [path.name for path in sorted((tmp_path / "ledger" / "attempt-000001").glob("rank-*"))]
    assert names == [
        "rank-00000-peer-00001.ledger",
        "rank-00000.ledger",
        "rank-00001-peer-00001.ledger",
        "rank-00001.ledger",
    ]
    claim = read_claim(tmp_path / "ledger" / "attempt-000001" / "claim")
    assert (claim.mesh.axes, claim.mesh.data_axes) == ((("dp", 2), ("tp", 2)), ("dp",))
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, [one.code for one in report.findings]) == (verdict, codes), report.to_text()
    if codes:
        assert report.findings[0].where == "attempt 1, rank 1, peer 1"
        assert "in update 3" in report.findings[0].found
