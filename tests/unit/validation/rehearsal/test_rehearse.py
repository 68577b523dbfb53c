"""Rehearsals on one process: what is declared, what is left out, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import resumable_data as rd
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.checkpoint.migration.declaration import Continuity, Declaration
from resumable_data.cli import main
from resumable_data.errors import TraceError, UsageError
from resumable_data.validation import Context, Job, OptimizerStep, Probe, Verdict, rehearse

DATA = torch.randn(400, 4, generator=torch.Generator().manual_seed(0))
BUILD = """
import sys
from tests.unit.validation.rehearsal.test_rehearse import build
"""


def make_job(context: Context, **changes: Any) -> Job:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = rd.ResumableLoader(DATA, **{"global_batch": 8, "microbatch": 4, "ledger": context.ledger, **changes})

    def accumulate(microbatch: rd.Microbatch) -> torch.Tensor:
        losses = model(microbatch.data).square().squeeze(1)
        loss: torch.Tensor = (losses * microbatch.weights).sum() * microbatch.loss_scale
        loss.backward()
        return loss

    def step(optimizer_step: OptimizerStep) -> None:
        with optimizer_step():
            optimizer.step()
        optimizer.zero_grad()

    job = Job(state={"model": model, "optimizer": optimizer}, loader=loader, accumulate=accumulate, step=step)
    job.probe = Probe(DATA[:4], model)
    return job


def build(context: Context) -> Job:
    return make_job(context)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with a checkpoint at update 3, a control and a repeat."""
    folder = tmp_path_factory.mktemp("run")
    job = build(Context(folder=folder))
    for _ in job.train():
        if job.loader.cursor.updates == 3:
            break
    rd.save_checkpoint(folder / "checkpoints/3", job.state, loader=job.loader, probe=job.probe)
    job.loader.close()
    for name in ("control", "repeat"):
        verdict = rehearse(build, folder / "checkpoints/3", record=folder / f"{name}.jsonl")
        assert verdict.verdict == "passed", verdict.to_text()
    return folder


def statuses(verdict: Verdict) -> dict[str, str]:
    return {check.name: check.status for check in verdict.checks}


def move(run: Path, made: Callable[[Context], Job] = build, **options: Any) -> Verdict:
    arguments: dict[str, Any] = {"control": run / "control.jsonl", "repeats": [run / "repeat.jsonl"], **options}
    return rehearse(made, run / "checkpoints/3", **arguments)


def test_running_statistics_do_not_stand_in_the_way(run: Path) -> None:
    """BatchNorm moves its statistics in training: a dry forward and backward leaves no trace of that."""
    assert move(run).verdict == "promote"


def test_without_a_control_nothing_is_promoted(run: Path) -> None:
    """And that is what is said, with the way to get one."""
    verdict = rehearse(build, run / "checkpoints/3")
    assert (verdict.verdict, verdict.exit_code) == ("unproven", 1)
    trace = verdict.check("trace")
    assert trace is not None
    assert [one.code for one in trace.findings] == ["RD987"]
    assert "--record" in verdict.to_text()


def test_a_warm_start_is_a_new_experiment(run: Path) -> None:
    """Weights alone: what is lost is listed, nothing is compared with the control, and nothing is promoted."""

    def made(context: Context) -> Job:
        job = build(context)
        model = {"model": job.state["model"]}
        job.load = lambda path: rd.load_checkpoint(path, model, allow={"only_in_checkpoint"})
        return job

    verdict = move(run, made)
    assert verdict.verdict == "warm start", verdict.to_text()
    assert statuses(verdict)["trace"] == "not run"
    assert verdict.warm_start is not None
    assert any("position" in one for one in verdict.warm_start.lost)
    assert any("optimizer" in one for one in verdict.warm_start.lost)
    cursor = read_manifest(run / "checkpoints/3").decode_cursor()  # type: ignore[union-attr]  # it has one
    assert cursor is not None
    assert verdict.warm_start.run_id == cursor.run_id


@pytest.mark.parametrize(("omitted", "expected"), [(0, "reject"), (2, "reject"), (3, "passed")])
def test_samples_may_be_omitted_as_far_as_was_declared(run: Path, omitted: int, expected: str) -> None:
    """A loader that starts 3 samples late is within a bound of 3, and within none below."""

    def made(context: Context) -> Job:
        job = build(context)

        def load(path: Path) -> None:
            rd.load_checkpoint(path, job.state, loader=job.loader)
            # as a loader that counts what all ranks consumed, and rounds it up
            late = rd.Cursor.from_consumed_samples(rd.Shuffle(400), consumed_samples=27, updates=3, global_batch=8)
            job.loader.load_state_dict(late)

        job.load = load
        return job

    kind = "bounded" if omitted else "exact"
    declaration = Declaration(continuity=Continuity(kind=kind, omitted=omitted))  # type: ignore[arg-type]
    verdict = rehearse(made, run / "checkpoints/3", declaration=declaration)
    check = verdict.check("samples")
    assert check is not None
    assert check.status == ("passed" if expected == "passed" else "failed"), verdict.to_text()
    assert (verdict.verdict == "reject") == (expected == "reject")


def test_another_global_batch_must_be_allowed(run: Path) -> None:
    """It is refused at the load; allowed by name, it passes the check of the batch, and the verdict tells both."""

    def made(context: Context) -> Job:
        return make_job(context, global_batch=12)

    refused = move(run, made)
    assert [check.name for check in refused.failed] == ["load"]
    assert "global_batch" in refused.to_text()
    allowed = rehearse(made, run / "checkpoints/3", allow=["global_batch"])
    assert statuses(allowed)["batch"] == statuses(allowed)["state"] == "passed", allowed.to_text()
    assert "global batch 12 samples, where it was 8 samples" in allowed.to_text()


def test_a_job_that_writes_into_the_run_is_rejected(run: Path) -> None:
    """A ledger of the run is refused before anything is delivered; any other file is found at the end."""
    refused = move(run, lambda context: make_job(context, ledger=run / "ledger"))
    assert [check.name for check in refused.failed] == ["build"]

    def writes(context: Context) -> Job:
        job = build(context)
        job.evaluate = lambda: float((run / "checkpoints/best").write_text("0"))
        return job

    rejected = move(run, writes)
    (run / "checkpoints/best").unlink()
    assert [check.name for check in rejected.failed] == ["untouched"]
    assert "checkpoints/best" in rejected.to_text()


def test_a_schedule_that_moves_in_a_microbatch_is_found_before_any_step(run: Path) -> None:
    """It has moved by then, and nothing may move before a step."""

    def made(context: Context) -> Job:
        job = build(context)
        accumulate = job.accumulate

        def slower(microbatch: rd.Microbatch) -> torch.Tensor | None:
            job.optimizer.param_groups[0]["lr"] *= 0.9
            return accumulate(microbatch)

        job.accumulate = slower
        return job

    assert [check.name for check in move(run, made).failed] == ["unchanged"]


def test_arguments_that_make_no_sense_are_refused(run: Path, tmp_path: Path) -> None:
    """Before anything is built."""
    with pytest.raises(UsageError, match="one of the two"):
        move(run, record=tmp_path / "a")
    with pytest.raises(UsageError, match="there already"):
        rehearse(build, run / "checkpoints/3", record=run / "control.jsonl")
    with pytest.raises(TraceError, match="cannot read"):
        move(run, control=tmp_path / "nothing")
    with pytest.raises(UsageError, match="a limit of loss"):
        move(run, declaration=Declaration(tolerances={"loss": 0.5}))
    no_job = move(run, lambda context: None)  # type: ignore[arg-type, return-value]  # it is wrong
    assert "must return a Job, got NoneType" in no_job.to_text()


def test_the_first_stage_needs_no_torch(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`resumable-data rehearse` says passed of a whole checkpoint, rejects a damaged one, and imports no torch."""
    assert main(["rehearse", "--checkpoint", str(run / "checkpoints/3")]) == 0
    assert capsys.readouterr().out.startswith("PASSED")
    assert main(["rehearse", "--checkpoint", str(run / "nowhere")]) == 3
    code = (
        "import sys; from resumable_data.cli import main;"
        f"code = main(['rehearse', '--json', '--checkpoint', {str(run / 'checkpoints/3')!r}]);"
        "print(code, 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    told, last = done.stdout.splitlines()
    assert last == "0 False"
    verdict = Verdict.from_json(told.encode())
    assert [check.name for check in verdict.checks] == ["files", "manifest"]
    assert verdict.saved is not None


@pytest.mark.slow
def test_the_command_on_one_process(run: Path, tmp_path: Path) -> None:
    """Without torchrun: the verdict, its exit code, and a message in a line for a wrong argument."""
    (tmp_path / "mine.py").write_text(BUILD)
    command = [sys.executable, "-m", "resumable_data.rehearse", "mine.py:build"]
    environment = {**os.environ, "PYTHONPATH": f"{Path(__file__).parents[4]}"}

    def run_it(*options: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [*command, *options],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
            env=environment,
        )

    traces = ["--control", str(run / "control.jsonl"), "--repeat", str(run / "repeat.jsonl")]
    done = run_it("--checkpoint", str(run / "checkpoints/3"), *traces)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert done.stdout.startswith("PROMOTE")
    wrong = run_it()
    assert (wrong.returncode, wrong.stdout) == (2, "")
    assert wrong.stderr.startswith("error: give --checkpoint DIR")
