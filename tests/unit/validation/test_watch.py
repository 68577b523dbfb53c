"""The watch in one process: what its report says of clean, wrong, interrupted and uncontrolled windows."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from resumable_data.audit import audit_ledger
from resumable_data.cli import main
from resumable_data.errors import DeviationError, TraceError, UsageError
from resumable_data.ledger.layout import WATCH_NAME
from resumable_data.loader import ResumableLoader
from resumable_data.validation import TraceRecorder, Watch, WatchReport, watch

SAMPLES, FEATURES, GLOBAL_BATCH, UPDATES = 40, 4, 6, 4


class Training:
    """A linear model on one process."""

    def __init__(self, ledger: Path | None = None, tail: str = "carry", **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Linear(FEATURES, 1)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.01)
        data = torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))
        self.loader = ResumableLoader(
            data, global_batch=GLOBAL_BATCH, microbatch=4, tail=tail, epochs=2, ledger=ledger, **options
        )

    def watch(self, control: Any, updates: int = UPDATES, **options: Any) -> Watch:
        return watch(self.loader, control, updates, model=self.model, optimizer=self.optimizer, **options)

    def run(self, recorder: Any, num_updates: int, *, forgets: int | None = None) -> None:
        """Train on; of update `forgets` the recorder is not told of the last microbatch."""
        stop = self.loader.cursor.updates + num_updates
        for microbatch in self.loader:
            loss = (self.model(microbatch.data).square().squeeze(1) * microbatch.weights).sum() * microbatch.loss_scale
            if not (microbatch.update == forgets and microbatch.is_last):
                recorder.add(microbatch, loss)
            loss.backward()
            if microbatch.is_last:
                with recorder.optimizer_step():
                    self.optimizer.step()
                self.optimizer.zero_grad()
                self.loader.commit()
                if self.loader.cursor.updates == stop:
                    break


@pytest.fixture
def control(tmp_path: Path) -> Path:
    training = Training()
    with TraceRecorder(tmp_path / "control.jsonl", training.loader, training.model, training.optimizer) as recorder:
        training.run(recorder, UPDATES)
    return tmp_path / "control.jsonl"


def read(path: Path) -> WatchReport:
    report = WatchReport.read(path)
    assert report is not None
    return report


def test_a_clean_window_can_promote(tmp_path: Path, control: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The verdict lies beside the claim, audits and retention of the ledger pass it over, and show names it."""
    training = Training(tmp_path / "ledger")
    watched = training.watch(control)
    training.run(watched, UPDATES)
    report = read(tmp_path / "ledger" / "attempt-000001" / WATCH_NAME)
    assert report == watched.report
    assert (report.verdict, report.can_promote, report.exit_code, report.state) == ("pass", True, 0, "complete")
    assert (report.attempt, report.first_update, report.updates, report.first_alarm) == (1, 0, UPDATES, None)
    assert report.coverage.samples == report.coverage.expected_samples == UPDATES * GLOBAL_BATCH
    assert (report.coverage.updates, report.coverage.first_difference) == (UPDATES, None)
    assert report.comparison is not None
    assert report.throughput.control == report.comparison.control.samples_per_device_s
    assert report.throughput.candidate is not None
    training.run(watched, 3)
    watched.close()
    assert watched.report == report  # nothing more is taken down, and closing it is no interruption
    training.loader.close()
    audit = audit_ledger(tmp_path / "ledger")
    assert (audit.verdict, audit.findings) == ("proven", ())
    assert main(["ledger", "show", str(tmp_path / "ledger")]) == 0
    assert capsys.readouterr().out.rstrip().endswith("1 files, watch: pass after 4 of 4 updates")


def test_once_over_it_costs_nothing(tmp_path: Path, control: Path) -> None:
    """No hook is left on the optimizer, and no microbatch is held."""
    training = Training()
    hooks = len(training.optimizer._optimizer_step_post_hooks), len(training.optimizer._optimizer_step_pre_hooks)
    watched = training.watch(control, path=tmp_path / "watch.json")
    training.run(watched, UPDATES)
    assert (
        len(training.optimizer._optimizer_step_post_hooks),
        len(training.optimizer._optimizer_step_pre_hooks),
    ) == hooks
    training.run(watched, 1)
    assert watched._open is None


def test_what_is_wrong_is_told_at_once(tmp_path: Path, control: Path, caplog: pytest.LogCaptureFixture) -> None:
    """One error is logged, after the update where it is first seen; training goes on, and the window is finished."""
    training = Training()
    watched = training.watch(control, path=tmp_path / "watch.json")
    with caplog.at_level(logging.ERROR):
        training.run(watched, 1)
        assert caplog.records == []
        training.optimizer.param_groups[0]["lr"] = 0.02
        training.run(watched, 1)
        (told,) = caplog.records
        assert "learning_rates of update 1" in told.getMessage()
        assert read(tmp_path / "watch.json").verdict == "deviates"
        training.run(watched, 2)
    assert caplog.records == [told]
    report = read(tmp_path / "watch.json")
    assert (report.verdict, report.can_promote, report.state, report.updates) == ("deviates", False, "complete", 4)
    assert report.first_alarm is not None
    assert (report.first_alarm.update, report.first_alarm.quantity) == (1, "learning_rates")


def test_training_is_ended_where_that_is_asked_for(tmp_path: Path, control: Path) -> None:
    """The error comes after the step and before the commit, and the report is on the disk."""
    training = Training()
    watched = training.watch(control, path=tmp_path / "watch.json", on_violation="raise")
    training.run(watched, 2)
    training.optimizer.param_groups[0]["lr"] = 0.02
    with pytest.raises(DeviationError, match="learning_rates of update 2"):
        training.run(watched, 1)
    assert training.loader.cursor.updates == 2
    assert read(tmp_path / "watch.json").verdict == "deviates"


def test_without_a_control_nothing_can_be_promoted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Coverage and speed are told all the same; so it is where the control is no trace."""
    (tmp_path / "torn").write_text("no trace")
    cases = [(None, ""), (tmp_path / "missing", "cannot read"), (tmp_path / "torn", "expected a trace")]
    for number, (control, said) in enumerate(cases):
        training = Training()
        training.run(training.watch(control, path=tmp_path / f"{number}.json"), UPDATES)
        report = read(tmp_path / f"{number}.json")
        assert (report.verdict, report.can_promote, report.state) == ("no control", False, "complete")
        assert (report.coverage.updates, report.throughput.control) == (UPDATES, None)
        assert said in report.control_error
        assert report.throughput.candidate is not None
    assert len(caplog.records) == 2


def test_a_control_without_these_updates_is_none(tmp_path: Path, control: Path) -> None:
    """A control that was recorded all along is compared from the update that is named, if it has that."""
    training = Training()
    training.run(TraceRecorder(tmp_path / "before", training.loader, training.model, training.optimizer), 2)
    watched = training.watch(control, 2, path=tmp_path / "watch.json", first_update=2)
    training.run(watched, 2)
    assert watched.report is not None
    assert (watched.report.verdict, watched.report.first_update) == ("pass", 2)
    watched = training.watch(control, 2, path=tmp_path / "late.json", first_update=4)
    training.run(watched, 2)
    assert watched.report is not None
    assert watched.report.verdict == "no control"
    assert "expected a control that has update 4" in watched.report.control_error


def test_a_run_that_starts_at_another_update_deviates(tmp_path: Path, control: Path) -> None:
    """A cursor that is ahead of where the control starts is told, and the alarm names it."""
    training = Training()
    training.run(TraceRecorder(tmp_path / "before", training.loader, training.model, training.optimizer), 1)
    watched = training.watch(control, path=tmp_path / "watch.json")
    training.run(watched, 1)
    assert watched.report is not None
    assert watched.report.verdict == "deviates"
    assert watched.report.comparison is not None
    assert "RD901" in {one.code for one in watched.report.comparison.findings}


def test_an_interrupted_window_is_unproven(tmp_path: Path, control: Path) -> None:
    """Closed early, it says so; killed, it stays as it was, running; a load within the window ends it."""
    training = Training(tmp_path / "ledger")
    watched = training.watch(control)
    training.run(watched, 2)
    path = tmp_path / "ledger" / "attempt-000001" / WATCH_NAME
    report = read(path)
    assert (report.verdict, report.can_promote, report.state, report.updates) == ("unproven", False, "running", 2)
    state = training.loader.state_dict()
    training.run(watched, 1)
    training.loader.load_state_dict(state)
    training.run(watched, 2)
    report = read(path)
    assert (report.verdict, report.can_promote, report.state, report.updates) == ("unproven", False, "interrupted", 3)
    assert report.interruption == "update 2 of attempt 2 came after update 2 of 1"
    other = Training()
    with other.watch(control, path=tmp_path / "closed.json") as watched:
        other.run(watched, 1)
    report = read(tmp_path / "closed.json")
    assert (report.verdict, report.state) == ("unproven", "interrupted")
    assert report.interruption == "closed after 1 of 4 updates"


def test_trouble_with_the_file_never_ends_training(
    tmp_path: Path, control: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged once; the report stays in memory."""
    (tmp_path / "file").write_text("")
    training = Training()
    watched = training.watch(control, path=tmp_path / "file" / "watch.json")
    training.run(watched, UPDATES)
    (told,) = caplog.records
    assert "cannot be written" in told.getMessage()
    assert watched.report is not None
    assert watched.report.verdict == "pass"


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
def test_samples_are_held_against_the_order(tmp_path: Path, tail: str) -> None:
    """Over the borders of epochs all is the order's; a microbatch that is missing is told, without any control."""
    training = Training(tail=tail)
    num_updates = training.loader.num_updates
    assert num_updates is not None
    watched = training.watch(None, num_updates, path=tmp_path / "watch.json")
    training.run(watched, num_updates)
    report = watched.report
    assert report is not None
    assert (report.verdict, report.coverage.reason, report.coverage.updates) == ("no control", "", num_updates)
    assert report.coverage.samples == training.loader.cursor.samples
    training = Training(tail=tail)
    watched = training.watch(None, path=tmp_path / "watch.json")
    training.run(watched, UPDATES, forgets=2)
    report = watched.report
    assert report is not None
    assert (report.verdict, report.coverage.first_difference) == ("deviates", 2)
    assert report.coverage.samples < report.coverage.expected_samples


@pytest.mark.parametrize(
    "options",
    [{"path": None}, {"updates": 0}, {"updates": True}, {"on_violation": "stop"}, {"limits": {"loss": 0.5}}],
    ids=str,
)
def test_what_is_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """Arguments without a meaning, and no place for the report, are refused before anything is trained."""
    with pytest.raises(UsageError):
        Training().watch(None, **{"path": tmp_path / "watch.json", **options})


def test_what_is_no_report_is_refused(tmp_path: Path, control: Path) -> None:
    """Another version, or another file, is an error of ours; none is none."""
    assert WatchReport.read(tmp_path / "none") is None
    training = Training()
    training.run(training.watch(control, path=tmp_path / "watch.json"), UPDATES)
    newer = msgspec.json.decode((tmp_path / "watch.json").read_bytes()) | {"schema_version": 2}
    for data in (msgspec.json.encode(newer), b"{}", b"\xff"):
        (tmp_path / "other.json").write_bytes(data)
        with pytest.raises(TraceError, match="expected the report of a watch"):
            WatchReport.read(tmp_path / "other.json")
