"""Jobs of several models and optimizers: which is trained, what is compared, and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import resumable_data as rd
from resumable_data.validation import Context, Job, OptimizerStep, Verdict
from tests.unit.validation.rehearsal.moves import Build, failed, move, save_and_record

DATA = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))


@dataclass
class Parts:
    """A model with an average, a teacher, and an optimizer for each of its layers."""

    context: Context

    def __post_init__(self) -> None:
        torch.manual_seed(1)
        self.model = nn.Sequential(nn.Linear(4, 6), nn.Linear(6, 1))
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        self.teacher = nn.Linear(4, 1).requires_grad_(False)
        self.first = torch.optim.AdamW(self.model[0].parameters(), lr=1e-2)
        self.second = torch.optim.Adam(self.model[1].parameters(), lr=1e-3)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.second, 2)
        self.loader = rd.ResumableLoader(DATA, global_batch=8, microbatch=4, ledger=self.context.ledger)

    def accumulate(self, microbatch: rd.Microbatch) -> torch.Tensor:
        losses = (self.model(microbatch.data) - self.teacher(microbatch.data)).square().squeeze(1)
        loss: torch.Tensor = (losses * microbatch.weights).sum() * microbatch.loss_scale
        loss.backward()
        return loss

    def step(self, optimizer_step: OptimizerStep) -> None:
        with optimizer_step():
            self.first.step()
            self.second.step()
        self.scheduler.step()
        self.model.zero_grad()
        self.average.update_parameters(self.model)

    def job(self, *others: str) -> Job:
        names = ("average", "teacher", "model", "first", "second", "scheduler", *others)
        job = Job(
            state={name: getattr(self, name) for name in names},
            loader=self.loader,
            accumulate=self.accumulate,
            step=self.step,
        )
        job.traced_optimizer = "first"
        return job


def build(context: Context) -> Job:
    return Parts(context).job()


def spoiled(spoil: Callable[[Parts], object]) -> Build:
    def made(context: Context) -> Job:
        parts = Parts(context)
        job = parts.job()

        def load(path: Path) -> None:
            rd.load_checkpoint(path, job.state, loader=job.loader)
            with torch.no_grad():
                spoil(parts)

        job.load = load
        return job

    return made


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    save_and_record(build, folder)
    return folder


def test_the_model_is_that_of_the_optimizers(tmp_path: Path) -> None:
    """An average and a frozen model beside it, before or after it, are not what is trained."""
    parts = Parts(Context(folder=tmp_path))
    job = parts.job()
    assert job.model is parts.model
    assert (job.optimizer, job.scheduler) == (parts.first, parts.scheduler)
    job.traced_optimizer = "second"
    assert job.optimizer is parts.second
    assert [*job.optimizers] == ["first", "second"]


def test_all_of_them_are_promoted_together(run: Path) -> None:
    """And the verdict says of which ones a trace tells nothing."""
    verdict = move(build, run)
    assert verdict.verdict == "promote", verdict.to_text()
    assert any("beside the one that is trained" in one for one in verdict.not_proven)
    counters = verdict.check("counters")
    assert counters is not None
    assert "first at 4, second at 4" in counters.summary


def add_one(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.add_(1)


SPOILED: dict[str, tuple[Callable[[Parts], object], str, str]] = {
    "average begun anew": (
        lambda parts: parts.average.module.load_state_dict(parts.model.state_dict()),
        "state",
        "RD945",
    ),
    "count of averages": (lambda parts: add_one(parts.average.n_averaged), "state", "RD945"),
    "another teacher": (lambda parts: add_one(parts.teacher.bias), "state", "RD945"),
    "moments of the optimizer that is not traced": (
        lambda parts: add_one(parts.second.state[[*parts.model.parameters()][-1]]["exp_avg"]),
        "state",
        "RD946",
    ),
}


@pytest.mark.parametrize("name", SPOILED)
def test_what_is_wrong_with_any_of_them_is_found(run: Path, name: str) -> None:
    """Also with those that are not trained, by the digests of their tensors."""
    spoil, check, code = SPOILED[name]
    found = failed(move(spoiled(spoil), run))
    assert list(found) == [check]
    assert code in found[check]


def test_an_optimizer_that_does_not_step_is_found(run: Path) -> None:
    """The trace holds the counters of one; the rehearsal asks all of them."""

    def made(context: Context) -> Job:
        parts = Parts(context)
        job, step = parts.job(), parts.step

        def without(optimizer_step: OptimizerStep) -> None:
            parts.model[1].zero_grad()
            step(optimizer_step)

        job.step = without
        return job

    assert "RD986" in failed(move(made, run))["counters"]


def refused(folder: Path, change: Callable[[Parts, Job], object]) -> Verdict:
    def made(context: Context) -> Job:
        parts = Parts(context)
        job = parts.job()
        change(parts, job)
        return job

    verdict = move(made, folder)
    assert list(failed(verdict)) == ["build"], verdict.to_text()
    return verdict


def no_name(parts: Parts, job: Job) -> None:
    job.traced_optimizer = None


def unknown(parts: Parts, job: Job) -> None:
    job.traced_optimizer = "third"


def two_trained(parts: Parts, job: Job) -> None:
    job.state["other"] = torch.optim.SGD(parts.teacher.requires_grad_().parameters())


def of_no_model(parts: Parts, job: Job) -> None:
    del job.state["model"]


REFUSED: dict[str, tuple[Any, str]] = {
    "several, none named": (no_name, "['first', 'second'], and None named"),
    "a name that is not there": (unknown, "'third' named"),
    "two models are trained": (two_trained, "expected a job that trains one model"),
    "the model is not in the state": (of_no_model, "expected one model in the state that has the parameters"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(run: Path, name: str) -> None:
    """Before anything is loaded, with what is expected."""
    change, said = REFUSED[name]
    text = " ".join(refused(run, change).to_text().split())
    assert said in text
