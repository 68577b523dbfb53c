"""Cases 5, 6, 13, 15 and 16 of checkpoints, saved and loaded by real processes."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from resumable_data.audit import audit_ledger
from resumable_data.checkpoint import InFlightGradients, latest_checkpoint, load_checkpoint, save_checkpoint
from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.cursor import STATE_KEY
from resumable_data.errors import CheckpointError, DisagreementError, ResumableDataError
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import launch_ranks, run_ranks
from tests.distributed.saves import Program
from tests.distributed.training import DataParallel, TokenDataset, one_process_gradients, relative_error


def save_after(root: Path, *updates: int) -> None:
    """Save at each of these updates."""
    program = Program()
    for number in updates:
        program.train(number - program.loader.cursor.updates)
        save_checkpoint(root / str(number), program.state, loader=program.loader)


def load_and_go_on(path: Path) -> tuple[list[Any], list[int]]:
    """What was loaded, and the positions of the next update that this process is handed."""
    program = Program()
    loaded = load_checkpoint(path, program.state, loader=program.loader)
    assert (loaded.differences, loaded.allowances) == ((), ())
    update = next(program.loader.updates())
    return program.values(), [int(position) for microbatch in update for position in microbatch.positions]


@pytest.fixture(scope="module")
def saved_on_4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 4 ranks after 3 updates."""
    root = tmp_path_factory.mktemp("checkpoints")
    run_ranks(save_after, 4, root, 3)
    return root / "3"


@pytest.mark.parametrize("num_ranks", [3, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 6, 8))])
def test_case_05_saved_on_4_ranks_loads_on_any_number(saved_on_4: Path, num_ranks: int) -> None:
    """One key for all ranks: all values are those of 4 ranks, and the next update begins there."""
    metadata = pickle.loads((saved_on_4 / ".metadata").read_bytes())
    assert [key for key in metadata.state_dict_metadata if STATE_KEY in key] == [f"loader.{STATE_KEY}"]
    found = run_ranks(load_and_go_on, num_ranks, saved_on_4)
    assert [values for values, _ in found] == [Program(3).values()] * num_ranks
    assert sorted(position for _, positions in found for position in positions) == [*range(18, 24)]


def tamper(program: Program, how: str) -> None:
    """Change something on one process."""
    if dist.get_rank() == 2:
        if how == "cursor":
            program.train(1)
            program.note[0] -= 1
        elif how == "value":
            program.note[0] += 1
        elif how == "tensor":
            program.state["table"][3] += 1
        elif how == "large tensor":
            program.state["large"][-1] = 1


TAMPERED = {
    "cursor": ["processes hold different cursors", "samples = 12  on process 0, 1, 3", "samples = 18  on process 2"],
    "value": ["under 1 names", "note = [2]  on process 0, 1, 3", "note = [3]  on process 2"],
    "tensor": ["under 1 names", "table = torch.float32 (4,)", "on process 0, 1, 3", "on process 2"],
    "large tensor": ["large[0:524288]: ranks hold different values of one part", "on rank 0, 1, 3", "on rank 2"],
}


def save_tampered(root: Path) -> list[str]:
    """The errors of saves, one for each way to tamper."""
    errors = []
    for how in TAMPERED:
        program = Program(2)
        program.state |= {"table": torch.zeros(4), "large": torch.zeros(1 << 19)}
        tamper(program, how)
        checksums = "digest" if how == "large tensor" else "crc32"
        try:
            save_checkpoint(root / how, program.state, loader=program.loader, checksums=checksums)
        except DisagreementError as error:
            errors.append(str(error))
    return errors


def test_case_06_one_rank_tampered_with(tmp_path: Path) -> None:
    """The save fails on all ranks, names the field and the ranks, and writes nothing."""
    for errors in run_ranks(save_tampered, 4, tmp_path):
        for (how, texts), error in zip(TAMPERED.items(), errors, strict=True):
            assert [text for text in texts if text not in error] == [], f"{how}: {error}"
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


ROWS = TokenDataset(40, max_tokens=3)


class Accumulating:
    """2 ranks, 8 rows in an update, one in a microbatch: A=4."""

    def __init__(self, root: Path, has_gradients: bool) -> None:
        self.parallel = DataParallel("fsdp", synced=True)
        model = self.parallel.model
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=0.0)
        self.loader = ResumableLoader(ROWS, global_batch=8, microbatch=1, ledger=root / "ledger")
        self.state: dict[str, Any] = {"model": model, "optimizer": self.optimizer}
        if has_gradients:
            self.state["in_flight"] = InFlightGradients(model, self.loader)

    def finish(self) -> tuple[list[int], float]:
        """Train to the end of the update; the positions that were read, and the error of the gradient."""
        expected = list(one_process_gradients(ROWS, global_batch=8))[self.loader.cursor.updates]
        positions: list[int] = []
        for microbatch in self.loader:
            positions += microbatch.positions.tolist()
            self.parallel.backward(microbatch)
            if microbatch.is_last:
                break
        self.optimizer.step()
        error = relative_error(self.parallel.gradients(), expected)
        self.loader.commit()
        return positions, error


def kill_after_second(root: Path, has_gradients: bool) -> None:
    """Save after the second of four microbatches of the second update, and die."""
    job = Accumulating(root, has_gradients)
    job.finish()
    for microbatch in job.loader:
        job.parallel.backward(microbatch)
        if microbatch.index == 1:
            break
    save_checkpoint(root / "checkpoints/1", job.state, loader=job.loader)
    os.kill(os.getpid(), signal.SIGKILL)


def finish_second(root: Path, has_gradients: bool) -> tuple[int, list[int], float]:
    """Load and finish the update: rows discarded, positions read, the error of the gradient."""
    job = Accumulating(root, has_gradients)
    latest = latest_checkpoint(root / "checkpoints")
    assert latest is not None
    loaded = load_checkpoint(latest, job.state, loader=job.loader)
    positions, error = job.finish()
    save_checkpoint(root / "checkpoints/2", job.state, loader=job.loader)
    job.loader.close()
    return loaded.discarded, positions, error


@pytest.mark.parametrize(
    ("has_gradients", "first", "discarded"), [(True, 12, 0), (False, 8, 4)], ids=["with", "without"]
)
def test_case_13_killed_after_the_second_of_four_microbatches(
    tmp_path: Path, has_gradients: bool, first: int, discarded: int
) -> None:
    """With in-flight gradients the update goes on with microbatches 3 and 4, without it is rolled back and counted."""
    outcomes = launch_ranks(kill_after_second, 2, tmp_path, has_gradients)
    assert [outcome.exitcode for outcome in outcomes] == [-signal.SIGKILL] * 2, outcomes
    found = run_ranks(finish_second, 2, tmp_path, has_gradients)
    assert [count for count, _, _ in found] == [discarded] * 2
    assert sorted(position for _, positions, _ in found for position in positions) == [*range(first, 16)]
    assert max(error for _, _, error in found) <= 5e-6
    report = audit_ledger(tmp_path / "ledger")
    assert report.verdict == "proven", report.to_text()
    counts = [(count.low, count.high) for count in (report.omitted, report.replayed, report.discarded)]
    assert (report.updates, counts) == (2, [(0, 0), (0, 0), (discarded, discarded)])


def error_of_load(path: Path, program: Program, allow: tuple[str, ...] = ()) -> str:
    try:
        load_checkpoint(path, program.state, loader=program.loader, allow=allow)
    except ResumableDataError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def test_case_15_checkpoints_without_our_state(tmp_path: Path) -> None:
    """Nothing saved, no data state saved, another run's: refused, each with its own message, and nothing changes."""
    (tmp_path / "empty").mkdir()
    program, other = Program(2), Program(2)
    save_checkpoint(tmp_path / "without", program.state)
    save_checkpoint(tmp_path / "other", other.state, loader=other.loader)
    before = program.values()
    errors = [error_of_load(tmp_path / name, program) for name in ("empty", "without", "other")]
    assert "CheckpointError" in errors[0]
    assert "empty was not loaded" in errors[0]
    assert f"loader.{STATE_KEY}: nothing in the checkpoint" in errors[1]
    assert errors[2].startswith("OtherRunError")
    assert program.values() == before


def test_case_15_a_fresh_start_is_asked_for_by_name(tmp_path: Path) -> None:
    """Parts that are only in the program may be allowed; that the data start again is a matter of its own."""
    saved, program = Program(2), Program()
    save_checkpoint(tmp_path / "without", saved.state)
    before = program.values()
    assert "MissingStateError" in error_of_load(tmp_path / "without", program, ("only_in_program",))
    assert program.values() == before
    assert error_of_load(tmp_path / "without", program, ("only_in_program", "fresh_start")) == ""
    assert program.values() == [*saved.values()[:-1], 0]


def test_case_16_files_of_update_20_beside_those_of_update_10(tmp_path: Path) -> None:
    """Data state of one save beside the model of another, each whole in itself: the manifest refuses both ways."""
    run_ranks(save_after, 2, tmp_path, 10, 20)
    metadata = pickle.loads((tmp_path / "20/.metadata").read_bytes())
    (data_state,) = (
        place.relative_path for index, place in metadata.storage_data.items() if index.fqn == f"loader.{STATE_KEY}"
    )
    for name, whole, part in (("a", "10", "20"), ("b", "20", "10")):
        shutil.copytree(tmp_path / whole, tmp_path / f"mixed/{name}")
        shutil.copy(tmp_path / part / data_state, tmp_path / f"mixed/{name}/{data_state}")
        program = Program()
        before = program.values()
        error = error_of_load(tmp_path / f"mixed/{name}", program)
        assert "RD85" in error, error
        assert program.values() == before


def test_case_16_the_manifest_of_update_20_beside_the_files_of_update_10(tmp_path: Path) -> None:
    """Each file is whole, and none is of the save that the manifest is of."""
    save_after(tmp_path, 10, 20)
    shutil.copy(tmp_path / "20" / MANIFEST_NAME, tmp_path / "10" / MANIFEST_NAME)
    assert "RD85" in error_of_load(tmp_path / "10", Program())


def test_case_16_a_program_of_two_updates(tmp_path: Path) -> None:
    """A program whose loader is 10 updates ahead of its optimizer is saved as it is, and refused when it is loaded."""
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.AdamW(model.parameters())
    state = {"model": model, "optimizer": optimizer}
    loader = ResumableLoader(range(200), global_batch=2, microbatch=2)
    for number, update in enumerate(loader.updates(), 1):
        if number <= 10:
            model(torch.ones(1, 2)).sum().backward()
            optimizer.step()
        update.commit()
        if number == 20:
            break
    save_checkpoint(tmp_path / "a", state, loader=loader)
    again = ResumableLoader(range(200), global_batch=2, microbatch=2)
    with pytest.raises(CheckpointError, match=r"20 .*10|10 .*20"):
        load_checkpoint(tmp_path / "a", state, loader=again)
    assert again.cursor.updates == 0
