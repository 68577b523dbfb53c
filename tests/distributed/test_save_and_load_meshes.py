"""save_checkpoint and load_checkpoint across ways of sharding: what one saved, another loads, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from resumable_data.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from resumable_data.errors import MigrationError
from tests.distributed.ranks import run_ranks

FEATURES = 6


class Net(nn.Module):
    """Two layers, with odd sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(FEATURES, 10), nn.Linear(10, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.first(x)))
        return out


def make(kind: str, seed: int) -> tuple[Any, torch.optim.Optimizer]:
    """A model in a wrapper, and its optimizer."""
    torch.manual_seed(seed)
    model: Any = Net()
    size = dist.get_world_size()
    if kind == "ddp":
        model = DistributedDataParallel(model)
    elif kind == "fsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (size,)))
    elif kind == "hsdp":
        fully_shard(model, mesh=init_device_mesh("cpu", (2, size // 2), mesh_dim_names=("replicate", "shard")))
    elif kind == "fsdp x tp":
        mesh = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, mesh["tp"], {"first": ColwiseParallel(), "second": RowwiseParallel()})
        fully_shard(model, mesh=mesh["dp"])
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


Numbers = dict[str, Any]  # lists of exact numbers, by name


def whole(value: torch.Tensor) -> Any:
    return (value.full_tensor() if isinstance(value, DTensor) else value).tolist()


def contents(model: Any, optimizer: torch.optim.Optimizer) -> Numbers:
    """All parameters and moments, whole, by names without the wrapper's."""
    found: Numbers = {}
    for name, parameter in model.named_parameters():
        name = name.removeprefix("module.")
        found[name] = whole(parameter)
        for key, value in optimizer.state[parameter].items():
            found[f"{name}.{key}"] = whole(value)
    return found


def save(path: str, kind: str) -> Numbers:
    model, optimizer = make(kind, 7)
    for step in range(2):
        # the same data on all ranks, so that every kind takes the same steps but for rounding
        model(torch.arange(12.0).reshape(2, FEATURES) / 12 + step).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    save_checkpoint(path, {"model": model, "optimizer": optimizer}, checksums="digest")
    return contents(model, optimizer)


def load(path: str, kind: str, has_other_degree: bool) -> Numbers:
    model, optimizer = make(kind, 8)
    state = {"model": model, "optimizer": optimizer}
    if has_other_degree:
        with pytest.raises(MigrationError, match=r"mesh\.tp: \d in the checkpoint, \d in the program"):
            load_checkpoint(path, state, level="payload")
    load_checkpoint(path, state, level="payload", allow={"mesh"} if has_other_degree else ())
    return contents(model, optimizer)


@pytest.mark.parametrize(
    ("saved_by", "loaded_by"),
    [
        ("fsdp x tp", "ddp"),
        ("hsdp", "fsdp x tp"),
        pytest.param("ddp", "hsdp", marks=pytest.mark.slow),
        pytest.param("fsdp", "fsdp x tp", marks=pytest.mark.slow),
        pytest.param("ddp", "fsdp", marks=pytest.mark.slow),
        pytest.param("fsdp x tp", "fsdp", marks=pytest.mark.slow),
    ],
)
def test_each_way_of_sharding_loads_what_another_saved(tmp_path: Path, saved_by: str, loaded_by: str) -> None:
    """From 4 processes to 4, parameters and moments bit for bit, each digest the same however it is sharded."""
    before = run_ranks(save, 4, str(tmp_path / "a"), saved_by)
    assert verify_checkpoint(tmp_path / "a").verdict == "sound"
    has_other_degree = "fsdp x tp" in (saved_by, loaded_by)
    for found in run_ranks(load, 4, str(tmp_path / "a"), loaded_by, has_other_degree):
        assert found.keys() == before[0].keys()
        for name, value in found.items():
            assert value == before[0][name], name
