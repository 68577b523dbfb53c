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

from resumable_data.checkpoint import load_checkpoint, save_checkpoint, verify_checkpoint
from resumable_data.checkpoint.collective import alone_is_meant
from resumable_data.checkpoint.manifest import MANIFEST_NAME, read_manifest
from resumable_data.errors import ResumableDataError
from resumable_data.loader import ResumableLoader
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


def save(path: str, num_updates: int = 4, more: int = 3) -> float:
    """Train, save, and train on; the last loss."""
    job = Job()
    job.train(num_updates)
    save_checkpoint(path, job.state, loader=job.loader)
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


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A checkpoint of 4 processes after 4 updates, and the loss three updates later."""
    path = tmp_path_factory.mktemp("checkpoint") / "a"
    return path, run_ranks(save, 4, str(path))[0]


@pytest.mark.parametrize("num_ranks", [4, 3, 2, 1])
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


@pytest.mark.parametrize(
    ("change", "kinds", "allow"),
    [
        ("deeper", ["model.3.weight: nothing in the checkpoint", "only_in_program"], ()),
        ("wider", ["model.2.weight: float32 [3, 12] in the checkpoint, float32 [4, 12]", "shape"], ()),
        ("bfloat16", ["float32 [12, 5] in the checkpoint, bfloat16 [12, 5]", "dtype"], ()),
        ("frozen", ["only_in_checkpoint", "exp_avg"], ()),
        ("sgd", ["momentum_buffer", "only_in_program", "only_in_checkpoint"], ()),
        ("no optimizer", ["only_in_checkpoint", "optimizer.state.0.weight.exp_avg"], ()),
        ("no optimizer", [], ("only_in_checkpoint",)),
        ("other batch", ["RecipeMismatchError", "global_batch"], ()),
        ("other batch", [], ("global_batch",)),
        ("gradients", [], ()),
        ("", [], ()),
    ],
)
def test_another_program(saved: tuple[Path, float], change: str, kinds: list[str], allow: tuple[str, ...]) -> None:
    """What DCP would leave out or cast without a word is named, nothing is loaded; what is allowed by name is."""
    for error in run_ranks(attempt, 2, str(saved[0]), change, allow):
        assert bool(error) == bool(kinds), error
        for text in kinds:
            assert text in error


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


@pytest.mark.parametrize(
    ("how", "level", "text"),
    [
        ("deleted", "structure", "RD821"),
        ("cut", "structure", "RD822"),
        ("flipped", "payload", "RD841"),
        ("no manifest", "structure", "expected a manifest"),
        ("no metadata", "structure", "RD801"),
    ],
)
def test_damage_is_named_before_anything_is_read(
    saved: tuple[Path, float], tmp_path: Path, how: str, level: str, text: str
) -> None:
    """On all processes, with the program as it was."""
    copy = tmp_path / "copy"
    shutil.copytree(saved[0], copy)
    damage(copy, how)
    for error in run_ranks(attempt, 2, str(copy), "", (), level):
        assert text in error


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


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ("value", "DisagreementError: processes hold different values under 1 names: note.text ('x' / 'y')"),
        ("tensor", "under 1 names: rng"),
        ("object", "state 'bad': expected tensors, numbers, texts"),
        ("keys", "state 'note': expected keys that differ as text"),
        ("cursor", "DisagreementError: processes hold different cursors"),
    ],
)
def test_what_cannot_be_saved_is_refused_on_all(tmp_path: Path, change: str, text: str) -> None:
    """Nothing is written, and each process says why or whose fault it was."""
    for error in run_ranks(save_into, 2, str(tmp_path / "a"), change):
        assert text in error
    assert not list((tmp_path / "a").iterdir()) if (tmp_path / "a").exists() else True


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
