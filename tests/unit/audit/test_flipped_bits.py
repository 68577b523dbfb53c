"""Bits of every file of a ledger, flipped one at a time: none may leave a report that says "proven"."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from resumable_data.audit import audit_ledger
from resumable_data.errors import LedgerError, UsageError
from resumable_data.ledger.layout import CLAIM_NAME
from resumable_data.ledger.reader import read_claim, read_rank
from tests.unit.audit.simulator import Run
from tests.unit.audit.test_clean_histories import assert_clean, make_recipe

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = "the run's secret"
OPTIONS = [{"ids": "full"}, {"key": SECRET, "fold_rows": 4, "num_peers": 1}]


def small_run(path: Path, **options: Any) -> Run:
    """2 ranks, killed after an agreement and in the middle of an update, then 3 ranks that close their files."""
    run = Run(path / "ledger", make_recipe(13, 7, "pad"), **options)
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(1)
    saved = run.checkpoint(is_complete=True)
    run.deliver(stop_after=1)
    run.kill()
    run.num_peers = 0
    run.launch(saved, num_replicas=3, microbatch=3)
    run.train(1)
    run.rewind()
    run.close()
    assert_clean(run, audit_ledger(run.path, key=SECRET))
    return run


def flips(file: Path, step: int = 1) -> Iterator[int]:
    """Flip one bit after another, and put the file back at the end; the number of the bit that is flipped."""
    good = file.read_bytes()
    with open(file, "r+b", buffering=0) as opened:
        for bit in range(0, 8 * len(good), step):
            opened.seek(bit // 8)
            opened.write(bytes([good[bit // 8] ^ 1 << bit % 8]))
            yield bit
            opened.seek(bit // 8)
            opened.write(good[bit // 8 : bit // 8 + 1])
    assert file.read_bytes() == good


def files_of(run: Run) -> list[Path]:
    return sorted(path for path in run.path.rglob("*") if path.is_file())


def is_caught(run: Run) -> bool:
    """Whether the audit refuses the ledger, or does not call it proven."""
    try:
        return audit_ledger(run.path, key=SECRET).verdict != "proven"
    except (LedgerError, UsageError):
        return True


def is_refused(file: Path) -> bool:
    """Whether a file cannot be read, by the readers that the audit reads it with."""
    try:
        read_claim(file) if file.name == CLAIM_NAME else read_rank(file)
    except LedgerError:
        return True
    return False


# An odd step comes to each of a byte's eight bits.
@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_every_flipped_bit_is_caught(tmp_path: Path, options: dict[str, Any], step: int) -> None:
    """Each bit of each claim and rank file makes the file unreadable, or else the ledger unproven."""
    run = small_run(tmp_path, **options)
    for file in files_of(run):
        for bit in flips(file, step):
            assert is_refused(file) or is_caught(run), (file.name, bit)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_the_audit_reads_every_file(tmp_path: Path, options: dict[str, Any]) -> None:
    """A file that cannot be read is not passed over."""
    run = small_run(tmp_path, **options)
    for file in files_of(run):
        for bit in flips(file, 397):
            assert is_caught(run), (file.name, bit)


@pytest.mark.slow
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_flipped_bits_are_caught_by_the_audit(tmp_path: Path, options: dict[str, Any]) -> None:
    """The same with a whole audit for every third bit."""
    run = small_run(tmp_path, **options)
    for file in files_of(run):
        for bit in flips(file, 3):
            assert is_caught(run), (file.name, bit)
