"""What the demo says about its two runs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

from resumable_data.audit import Bounds
from resumable_data.cli.demo_corpus import build_corpus
from resumable_data.cli.demo_report import (
    LOSS_TOLERANCE,
    Outcome,
    failures,
    largest_difference,
    read_outcome,
    report,
)
from resumable_data.packing import PackedTokens
from resumable_data.sources import open_tokens
from tests.packed_jobs import PackedJob

LOSSES = {update: 3.0 - update / 10 for update in range(5)}


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    """Some 50 rows of 256 tokens."""
    return build_corpus(tmp_path, 12_000)[0]


def make_job(tokens: Path, num_replicas: int, out: Path) -> PackedJob:
    packed = PackedTokens(open_tokens(tokens), sequence_length=256)
    return PackedJob(packed, num_replicas, global_batch=10, microbatch=3, epochs=1, ledger=out / "ledger")


@pytest.fixture
def interrupted(tmp_path: Path, tokens: Path) -> Outcome:
    """Rows in 5 updates: on 2 ranks, stopped in the third one, then on 1."""
    out = tmp_path / "interrupted"
    with make_job(tokens, 2, out) as job:
        job.train(2)
        state = job.save()
        job.microbatch()
    with make_job(tokens, 1, out) as job:
        job.load(state)
        job.train()
        (out / "cursor.json").write_bytes(job.agree().to_json())
    return read_outcome(out, tokens=tokens, stages=[2, 1], losses=LOSSES)


@pytest.fixture
def control(tmp_path: Path, tokens: Path) -> Outcome:
    """The same on 2 ranks, not stopped."""
    out = tmp_path / "control"
    with make_job(tokens, 2, out) as job:
        job.train()
        (out / "cursor.json").write_bytes(job.agree().to_json())
    return read_outcome(out, tokens=tokens, stages=[2], losses=LOSSES)


def test_runs_that_agree_have_no_failures(
    interrupted: Outcome, control: Outcome, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two exact runs of the same rows leave nothing to complain about, and are shown side by side."""
    assert report(interrupted, control) == []
    shown = capsys.readouterr().out
    assert re.search(r"^tokens of documents +(1[12]\d{3}) +\1$", shown, re.MULTILINE)
    assert " 2 -> 1 " in shown
    assert "6 + 0 = 6" in shown
    assert shown.count(control.digest) == 2
    assert len(control.digest) == 32


def test_kill_that_discards_nothing_is_no_demonstration(interrupted: Outcome, control: Outcome) -> None:
    """The demo fails if its kill did not hit an unfinished update."""
    attempts = [msgspec.structs.replace(attempt, discarded=Bounds(0, 0)) for attempt in interrupted.ledger.attempts]
    changed = msgspec.structs.replace(interrupted.ledger, attempts=tuple(attempts))
    assert failures(replace(interrupted, ledger=changed), control) == [
        "a kill discarded nothing, so it did not happen in mid-update"
    ]


@pytest.mark.parametrize("count", ["replayed", "omitted"])
def test_sample_replayed_or_omitted_fails(count: str, interrupted: Outcome, control: Outcome) -> None:
    """A count that may be other than 0 is a failure of its own."""
    changed = msgspec.structs.replace(interrupted.ledger, **{count: Bounds(0, 1)})
    (failure,) = failures(replace(interrupted, ledger=changed), control)
    assert failure.startswith("the interrupted run replayed")


def test_verdict_other_than_proven_fails(interrupted: Outcome, control: Outcome) -> None:
    """An audit that is not sure is a failure, and is shown whole."""
    changed = msgspec.structs.replace(control.proof, verdict="unproven")
    (failure,) = failures(interrupted, replace(control, proof=changed))
    assert failure.startswith("the audit of the control run's cursor says unproven:\nUNPROVEN")


def test_other_coverage_fails(interrupted: Outcome, control: Outcome) -> None:
    """Runs that were trained on other samples are told apart by their digests."""
    span = control.cursor.coverage[0]
    other = msgspec.structs.replace(span, lanes=(span.lanes[0], span.lanes[1] ^ 1))
    changed = msgspec.structs.replace(control.cursor, coverage=(other,))
    (failure,) = failures(interrupted, replace(control, cursor=changed))
    assert failure.startswith("the coverage digests of both runs differ")


def test_launches_that_did_not_happen_fail(interrupted: Outcome, control: Outcome) -> None:
    """The ledger must show the launches that the demo made."""
    (failure,) = failures(replace(interrupted, stages=[3, 1]), control)
    assert failure == "the interrupted run's ledger shows launches on [2, 1] processes, not on [3, 1]"


@pytest.mark.parametrize("losses", [{**LOSSES, 3: 2.7001}, {**LOSSES, 3: float("nan")}, {0: 3.0}, {}])
def test_other_losses_fail(losses: dict[int, float], interrupted: Outcome, control: Outcome) -> None:
    """A loss beyond the tolerance, one that is no number, and one that is missing are failures."""
    (failure,) = failures(replace(interrupted, losses=losses), control)
    assert failure.startswith("the losses of both runs differ by ")


def test_largest_difference_is_relative() -> None:
    """The difference is measured against the control's loss, over all updates."""
    assert largest_difference({0: 2.0, 1: 4.0}, {0: 2.0, 1: 4.0}) == 0
    assert largest_difference({0: 2.0, 1: 4.4}, {0: 2.0, 1: 4.0}) == pytest.approx(0.1)
    assert LOSS_TOLERANCE < 1e-4
