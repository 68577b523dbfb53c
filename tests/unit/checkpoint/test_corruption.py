"""Random damage to a checkpoint: all of it is found, but for bytes that mean nothing, which are counted."""

from __future__ import annotations

import pickle
import shutil
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp

import resumable_data as rd
from tests.checkpoints import add_manifest, odd_state, save
from tests.files import overwrite

if TYPE_CHECKING:
    from pathlib import Path

PAGE = 4096


def damage(rng: np.random.Generator, path: Path) -> str:
    """Do one random thing to one random file of a checkpoint; says what."""
    names = sorted(entry.name for entry in path.iterdir())
    name = names[int(rng.integers(len(names)))]
    data = bytearray((path / name).read_bytes())
    at = int(rng.integers(len(data)))
    how = ["flip", "flip", "flip", "flip", "cut", "swap", "zero", "delete", "rename"][int(rng.integers(9))]
    if how == "flip":
        data[at] ^= 1 << int(rng.integers(8))
    elif how == "cut":
        del data[at:]
    elif how == "swap":
        length = min(64, len(data) - at)
        other = int(rng.integers(len(data) - length + 1))
        data[at : at + length], data[other : other + length] = data[other : other + length], data[at : at + length]
    elif how == "zero":
        start = at // PAGE * PAGE
        data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
    if how in ("delete", "rename"):
        (path / name).rename(path / f"{name}.old") if how == "rename" else (path / name).unlink()
    else:
        overwrite(path / name, data)
    return f"{how} {name} at {at}"


def loaded(path: Path) -> dict[Any, Any]:
    """All that torch reads from a checkpoint: every tensor's bytes, every object, every place."""
    state = {**odd_state(), "expanded": torch.zeros(5)}  # torch cannot load into a tensor that is expanded
    metadata = pickle.loads((path / ".metadata").read_bytes())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(state, checkpoint_id=path, no_dist=True)
    state["bytes"] = state["bytes"].getvalue()
    flat = {}
    for key, place in metadata.planner_data.items():
        value: Any = state
        for part in place:
            value = value[part]
        if isinstance(value, torch.Tensor):
            value = (value.dtype, tuple(value.shape), value.detach().contiguous().flatten().view(torch.uint8).tolist())
        flat[key, place] = value
    return flat


def sweep(folder: Path, num_trials: int) -> tuple[int, int]:
    """Damage a checkpoint in many ways; returns how many were found, and how many changed nothing that is loaded."""
    whole = save(folder / "whole", odd_state())
    add_manifest(whole)
    assert rd.verify_checkpoint(whole).findings == ()
    expected = loaded(whole)
    rng = np.random.default_rng(20)
    found = meaningless = 0
    for trial in range(num_trials):
        path = shutil.copytree(whole, folder / f"trial-{trial}")
        what = damage(rng, path)
        if rd.verify_checkpoint(path).findings:
            found += 1
        else:
            assert loaded(path) == expected, what
            meaningless += 1
        shutil.rmtree(path)
    return found, meaningless


def test_random_damage_is_found(tmp_path: Path) -> None:
    """Each of 80 random changes is found, or torch loads the very same state."""
    found, meaningless = sweep(tmp_path, 80)
    assert found + meaningless == 80
    assert found > 50


@pytest.mark.slow
def test_much_random_damage_is_found(tmp_path: Path) -> None:
    """Each of 2,000 random changes is found, or torch loads the very same state."""
    found, meaningless = sweep(tmp_path, 2000)
    assert found + meaningless == 2000
    assert found > 1300
