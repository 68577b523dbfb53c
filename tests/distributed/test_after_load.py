"""What load_checkpoint holds a program to besides its keys: tied weights, casts, and what counts its steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import StepLR

from resumable_data.checkpoint import Loaded, load_checkpoint, save_checkpoint
from resumable_data.errors import CheckpointError
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks

DATA = torch.arange(120.0).reshape(24, 5) / 120


class Tied(nn.Module):
    """Two layers that share a weight, or have one each."""

    def __init__(self, is_tied: bool, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.encode, self.decode = nn.Linear(5, 5, bias=False), nn.Linear(5, 5, bias=False)
        if is_tied:
            self.decode.weight = self.encode.weight
        self.to(dtype)
        fully_shard(self, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.decode(torch.relu(self.encode(x)))
        return out


def whole(layer: nn.Linear) -> torch.Tensor:
    """A copy of a sharded weight."""
    weight = layer.weight
    assert isinstance(weight, DTensor)
    return weight.full_tensor().clone()


class Lossy:
    """A part that takes over something else than it was given."""

    def __init__(self, dtype: torch.dtype, loses: bool = False) -> None:
        self.values, self.loses = torch.linspace(0, 1, 9).to(dtype), loses

    def state_dict(self) -> dict[str, Any]:
        return {"values": self.values}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.values = state["values"] * (not self.loses)


def attempt(path: str, state: dict[str, Any], **options: Any) -> str:
    """The allowances that were needed, or the error."""
    try:
        loaded: Loaded = load_checkpoint(path, state, **options)
    except CheckpointError as error:
        return str(error)
    return f"needed {loaded.allowances}"


def ties_and_casts(root: str) -> dict[str, str]:
    found = {}
    save_checkpoint(f"{root}/tied", {"model": Tied(is_tied=True)})
    save_checkpoint(f"{root}/untied", {"model": Tied(is_tied=False)})
    model = Tied(is_tied=True)
    before = whole(model.encode)
    found["untied into tied"] = attempt(f"{root}/untied", {"model": model})
    assert torch.equal(whole(model.encode), before)
    found["tied into tied"] = attempt(f"{root}/tied", {"model": model})
    found["tied into untied"] = attempt(f"{root}/tied", {"model": Tied(is_tied=False)})
    half = Tied(is_tied=False, dtype=torch.bfloat16)
    found["cast"] = attempt(f"{root}/tied", {"model": half}, allow={"dtype"})
    assert torch.equal(whole(half.decode), before.bfloat16())
    save_checkpoint(f"{root}/values", {"part": Lossy(torch.float32)})
    for loses in (False, True):
        part = Lossy(torch.float16, loses)
        found[f"cast, loses {loses}"] = attempt(f"{root}/values", {"part": part}, allow="dtype")
    return found


def test_ties_and_casts(tmp_path: Path) -> None:
    """Tied weights whose entries differ are refused before anything is read; a cast is compared with the files."""
    for found in run_ranks(ties_and_casts, 3, str(tmp_path)):
        assert "found different ones of model.encode.weight and model.decode.weight" in found.pop("untied into tied")
        lost = found.pop("cast, loses True")
        assert "expected tensors of another type to be the saved ones, cast; found 1 of 1 that are not" in lost
        assert found == {
            "tied into tied": "needed ()",
            "tied into untied": "needed ()",
            "cast": "needed ('dtype',)",
            "cast, loses False": "needed ('dtype',)",
        }


class Job:
    """A model with all that counts its steps."""

    def __init__(self) -> None:
        self.model = Tied(is_tied=False)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler = StepLR(self.optimizer, 2)
        self.loader = ResumableLoader(DATA, global_batch=6, microbatch=6)
        self.state = {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler}

    def train(self, num_updates: int, *, commits_last: bool = True, applied: bool = True) -> None:
        """Train, and count in each of the three."""
        for at, update in zip(range(num_updates), self.loader.updates(), strict=False):
            for microbatch in update:
                self.model(microbatch.data).square().sum().backward()
            if applied:
                self.optimizer.step()
                self.scheduler.step()
            self.optimizer.zero_grad()
            if commits_last or at < num_updates - 1:
                update.commit(applied=applied)


def counters(root: str) -> dict[str, str]:
    found = {}
    for name in ("good", "skipped", "before commit", "one more", "no scheduler step", "per epoch"):
        job = Job()
        job.train(3, commits_last=name != "before commit")
        if name == "skipped":
            job.train(1, applied=False)
        elif name == "one more":
            list(job.optimizer.state.values())[1]["step"] += 1
        elif name == "no scheduler step":
            job.scheduler.last_epoch -= 1
        elif name == "per epoch":
            job.scheduler.last_epoch = 0
        save_checkpoint(f"{root}/{name}", job.state, loader=job.loader)
        job = Job()
        found[name] = attempt(f"{root}/{name}", job.state, loader=job.loader)
        if "needed" not in found[name]:
            job = Job()
            allowed = attempt(f"{root}/{name}", job.state, loader=job.loader, allow="step_counters")
            assert allowed == "needed ('step_counters',)", allowed
    return found


def test_what_counts_steps_must_agree(tmp_path: Path) -> None:
    """Optimizers among their parameters and with the cursor, schedules that count updates too; else it is refused."""
    for found in run_ranks(counters, 2, str(tmp_path)):
        assert {found[name] for name in ("good", "skipped", "per epoch")} == {"needed ()"}
        assert (
            "optimizer: stepped 3 times, and 2 applied updates are committed; scheduler: at 3" in found["before commit"]
        )
        assert "optimizer: its parameters were stepped 3, 4 times" in found["one more"]
        assert "found scheduler: at 2, and 3 updates are committed, 3 applied." in found["no scheduler step"]


OPTIMIZERS: dict[str, Any] = {
    "adamw": lambda parameters: torch.optim.AdamW(parameters, lr=0.1),
    "nadam": lambda parameters: torch.optim.NAdam(parameters, lr=0.1),
    "adagrad": lambda parameters: torch.optim.Adagrad(parameters, lr=0.1),
    "sgd": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
}


def saved_before_the_first_step(root: str) -> None:
    """What is trained after a save, or a load, of an optimizer that was never stepped is what is trained without."""
    for name, make in OPTIMIZERS.items():
        weights = []
        for how in ("alone", "saved", "loaded", "failed"):
            job = Job()
            job.optimizer = job.state["optimizer"] = make(job.model.parameters())
            job.scheduler = job.state["scheduler"] = StepLR(job.optimizer, 2)
            if how == "saved":
                save_checkpoint(f"{root}/{name}", job.state, loader=job.loader, checksums="digest")
            elif how == "loaded":
                assert attempt(f"{root}/{name}", job.state, loader=job.loader) == "needed ()"
            elif how == "failed":
                refusal = attempt(f"{root}/{name}", {**job.state, "more": 1}, loader=job.loader)
                assert "only_in_program" in refusal
            # Adagrad makes its state when it is made; SGD's holds no count of steps, and momentum of zero, as if new
            if name != "adagrad" and (name, how) != ("sgd", "loaded"):
                assert not job.optimizer.state, (name, how)
            job.train(3)
            weights.append(whole(job.model.encode))
        assert all(torch.equal(weights[0], one) for one in weights[1:]), name


def test_an_optimizer_saved_before_its_first_step(tmp_path: Path) -> None:
    """Torch describes such an optimizer by stepping it; that step is not in the checkpoint, nor in the program."""
    run_ranks(saved_before_the_first_step, 2, str(tmp_path))
