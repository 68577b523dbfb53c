"""A run that leaves tensor parallelism: declared, rehearsed, loaded, watched, audited, and written down."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

import resumable_data as rd
from resumable_data.audit import Bounds
from resumable_data.checkpoint import load_checkpoint, read_migration, read_run_manifest, save_checkpoint
from resumable_data.cli import main
from resumable_data.errors import ResumableDataError
from resumable_data.validation import Context, Verdict, WatchReport, watch
from resumable_data.validation.checks import CHECKS
from tests.distributed.ranks import run_ranks
from tests.distributed.rehearsed import BEFORE, UPDATES, Built, Parts, rehearse_here, save_and_record

UNEVEN = {"global_batch": 11}
"""On 2 ranks 6 and 5 rows of an update, on 4 ranks 3, 3, 3 and 2."""


def rehearse_both(folder: str, migration: str) -> tuple[Verdict, Verdict]:
    """Without what was declared, and with it."""
    parts = Parts("fsdp", UNEVEN)
    return rehearse_here(folder, parts), rehearse_here(folder, parts, migration=migration)


def go_on(folder: str, migration: str) -> WatchReport | None:
    """The real load, and the updates after it, watched against the control; then the next checkpoint."""
    built = Built(Parts("fsdp", UNEVEN), Context(folder=Path(folder)))
    loaded = load_checkpoint(f"{folder}/checkpoint", built.job.state, loader=built.loader, migration=migration)
    assert [one.field for one in loaded.changes if one.needs_migration] == ["mesh.tp"]
    watched = watch(
        built.loader,
        f"{folder}/control.jsonl",
        UPDATES,
        model=built.model,
        optimizer=built.optimizer,
        scheduler=built.scheduler,
        scaler=built.scaler,
        repeats=sorted(Path(folder).glob("repeat-*.jsonl")),
    )
    for _, _ in zip(range(UPDATES), built.job.train(watched), strict=False):
        pass
    watched.close()
    save_checkpoint(f"{folder}/next", built.job.state, loader=built.loader)
    built.loader.close()
    return watched.report


def rehearse_and_go_on(folder: str, migration: str) -> tuple[Verdict, Verdict, WatchReport | None]:
    return *rehearse_both(folder, migration), go_on(folder, migration)


def declare(folder: Path, target: int) -> str:
    """The move away from tensor parallelism, by the command that a refusal shows."""
    file = str(folder / "migration.json")
    command = f"plan {folder}/checkpoint --mesh dp={target},tp=1 --data-axes dp --why smaller -o {file}"
    assert main(shlex.split(command)) == 0
    return file


def check_refused(verdict: Verdict, folder: Path, target: int) -> None:
    """By the load, with the change and the command that declares it."""
    assert (verdict.verdict, [one.name for one in verdict.failed]) == ("reject", ["load"])
    text = verdict.to_text()
    assert "mesh.tp: 2 in the checkpoint, 1 in the program (TP)" in text
    assert f"resumable-data plan {folder}/checkpoint --mesh dp={target} --data-axes dp -o migration.json" in text


def check_promoted(verdict: Verdict, migration: str, target: int) -> None:
    assert (verdict.verdict, verdict.exit_code) == ("promote", 0), verdict.to_text()
    assert [check.name for check in verdict.checks] == list(CHECKS)
    assert {check.status for check in verdict.checks} == {"passed"}, verdict.to_text()
    assert verdict.migration_xxh3 == read_migration(migration).xxh3
    assert [one.values for one in verdict.changes if one.needs_migration] == [("mesh.tp", 2, 1)]
    assert verdict.saved is not None
    assert verdict.now is not None
    assert (verdict.saved.axes, verdict.now.axes) == ((("dp", 2), ("tp", 2)), (("dp", target),))


@pytest.mark.slow
def test_a_move_from_its_declaration_to_the_next_manifest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """(dp 2, tp 2) to dp 4, in uneven shares: refused, declared, promoted, watched, proven, and in all records."""
    run_ranks(save_and_record, 4, str(tmp_path), "tp", 1, UNEVEN)
    file = declare(tmp_path, 4)
    refused, promoted, report = run_ranks(rehearse_and_go_on, 4, str(tmp_path), file)[0]
    check_refused(refused, tmp_path, 4)
    check_promoted(promoted, file, 4)
    assert report is not None
    assert (report.verdict, report.can_promote, report.updates, report.attempt) == ("pass", True, UPDATES, 2)
    assert report.coverage.samples == report.coverage.expected_samples == UPDATES * UNEVEN["global_batch"]

    run = read_run_manifest(tmp_path / "next")
    assert run is not None
    (transition,) = run.transitions
    assert (transition.update, transition.saved.dp_size, transition.now.dp_size) == (BEFORE, 2, 4)
    assert transition.migration_xxh3 == promoted.migration_xxh3
    assert transition.changes == promoted.changes
    cursor = run.decode_cursor()
    assert cursor is not None
    (recorded,) = cursor.migrations
    assert [(one.field, one.saved, one.now) for one in recorded.changes] == [("mesh.tp", 2, 1)]
    capsys.readouterr()
    assert main(["ledger", "show", f"{tmp_path}/ledger"]) == 0
    told = capsys.readouterr().out
    assert f"watch: pass after {UPDATES} of {UPDATES} updates" in told
    assert "declared there: mesh.tp 2 to 1" in told
    audit = rd.audit_ledger(tmp_path / "ledger")
    assert (audit.verdict, audit.replayed, audit.omitted) == ("proven", Bounds(0, 0), Bounds(0, 0))
    assert audit.samples == (BEFORE + UPDATES) * UNEVEN["global_batch"]


@pytest.mark.slow
def test_a_move_to_half_of_the_processes(tmp_path: Path) -> None:
    """(dp 2, tp 2) to dp 2: as many data-parallel ranks, and refused without a declaration all the same."""
    run_ranks(save_and_record, 4, str(tmp_path), "tp", 2, UNEVEN)
    file = declare(tmp_path, 2)
    refused, promoted = run_ranks(rehearse_both, 2, str(tmp_path), file)[0]
    check_refused(refused, tmp_path, 2)
    check_promoted(promoted, file, 2)
    elsewhere = run_ranks(rehearse_both, 3, str(tmp_path), file)[0][1]
    assert [one.code for check in elsewhere.failed for one in check.findings] == ["RD989"]


def stages(folder: str) -> list[str]:
    """What is said of a pipeline of two stages that hold all layers, and of two that hold one each."""
    mesh = init_device_mesh("cpu", (2, 1), mesh_dim_names=("pp", "dp"))
    data = torch.ones(12, 3)
    loader = rd.ResumableLoader(data, global_batch=4, microbatch=4, mesh=mesh, data_axes="dp")
    whole = nn.Sequential(*(nn.Linear(3, 3) for _ in range(2)))
    for parameter in whole.parameters():
        nn.init.ones_(parameter)
    save_checkpoint(f"{folder}/whole", {"model": whole}, loader=loader)
    return [refusal(f"{folder}/apart", kind, mesh, loader) for kind in ("plain", "sharded", "with optimizer")]


def refusal(path: str, kind: str, mesh: Any, loader: rd.ResumableLoader) -> str:
    stage = nn.Sequential()
    stage.add_module(str(dist.get_rank()), nn.Linear(3, 3))
    if kind != "plain":
        fully_shard(stage, mesh=mesh["dp"])
    state: dict[str, Any] = {"model": stage}
    if kind == "with optimizer":
        state["optimizer"] = torch.optim.AdamW(stage.parameters())
    try:
        save_checkpoint(f"{path}-{kind}", state, loader=loader)
    except ResumableDataError as error:
        return str(error)
    return "saved"


def join_stages(folder: str) -> str:
    loader = rd.ResumableLoader(torch.ones(12, 3), global_batch=4, microbatch=4)
    try:
        load_checkpoint(f"{folder}/whole", {"model": nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))}, loader=loader)
    except ResumableDataError as error:
        return str(error)
    return "loaded"


def test_a_pipeline_is_refused(tmp_path: Path) -> None:
    """From two stages to one without a declaration; and stages that hold keys of their own are not saved at all."""
    for texts in run_ranks(stages, 2, str(tmp_path)):
        for text in texts:
            assert "Stages of a pipeline that hold different keys cannot be saved or loaded together" in text
    (text,) = run_ranks(join_stages, 1, str(tmp_path))
    assert "mesh.pp: 2 in the checkpoint, 1 in the program (PP)\n    stages hold other layers" in text
    assert "--mesh dp=1 --data-axes dp" in text
