"""Samples declared unreadable: which records count, and which no run writes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from resumable_data.audit import audit_ledger
from resumable_data.cursor import Recipe
from resumable_data.order import Shuffle, ids_at
from tests.unit.audit.simulator import Run

if TYPE_CHECKING:
    from pathlib import Path

    from resumable_data.audit import AuditReport


def audit(path: Path, position: int, *, update: int = 1, index: int = 0, shift_id: int = 0) -> AuditReport:
    """A run of 2 ranks, microbatch 2, in which rank 0 declares one sample before the first delivery of update 1.

    That delivery holds positions 6 and 8.
    """
    order = Shuffle(20)
    run = Run(path, Recipe(order=order.describe(), global_batch=6))
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(1)
    sample_id = int(ids_at(order, np.array([position], np.int64))[0]) + shift_id
    run._writers[0].unreadable(update, index, position, sample_id)
    run.train(2)
    run.close()
    return audit_ledger(path)


@pytest.mark.parametrize("position", [6, 8])
def test_a_row_of_the_next_delivery_is_counted(tmp_path: Path, position: int) -> None:
    """A declared sample is listed, and neither omitted nor a violation."""
    report = audit(tmp_path, position)
    assert (report.verdict, report.omitted.high, report.unreadable.high) == ("proven", 0, 1), report.to_text()
    assert [(one.position, one.update, one.attempt, one.rank) for one in report.unreadable_samples] == [
        (position, 1, 1, 0)
    ]
    assert [one.code for one in report.findings] == ["RD209"]


@pytest.mark.parametrize(
    "lie",
    [
        {"position": 7},
        {"position": 10},
        {"position": 4},
        {"position": 6, "update": 0},
        {"position": 6, "index": 1},
        {"position": 6, "shift_id": 1},
    ],
    ids=str,
)
def test_a_record_that_no_run_writes_is_found(tmp_path: Path, lie: dict[str, int]) -> None:
    """Another rank's row, one of another microbatch, another ID: a violation, and nothing is excused by it."""
    report = audit(tmp_path, **lie)
    assert report.verdict == "violated"
    assert [one.code for one in report.findings] == ["RD208"]
    assert report.unreadable.high == 0


def test_a_record_whose_delivery_never_came_is_left_out(tmp_path: Path) -> None:
    """What a kill between the two records leaves is about nothing that was delivered."""
    order = Shuffle(20)
    run = Run(tmp_path, Recipe(order=order.describe(), global_batch=6))
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(1)
    run._writers[0].unreadable(1, 0, 6, 0)
    run.kill()
    report = audit_ledger(tmp_path)
    assert (report.verdict, report.unreadable.high, report.findings) == ("proven", 0, ())
