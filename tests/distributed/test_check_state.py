"""check_state: a program that was loaded wholly is complete, and each way of spoiling it has its own finding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import StepLR
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from resumable_data.checkpoint import RandomStates, load_checkpoint, save_checkpoint
from resumable_data.loader import ResumableLoader
from resumable_data.validation.state import check_state, check_unchanged
from tests.distributed.ranks import run_ranks

DATA = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """Two equal layers, a tied pair, buffers, one of which no checkpoint holds, and dropout."""

    def __init__(self, is_tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.into, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        if is_tied:
            self.out.weight = self.into.weight
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mask", torch.full((2,), float("-inf")))
        angles = torch.outer(torch.arange(4.0), 10000 ** -torch.linspace(0, 1, 3))
        self.register_buffer("rotary", angles, persistent=False)
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(self.into(x)))))
        out: torch.Tensor = self.out(self.dropout(hidden))
        return out


class Job:
    """A training program."""

    def __init__(self, is_tied: bool = True, **options: Any) -> None:
        self.model = Model(is_tied)
        mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        fully_shard(self.model, mesh=mesh)
        self.average = AveragedModel(Model(is_tied), multi_avg_fn=get_ema_multi_avg_fn(0.9))
        fully_shard(self.average, mesh=mesh)
        self.shadow = {name: one.detach().clone() for name, one in self.model.named_parameters()}
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.loader = ResumableLoader(DATA, **{"global_batch": 6, "microbatch": 3, **options})
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "rng": RandomStates(self.loader, on_change="reseed"),
            "average": self.average,
            "shadow": self.shadow,
        }

    def train(self, num_updates: int) -> None:
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            for microbatch in update:
                (self.model(microbatch.data).square().sum() * microbatch.loss_scale).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            update.commit()
            self.average.update_parameters(self.model)
            for name, parameter in self.model.named_parameters():
                self.shadow[name].lerp_(parameter.detach(), 0.1)

    @property
    def buffer(self) -> torch.Tensor:
        return self.model.get_buffer("mean")

    @property
    def averages(self) -> dict[str, Any]:
        return {"average": self.average, "shadow": self.shadow}

    def moments(self, at: int) -> dict[str, Any]:
        states: list[dict[str, Any]] = list(self.optimizer.state.values())
        return states[at]


def save(path: str) -> None:
    job = Job()
    job.train(3)
    save_checkpoint(path, job.state, loader=job.loader)


def swap_moments(job: Job) -> None:
    first, second = job.moments(0), job.moments(2)
    assert first["exp_avg"].shape == second["exp_avg"].shape
    first["exp_avg"], second["exp_avg"] = second["exp_avg"], first["exp_avg"]


def set_moment(value: float) -> Callable[[Job], object]:
    return lambda job: job.moments(1)["exp_avg_sq"].fill_(value)


def step_thrice(job: Job) -> None:
    for _ in range(3):
        job.scheduler.step()


@torch.no_grad()
def average_anew(job: Job) -> None:
    """As a program does that makes its average from the loaded model, and does not load it."""
    for average, parameter in zip(job.average.parameters(), job.model.parameters(), strict=True):
        average.copy_(parameter)
    job.average.n_averaged.zero_()


def shadow_anew(job: Job) -> None:
    for name, parameter in job.model.named_parameters():
        job.shadow[name].copy_(parameter.detach())


def only_on_last(job: Job) -> None:
    """What one process alone has built differently."""
    if dist.get_rank() == dist.get_world_size() - 1:
        job.model.get_buffer("rotary").mul_(2)


def change_dtype(job: Job) -> None:
    job.state["model"] = job.model.to(torch.bfloat16)


SABOTAGE: dict[str, tuple[Callable[[Job], object], str, str]] = {
    "nothing": (lambda job: None, "complete", ""),
    "moments swapped": (swap_moments, "violated", "RD947"),
    "learning rate changed": (lambda job: job.optimizer.param_groups[0].update(lr=0.2), "violated", "RD948"),
    "weight decay changed": (lambda job: job.optimizer.param_groups[0].update(weight_decay=0.5), "violated", "RD948"),
    "step counter off by one": (lambda job: job.moments(0)["step"].add_(1), "violated", "RD949"),
    "all step counters off by one": (
        lambda job: [state["step"].add_(1) for state in job.optimizer.state.values()],
        "violated",
        "RD949",
    ),
    "scheduler one update ahead": (lambda job: job.scheduler.step(), "violated", "RD949"),
    "scheduler counting microbatches": (step_thrice, "violated", "RD948"),
    "scale lost": (lambda job: setattr(job.scaler, "_init_scale", 1.0), "violated", "RD948"),
    "a moment that is not a number": (set_moment(float("nan")), "violated", "RD951"),
    "a zeroed moment": (set_moment(0.0), "violated", "RD952"),
    "a bit of a weight": (lambda job: job.model.second.bias.data.mul_(1 + 1e-7), "violated", "RD945"),
    "a buffer": (lambda job: job.buffer.add_(1), "violated", "RD945"),
    "another rotary base": (lambda job: job.model.get_buffer("rotary").pow_(1.01), "violated", "RD959"),
    "another rotary cache on one process": (only_on_last, "violated", "RD959"),
    "a longer rotary cache": (
        lambda job: setattr(job.model, "rotary", job.model.get_buffer("rotary").repeat(2, 1)),
        "complete",
        "RD960",
    ),
    "an average made anew": (average_anew, "violated", "RD945"),
    "an average without its count": (lambda job: job.average.n_averaged.zero_(), "violated", "RD945"),
    "an average lost": (lambda job: job.state.pop("average"), "violated", "RD941"),
    "a shadow made anew": (shadow_anew, "violated", "RD961"),
    "a shadow lost": (lambda job: job.state.pop("shadow"), "violated", "RD941"),
    "another dtype": (change_dtype, "complete", "RD944"),
    "random states lost": (lambda job: job.state.pop("rng"), "violated", "RD954"),
    "scaler lost": (lambda job: job.state.pop("scaler"), "violated", "RD941"),
    "a part that was not saved": (lambda job: job.state.update(more={"value": 1}), "violated", "RD942"),
    "cursor one update ahead": (lambda job: next(iter(job.loader.updates())).commit(), "violated", "RD949"),
    "other modes": (lambda job: torch.set_float32_matmul_precision("high"), "complete", "RD955"),
}


ONE_OF_EACH = list({code: name for name, (_, _, code) in reversed(SABOTAGE.items())}.values())
"""The first one that leads to each code."""


def sabotage(path: str, names: list[str]) -> dict[str, tuple[str, str, str]]:
    """The verdict, the codes and the text of each."""
    found = {}

    def check(name: str, job: Job) -> None:
        report = check_state(path, job.state, job.loader)
        found[name] = (report.verdict, " ".join(one.code for one in report.findings), report.to_text())
        torch.set_float32_matmul_precision("highest")

    for name in names:
        job, spoil = Job(), SABOTAGE[name][0]
        load_checkpoint(path, job.state, loader=job.loader)
        spoil(job)
        check(name, job)
    job = Job()
    load_checkpoint(path, job.averages | {"model": job.model}, loader=job.loader, allow={"only_in_checkpoint"})
    check("weights only", job)
    job = Job(is_tied=False)
    load_checkpoint(path, {"model": job.model}, loader=job.loader, allow={"only_in_checkpoint"})
    check("untied", job)
    job = Job(global_batch=3)
    load_checkpoint(path, job.state, loader=job.loader, allow={"global_batch"})
    check("global batch halved", job)
    return found


@pytest.mark.parametrize(
    ("num_ranks", "names"),
    [
        pytest.param(2, ONE_OF_EACH, id="2, one of each"),
        pytest.param(2, list(SABOTAGE), marks=pytest.mark.slow, id="2, all"),
        pytest.param(3, list(SABOTAGE), marks=pytest.mark.slow, id="3, all"),
    ],
)
def test_each_sabotage_has_its_finding(tmp_path: Path, num_ranks: int, names: list[str]) -> None:
    """Saved by 2 processes; a clean load is complete, on any number of them."""
    run_ranks(save, 2, str(tmp_path / "a"))
    expected = {name: SABOTAGE[name][1:] for name in names} | {
        "weights only": ("warm start", "RD950"),
        "untied": ("violated", "RD953"),
        "global batch halved": ("violated", "RD956"),
    }
    for found in run_ranks(sabotage, num_ranks, str(tmp_path / "a"), names):
        assert found.keys() == expected.keys()
        for name, (verdict, code) in expected.items():
            assert found[name][0] == verdict, (name, found[name][2])
            assert code in found[name][1], (name, found[name][2])
        assert found["nothing"][1] == ""
        if "an average made anew" in names:
            assert "that of model.first.weight" in found["an average made anew"][2]


def unchanged(_: str) -> list[str]:
    job = Job()
    job.train(1)

    def forward_and_backward() -> None:
        job.model(DATA[:2]).sum().backward()

    def moves_a_buffer() -> None:
        job.buffer.add_(1)

    return [one.where for act in (forward_and_backward, moves_a_buffer) for one in check_unchanged(job.state, act)]


def test_nothing_changes_before_a_step() -> None:
    """A forward and backward leaves all as it was; what writes to a buffer is named."""
    assert run_ranks(unchanged, 2, "") == [["model.mean"]] * 2
