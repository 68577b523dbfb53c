"""The same with the launcher that users have."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from resumable_data.audit import audit_ledger

if TYPE_CHECKING:
    from pathlib import Path

TRAIN = """
import os, signal, sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.fsdp import fully_shard
from resumable_data import ResumableLoader

root, kill_at = sys.argv[1], int(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo")
torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
dataset = torch.utils.data.TensorDataset(torch.linspace(-1, 1, 53)[:, None])
loader = ResumableLoader(dataset, global_batch=10, microbatch=2, epochs=2, ledger=f"{root}/ledger", num_workers=1)
state = {"model": model.state_dict(), "loader": loader}
if os.path.exists(f"{root}/checkpoint/.metadata"):
    dcp.load(state, checkpoint_id=f"{root}/checkpoint")
for item in loader:
    (x,) = item.data
    losses = (model(x) - 2 * x).square().sum(dim=1)
    if dist.get_rank() == 1 and item.update == kill_at and item.index == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    ((losses * item.weights).sum() * item.loss_scale).backward()
    if item.is_last:
        optimizer.step()
        optimizer.zero_grad()
        loader.commit()
        if loader.cursor.updates == 4:
            loader.check_agreement()
            dcp.save(state, checkpoint_id=f"{root}/checkpoint")
loader.close()
dist.barrier()
dist.destroy_process_group()
"""

NO_GROUP = """
import torch
from resumable_data import ResumableLoader
ResumableLoader(torch.utils.data.TensorDataset(torch.arange(8)), global_batch=4, microbatch=2)
"""


def torchrun(tmp_path: Path, script: str, num_ranks: int, *arguments: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={num_ranks}"]
    command += [str(tmp_path / "script.py"), *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PYTHONPATH": os.getcwd()}
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=environment)


@pytest.mark.slow
def test_killed_under_torchrun_and_resumed_on_other_ranks(tmp_path: Path) -> None:
    """Under torchrun a rank of 3 is killed in mid-update; 2 ranks go on from DCP; the ledger proves the run."""
    killed = torchrun(tmp_path, TRAIN, 3, str(tmp_path), "6")
    assert killed.returncode != 0
    assert "SIGKILL" in killed.stderr
    finished = torchrun(tmp_path, TRAIN, 2, str(tmp_path), "-1")
    assert finished.returncode == 0, finished.stderr
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.samples, report.updates) == ("proven", 106, 11), report.to_text()
    assert [(one.num_replicas, one.first_update, one.stop_update) for one in report.attempts] == [(3, 0, 4), (2, 4, 11)]


@pytest.mark.slow
def test_torchrun_without_a_process_group_is_refused(tmp_path: Path) -> None:
    """A loader made under torchrun before init_process_group says so; each process would read everything."""
    refused = torchrun(tmp_path, NO_GROUP, 2)
    assert refused.returncode != 0
    assert "WORLD_SIZE=2 are set but there is no process group" in refused.stderr
