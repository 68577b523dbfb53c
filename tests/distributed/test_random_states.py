"""RandomStates in checkpoints of real processes: each its own stream on the same ranks, what is declared on others."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist

from resumable_data.checkpoint import RandomStates, async_save_checkpoint, load_checkpoint, save_checkpoint
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.errors import ResumableDataError
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks
from tests.distributed.saves import DATA, Draws, Run, draw


def with_random_states(run: Run, on_change: str = "refuse") -> Run:
    run.state = {"rng": RandomStates(run.loader, on_change=on_change), **run.state}
    return run


def save(root: Path) -> Draws:
    """What comes next on this process after a save, and an async save, of unlike streams on all processes."""
    run = with_random_states(Run())
    run.train(2)
    torch.manual_seed(dist.get_rank())
    np.random.seed(dist.get_rank())
    random.seed(dist.get_rank())
    draw(3)
    saving = async_save_checkpoint(root / "1", run.state, loader=run.loader)
    save_checkpoint(root / "2", run.state, loader=run.loader, checksums="digest")
    following = draw(5)
    saving.result()
    return following


def load(path: Path, on_change: str = "refuse", mirrored: bool = False) -> tuple[str, Draws, str]:
    """What was done, what comes next, and the error."""
    run = Run()
    if mirrored:
        size = dist.get_world_size()
        run.loader = ResumableLoader(
            DATA, global_batch=6, microbatch=6, rank=size - 1 - dist.get_rank(), num_replicas=size
        )
    with_random_states(run, on_change)
    before = run.weights()
    try:
        loaded = load_checkpoint(path, run.state, loader=run.loader, level="structure")
    except ResumableDataError as error:
        assert run.weights() == before
        assert run.loader.cursor.updates == 0
        return "", {}, f"{type(error).__name__}: {error}"
    assert run.loader.cursor.updates == 2
    assert loaded.differences == ()
    following = draw(5)
    if loaded.random_states != "restored":
        save_checkpoint(path / "next", run.state, loader=run.loader)
    return loaded.random_states, following, ""


def load_all(cases: list[tuple[Path, str, bool]]) -> list[tuple[str, Draws, str]]:
    return [load(*case) for case in cases]


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Draws]]:
    """Two checkpoints of 4 processes, and what each drew next."""
    root = tmp_path_factory.mktemp("random")
    return root, run_ranks(save, 4, root)


def test_each_process_goes_on_with_its_own_stream(saved: tuple[Path, list[Draws]]) -> None:
    """Bit for bit, for all generators, from a save that waited and from one beside training."""
    root, following = saved
    for name in ("torch", "numpy", "random"):
        assert len({str(one[name]) for one in following}) == 4
    cases = [(root / "1", "refuse", False), (root / "2", "refuse", False)]
    assert run_ranks(load_all, 4, cases) == [[("restored", one, "")] * 2 for one in following]
    manifest = read_manifest(root / "2")
    assert manifest is not None
    assert manifest.rng == "refuse"
    assert {f"rng.rank{rank}" for rank in range(4)} < set(manifest.keys)


def damaged_copy(path: Path, to: Path) -> Path:
    """The checkpoint with one bit of each process's generators flipped."""
    to.mkdir()
    for file in path.iterdir():
        data = bytearray(file.read_bytes())
        at = data.find(b"RDRANDOM")
        if at >= 0:
            data[at + 1000] ^= 1
        (to / file.name).write_bytes(data)
    return to


@pytest.mark.parametrize("num_ranks", [2, 5])
def test_other_ranks(saved: tuple[Path, list[Draws]], num_ranks: int, tmp_path: Path) -> None:
    """Refused on all, or seeded by seed, update and rank, which the load returns and the next manifest says."""
    copy = tmp_path / "copy"
    copy.mkdir()
    for file in (saved[0] / "2").iterdir():
        (copy / file.name).write_bytes(file.read_bytes())
    change = f"saved by 4 processes of 4 data-parallel ranks, now there are {num_ranks} processes of {num_ranks}"
    drawn = []
    for refused, reseeded in run_ranks(load_all, num_ranks, [(copy, "refuse", False), (copy, "reseed", False)]):
        assert refused[2].startswith("StateError: random states were " + change)
        assert 'RandomStates(loader, on_change="reseed")' in refused[2]
        assert reseeded[0].startswith("seeded anew at update 2: " + change)
        drawn.append(reseeded[1])
    for rank, found in enumerate(drawn):
        assert found == expected_after_reseed(rank)
    manifest = read_manifest(copy / "next")
    assert manifest is not None
    assert manifest.rng.startswith("reseed; seeded anew at update 2: " + change)


def expected_after_reseed(rank: int) -> Draws:
    loader = ResumableLoader(DATA, global_batch=6, microbatch=6, rank=rank, num_replicas=9)
    RandomStates(loader).reseed(2)
    return draw(5)


def test_moved_ranks_and_damage(saved: tuple[Path, list[Draws]], tmp_path: Path) -> None:
    """As many processes with other data-parallel ranks are another rank set; a damaged state is named."""
    damaged = damaged_copy(saved[0] / "2", tmp_path / "damaged")
    for rank, (moved, broken) in enumerate(
        run_ranks(load_all, 4, [(saved[0] / "2", "refuse", True), (damaged, "refuse", False)])
    ):
        assert "saved by process" in moved[2]
        assert "as data-parallel rank" in moved[2]
        assert f"rng.rank{rank}: random states are damaged" in broken[2]
        assert "CheckpointError" in broken[2]


def forget(path: Path) -> list[str]:
    """Errors where only one of checkpoint and program has random states, and of a state with two of them."""
    errors: list[str] = []
    run = Run()
    for state in ({"rng": RandomStates(run.loader), **run.state}, run.state):
        save_checkpoint(path / str(len(errors)), state, loader=run.loader)
        other: dict[str, Any] = dict(run.state)
        if state is run.state:
            other["rng"] = RandomStates(run.loader)
        try:
            load_checkpoint(path / str(len(errors)), other, loader=run.loader)
        except ResumableDataError as error:
            errors.append(str(error))
        load_checkpoint(
            path / str(len(errors) - 1), other, loader=run.loader, allow={"only_in_checkpoint", "only_in_program"}
        )
    try:
        save_checkpoint(path / "two", {"a": RandomStates(run.loader), "b": RandomStates(run.loader)})
    except ResumableDataError as error:
        errors.append(str(error))
    return errors


def test_random_states_on_one_side_only(tmp_path: Path) -> None:
    """They are a difference as any other, by the keys of all processes."""
    for rank, (saved, missing, two) in enumerate(run_ranks(forget, 2, tmp_path)):
        assert "rng.rank0: uint8 [12288] in the checkpoint, nothing in the program" in saved
        assert "rng.rank1: uint8 [12288] in the checkpoint, nothing in the program" in saved
        assert f"rng.rank{rank}: nothing in the checkpoint" in missing
        assert "expected one RandomStates" in two
