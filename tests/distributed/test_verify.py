"""Checks of checkpoints that real ranks saved: sharded over FSDP2 and over FSDP2 x TP, on several world sizes."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import resumable_data as rd
from resumable_data.checkpoint.files.diff import diff_checkpoints
from tests.checkpoints import add_manifest
from tests.distributed.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path


def make_job(tensor_parallel: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A sharded model whose rows no number of ranks divides, and AdamW."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(6, 10), torch.nn.GELU(), torch.nn.Linear(10, 7), torch.nn.LayerNorm(7))
    size = dist.get_world_size() // tensor_parallel
    if tensor_parallel == 1:
        mesh = init_device_mesh("cpu", (size,), mesh_dim_names=("dp",))
    else:
        whole = init_device_mesh("cpu", (size, tensor_parallel), mesh_dim_names=("dp", "tp"))
        parallelize_module(model, whole["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        mesh = whole["dp"]
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def job_state(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    model_state, optimizer_state = get_state_dict(model, optimizer)
    return {"model": model_state, "optimizer": optimizer_state}


def save(path: str, tensor_parallel: int, updates: int, load_from: str = "") -> None:
    """Train and save; or load a checkpoint and save what was loaded."""
    model, optimizer = make_job(tensor_parallel)
    if load_from:
        state = job_state(model, optimizer)
        dcp.load(state, checkpoint_id=load_from)
        set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])
    for _ in range(updates):
        model(torch.randn(3, 6)).square().sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    dcp.save(job_state(model, optimizer), checkpoint_id=path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Steps 5 and 10 of a job on 4 ranks; step 5 as 3 ranks and as 2 x 2 ranks save it again."""
    root = tmp_path_factory.mktemp("saved")
    run_ranks(save, 4, str(root / "5"), 1, 5)
    run_ranks(save, 4, str(root / "10"), 1, 10)
    run_ranks(save, 3, str(root / "5 on 3"), 1, 0, str(root / "5"))
    run_ranks(save, 4, str(root / "5 on 2 x 2"), 2, 0, str(root / "5"))
    return root


@pytest.mark.parametrize("name", ["5", "5 on 3", "5 on 2 x 2"])
def test_sharded_checkpoint_is_sound(folder: Path, name: str) -> None:
    """What ranks save, shards of uneven size and none at all included, is sound at the highest level."""
    report = rd.verify_checkpoint(folder / name)
    assert (report.verdict, [one.code for one in report.findings]) == ("sound", ["RD851"])
    assert report.files == (3 if name == "5 on 3" else 4)


def test_missing_shard_names_the_rank(folder: Path, tmp_path: Path) -> None:
    """A file that was deleted is named, with the rank that wrote it, although nobody may ask for its items."""
    path = shutil.copytree(folder / "5", tmp_path / "checkpoint")
    (path / "__2_0.distcp").unlink()
    (finding,) = [one for one in rd.verify_checkpoint(path, "structure").findings if one.code != "RD851"]
    assert (finding.code, finding.rank) == ("RD821", 2)


def test_one_shard_of_another_step(folder: Path, tmp_path: Path) -> None:
    """A shard from another step, which torch loads without a word, is found by the manifest with no contents read."""
    path = shutil.copytree(folder / "5", tmp_path / "checkpoint")
    add_manifest(path)
    assert rd.verify_checkpoint(path).findings == ()
    shutil.copy(folder / "10" / "__1_0.distcp", path / "__1_0.distcp")
    report = rd.verify_checkpoint(path, "directory")
    assert {(one.code, one.rank) for one in report.findings} == {("RD856", 1)}
    assert len({one.key for one in report.findings}) > 5


def test_left_over_files_of_a_larger_world(folder: Path, tmp_path: Path) -> None:
    """The file of a fourth rank, left when three ranks saved over it, is noted and harms nothing."""
    path = shutil.copytree(folder / "5 on 3", tmp_path / "checkpoint")
    shutil.copy(folder / "5" / "__3_0.distcp", path)
    report = rd.verify_checkpoint(path)
    assert report.verdict == "sound"
    assert [(one.code, one.rank) for one in report.findings if one.code != "RD851"] == [("RD827", 3)]


def test_saved_again_on_other_ranks_is_the_same(folder: Path) -> None:
    """Checksums of shards combine to those of whole tensors, so that a save on other ranks is seen to be the same."""
    found = diff_checkpoints(folder / "5", folder / "5 on 3")
    assert found.is_same
    assert found.same > 20


def test_saved_again_with_other_cuts_is_not_called_the_same(folder: Path) -> None:
    """What is cut across rows cannot be compared by checksums, is said so, and the rest is the same."""
    found = diff_checkpoints(folder / "5", folder / "5 on 2 x 2")
    assert not found.is_same
    assert (found.differ, found.only_in_a, found.only_in_b) == ((), (), ())
    assert any(key.endswith("2.weight") for key in found.not_compared)
    assert found.same > 10


def test_another_step_differs(folder: Path) -> None:
    """Weights and moments of another step are told apart by checksums alone."""
    found = diff_checkpoints(folder / "5", folder / "10")
    keys: set[Any] = {one.key for one in found.differ}
    assert {"model.0.weight", "model.3.bias", "optimizer.state.0.weight.exp_avg"} <= keys
