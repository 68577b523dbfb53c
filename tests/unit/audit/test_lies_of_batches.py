"""Lies told to the ledger of a tracked loop, whose records number batches, each lead to their own finding."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import msgspec
import pytest

from resumable_data.audit import audit_ledger
from resumable_data.errors import LedgerCorruptError
from resumable_data.ledger import Claim, Commit, Delivered
from resumable_data.ledger.records import Jump
from tests.unit.audit.test_lies import change, codes, edit_claim, edit_rank
from tests.unit.tracking.loops import Setup, next_of_all

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable_data.ledger.records import RankRecord
    from resumable_data.tracking import TrackedLoader
    from tests.unit.audit.simulator import Run


def honest_run(path: Path) -> Path:
    """23 samples in steps of 8: on 2 ranks from batch 0, the epoch left after 2 batches, then on 4 from batch 4."""
    ledger, state = path / "ledger", None
    for setup, num_batches, epoch in ((Setup(23, 2, 2, 2), (2, 2), 0), (Setup(23, 4, 1, 2), (3, 6), 1)):
        loaders = setup.loaders(state, ledger)
        for number in range(2):
            for loader in loaders:
                loader.sampler.set_epoch(epoch + number)
            train(loaders, num_batches[number])
        loaders[0].check_agreement(peers=loaders)
        state = loaders[0].state_dict()
        for loader in loaders:
            loader.close()
    return ledger


def train(loaders: list[TrackedLoader], num_batches: int) -> None:
    """A step after every second batch; what is left over at an early end is given up."""
    iterators = [iter(loader) for loader in loaders]
    for number in range(1, num_batches + 1):
        next_of_all(iterators)
        if number % 2 == 0:
            for loader in loaders:
                loader.commit()


def test_the_honest_run_is_proven(tmp_path: Path) -> None:
    """Without a lie nothing is found, and dropped, padded and discarded rows are counted."""
    report = audit_ledger(honest_run(tmp_path))
    assert (report.verdict, codes(report)) == ("proven", []), report.to_text()
    assert [(one.first_update, one.stop_update) for one in report.attempts] == [(0, 2), (2, 6)]
    assert (report.updates, report.dropped, report.padding, report.samples) == (6, 22, 1, 47)


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (change(Jump, 0), ["RD305"]),
        (change(Jump, 0, position=46), ["RD305"]),
        (change(Jump, 0, position=24), ["RD305"]),
        (change(Commit, 0, applied=False), ["RD302"]),
        (change(Delivered, 1), ["RD201"]),
        (change(Delivered, 1, start=10), ["RD203", "RD201", "RD204"]),
        (change(Delivered, 2, start=8), ["RD203", "RD201", "RD204"]),
        (change(Delivered, 1, digest=1), ["RD204"]),
        (change(Commit, 1, update=9), ["RD301", "RD106"]),
    ],
)
def test_a_lie_of_one_rank(
    tmp_path: Path, edit: Callable[[list[RankRecord]], list[RankRecord]], expected: list[str]
) -> None:
    """A jump left out or altered, a step or a batch altered, on one rank: found, and nothing else is."""
    ledger = honest_run(tmp_path)
    edit_rank(files(ledger), 1, 1, edit)
    report = audit_ledger(ledger)
    assert report.verdict == "violated"
    assert sorted(codes(report)) == sorted(expected), report.to_text()
    assert "batch" in report.to_text()


def files(ledger: Path) -> Run:
    return cast("Run", SimpleNamespace(path=ledger))


def test_a_jump_left_out_on_all_ranks(tmp_path: Path) -> None:
    """Then the batches after it are not where they should be."""
    ledger = honest_run(tmp_path)
    for rank in range(2):
        edit_rank(files(ledger), 1, rank, change(Jump, 0))
    report = audit_ledger(ledger)
    assert report.verdict == "violated"
    assert {"RD203", "RD401"} <= set(codes(report))


@pytest.mark.parametrize("field", ["samples", "applied", "batches"])
def test_a_start_cursor_that_its_batches_do_not_lead_to(tmp_path: Path, field: str) -> None:
    """A start cursor with a sample, step or batch more or less than the files tell."""
    ledger = honest_run(tmp_path)

    def alter(claim: Claim) -> Claim:
        start = claim.start
        changes = {field: getattr(start, field) - 1}
        if field == "samples":
            changes["dropped"] = start.dropped + 1
        return msgspec.structs.replace(claim, start=msgspec.structs.replace(start, **changes))

    edit_claim(files(ledger), 2, alter)
    report = audit_ledger(ledger)
    assert (report.verdict, "RD401" in codes(report)) == ("violated", True)


def test_a_claim_of_batches_beyond_any_run(tmp_path: Path) -> None:
    """A batch of 2^40 rows on each of two ranks is damage, not arithmetic that overflows."""
    ledger = honest_run(tmp_path)

    edit_claim(files(ledger), 2, lambda claim: msgspec.structs.replace(claim, microbatch=1 << 40))
    with pytest.raises(LedgerCorruptError, match="rows in a batch of all ranks"):
        audit_ledger(ledger)
