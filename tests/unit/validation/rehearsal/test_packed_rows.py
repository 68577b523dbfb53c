"""Jobs over packed rows, with updates of rows and of tokens: rehearsed, and watched in the run that goes on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from torch import nn

import resumable_data as rd
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.plan.packed_place import PackedPlace
from resumable_data.validation import Context, Job, OptimizerStep, Watch
from tests.packed_jobs import make_oracle, make_packed
from tests.unit.validation.rehearsal.moves import UPDATES, Build, failed, move, save_and_record

LENGTHS = [(7 * document * document + 3 * document) % 29 for document in range(60)]
WORDS, WATCHED = 16, 10
BATCHES = [
    pytest.param({"global_batch": 4}, marks=pytest.mark.slow),
    {"global_batch_tokens": 40},
    pytest.param({"global_batch_tokens": 40, "normalize": "samples"}, marks=pytest.mark.slow),
]


def build_job(batch: dict[str, Any], *, microbatch: int = 3, seed: int = 0) -> Build:
    def build(context: Context) -> Job:
        torch.manual_seed(1)
        model = nn.Sequential(nn.Embedding(WORDS, 4), nn.Linear(4, WORDS))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        packed = make_packed(LENGTHS, seed=seed)
        loader = rd.ResumableLoader(packed, microbatch=microbatch, ledger=context.ledger, **batch)

        def accumulate(microbatch: rd.Microbatch) -> torch.Tensor:
            tokens, labels = microbatch.data["tokens"], microbatch.data["labels"]
            labels = torch.where(labels < 0, labels, labels % WORDS)
            losses = nn.functional.cross_entropy(model(tokens % WORDS).transpose(1, 2), labels, reduction="none")
            # filler rows have no labels, so that weights matter where each row weighs the same alone
            weights = microbatch.weights if batch.get("normalize") == "samples" else torch.ones(len(losses))
            loss: torch.Tensor = (losses.sum(1) * weights).sum() * microbatch.loss_scale
            loss.backward()
            return loss

        def step(optimizer_step: OptimizerStep) -> None:
            with optimizer_step():
                optimizer.step()
            optimizer.zero_grad()

        return Job(state={"model": model, "optimizer": optimizer}, loader=loader, accumulate=accumulate, step=step)

    return build


@dataclass
class Run:
    folder: Path
    batch: dict[str, Any]


@pytest.fixture(scope="module", params=BATCHES, ids=str)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    save_and_record(build_job(request.param), folder)
    return Run(folder, request.param)


def load_at(job: Job, path: Path, *, rows_late: int = 0, seed: int = 0) -> None:
    """Load, and let the loader stand some rows later than it should, or among the rows of another seed."""
    rd.load_checkpoint(path, job.state, allow={"only_in_checkpoint"})
    saved = read_cursor(path)
    position = saved.position + rows_late
    oracle = make_oracle(LENGTHS, seed=seed)
    place = PackedPlace(**oracle.place_after(oracle.run(4)[:position]))
    job.loader.load_state_dict(
        msgspec.structs.replace(
            saved,
            recipe=job.loader.cursor.recipe,
            samples=position,
            offset=position,
            tokens=place.tokens,
            packed=place,
            coverage=(),
        )
    )


def read_cursor(path: Path) -> rd.Cursor:
    manifest = read_manifest(path)
    assert manifest is not None
    cursor = manifest.decode_cursor()
    assert cursor is not None
    return cursor


def load_wrongly(run: Run, *, rows_late: int = 0, seed: int = 0) -> Build:
    def made(context: Context) -> Job:
        job = build_job(run.batch, seed=seed)(context)
        job.load = lambda path: load_at(job, path, rows_late=rows_late, seed=seed)
        return job

    return made


def test_a_clean_move_is_promoted(run: Run) -> None:
    """Rows of the first update, and those of the window, are what documents and order say."""
    verdict = move(build_job(run.batch, microbatch=2), run.folder)
    assert verdict.verdict == "promote", verdict.to_text()
    samples, coverage = verdict.check("samples"), verdict.check("coverage")
    assert samples is not None
    assert coverage is not None
    assert samples.status == coverage.status == "passed"
    assert coverage.summary.count("proven") == 2
    assert verdict.batch is not None
    assert verdict.batch.unit == ("tokens" if "global_batch_tokens" in run.batch else "samples")


def test_a_cursor_one_row_late_is_found(run: Run) -> None:
    """By its place, and by what it reads."""
    found = failed(move(load_wrongly(run, rows_late=1), run.folder))
    assert "RD988" in found["samples"]
    assert "first update" in found


def test_other_rows_are_found(run: Run) -> None:
    """A loader that was made with another seed, and given the counts of the checkpoint, reads other rows."""
    assert "RD984" in failed(move(load_wrongly(run, seed=1), run.folder))["samples"]


def go_on(run: Run, folder: Path, control: Path | None, *, rows_late: int = 0, forgets: int | None = None) -> Any:
    """The report of a watch over the run that goes on; it is not told of the last microbatch of update `forgets`."""
    job = build_job(run.batch, microbatch=2)(Context(folder=folder))
    load_at(job, run.folder / "checkpoints/1", rows_late=rows_late)
    with Forgetful(job.loader, control, job, forgets) as watched:
        for _, _ in zip(range(WATCHED), job.train(watched), strict=False):
            pass
    job.loader.close()
    assert watched.report is not None
    return watched.report


class Forgetful(Watch):
    """A watch that is not told of the last microbatch of one update."""

    def __init__(self, loader: rd.ResumableLoader, control: Path | None, job: Job, forgets: int | None) -> None:
        options: dict[str, Any] = {"repeats": (), "limits": None, "first_update": None, "path": None}
        options |= {"on_violation": "log", "model": job.model, "optimizer": job.optimizer}
        super().__init__(loader, control, WATCHED, **options)
        self._forgets = forgets

    def add(self, microbatch: rd.Microbatch, loss: torch.Tensor | None) -> None:
        if not (microbatch.update == self._forgets and microbatch.is_last):
            super().add(microbatch, loss)


def test_a_clean_run_that_goes_on_can_be_promoted(run: Run, tmp_path: Path) -> None:
    """Its watch finds the rows of all updates in the order, and the control's losses."""
    report = go_on(run, tmp_path, run.folder / "control.jsonl")
    assert (report.verdict, report.can_promote, report.coverage.reason) == ("pass", True, "")
    assert (report.coverage.updates, report.coverage.first_difference) == (WATCHED, None)
    assert report.coverage.samples == report.coverage.expected_samples > 0


def test_a_run_that_goes_on_one_row_late_is_told(run: Run, tmp_path: Path) -> None:
    """At its first update, by the control's samples: the order alone does not know where the run should have begun."""
    report = go_on(run, tmp_path, run.folder / "control.jsonl", rows_late=1)
    assert (report.verdict, report.can_promote, report.coverage.first_difference) == ("deviates", False, None)
    assert report.first_alarm is not None
    assert report.first_alarm.update == UPDATES


def test_rows_that_are_missing_are_told(run: Run, tmp_path: Path) -> None:
    """Without any control, by the order alone."""
    report = go_on(run, tmp_path, None, forgets=UPDATES + 2)
    assert (report.verdict, report.coverage.first_difference) == ("deviates", UPDATES + 2)
    assert report.coverage.samples < report.coverage.expected_samples
