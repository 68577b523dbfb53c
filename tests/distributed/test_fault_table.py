"""What `torch.distributed.checkpoint` takes without a word, or answers late: each is a named error before it does harm.

Saved by 4 processes with FSDP2, AdamW and tied weights, loaded by 2 and by 3. The names of the rows say what is wrong;
those of one kind stand together.
"""

from __future__ import annotations

import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

from resumable_data.checkpoint import Loaded, RandomStates, load_checkpoint, save_checkpoint
from resumable_data.checkpoint.manifest import MANIFEST_NAME
from resumable_data.errors import ResumableDataError
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks

DATA = torch.arange(600).reshape(60, 10) % 12


class Model(nn.Module):
    """A language model of one layer, whose head has the weights of its embedding."""

    def __init__(self, change: str = "") -> None:
        super().__init__()
        torch.manual_seed(7)
        width = 12 if change == "wider" else 8
        self.embed, self.body, self.head = nn.Embedding(12, width), nn.Linear(width, width), nn.Linear(width, 12)
        if change != "untied":
            self.head.weight = self.embed.weight
        if change == "one more layer":
            self.extra = nn.Linear(width, width)
        if change == "other dtype":
            self.to(torch.bfloat16)
        if change == "frozen":
            self.body.requires_grad_(False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.head(torch.relu(self.body(self.embed(tokens))))
        return logits


class Job:
    """A training program; `change` is how it differs from the one that saved."""

    def __init__(self, change: str = "") -> None:
        self.model = Model(change)
        early = torch.optim.AdamW(self.model.parameters(), lr=0.1) if change == "optimizer before sharding" else None
        fully_shard(self.model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
        self.optimizer = early or self._optimizer(change)
        self.scheduler = self._scheduler(change)
        self.scaler = torch.amp.GradScaler("cpu", enabled=change != "scaler off")
        self.loader = ResumableLoader(DATA, global_batch=6, microbatch=6)
        self.state: dict[str, Any] = {
            "model": self.model,
            "optimizer": self.optimizer,
            "scheduler": self.scheduler,
            "scaler": self.scaler,
            "values": {"text": "x", "tensor": torch.arange(3), "list": [1, 2, 3]},
        }
        if change == "no optimizer":
            del self.state["optimizer"], self.state["scheduler"]
        if change == "tensor for text":
            self.state["values"]["text"] = torch.zeros(1)
        if change == "text for tensor":
            self.state["values"]["tensor"] = "x"
        if change == "longer list":
            self.state["values"]["list"] = [0] * 7
        if change == "gradients":
            for parameter in self.model.parameters():
                parameter.grad = torch.ones_like(parameter)
        if change == "random states":
            self.state["rng"] = RandomStates(self.loader)

    def _optimizer(self, change: str) -> torch.optim.Optimizer:
        parameters = [one for one in self.model.parameters() if one.requires_grad]
        if change == "other optimizer":
            return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)
        if change == "two groups":
            return torch.optim.AdamW([{"params": parameters[:1]}, {"params": parameters[1:]}], lr=0.1)
        if change == "other settings":
            return torch.optim.AdamW(parameters, lr=0.1, weight_decay=0.3, betas=(0.8, 0.9))
        return torch.optim.AdamW(parameters, lr=0.1)

    def _scheduler(self, change: str) -> Any:
        if change == "other scheduler":
            return CosineAnnealingLR(self.optimizer, 10)
        return StepLR(self.optimizer, 5 if change == "other settings" else 2)

    def train(self, num_updates: int) -> None:
        for _, update in zip(range(num_updates), self.loader.updates(), strict=False):
            for microbatch in update:
                self.model(microbatch.data).logsumexp(-1).sum().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()
            self.scheduler.step()
            update.commit()


def save_all(root: str) -> dict[str, str]:
    """The checkpoints that are loaded, and what is said of states that cannot be saved."""
    job = Job()
    for step in (5, 10):
        job.train(5)
        save_checkpoint(f"{root}/{step}", job.state, loader=job.loader)
    bare = {name: job.state[name] for name in ("model", "scaler", "values")}
    save_checkpoint(f"{root}/without optimizer", bare, loader=job.loader)
    untied = Job("untied")
    save_checkpoint(f"{root}/untied", {"model": untied.model})
    job = Job("random states")
    save_checkpoint(f"{root}/random states", job.state, loader=job.loader)
    rank, said = dist.get_rank(), {}
    for name, value in {
        "other values": {"a": rank, "b": -rank},
        "other shapes": torch.zeros(1 + rank % 2),
        "random states under one key": torch.arange(9) * rank,
        "keys that become one text": {1: "a", "1": "b"},
    }.items():
        try:
            save_checkpoint(f"{root}/{name}", {"value": value})
        except ResumableDataError as error:
            said[name] = str(error)
    return said


Damage = Callable[[Path, Path], object]
"""Spoils a copy of the checkpoint after 5 updates; that after 10 is beside it."""


def data_file(path: Path) -> Path:
    return max(path.glob("*.distcp"), key=lambda one: one.stat().st_size)


def item_of(path: Path, key: str) -> tuple[Path, int, int]:
    """The first item of a key: its file, and where it begins and ends there."""
    stored = pickle.loads((path / ".metadata").read_bytes()).storage_data
    place = next(info for index, info in stored.items() if index.fqn == key)
    return path / place.relative_path, place.offset, place.offset + place.length


def cut(num_bytes: int | None) -> Damage:
    def damage(path: Path, _: Path) -> None:
        data = data_file(path).read_bytes()
        data_file(path).write_bytes(data[: -num_bytes if num_bytes else len(data) // 2])

    return damage


def appended(path: Path, _: Path) -> None:
    file = data_file(path)
    file.write_bytes(file.read_bytes() + b"garbage")


def changed(key: str, mark: bytes, skip: int, content: bytes | None = None) -> Damage:
    """A bit of an item is flipped, or bytes of it replaced: some way behind a mark in it."""

    def damage(path: Path, _: Path) -> None:
        file, begin, end = item_of(path, key)
        data = bytearray(file.read_bytes())
        at = data.index(mark, begin, end) + skip
        data[at : at + len(content or b"x")] = content or bytes([data[at] ^ 4])
        file.write_bytes(data)

    return damage


def edited(edit: Callable[[Any], object], *, keeps_manifest: bool = False) -> Damage:
    """The metadata says something else; nothing but its own contradictions tells."""

    def damage(path: Path, _: Path) -> None:
        metadata = pickle.loads((path / ".metadata").read_bytes())
        edit(metadata)
        (path / ".metadata").write_bytes(pickle.dumps(metadata))
        if not keeps_manifest:
            (path / MANIFEST_NAME).unlink()

    return damage


def drop_chunks(count: int | None) -> Callable[[Any], object]:
    def edit(metadata: Any) -> None:
        del metadata.state_dict_metadata["model.body.weight"].chunks[:count]

    return edit


def drop_entry(metadata: Any) -> None:
    del metadata.storage_data[next(one for one in metadata.storage_data if one.fqn == "model.body.weight")]


def drop_moment(metadata: Any) -> None:
    key = "optimizer.state.body.weight.exp_avg_sq"
    del metadata.state_dict_metadata[key], metadata.planner_data[key]
    for index in [one for one in metadata.storage_data if one.fqn == key]:
        del metadata.storage_data[index]


def torn_overwrite(path: Path, later: Path) -> None:
    """A save over an older one, of which one process died before it opened its file; nobody wrote a manifest."""
    kept = (path / "__2_0.distcp").read_bytes()
    shutil.rmtree(path)
    shutil.copytree(later, path)
    (path / "__2_0.distcp").write_bytes(kept)
    (path / MANIFEST_NAME).unlink()


def died_at_the_rename(path: Path, _: Path) -> None:
    (path / ".metadata").rename(path / ".metadata.tmp")
    (path / MANIFEST_NAME).unlink()


def of_later(name: str) -> Damage:
    return lambda path, later: shutil.copy(later / name, path / name)


MODEL, TIED = "model.body.weight", "model.embed.weight"
NO_MANIFEST = ("no_manifest",)

DAMAGES: dict[str, tuple[Damage, tuple[str, ...], str]] = {
    "02 a data file deleted": (lambda path, _: data_file(path).unlink(), (), "RD821"),
    "02b a data file deleted that the program asks nothing of": (
        lambda path, _: data_file(path).unlink(),
        ("only_in_checkpoint",),
        "RD821",
    ),
    "03 metadata deleted": (lambda path, _: (path / ".metadata").unlink(), (), "RD801"),
    "03 metadata cut": (
        lambda path, _: (path / ".metadata").write_bytes((path / ".metadata").read_bytes()[:-9]),
        (),
        "RD802",
    ),
    "04 a data file cut by half": (cut(None), (), "RD822"),
    "05 by one byte": (cut(1), (), "RD822"),
    "05 by 200 bytes": (cut(200), (), "RD822"),
    "06 a bit of a weight flipped": (changed(MODEL, b"data/0", 100), (), "RD841"),
    "06b a shard zeroed": (changed(MODEL, b"data/0", 64, bytes(64)), (), "RD841"),
    "06c random bytes in a shard": (changed(MODEL, b"data/0", 64, bytes(range(64))), (), "RD841"),
    "07 a bit of a pickled number flipped": (changed("scheduler.last_epoch", b"K\5", 1), (), "RD841"),
    "07b a bit of the cursor flipped": (changed("loader.resumable_data.cursor", b"applied", 2), (), "RD8"),
    "08 a bit of an archive's end record flipped": (changed(MODEL, b"PK\5\6", 12), (), "RD831"),
    "08b a bit of a local header's magic flipped": (changed(MODEL, b"PK\3\4", 2), (), "RD831"),
    "10 a data file of another step": (of_later("__2_0.distcp"), (), "RD85"),
    "12 metadata of another step": (of_later(".metadata"), (), "RD85"),
    "12b killed while saving over another one": (torn_overwrite, (), "expected a manifest"),
    "12b the same, without a manifest being asked for": (torn_overwrite, NO_MANIFEST, "SealError"),
    "12e killed between removing and renaming": (died_at_the_rename, NO_MANIFEST, "RD801"),
    "13 a file left of more processes": (
        lambda path, _: shutil.copy(data_file(path), path / "__9_0.distcp"),
        (),
        "",
    ),
    "13 bytes appended": (
        lambda path, _: data_file(path).write_bytes(data_file(path).read_bytes() + b"garbage"),
        (),
        "RD823",
    ),
    "14 a chunk lost": (edited(drop_chunks(1)), NO_MANIFEST, "RD811"),
    "14 all chunks lost": (edited(drop_chunks(None)), NO_MANIFEST, "RD811"),
    "14c a storage entry lost": (edited(drop_entry), NO_MANIFEST, "RD814"),
    "24 a moment lost": (edited(drop_moment), NO_MANIFEST, "RD824"),
}

# change of the program, checkpoint, allowances, and what is said; nothing where it loads, and then what was noted
PROGRAMS: dict[str, tuple[str, str, tuple[str, ...], str]] = {
    "01 control": ("", "5", (), ""),
    "16 a key that the checkpoint lacks": ("one more layer", "5", (), "model.extra.weight: nothing in the checkpoint"),
    "17 the same, allowed": ("one more layer", "5", ("only_in_program",), ""),
    "18 keys that the program lacks": ("no optimizer", "5", (), "only_in_checkpoint"),
    "19 another dtype": ("other dtype", "5", (), "precision.model.parameters: 'float32' in the checkpoint, 'bfloat16'"),
    "19 the same, declared": ("other dtype", "5", ("precision",), "bfloat16 [8, 8] in the program"),
    "21 another shape": ("wider", "5", ("only_in_program", "only_in_checkpoint", "dtype"), "shape: it does not fit"),
    "22 no optimizer in the checkpoint": ("", "without optimizer", ("only_in_checkpoint",), "exp_avg"),
    "27 two groups of parameters": ("two groups", "5", (), "optimizer.param_groups.1"),
    "28 another optimizer": ("other optimizer", "5", (), "momentum_buffer"),
    "29 and 61 other settings": (
        "other settings",
        "5",
        (),
        "overridden optimizer.param_groups.0.betas.0, optimizer.param_groups.0.betas.1, "
        "optimizer.param_groups.0.weight_decay, scheduler.step_size",
    ),
    "30 a text saved, a tensor now": ("tensor for text", "5", (), "values.text: a plain value in the checkpoint"),
    "30b a tensor saved, a text now": ("text for tensor", "5", (), "a plain value in the program"),
    "31 tied when saved, untied now": ("untied", "5", (), "optimizer.state.head.weight.exp_avg: nothing in the"),
    "31b tied weights saved with two values": ("", "untied", ("only_in_program",), "different ones of model.embed"),
    "40 gradients before the load": ("gradients", "5", (), ""),
    "42 parameters frozen now": ("frozen", "5", (), "optimizer.state.body.weight.exp_avg"),
    "43 an optimizer made before fully_shard": ("optimizer before sharding", "5", (), "made after fully_shard()"),
    "53 random states of other ranks": ("random states", "random states", (), "StateError"),
    "55 a longer list": ("longer list", "5", (), ""),
    "60 a scaler that is off": ("scaler off", "5", (), "scaler.scale: a plain value in the checkpoint, nothing in"),
    "61 another scheduler": (
        "other scheduler",
        "5",
        (),
        "schedule.scheduler.kind: 'torch.optim.lr_scheduler.StepLR' in",
    ),
    "61 the same, declared": ("other scheduler", "5", ("schedule",), "scheduler.T_max: nothing in the checkpoint"),
}


def load_all(root: str) -> dict[str, str]:
    """What each load says."""
    said = {name: load(f"{root}/damaged/{name}", "", allow) for name, (_, allow, _) in DAMAGES.items()}
    return said | {name: load(f"{root}/{path}", how, allow) for name, (how, path, allow, _) in PROGRAMS.items()}


def load(path: str, change: str, allow: tuple[str, ...]) -> str:
    try:
        job = Job(change)
    except KeyError as error:
        return f"KeyError: {error}"
    before = {name: one.full_tensor().clone() for name, one in job.model.state_dict().items()}
    try:
        loaded: Loaded = load_checkpoint(path, job.state, loader=None if "untied" in path else job.loader, allow=allow)
    except ResumableDataError as error:
        said = f"{type(error).__name__}: {error}"
        if "SealError" not in said:  # it is seen in what was read
            assert all(torch.equal(one.full_tensor(), before[name]) for name, one in job.model.state_dict().items())
            assert job.loader.cursor.updates == 0
        return said
    assert job.loader.cursor.updates == job.scheduler.last_epoch == 5
    assert job.optimizer.param_groups[0]["lr"] == pytest.approx(0.1 * 0.1**2)
    moments = [state for state in job.optimizer.state.values() if "exp_avg_sq" in state]
    assert all(float(state["step"]) == 5 for state in moments[:4])
    assert all(state["exp_avg_sq"].full_tensor().abs().sum() > 0 for state in moments[:4])
    assert loaded.values["values"]["list"] == [1, 2, 3]
    return f"overridden {', '.join(one.key for one in loaded.overridden)}" if loaded.overridden else ""


SAVES = {
    "other values": "processes hold different values under 2 names:\n  value.a = 0  on process 0",
    "other shapes": "processes hold different values under 1 names:\n  value = ",
    "random states under one key": "processes hold different values under 1 names:\n  value = ",
    "keys that become one text": "expected keys that differ as text",
}


@pytest.mark.parametrize("num_ranks", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_every_fault_has_its_error(tmp_path: Path, num_ranks: int) -> None:
    """Before the program has changed; what is harmless loads, and what is noted is noted."""
    for said in run_ranks(save_all, 4, str(tmp_path)):
        assert {name: text in said.get(name, "") for name, text in SAVES.items()} == dict.fromkeys(SAVES, True), said
    for name, (damage, _, _) in DAMAGES.items():
        shutil.copytree(tmp_path / "5", tmp_path / "damaged" / name)
        damage(tmp_path / "damaged" / name, tmp_path / "10")
    expected = {name: text for name, (_, _, text) in DAMAGES.items()} | {
        name: text for name, (*_, text) in PROGRAMS.items()
    }
    for said in run_ranks(load_all, num_ranks, str(tmp_path)):
        assert said.keys() == expected.keys()
        wrong = {name: said[name] for name, text in expected.items() if not _is_said(text, said[name])}
        assert not wrong, "\n".join(f"{name}: {text}" for name, text in wrong.items())


def _is_said(expected: str, said: str) -> bool:
    return expected in said if expected else not said
