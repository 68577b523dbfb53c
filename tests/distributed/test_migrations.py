"""A run that is moved: what changes freely and is recorded, what is refused, and what declares it."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.optim.lr_scheduler import LRScheduler, MultiStepLR, StepLR

import resumable_data as rd
from resumable_data.audit import Bounds
from resumable_data.checkpoint import (
    Declaration,
    RunManifest,
    capture_run,
    load_checkpoint,
    plan_migration,
    read_migration,
    read_run_manifest,
    save_checkpoint,
)
from resumable_data.cli import main
from resumable_data.errors import ResumableDataError
from tests.distributed.ranks import run_ranks

DATA = torch.arange(300.0).reshape(60, 5) / 300


class Job:
    """A model on a mesh of data- and tensor-parallel ranks, its optimizer, a schedule and a loader with a ledger."""

    def __init__(self, root: str, *, tp: int = 1, change: str = "") -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(5, 12), nn.GELU(), nn.Linear(12, 4))
        if change == "bfloat16":
            self.model.to(torch.bfloat16)
        mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
        if tp > 1:
            parallelize_module(self.model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
        policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if change == "compute" else MixedPrecisionPolicy()
        fully_shard(self.model, mesh=mesh["dp"], mp_policy=policy)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.scheduler: LRScheduler = MultiStepLR(self.optimizer, [1, 3], gamma=0.5)
        if change == "scheduler":
            self.scheduler = StepLR(self.optimizer, 2)
        self.loader = rd.ResumableLoader(
            DATA,
            global_batch=8 if change == "batch" else 6,
            microbatch=2,
            mesh=mesh,
            data_axes="dp",
            ledger=f"{root}/ledger" if root else None,
        )
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
        }
        self.unit: Any = None if change != "unit" else "tokens"

    def train(self, num_updates: int) -> None:
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            for microbatch in update:
                own = self.model(microbatch.data).square().sum(dim=1)
                ((own * microbatch.weights).sum() * microbatch.loss_scale).backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            update.commit()

    def weights(self) -> list[torch.Tensor]:
        return [one.full_tensor() if isinstance(one, DTensor) else one for one in self.model.parameters()]

    def run(self) -> RunManifest:
        return capture_run(self.state, self.loader, schedule_unit=self.unit)


def begin(root: str, tp: int, has_files: bool = False) -> None:
    """Train and save at update 2, and at update 3, with a declared unit."""
    job = Job(root, tp=tp)
    for number, updates in (("2", 2), ("3", 1)):
        job.train(updates)
        save_checkpoint(
            f"{root}/{number}",
            job.state,
            loader=job.loader,
            run=capture_run(job.state, job.loader, schedule_unit="updates"),
        )
    job.loader.close()
    if has_files:
        declare(root)


def declare(root: str) -> None:
    """A file for each of the moves that are tried, by the programs that make them."""
    for change, tp in (("batch", 1), ("bfloat16", 1), ("scheduler", 1), ("unit", 1), ("", 2)):
        run, name = Job("", tp=tp, change=change).run(), f"{change or 'tp'}.json"
        migration = plan_migration(f"{root}/3", run, declaration=Declaration(invariant="schedule"))
        if dist.get_rank() == 0:
            migration.write(f"{root}/{name}")
    run = Job("", change="batch").run()
    migration = plan_migration(f"{root}/2", run, declaration=Declaration(invariant="schedule"))
    if dist.get_rank() == 0:
        migration.write(f"{root}/earlier.json")
    dist.barrier()


def attempt(root: str, change: str, tp: int, how: dict[str, Any]) -> str:
    """The error of a load, after which the program is as it was; empty where it loads."""
    job = Job("", tp=tp, change=change)
    before = [one.clone() for one in job.weights()]
    how = dict(how)
    if how.get("differs") == "migration" and dist.get_rank() == 1:
        how["migration"] = None
    if how.get("differs") == "allow" and dist.get_rank() == 1:
        how["allow"] = ()
    how.pop("differs", None)
    try:
        load_checkpoint(f"{root}/3", job.state, loader=job.loader, run=job.run(), level="directory", **how)
    except ResumableDataError as error:
        assert job.loader.cursor.updates == 0
        assert job.loader.carried is None
        assert not job.optimizer.state
        assert all(map(torch.equal, job.weights(), before))
        return f"{type(error).__name__}: {error}"
    assert job.loader.cursor.updates == 3
    return ""


def attempt_all(root: str, cases: list[Any]) -> list[str]:
    return [attempt(root, change, tp, how) for change, tp, how, _ in cases]


def resume(root: str, name: str, tp: int, how: dict[str, Any], into: str) -> None:
    """Load, train one update, and save."""
    job = Job(root, tp=tp)
    loaded = load_checkpoint(f"{root}/{name}", job.state, loader=job.loader, **how)
    job.train(1)
    assert loaded.unknown == ()
    save_checkpoint(f"{root}/{into}", job.state, loader=job.loader, allowances=loaded.allowances)
    job.loader.close()


def resume_all(root: str, steps: list[tuple[str, int, dict[str, Any], str]]) -> None:
    """Several launches, one after another in the same processes."""
    for name, tp, how, into in steps:
        resume(root, name, tp, how, into)


def run_of(path: Path) -> RunManifest:
    run = read_run_manifest(path)
    assert run is not None
    return run


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of 4 data-parallel ranks, and a file for each of the moves that are tried."""
    root = tmp_path_factory.mktemp("saved")
    run_ranks(begin, 4, str(root), 1, True)
    return root


def test_other_data_parallel_ranks_need_no_declaration(saved: Path) -> None:
    """From 4 to 2, to 3 and on: each move is in all run manifests after it, and the unit as it was declared."""
    root = str(saved)
    run_ranks(resume, 2, root, "3", 1, {}, "4")
    run_ranks(resume_all, 3, root, [("4", 1, {}, "5"), ("5", 1, {}, "6")])
    assert run_of(saved / "3").transitions == ()
    (first,) = run_of(saved / "4").transitions
    values = {one.field: (one.saved, one.now, one.needs_migration) for one in first.changes}
    assert values["dp"] == (4, 2, False)
    assert (first.update, first.saved.dp_size, first.now.dp_size, first.migration_xxh3) == (3, 4, 2, None)
    last = run_of(saved / "6")
    assert [(one.update, one.saved.dp_size, one.now.dp_size) for one in last.transitions] == [(3, 4, 2), (4, 2, 3)]
    assert last.transitions[0] == first
    assert last.schedule_unit == "updates"
    cursor = last.decode_cursor()
    assert cursor is not None
    assert (cursor.migrations, cursor.samples) == ((), 36)
    assert rd.audit_ledger(saved / "ledger").verdict == "proven"


@pytest.mark.slow
def test_another_tensor_parallel_degree(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is declared by a file or by name, and is in the cursor, the ledger and the next run manifest."""
    root, file = str(tmp_path), str(tmp_path / "migration.json")
    run_ranks(begin, 4, root, 2)
    assert run_of(tmp_path / "3").mesh.axes == (("dp", 2), ("tp", 2))
    command = ["plan", f"{root}/3", "--mesh", "dp=4,tp=1", "--data-axes", "dp", "--why", "smaller nodes"]
    assert main([*command, "-o", file]) == 0
    steps = [("3", 1, {"migration": file}, "4"), ("4", 2, {"allow": ("mesh",)}, "5")]
    run_ranks(resume_all, 4, root, steps)
    run = run_of(tmp_path / "5")
    by_file, by_name = run.transitions
    assert (by_file.migration_xxh3, by_file.allowances) == (read_migration(file).xxh3, ())
    assert (by_name.migration_xxh3, by_name.allowances) == (None, ("mesh",))
    assert [one.values for one in by_file.changes if one.needs_migration] == [("mesh.tp", 2, 1)]
    cursor = run.decode_cursor()
    assert cursor is not None
    recorded = [(one.update, [(c.field, c.saved, c.now) for c in one.changes]) for one in cursor.migrations]
    assert recorded == [(3, [("mesh.tp", 2, 1)]), (4, [("mesh.tp", 1, 2)])]
    capsys.readouterr()
    assert main(["ledger", "show", f"{root}/ledger"]) == 0
    assert "    declared there: mesh.tp 2 to 1\n" in capsys.readouterr().out
    assert main(["manifest", "show", f"{root}/5"]) == 0
    assert f"moved before update 3, migration {by_file.migration_xxh3}" in capsys.readouterr().out
    report = rd.audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.replayed, report.omitted) == ("proven", Bounds(0, 0), Bounds(0, 0))


def test_what_is_refused_and_what_declares_it(saved: Path) -> None:
    """Each change alone: refused with both values, loaded with its own file or name, and with no other's."""
    root = str(saved)
    files = {name: {"migration": f"{root}/{name}.json"} for name in ("batch", "bfloat16", "scheduler", "unit", "tp")}
    cases: list[tuple[str, int, dict[str, Any], str]] = [
        ("", 2, {}, "MigrationError: .*mesh.tp: 1 in the checkpoint, 2 in the program (TP)"),
        ("", 2, files["tp"], ""),
        ("", 2, files["batch"], "global_batch 6 to 8, and the program has 6"),
        ("batch", 1, {}, "global_batch: 6 in the checkpoint, 8 in the program (recipe)"),
        ("batch", 1, files["batch"], ""),
        ("batch", 1, {"allow": ("global_batch",)}, ""),
        ("batch", 1, {"migration": f"{root}/earlier.json"}, "found one of another checkpoint: save "),
        ("batch", 2, files["batch"], "mesh.tp: 1 in the checkpoint, 2 in the program"),
        ("batch", 2, {**files["batch"], "allow": ("mesh",)}, ""),
        ("bfloat16", 1, {}, "precision.model.parameters: 'float32' in the checkpoint, 'bfloat16' in the program"),
        ("bfloat16", 1, files["bfloat16"], ""),
        ("bfloat16", 1, {"allow": ("dtype",)}, ""),
        ("compute", 1, {}, "precision.model.compute: 'as parameters' in the checkpoint, 'bfloat16' in the program"),
        ("compute", 1, {"allow": ("precision",)}, ""),
        ("compute", 1, {"allow": ("dtype",)}, "precision.model.compute"),
        ("scheduler", 1, {}, "schedule.scheduler.kind: 'torch.optim.lr_scheduler.MultiStepLR' in the checkpoint"),
        ("scheduler", 1, files["scheduler"], "only_in_program"),
        ("scheduler", 1, {"allow": ("schedule", "only_in_program", "only_in_checkpoint")}, ""),
        ("unit", 1, {}, "schedule_unit: 'updates' in the checkpoint, 'tokens' in the program (schedule)"),
        ("unit", 1, files["unit"], ""),
        ("unit", 1, {"migration": f"{root}/absent.json"}, "CheckpointError: .*no such file"),
        ("batch", 1, {**files["batch"], "differs": "migration"}, "DisagreementError: .*expected all processes to make"),
        ("", 1, {"allow": ("mesh",), "differs": "allow"}, "DisagreementError: .*expected all processes to make"),
    ]
    for errors in run_ranks(attempt_all, 4, root, cases):
        for (change, tp, how, text), error in zip(cases, errors, strict=True):
            assert bool(error) == bool(text), (change, tp, how, error)
            assert all(part in error for part in text.split(".*")), (change, tp, how, error)


def test_a_checkpoint_that_tells_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Saved without a run manifest: what is not known is named, is no refusal, and is in the next manifest."""
    model = nn.Linear(5, 2)
    loader = rd.ResumableLoader(DATA, global_batch=6, microbatch=6)
    for _, update in zip(range(2), loader.updates(), strict=False):
        update.commit()
    state = {"model": model}
    save_checkpoint(tmp_path / "a", state, loader=loader)
    for name in ("resumable_data.run.json", "resumable_data.manifest.json"):
        (tmp_path / "a" / name).unlink()
    other = rd.ResumableLoader(DATA, global_batch=8, microbatch=8)
    with pytest.raises(ResumableDataError, match="global_batch: 6 in the checkpoint, 8 in the program"):
        load_checkpoint(tmp_path / "a", state, loader=other, allow={"no_manifest"})
    with caplog.at_level(logging.WARNING):
        loaded = load_checkpoint(tmp_path / "a", state, loader=other, allow={"no_manifest", "global_batch"})
    assert loaded.unknown == ("mesh", "microbatch", "precision")
    assert "does not tell mesh, microbatch, precision" in caplog.text
    save_checkpoint(tmp_path / "b", state, loader=other)
    (transition,) = run_of(tmp_path / "b").transitions
    assert (transition.unknown, transition.allowances) == (loaded.unknown, ("global_batch",))
    other.load_state_dict(loader.state_dict(), allow={"global_batch"})
    assert capture_run(state, other).transitions == ()  # what load_checkpoint found is of another load
