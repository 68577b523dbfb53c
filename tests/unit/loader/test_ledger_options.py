"""What a ledger can be asked to do beside a loader: keyed digests, folding, peers, fencing, saved checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from resumable_data.audit import audit_ledger
from resumable_data.errors import FencedError, LedgerCorruptError, UsageError
from resumable_data.ledger import Ledger
from resumable_data.ledger.reader import read_claim, read_rank
from resumable_data.loader import ResumableLoader
from resumable_data.order import Shuffle

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit import AuditReport

LENGTH = 47


def make_loaders(ledger: Ledger, num_replicas: int = 2, **changes: Any) -> list[ResumableLoader]:
    """One loader per simulated rank, 12 samples an update, 3 microbatches of 2 on 2 ranks."""
    arguments = {"order": Shuffle(LENGTH, seed=2), "global_batch": 12, "microbatch": 2, "epochs": 2, **changes}
    dataset = torch.utils.data.TensorDataset(torch.arange(LENGTH))
    return [
        ResumableLoader(dataset, rank=rank, num_replicas=num_replicas, ledger=ledger, **arguments)
        for rank in range(num_replicas)
    ]


def train(loaders: list[ResumableLoader], num_updates: int, *, then: int = 0) -> None:
    """Commit so many updates, and deliver some microbatches more."""
    iterators, left = [iter(loader) for loader in loaders], num_updates
    while left:
        items = [next(iterator) for iterator in iterators]
        if items[0].is_last:
            for loader in loaders:
                loader.commit()
            left -= 1
    for _ in range(then):
        for iterator in iterators:
            next(iterator)


def codes(report: AuditReport) -> list[str]:
    return [one.code for one in report.findings]


def test_keyed_digests_need_their_key(tmp_path: Path) -> None:
    """Without the secret IDs are unproven, another secret is refused, and the digests are other ones."""
    for name, key in (("open", ""), ("keyed", "secret")):
        loaders = make_loaders(Ledger(tmp_path / name, key=key))
        train(loaders, 3)
        for loader in loaders:
            loader.close()
    assert audit_ledger(tmp_path / "keyed", key="secret").verdict == "proven"
    report = audit_ledger(tmp_path / "keyed")
    assert (report.verdict, codes(report)) == ("unproven", ["RD113"])
    with pytest.raises(UsageError, match="the key is not the one"):
        audit_ledger(tmp_path / "keyed", key="other")
    assert audit_ledger(tmp_path / "open", key="secret").verdict == "proven"
    digests = [
        read_rank(tmp_path / name / "attempt-000001" / "rank-00000.ledger").all_deliveries().digest
        for name in ("open", "keyed")
    ]
    assert not set(digests[0].tolist()) & set(digests[1].tolist())
    with pytest.raises(UsageError, match="give one of the two"):
        Ledger(tmp_path / "both", key="secret", ids="full")


@pytest.mark.parametrize("ids", ["digest", "full"])
@pytest.mark.parametrize("fold_rows", [4, 64])
def test_folded_records_prove_the_same(tmp_path: Path, ids: str, fold_rows: int) -> None:
    """Fewer records, the same verdict and counts, also where a launch is killed within an update."""
    reports = []
    for name, rows in (("plain", 0), ("folded", fold_rows)):
        ledger = Ledger(tmp_path / name, ids=ids, fold_rows=rows)
        loaders = make_loaders(ledger)
        train(loaders, 3, then=2)
        for loader in loaders:
            loader._session._recording._writer = None  # as a kill leaves it
        state = loaders[0].state_dict()
        loaders = make_loaders(ledger, 3, microbatch=1)
        for loader in loaders:
            loader.load_state_dict(state)
        train(loaders, 5)
        for loader in loaders:
            loader.close()
        reports.append(audit_ledger(tmp_path / name))
    plain, folded = reports
    assert plain.verdict == folded.verdict == "proven", folded.to_text()
    assert (folded.samples, folded.updates, folded.padding) == (plain.samples, plain.updates, plain.padding)
    # what the killed launch delivered of an update that it did not complete
    assert (plain.discarded.low, plain.discarded.high) == (8, 8)
    assert folded.discarded.high is not None
    assert folded.discarded.low <= 8 <= folded.discarded.high
    log = read_rank(tmp_path / "folded" / "attempt-000002" / "rank-00000.ledger")
    assert log.num_deliveries < 20
    assert log.all_deliveries().parts.max() > 1


def test_a_job_that_was_replaced_is_told_at_its_next_checkpoint(tmp_path: Path) -> None:
    """The newest claim wins: the older job is told, what it wrote since is reported, and the run is proven."""
    ledger = Ledger(tmp_path / "ledger")
    old = make_loaders(ledger)
    train(old, 2)
    old[0].check_agreement(peers=old)
    new = make_loaders(ledger, 3)
    for loader in new:
        loader.load_state_dict(old[0].state_dict())
    train(new, 2)
    train(old, 1)
    with pytest.raises(FencedError, match="claimed a newer attempt"):
        old[0].check_agreement(peers=old)
    new[0].check_agreement(peers=new)
    for loader in (*old, *new):
        loader.close()
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, codes(report)) == ("proven", ["RD117", "RD117"]), report.to_text()
    assert [(one.survives, one.first_update, one.stop_update) for one in report.attempts] == [
        (True, 0, 2),
        (True, 2, 4),
    ]
    assert report.discarded.low == 12


def test_a_single_rank_is_fenced_too(tmp_path: Path) -> None:
    """A loader that reads everything alone looks at the ledger as well."""
    ledger = Ledger(tmp_path / "ledger")
    (old,) = make_loaders(ledger, 1)
    train([old], 1)
    (new,) = make_loaders(ledger, 1)
    train([new], 1)
    with pytest.raises(FencedError):
        old.check_agreement()
    assert new.check_agreement().updates == 1


def test_agreements_and_saved_checkpoints_are_recorded(tmp_path: Path) -> None:
    """Each save leaves the digest of the saved cursor and, where told, that it is complete; an older start is noted."""
    ledger = Ledger(tmp_path / "ledger")
    loaders = make_loaders(ledger)
    states = []
    for _ in range(2):
        train(loaders, 1)
        loaders[0].check_agreement(peers=loaders)
        states.append(loaders[0].state_dict())
        for loader in loaders:
            loader.mark_saved()
    log = read_rank(tmp_path / "ledger" / "attempt-000001" / "rank-00001.ledger")
    assert [(one.update, one.start, one.stop) for one in log.agreements] == [(1, 0, 12), (2, 0, 24)]
    (span,) = loaders[1].cursor.coverage
    assert (log.agreements[1].lane_0, log.agreements[1].lane_1) == span.lanes
    assert log.saved.tolist() == [1, 2]
    loaders = make_loaders(ledger)
    for loader in loaders:
        loader.load_state_dict(states[0])
    train(loaders, 1)
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, codes(report)) == ("proven", ["RD407"])
    assert "update 2, at the newest checkpoint" in report.findings[0].expected


def test_the_claim_says_what_the_job_is(tmp_path: Path) -> None:
    """Ranks, and the files of the attempts before as they were."""
    ledger = Ledger(tmp_path / "ledger")
    train(make_loaders(ledger), 1)
    path = tmp_path / "ledger" / "attempt-000001" / "rank-00001.ledger"
    size, last = path.stat().st_size, path.read_bytes()[-8:]
    train(make_loaders(ledger), 1)
    claim = read_claim(tmp_path / "ledger" / "attempt-000002" / "claim")
    assert (claim.mesh.axes, claim.mesh.data_axes) == ((("dp", 2),), ("dp",))
    assert [(one.attempt, one.rank, one.peer) for one in claim.older] == [(1, 0, 0), (1, 1, 0)]
    assert (claim.older[1].num_bytes, claim.older[1].checksum) == (size, int.from_bytes(last, "little"))
    assert msgspec.structs.replace(claim, older=()) != claim


@pytest.mark.parametrize("jobs", [2, 3])
def test_several_processes_say_the_same(tmp_path: Path, jobs: int) -> None:
    """The audit adds up what each file gives, in whichever process; damage in one of them is raised here."""
    ledger = Ledger(tmp_path / "ledger")
    loaders = make_loaders(ledger, 4, microbatch=1)
    train(loaders, 4, then=1)
    path = tmp_path / "ledger" / "attempt-000001" / "rank-00002.ledger"
    path.write_bytes(path.read_bytes()[:-3])
    assert audit_ledger(tmp_path / "ledger", jobs=jobs) == audit_ledger(tmp_path / "ledger")
    data = bytearray(path.read_bytes())
    data[200] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerCorruptError, match=r"rank-00002\.ledger, byte"):
        audit_ledger(tmp_path / "ledger", jobs=jobs)
    with pytest.raises(UsageError, match="jobs must be"):
        audit_ledger(tmp_path / "ledger", jobs=0)


def test_a_damaged_file_is_read_up_to_the_damage_where_asked_to(tmp_path: Path) -> None:
    """With salvage the rest of the ledger is audited, and the verdict is never proven."""
    ledger = Ledger(tmp_path / "ledger")
    loaders = make_loaders(ledger)
    train(loaders, 4)
    for loader in loaders:
        loader.close()
    path = tmp_path / "ledger" / "attempt-000001" / "rank-00001.ledger"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(LedgerCorruptError):
        audit_ledger(tmp_path / "ledger")
    report = audit_ledger(tmp_path / "ledger", salvage=True)
    assert (report.verdict, set(codes(report))) == ("unproven", {"RD106", "RD114"})
    assert report.updates == 4
    assert (report.omitted.low, report.omitted.high is not None and report.omitted.high > 0) == (0, True)
