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

from resumable_data.checkpoint import RandomStates, load_checkpoint, save_checkpoint
from resumable_data.loader import ResumableLoader
from resumable_data.validation.state import check_state, check_unchanged
from tests.distributed.ranks import run_ranks

DATA = torch.randn(60, 6, generator=torch.Generator().manual_seed(1))


class Model(nn.Module):
    """Two equal layers, a tied pair, a buffer and dropout."""

    def __init__(self, is_tied: bool = True) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 6)
        self.into, self.out = nn.Linear(6, 6, bias=False), nn.Linear(6, 6, bias=False)
        if is_tied:
            self.out.weight = self.into.weight
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mask", torch.full((2,), float("-inf")))
        self.dropout = nn.Dropout(0.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.second(torch.relu(self.first(self.into(x)))))
        out: torch.Tensor = self.out(self.dropout(hidden))
        return out


class Job:
    """A training program."""

    def __init__(self, is_tied: bool = True, **options: Any) -> None:
        self.model = Model(is_tied)
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
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
        }

    def train(self, num_updates: int) -> None:
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            for microbatch in update:
                (self.model(microbatch.data).square().sum() * microbatch.loss_scale).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            update.commit()

    @property
    def buffer(self) -> torch.Tensor:
        return self.model.get_buffer("mean")

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
    "another dtype": (change_dtype, "complete", "RD944"),
    "random states lost": (lambda job: job.state.pop("rng"), "violated", "RD954"),
    "scaler lost": (lambda job: job.state.pop("scaler"), "violated", "RD941"),
    "a part that was not saved": (lambda job: job.state.update(more={"value": 1}), "violated", "RD942"),
    "cursor one update ahead": (lambda job: next(iter(job.loader.updates())).commit(), "violated", "RD949"),
    "other modes": (lambda job: torch.set_float32_matmul_precision("high"), "complete", "RD955"),
}


def sabotage(path: str) -> dict[str, tuple[str, str, str]]:
    """The verdict, the codes and the text of each."""
    found = {}

    def check(name: str, job: Job) -> None:
        report = check_state(path, job.state, job.loader)
        found[name] = (report.verdict, " ".join(one.code for one in report.findings), report.to_text())
        torch.set_float32_matmul_precision("highest")

    for name, (spoil, _, _) in SABOTAGE.items():
        job = Job()
        load_checkpoint(path, job.state, loader=job.loader)
        spoil(job)
        check(name, job)
    job = Job()
    load_checkpoint(path, {"model": job.model}, loader=job.loader, allow={"only_in_checkpoint"})
    check("weights only", job)
    job = Job(is_tied=False)
    load_checkpoint(path, {"model": job.model}, loader=job.loader, allow={"only_in_checkpoint"})
    check("untied", job)
    job = Job(global_batch=3)
    load_checkpoint(path, job.state, loader=job.loader, allow={"global_batch"})
    check("global batch halved", job)
    return found


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_each_sabotage_has_its_finding(tmp_path: Path, num_ranks: int) -> None:
    """Saved by 2 processes; a clean load is complete, on any number of them."""
    run_ranks(save, 2, str(tmp_path / "a"))
    expected = {name: (verdict, code) for name, (_, verdict, code) in SABOTAGE.items()} | {
        "weights only": ("warm start", "RD950"),
        "untied": ("violated", "RD953"),
        "global batch halved": ("violated", "RD956"),
    }
    for found in run_ranks(sabotage, num_ranks, str(tmp_path / "a")):
        assert found.keys() == expected.keys()
        for name, (verdict, code) in expected.items():
            assert found[name][0] == verdict, (name, found[name][2])
            assert code in found[name][1], (name, found[name][2])
        assert found["nothing"][1] == ""


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
