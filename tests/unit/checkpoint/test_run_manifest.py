"""The run manifest: what it says of live programs, that it is of the checkpoint, and what files alone tell."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import StepLR

import resumable_data as rd
from resumable_data.checkpoint.capture import capture_run
from resumable_data.checkpoint.collective import alone_is_meant
from resumable_data.checkpoint.files.adopt import adopt_checkpoint
from resumable_data.checkpoint.live_digest import gather_digests
from resumable_data.checkpoint.run_manifest import RUN_MANIFEST_NAME, RunManifest, TensorInfo, read_run_manifest
from resumable_data.cli import main
from resumable_data.errors import CheckpointError

DATA = torch.arange(48.0).reshape(24, 2)


class Net(nn.Module):
    """Tied weights, a frozen layer, buffers of both kinds, and a layer that looks across the microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(2, 2).requires_grad_(False)
        self.norm = nn.BatchNorm1d(2)
        self.register_buffer("mask", torch.ones(3, dtype=torch.bool), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.norm(self.b(torch.relu(self.a(x))))
        return out


def make_program() -> tuple[dict[str, Any], rd.ResumableLoader]:
    model = Net()
    optimizer = torch.optim.AdamW(
        [
            {"params": [model.a.weight], "lr": 0.1, "weight_decay": 0.2},
            {"params": list(model.norm.parameters()), "lr": 0.3},
        ]
    )
    loader = rd.ResumableLoader(DATA, global_batch=6, microbatch=2, rank=0, num_replicas=1)
    scheduler = StepLR(optimizer, 2, gamma=0.5)
    for _, update in zip(range(3), loader.updates(), strict=False):
        for microbatch in update:
            model(microbatch.data).square().sum().backward()
        optimizer.step()
        scheduler.step()
        update.commit()
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "note": 1}
    return state, loader


def test_what_a_program_is_made_of() -> None:
    """Parameters, groups by names, the schedule's place, the scaler, the batch equation and the data's place."""
    state, loader = make_program()
    run = RunManifest.from_json(capture_run(state, loader, commit="abc").to_json())
    assert run == capture_run(state, loader, commit="abc")
    model = run.models["model"]
    assert model.kind.endswith("Net")
    assert model.tied == (("a.weight", "b.weight"),)
    assert model.num_parameters == sum(one.numel() for one in state["model"].parameters()) == 14
    assert model.parameters["frozen.bias"] == TensorInfo("float32", (2,), False)
    assert model.buffers["mask"] == TensorInfo("bool", (3,), False)
    assert model.buffers["norm.running_mean"].is_kept
    assert model.batch_statistics == {"norm": "BatchNorm1d"}
    assert model.buffer_digests == gather_digests({"mask": torch.ones(3, dtype=torch.bool)})
    state["model"].mask = torch.ones(3, dtype=torch.bool, device="meta")
    assert capture_run(state, loader).models["model"].buffer_digests == {}
    optimizer = run.optimizers["optimizer"]
    assert [group.parameters for group in optimizer.groups] == [("a.weight",), ("norm.weight", "norm.bias")]
    assert [group.settings["weight_decay"] for group in optimizer.groups] == [0.2, 0.01]
    assert optimizer.steps == (3, 3)
    scheduler = run.schedulers["scheduler"]
    assert (scheduler.position, scheduler.settings["gamma"]) == (3, 0.5)
    assert scheduler.learning_rates == pytest.approx((0.05, 0.15))
    assert run.scalers["scaler"].scale == 8.0
    assert run.other_parts == {"note": "builtins.int"}
    assert run.batch is not None
    assert (run.batch.global_batch, run.batch.microbatch, run.batch.accumulation_steps) == (6, 2, 3)
    assert run.decode_cursor() == loader.cursor
    assert run.environment is not None
    assert run.environment.commit == "abc"
    assert run.unknown == ("autocast", "schedule_unit")


def test_wrappers_do_not_change_names() -> None:
    """Under DDP, compiled or plain, a parameter has the name that the checkpoint gives it."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    try:
        model = Net()
        names = list(capture_run({"model": model}).models["model"].parameters)
        wrapped = capture_run({"model": DistributedDataParallel(model)}).models["model"]
    finally:
        torch.distributed.destroy_process_group()
    assert (list(wrapped.parameters), wrapped.wrapper) == (names, "ddp")


def test_it_is_written_with_each_checkpoint(tmp_path: Path) -> None:
    """And held against the manifest: one that was changed, or is gone, is found."""
    state, loader = make_program()
    rd.save_checkpoint(tmp_path / "a", state, loader=loader)
    run = read_run_manifest(tmp_path / "a")
    assert run is not None
    assert run.optimizers["optimizer"].steps == (3, 3)
    assert rd.verify_checkpoint(tmp_path / "a").verdict == "sound"
    file = tmp_path / "a" / RUN_MANIFEST_NAME
    content = json.loads(file.read_bytes())
    content["batch"]["global_batch"] = 12
    file.write_text(json.dumps(content))
    assert [one.code for one in rd.verify_checkpoint(tmp_path / "a").findings] == ["RD857"]
    file.unlink()
    assert [one.code for one in rd.verify_checkpoint(tmp_path / "a").findings] == ["RD857"]
    given = capture_run(state, loader, commit="given")
    rd.save_checkpoint(tmp_path / "b", state, loader=loader, run=given)
    assert read_run_manifest(tmp_path / "b") == given


def test_one_is_made_of_what_files_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A checkpoint of DCP alone: names, shapes, and the cursor; all else is called unknown."""
    state, loader = make_program()
    from torch.distributed.checkpoint.state_dict import get_state_dict

    model, optimizer = get_state_dict(state["model"], state["optimizer"])
    with alone_is_meant():
        dcp.save({"net": model, "opt": optimizer, "loader": loader}, checkpoint_id=tmp_path / "a", no_dist=True)
    run = adopt_checkpoint(tmp_path / "a")
    assert run.models.keys() == {"net"}
    assert run.models["net"].parameters["a.weight"] == TensorInfo("float32", (2, 2), True)
    assert not run.models["net"].parameters["frozen.weight"].is_kept
    assert run.optimizers.keys() == {"opt"}
    assert run.decode_cursor() == loader.cursor
    assert {"schedulers", "environment", "models.net.kind", "optimizers.opt.groups"} <= set(run.unknown)
    assert "cursor" not in run.unknown
    assert main(["manifest", "show", str(tmp_path / "a")]) == 3
    assert main(["manifest", "adopt", str(tmp_path / "a")]) == 0
    assert "not known:" in capsys.readouterr().out
    assert main(["manifest", "show", str(tmp_path / "a"), "--json"]) == 0
    assert RunManifest.from_json(capsys.readouterr().out.encode()) == run
    assert main(["manifest", "adopt", str(tmp_path / "a")]) == 2
    assert rd.verify_checkpoint(tmp_path / "a").verdict == "sound"


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version": 9}', b'{"version": 1, "what": 2}', b"[" * 9999, b"\xff"])
def test_a_damaged_one_is_our_error(tmp_path: Path, data: bytes) -> None:
    """Whatever is in the file."""
    (tmp_path / RUN_MANIFEST_NAME).write_bytes(data)
    with pytest.raises(CheckpointError, match="expected a run manifest of version 1"):
        read_run_manifest(tmp_path)
