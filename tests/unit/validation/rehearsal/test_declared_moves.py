"""Rehearsals of moves that a migration declares, on one process: what it stands for, and what it does not."""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import resumable_data as rd
from resumable_data.checkpoint import (
    Declaration,
    MigrationManifest,
    plan_migration,
    read_migration,
    read_run_manifest,
)
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.checkpoint.migration.destination import Destination
from resumable_data.cli import main
from resumable_data.errors import CheckpointError, UsageError
from resumable_data.validation import Context, Job, Verdict, rehearse
from resumable_data.validation.rehearsal.arguments import options_of, parse
from tests.unit.validation.rehearsal.test_rehearse import build, make_job, statuses

UPDATES = 3


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with two checkpoints, a control and a repeat after the first, and a migration to a batch of 12."""
    folder = tmp_path_factory.mktemp("run")
    job = build(Context(folder=folder))
    for _ in job.train():
        if (done := job.loader.cursor.updates) in (3, 4):
            rd.save_checkpoint(folder / f"checkpoints/{done}", job.state, loader=job.loader, probe=job.probe)
        if done == 4:
            break
    job.loader.close()
    for name in ("control", "repeat"):
        record(folder, name)
    declare(folder, "3").write(folder / "batch.json")
    return folder


def declare(run: Path, name: str, **destination: Any) -> MigrationManifest:
    """The move to another batch, or to what is given."""
    saved = read_run_manifest(run / "checkpoints" / name)
    assert saved is not None
    to = Destination(**(destination or {"recipe": {"global_batch": 12}}))
    return plan_migration(
        run / "checkpoints" / name, to.apply(saved), declaration=Declaration(invariant="schedule", tolerances=LIMITS)
    )


LIMITS = dict.fromkeys(("loss", "gradient_norm", "update_norm"), 1e-5)


def larger(context: Context) -> Job:
    return make_job(context, global_batch=12)


def record(run: Path, name: str, made: Any = build, **options: Any) -> Verdict:
    verdict = rehearse(made, run / "checkpoints/3", record=run / f"{name}.jsonl", updates=UPDATES, **options)
    assert verdict.verdict == "passed", verdict.to_text()
    return verdict


def move(run: Path, made: Any, control: str = "control", **options: Any) -> Verdict:
    arguments: dict[str, Any] = {"control": run / f"{control}.jsonl", "updates": UPDATES, **options}
    return rehearse(made, run / "checkpoints/3", **arguments)


def codes(verdict: Verdict, name: str) -> list[str]:
    check = verdict.check(name)
    assert check is not None, verdict.to_text()
    return [one.code for one in check.findings]


def test_a_declared_batch_needs_a_quality_run(run: Path) -> None:
    """All but the trace passes, nothing is compared with updates of other samples, and nothing is promoted."""
    migration = read_migration(run / "batch.json")
    verdict = move(run, larger, migration=run / "batch.json")
    assert (verdict.verdict, verdict.exit_code) == ("unproven", 1), verdict.to_text()
    assert {name for name, status in statuses(verdict).items() if status in ("failed", "unproven")} == {"trace"}
    assert (statuses(verdict)["migration"], statuses(verdict)["first update"]) == ("passed", "not run")
    assert codes(verdict, "trace") == ["RD980"]
    assert (verdict.migration_xxh3, verdict.declaration) == (migration.xxh3, migration.declaration)
    assert [one.values for one in verdict.changes] == [("global_batch", 8, 12)]
    text = verdict.to_text()
    assert "a global batch of 12 samples, where it was 8 samples, does to quality: a material batch change" in text
    assert f"migration   {migration.xxh3}" in text
    assert "global_batch 8 to 12" in text


def test_a_control_of_the_new_batch_finds_faults_and_promotes_nothing(run: Path) -> None:
    """Recorded with the same migration: a loss weighted twice is rejected, and what is equal stays unproven."""
    options = {"migration": run / "batch.json"}
    record(run, "larger", larger, **options)
    equal = move(run, larger, "larger", **options)
    assert (equal.verdict, codes(equal, "trace")[0]) == ("unproven", "RD980"), equal.to_text()
    assert statuses(equal)["first update"] == "passed"

    def faulty(context: Context) -> Job:
        job = larger(context)
        accumulate = job.accumulate

        def twice(microbatch: rd.Microbatch) -> torch.Tensor | None:
            accumulate(microbatch)
            return accumulate(microbatch)

        job.accumulate = twice
        return job

    rejected = move(run, faulty, "larger", **options)
    assert [check.name for check in rejected.failed] == ["first update"], rejected.to_text()


def test_what_nobody_declared_is_shown_with_the_command_that_declares_it(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reject at the load; the command of its finding makes the file with which the job loads."""
    refused = move(run, larger)
    assert [check.name for check in refused.failed] == ["load"]
    assert codes(refused, "load") == ["RD972"]
    (command,) = [line for line in refused.to_text().splitlines() if line.strip().startswith("resumable-data plan")]
    monkeypatch.chdir(tmp_path)
    assert main(shlex.split(command)[1:]) == 0
    assert statuses(move(run, larger, migration="migration.json"))["load"] == "passed"


def test_a_migration_of_another_checkpoint_is_found_before_torch(run: Path) -> None:
    """In the first stage, by the command that needs no torch, and by the first process of a rehearsal."""
    declare(run, "4").write(run / "other.json")
    verdict = move(run, larger, migration=run / "other.json")
    assert [check.name for check in verdict.checks] == ["files", "manifest", "migration", "untouched"]
    assert codes(verdict, "migration") == ["RD979"]
    checkpoint, file = str(run / "checkpoints/3"), str(run / "other.json")
    code = (
        "import sys; from resumable_data import rehearse; from resumable_data.cli import main;"
        f"args = ['--checkpoint', {checkpoint!r}, '--migration', {file!r}];"
        "print([check.status for check in rehearse._check_files(rehearse.parse(['a:b', *args]))]);"
        "print(main(['rehearse', '--json', *args]), 'torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    stage, told, last = done.stdout.splitlines()
    assert (stage, last) == ("['passed', 'passed', 'failed']", "1 False")
    assert Verdict.from_json(told.encode()).verdict == "reject"


def test_a_file_and_options_that_contradict_it(run: Path, tmp_path: Path) -> None:
    """What the file declares may be said again, and nothing else; a file that is none cannot be read."""
    command = ["a:b", "--checkpoint", str(run / "checkpoints/3"), "--migration", str(run / "batch.json")]
    for more in ([], ["--invariant", "schedule"], ["--limit", "loss=1e-5"], ["--continuity", "exact"]):
        assert options_of(parse([*command, *more])).declaration == Declaration(invariant="schedule", tolerances=LIMITS)
    for more in (["--invariant", "tokens"], ["--limit", "loss=1e-4"], ["--continuity", "none"]):
        with pytest.raises(UsageError, match="expected what the migration declares to survive"):
            options_of(parse([*command, *more]))
    with pytest.raises(UsageError, match="invariant: schedule there, samples here"):
        move(run, larger, migration=run / "batch.json", declaration=Declaration(tolerances=LIMITS))
    with pytest.raises(CheckpointError, match="no such file"):
        move(run, larger, migration=tmp_path / "nothing")
    with pytest.raises(UsageError, match="--save makes another"):
        parse(["a:b", "--synthetic", "--save", str(tmp_path / "a"), "--migration", str(run / "batch.json")])
    plain = options_of(parse([*command[:3], "--continuity", "bounded", "--max-omitted", "3"]))
    assert (plain.declaration.continuity.omitted, plain.declaration.invariant) == (3, "samples")


def test_ranks_and_batch_are_the_destination_s(run: Path) -> None:
    """Other ranks than were declared are a reject at the batch; only a recording may be made there."""
    two = declare(run, "3", num_replicas=2)
    elsewhere = move(run, build, migration=two)
    assert [check.name for check in elsewhere.failed] == ["batch"]
    assert codes(elsewhere, "batch") == ["RD989"]
    assert "expected  2 processes, dp 2\n  found     1 processes, dp 1" in elsewhere.to_text()
    assert statuses(record(run, "elsewhere", migration=two))["batch"] == "passed"
    by_name = move(run, larger, migration=declare(run, "3", microbatch=2), allow=["global_batch"])
    assert codes(by_name, "batch") == ["RD981"]


def test_a_job_that_loads_by_itself_makes_the_declared_move(run: Path) -> None:
    """Without load_checkpoint for its loader: what changes is held against the migration all the same."""

    def made(context: Context) -> Job:
        job = larger(context)

        def load(path: Path) -> None:
            rd.load_checkpoint(path, job.state, allow={"only_in_checkpoint"})
            manifest = read_manifest(path)
            assert manifest is not None
            cursor = manifest.decode_cursor()
            assert cursor is not None
            job.loader.load_state_dict(cursor, allow={"global_batch"})

        job.load = load
        return job

    refused = move(run, made)
    assert [check.name for check in refused.failed] == ["load"], refused.to_text()
    assert "resumable-data plan" in refused.to_text()
    assert statuses(move(run, made, migration=run / "batch.json"))["batch"] == "passed"
    assert statuses(move(run, made, allow=["global_batch"]))["batch"] == "passed"
    other = move(run, made, migration=declare(run, "3", recipe={"global_batch": 16}))
    assert [check.name for check in other.failed] == ["load"]
