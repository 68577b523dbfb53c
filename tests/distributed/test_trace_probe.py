"""A trace's loss, gradient norm and update norm are those of one process, however the model is wrapped."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from resumable_data.errors import DisagreementError
from resumable_data.loader import ResumableLoader
from resumable_data.order import Sequential
from resumable_data.validation import Trace, TraceRecorder
from tests.distributed.ranks import run_ranks

TOLERANCE = 1e-6
SAMPLES, FEATURES, GLOBAL_BATCH, UPDATES = 18, 6, 9, 2
KINDS = ("ddp", "fsdp", "hsdp", "fsdp x tp", "plain")


class Net(nn.Module):
    """Layers with odd sizes; tensor-parallel peers share the first and the last one, and each have the norm."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.first, self.norm, self.second = nn.Linear(FEATURES, 10), nn.LayerNorm(10), nn.Linear(10, 5)
        self.frozen = nn.Parameter(torch.ones(3), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.second(torch.relu(self.norm(self.first(x))))
        return out


def make_data() -> torch.Tensor:
    return torch.randn(SAMPLES, FEATURES, generator=torch.Generator().manual_seed(1))


def row_losses(model: Any, data: torch.Tensor) -> torch.Tensor:
    losses: torch.Tensor = model(data).square().sum(1)
    return losses


def one_process() -> list[tuple[float, float, float]]:
    """Loss and norms of each update, of whole batches in their order, by nothing but torch."""
    model, data = Net(), make_data()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01)
    found = []
    for update in range(UPDATES):
        loss = row_losses(model, data[update * GLOBAL_BATCH : (update + 1) * GLOBAL_BATCH]).mean()
        loss.backward()
        gradient = torch.cat([p.grad.flatten() for p in parameters if p.grad is not None]).double()
        before = torch.cat([p.detach().flatten() for p in parameters]).double()
        optimizer.step()
        optimizer.zero_grad()
        after = torch.cat([p.detach().flatten() for p in parameters]).double()
        found.append((loss.item(), float(gradient.norm()), float((after - before).norm())))
    return found


def wrapped(kind: str) -> tuple[Any, dict[str, Any]]:
    """The model, and what the loader must know of the mesh."""
    model: Any = Net()
    if kind == "ddp":
        return DistributedDataParallel(model), {}
    if kind == "fsdp":
        return fully_shard(model, mesh=init_device_mesh("cpu", (4,))), {}
    if kind == "hsdp":
        axes = ("replicate", "shard")
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
        return fully_shard(model, mesh=mesh), {"mesh": mesh, "data_axes": axes}
    if kind == "fsdp x tp":
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        # the norm needs whole rows, and so each peer has it
        whole_rows = ColwiseParallel(output_layouts=Replicate())
        whole_input = RowwiseParallel(input_layouts=Replicate())
        parallelize_module(model, mesh["tp"], {"first": whole_rows, "second": whole_input})
        return fully_shard(model, mesh=mesh["dp"]), {"mesh": mesh, "data_axes": "dp"}
    return model, {}


def trace_kinds(folder: str) -> None:
    """A trace of each kind."""
    for kind in KINDS:
        model, options = wrapped(kind)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.01)
        data = make_data()
        loader = ResumableLoader(data, order=Sequential(SAMPLES), global_batch=GLOBAL_BATCH, microbatch=2, **options)
        recorder = TraceRecorder(f"{folder}/{kind}.jsonl", loader, model, optimizer)
        for microbatch in loader:
            loss = (row_losses(model, microbatch.data) * microbatch.weights).sum() * microbatch.loss_scale
            recorder.add(microbatch, loss)
            loss.backward()
            if microbatch.is_last:
                if kind == "plain":
                    for parameter in model.parameters():
                        if parameter.grad is not None:
                            dist.all_reduce(parameter.grad)
                            parameter.grad /= dist.get_world_size()
                with recorder.optimizer_step():
                    optimizer.step()
                optimizer.zero_grad()
                loader.commit()
                if loader.cursor.updates == UPDATES:
                    break
        recorder.close()


def test_every_way_of_sharding_traces_what_one_process_does(tmp_path: Path) -> None:
    """On 4 ranks of DDP, FSDP2, HSDP, FSDP2 x TP and none of these, within 1e-6 of one process: elements count once."""
    run_ranks(trace_kinds, 4, str(tmp_path))
    expected = one_process()
    digests = set()
    for kind in KINDS:
        trace = Trace.read(tmp_path / f"{kind}.jsonl")
        assert [record.update for record in trace.updates] == list(range(UPDATES))
        assert trace.header.num_replicas == (2 if kind == "fsdp x tp" else 4)
        assert trace.header.num_devices == 4
        for record, (loss, gradient_norm, update_norm) in zip(trace.updates, expected, strict=True):
            assert math.isclose(record.loss, loss, rel_tol=TOLERANCE), kind
            assert math.isclose(record.gradient_norm, gradient_norm, rel_tol=TOLERANCE), kind
            assert record.update_norm is not None
            assert math.isclose(record.update_norm, update_norm, rel_tol=TOLERANCE), kind
            assert record.samples == GLOBAL_BATCH
            assert record.optimizer_steps == (record.update + 1, record.update + 1)
        digests.add(tuple(record.sample_digest for record in trace.updates))
    assert len(digests) == 1


def disagree(folder: str) -> str:
    """One rank's learning rate is another."""
    model = DistributedDataParallel(Net())
    rank = dist.get_rank()
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=0.01 if rank == 0 else 0.02)
    loader = ResumableLoader(make_data(), global_batch=GLOBAL_BATCH, microbatch=5)
    recorder = TraceRecorder(f"{folder}/trace.jsonl", loader, model, optimizer)
    for microbatch in loader:
        loss = row_losses(model, microbatch.data).sum() * microbatch.loss_scale
        recorder.add(microbatch, loss)
        loss.backward()
        with pytest.raises(DisagreementError) as caught, recorder.optimizer_step():
            optimizer.step()
        return str(caught.value)
    raise AssertionError


def test_ranks_with_other_learning_rates_are_told(tmp_path: Path) -> None:
    """A learning rate that one rank alone has is an error on all of them, and names it."""
    for text in run_ranks(disagree, 2, str(tmp_path)):
        assert "learning rates, loss scale and the scheduler's step" in text
        assert "process 1" in text
