"""save_checkpoint and load_checkpoint with real FSDP2 processes: saved by 4, loaded by 4, 3, 2 and 1."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import MultiStepLR

from resumable_data.checkpoint import latest_checkpoint, load_checkpoint, save_checkpoint, verify_checkpoint
from resumable_data.checkpoint.collective import alone_is_meant
from resumable_data.checkpoint.manifest import MANIFEST_NAME, TensorKey, read_manifest
from resumable_data.cursor import STATE_KEY
from resumable_data.errors import CheckpointError, ResumableDataError
from resumable_data.loader import ResumableLoader
from resumable_data.sampler.seal import SEAL_KEY
from tests.distributed.ranks import run_ranks

FEATURES = 5
DATA = torch.arange(300.0).reshape(60, FEATURES) / 300


class Job:
    """A model with tied layers, its optimizer, a scheduler with integer keys in its state, and a loader."""

    def __init__(self, change: str = "") -> None:
        torch.manual_seed(7)
        self.model = nn.Sequential(nn.Linear(FEATURES, 12), nn.GELU(), nn.Linear(12, 3))
        if change == "deeper":
            self.model.append(nn.Linear(3, 3))
        if change == "wider":
            self.model[2] = nn.Linear(12, 4)
        if change == "bfloat16":
            self.model.to(torch.bfloat16)
        if change == "frozen":
            self.model[0].requires_grad_(False)
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        self.optimizer: torch.optim.Optimizer = torch.optim.AdamW(trained, lr=0.1)
        if change == "sgd":
            self.optimizer = torch.optim.SGD(trained, lr=0.1, momentum=0.9)
        self.scheduler = MultiStepLR(self.optimizer, [1, 3], gamma=0.5)
        self.loader = ResumableLoader(DATA, global_batch=6, microbatch=6)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "note": {"text": "x", 3: [1, 2.5, None]},
        }
        if change == "no optimizer":
            del self.state["optimizer"]
        if change == "other batch":
            self.loader = ResumableLoader(DATA, global_batch=5, microbatch=5)

    def train(self, num_updates: int) -> float:
        """Train; the loss of the last update."""
        loss = torch.zeros(())
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            loss = torch.zeros(())
            for microbatch in update:
                own = self.model(microbatch.data).square().sum(dim=1)
                own = (own * microbatch.weights).sum() * microbatch.loss_scale
                own.backward()
                loss += own.detach() / dist.get_world_size()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            update.commit()
        dist.all_reduce(loss)
        return float(loss)


def save(path: str, num_updates: int = 4, more: int = 3, checksums: str = "crc32") -> float:
    """Train, save, and train on; the last loss."""
    job = Job()
    job.train(num_updates)
    save_checkpoint(path, job.state, loader=job.loader, checksums=checksums)
    return job.train(more)


def resume(path: str, num_updates: int = 3) -> tuple[int, float, dict[int, int], Any]:
    """Load and train on: updates that were loaded, the last loss, the scheduler's milestones, the note."""
    job = Job()
    loaded = load_checkpoint(path, job.state, loader=job.loader)
    assert loaded.has_manifest
    assert (loaded.differences, loaded.allowances) == ((), ())
    updates = job.loader.cursor.updates
    assert job.scheduler.last_epoch == updates
    assert len(job.optimizer.state) == 4
    return updates, job.train(num_updates), dict(job.scheduler.milestones), loaded.values["note"]


def attempt(path: str, change: str = "", allow: tuple[str, ...] = (), level: str = "directory") -> str:
    """The error of loading into another program; empty where it loads."""
    job = Job(change)
    before = {name: value.full_tensor().clone() for name, value in job.model.state_dict().items()}
    if change == "gradients":
        for parameter in job.model.parameters():
            parameter.grad = torch.zeros_like(parameter)
    try:
        load_checkpoint(path, job.state, loader=job.loader, allow=allow, level=level)
    except ResumableDataError as error:
        assert job.loader.cursor.updates == 0
        for name, value in job.model.state_dict().items():
            assert torch.equal(value.full_tensor(), before[name])
        return f"{type(error).__name__}: {error}"
    if change == "gradients":
        assert all(parameter.grad is not None for parameter in job.model.parameters())
        assert len(job.optimizer.state) == 4
    return ""


Case = tuple[str, str, tuple[str, ...], str]


def attempt_all(cases: list[Case]) -> list[str]:
    """The errors of several attempts, one after another in the same processes."""
    return [attempt(*case) for case in cases]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A checkpoint of 4 processes after 4 updates, and the loss three updates later."""
    path = tmp_path_factory.mktemp("checkpoint") / "a"
    return path, run_ranks(save, 4, str(path))[0]


@pytest.fixture(scope="module")
def digested(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A checkpoint of 4 processes whose manifest has digests."""
    path = tmp_path_factory.mktemp("digested") / "a"
    run_ranks(save, 4, str(path), 4, 0, "digest")
    return path


@pytest.mark.parametrize("num_ranks", [3, 1])
def test_values_are_those_that_were_saved(digested: Path, saved: tuple[Path, float], num_ranks: int) -> None:
    """Digests that were taken of 4 processes' shards are those of what others loaded."""
    for updates, loss, _, _ in run_ranks(resume, num_ranks, str(digested)):
        assert (updates, loss) == (4, pytest.approx(saved[1], rel=1e-5))
    manifest = read_manifest(digested)
    assert manifest is not None
    assert manifest.checksums == "digest"
    tensors = {key: what for key, what in manifest.keys.items() if isinstance(what, TensorKey)}
    assert {key for key, what in tensors.items() if not what.digest} == {f"loader.{STATE_KEY}", f"loader.{SEAL_KEY}"}


def load_flipped(path: str) -> str:
    """The error where a file's contents are not checked and were changed."""
    job = Job()
    try:
        load_checkpoint(path, job.state, loader=job.loader, level="directory")
    except ResumableDataError as error:
        return str(error)
    return ""


def test_a_value_that_changed_on_its_way_is_found(digested: Path, tmp_path: Path) -> None:
    """Also where nobody compared the checksums of files, on all processes, and the loader stays where it was."""
    copy = tmp_path / "copy"
    shutil.copytree(digested, copy)
    damage(copy, "flipped")
    for error in run_ranks(load_flipped, 2, str(copy)):
        assert "expected tensors as they were saved" in error


@pytest.mark.parametrize("num_ranks", [4, 3, pytest.param(2, marks=pytest.mark.slow), 1])
def test_it_goes_on_as_if_nothing_had_happened(saved: tuple[Path, float], num_ranks: int) -> None:
    """On any number of processes: model, moments, learning rate, cursor, and dicts with integer keys."""
    path, loss = saved
    for updates, found, milestones, note in run_ranks(resume, num_ranks, str(path)):
        assert updates == 4
        assert found == pytest.approx(loss, rel=1e-5)
        assert milestones == {1: 1, 3: 1}
        assert note == {"text": "x", 3: [1, 2.5, None]}


def test_the_manifest_is_of_the_files(saved: tuple[Path, float]) -> None:
    """The check at the deepest level finds nothing, and the manifest tells the save."""
    path, _ = saved
    report = verify_checkpoint(path)
    assert (report.verdict, report.has_manifest) == ("sound", True), report.to_text()
    manifest = read_manifest(path)
    assert manifest is not None
    assert (manifest.update, manifest.topology.world_size, manifest.checksums) == (4, 4, "crc32")
    cursor = manifest.decode_cursor()
    assert cursor is not None
    assert cursor.coverage[-1].stop == cursor.position == 24
    state = {"model.0.weight": torch.zeros(12, FEATURES)}
    with alone_is_meant():
        dcp.load(state, checkpoint_id=path, no_dist=True)  # other tools read it
    assert state["model.0.weight"].abs().sum() > 0


PROGRAMS: list[tuple[str, list[str], tuple[str, ...]]] = [
    ("deeper", ["model.3.weight: nothing in the checkpoint", "only_in_program"], ()),
    ("deeper", [], ("only_in_program", "step_counters")),
    ("wider", ["model.2.weight: float32 [3, 12] in the checkpoint, float32 [4, 12]", "shape"], ()),
    ("bfloat16", ["MigrationError", "precision.model.parameters: 'float32' in the checkpoint, 'bfloat16'"], ()),
    ("bfloat16", ["float32 [12, 5] in the checkpoint, bfloat16 [12, 5]", "dtype"], ("precision",)),
    ("frozen", ["only_in_checkpoint", "exp_avg"], ()),
    ("sgd", ["momentum_buffer", "only_in_program", "only_in_checkpoint"], ()),
    ("no optimizer", ["only_in_checkpoint", "optimizer.state.0.weight.exp_avg"], ()),
    ("no optimizer", [], ("only_in_checkpoint",)),
    ("other batch", ["MigrationError", "global_batch: 6 in the checkpoint, 5 in the program"], ()),
    ("other batch", [], ("global_batch",)),
    ("gradients", [], ()),
    ("", [], ()),
]


def test_another_program(saved: tuple[Path, float]) -> None:
    """What DCP would leave out or cast without a word is named, nothing is loaded; what is allowed by name is."""
    cases = [(str(saved[0]), change, allow, "directory") for change, _, allow in PROGRAMS]
    for errors in run_ranks(attempt_all, 2, cases):
        for (change, texts, allow), error in zip(PROGRAMS, errors, strict=True):
            assert bool(error) == bool(texts), (change, allow, error)
            assert all(text in error for text in texts), (change, error)


def damage(path: Path, how: str) -> None:
    """Spoil a copy of the checkpoint."""
    file = max(path.glob("*.distcp"), key=lambda one: one.stat().st_size)
    data = bytearray(file.read_bytes())
    if how == "deleted":
        file.unlink()
    elif how == "cut":
        file.write_bytes(data[:-200])
    elif how == "flipped":
        at = bytes(data).index(b"data/0") + 120
        data[at] ^= 4
        file.write_bytes(data)
    elif how == "no manifest":
        (path / MANIFEST_NAME).unlink()
    elif how == "no metadata":
        (path / ".metadata").unlink()


DAMAGES = [
    ("deleted", "structure", "RD821"),
    ("cut", "structure", "RD822"),
    ("flipped", "payload", "RD841"),
    ("no manifest", "structure", "expected a manifest"),
    ("no metadata", "structure", "RD801"),
]


def test_damage_is_named_before_anything_is_read(saved: tuple[Path, float], tmp_path: Path) -> None:
    """On all processes, with the program as it was."""
    cases: list[Case] = []
    for how, level, _ in DAMAGES:
        shutil.copytree(saved[0], tmp_path / how)
        damage(tmp_path / how, how)
        cases.append((str(tmp_path / how), "", (), level))
    for errors in run_ranks(attempt_all, 2, cases):
        for (how, _, text), error in zip(DAMAGES, errors, strict=True):
            assert text in error, how


def test_files_of_two_saves_in_one_directory(saved: tuple[Path, float], tmp_path: Path) -> None:
    """One process's file of another save has right checksums and other contents: the manifest knows."""
    run_ranks(save, 4, str(tmp_path / "later"), 6, 0)
    shutil.copytree(saved[0], tmp_path / "mixed")
    shutil.copy(tmp_path / "later/__2_0.distcp", tmp_path / "mixed/__2_0.distcp")
    for error in run_ranks(attempt, 3, str(tmp_path / "mixed")):
        assert "RD85" in error


def save_into(path: str, change: str = "") -> str:
    """The error of a save."""
    job = Job()
    job.train(1)
    rank = dist.get_rank()
    if change == "value":
        job.state["note"] = {"text": "x" if rank else "y", "same": 1}
    elif change == "tensor":
        job.state["rng"] = torch.full((4,), rank)
    elif change == "large tensor":
        job.state["table"] = torch.full((1 << 19,), rank)
        try:
            save_checkpoint(path, job.state, loader=job.loader, checksums="digest")
        except ResumableDataError as error:
            return f"{type(error).__name__}: {error}"
    elif change == "object":
        job.state["bad"] = {1, 2}
    elif change == "cursor" and rank == 1:
        job.loader.load_state_dict(None, allow={"fresh_start"})
    elif change == "keys":
        job.state["note"] = {1: "a", "1": "b"}
    try:
        save_checkpoint(path, job.state, loader=job.loader)
    except ResumableDataError as error:
        return f"{type(error).__name__}: {error}"
    return ""


REFUSED = [
    ("value", "under 1 names:\n  note.text = 'y'  on process 0\n  note.text = 'x'  on process 1"),
    ("tensor", "DisagreementError: processes hold different values under 1 names:\n  rng = torch.int64 (4,)"),
    ("large tensor", "table"),
    ("object", "state 'bad': expected tensors, numbers, texts"),
    ("keys", "state 'note': expected keys that differ as text"),
    ("cursor", "DisagreementError: processes hold different cursors"),
]


def save_all_into(path: str) -> list[str]:
    return [save_into(f"{path}/{change}", change) for change, _ in REFUSED]


def test_what_cannot_be_saved_is_refused_on_all(tmp_path: Path) -> None:
    """Nothing is written, and each process says why or whose fault it was."""
    for errors in run_ranks(save_all_into, 2, str(tmp_path)):
        for (change, text), error in zip(REFUSED, errors, strict=True):
            assert text in error, change
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_directory_that_holds_something_is_refused(saved: tuple[Path, float], tmp_path: Path) -> None:
    """A save over another one is what leaves files of both."""
    copy = tmp_path / "copy"
    shutil.copytree(saved[0], copy)
    before = {path.name: path.read_bytes() for path in copy.iterdir()}
    for error in run_ranks(save_into, 2, str(copy)):
        assert "expected a new or empty directory" in error
    assert {path.name: path.read_bytes() for path in copy.iterdir()} == before


def test_a_single_process_needs_no_group(tmp_path: Path) -> None:
    """A plain script saves and loads in the same way, also what is not in a model."""
    model, values = nn.Linear(3, 2), {"tensor": torch.arange(4), "n": 7}
    loader = ResumableLoader(DATA, global_batch=6, microbatch=6)
    for _, update in zip(range(2), loader.updates(), strict=False):
        update.commit()
    save_checkpoint(tmp_path / "a", {"model": model, "values": values}, loader=loader)
    other = ResumableLoader(DATA, global_batch=6, microbatch=6)
    empty = {"tensor": torch.zeros(4, dtype=torch.int64), "n": 0}
    copy = nn.Linear(3, 2)
    loaded = load_checkpoint(tmp_path / "a", {"model": copy, "values": empty}, loader=other, level="payload")
    assert torch.equal(copy.weight, model.weight)
    assert torch.equal(loaded.values["values"]["tensor"], torch.arange(4))
    assert (loaded.values["values"]["n"], other.cursor.updates) == (7, 2)


def test_what_only_the_program_has_stays_as_it_was(tmp_path: Path) -> None:
    """Parts that are not in the checkpoint, and values within dicts and lists of any kind of key."""
    saved, own, new = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(2, 2)
    program, before = nn.Sequential(own, new), new.weight.clone()
    save_checkpoint(tmp_path / "a", {"0": saved, "values": {"n": 1, 4: torch.ones(2), 5: {"x": [2, 3]}}})
    optimizer = torch.optim.AdamW(program.parameters(), lr=0.5)
    scheduler = MultiStepLR(optimizer, [1, 3])
    values = {"n": 7, 4: torch.zeros(2), 5: {"x": [0, 0], 6: 8}, "more": [{"y": 9, 7: torch.ones(1)}, 10]}
    state = {"0": own, "whole": program, "optimizer": optimizer, "scheduler": scheduler, "values": values}
    loaded = load_checkpoint(tmp_path / "a", state, allow={"only_in_program"})
    assert torch.equal(own.weight, saved.weight)
    assert torch.equal(new.weight, before)
    assert (optimizer.param_groups[0]["lr"], len(optimizer.state), scheduler.last_epoch) == (0.5, 0, 0)
    found = loaded.values["values"]
    assert torch.equal(found[4], torch.ones(2))
    assert (found["n"], found[5]) == (1, {"x": [2, 3], 6: 8})
    assert found["more"] == [{"y": 9, 7: torch.ones(1)}, 10]


class Shouting:
    """What a pickle runs when it is read."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return print, ("read",)


def test_no_pickle_of_a_foreign_checkpoint_is_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A plain value that needs code to be read is refused, with what DCP says of it."""
    with alone_is_meant():
        dcp.save({"value": Shouting()}, checkpoint_id=tmp_path / "a", no_dist=True)
    with pytest.raises(CheckpointError, match="failed on 1 processes"):
        load_checkpoint(tmp_path / "a", {"value": 1}, allow={"no_manifest"})
    assert capsys.readouterr().out == ""


def test_the_latest_is_one_that_loads(tmp_path: Path) -> None:
    """Newest by number; what a crash left without a manifest, or damaged, is passed over."""
    assert latest_checkpoint(tmp_path / "none") is None
    model = nn.Linear(3, 2)
    for number in (9, 10, 100, 1000):
        save_checkpoint(tmp_path / f"step-{number}", {"model": model})
    assert latest_checkpoint(tmp_path) == tmp_path / "step-1000"
    (tmp_path / "step-1000" / MANIFEST_NAME).unlink()
    assert latest_checkpoint(tmp_path) == tmp_path / "step-100"
    assert latest_checkpoint(tmp_path, needs_manifest=False) == tmp_path / "step-1000"
    damage(tmp_path / "step-100", "cut")
    assert latest_checkpoint(tmp_path) == tmp_path / "step-10"
    load_checkpoint(tmp_path / "step-10", {"model": model})
