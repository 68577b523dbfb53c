"""Logits of fixed examples beside a checkpoint: what is stored, that it changes nothing, and that damage is found."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import resumable_data as rd
from resumable_data.checkpoint import Probe
from resumable_data.checkpoint.manifest import read_manifest
from resumable_data.checkpoint.probe import digest_of
from resumable_data.checkpoint.probe_file import PROBE_NAME, ProbeRecord, read_probe
from resumable_data.errors import CheckpointError, UsageError

EXAMPLES = {"x": torch.arange(6.0).reshape(2, 3), "names": ["a", "b"]}


def make_model() -> nn.Sequential:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))


def probe_of(model: nn.Module) -> Probe:
    return Probe(EXAMPLES, lambda examples: model(examples["x"]))


def test_what_is_stored_is_what_evaluation_gives(tmp_path: Path) -> None:
    """The file holds the logits of eval mode, bit for bit, and the manifest its checksum."""
    model = make_model()
    rd.save_checkpoint(tmp_path / "a", {"model": model}, probe=probe_of(model))
    record = read_probe(tmp_path / "a")
    assert record is not None
    with torch.no_grad():
        expected = model.eval()(EXAMPLES["x"])
    assert record.values.tolist() == expected.double().tolist()
    assert (record.dtype, record.computed_in, record.is_random) == ("float32", "float32", False)
    assert rd.verify_checkpoint(tmp_path / "a").verdict == "sound"
    rd.save_checkpoint(tmp_path / "b", {"model": model})
    assert read_probe(tmp_path / "b") is None
    manifest = read_manifest(tmp_path / "b")
    assert manifest is not None
    assert manifest.probe_xxh3 is None


def test_a_save_beside_training_stores_the_logits_of_the_call(tmp_path: Path) -> None:
    """Weights that change while the files are written do not change what was stored."""
    model = make_model()
    expected = probe_of(model).run([model])
    save = rd.async_save_checkpoint(tmp_path / "a", {"model": model}, probe=probe_of(model))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    save.result()
    assert read_probe(tmp_path / "a") == expected


def test_training_does_not_notice_a_probe() -> None:
    """Modes of modules, random generators, statistics and gradients are as they were."""
    model = make_model()
    model[1].eval()
    before = {key: value.clone() for key, value in model.state_dict().items()}

    def draw(x: dict[str, torch.Tensor]) -> torch.Tensor:
        torch.rand(1), np.random.rand(), random.random()
        out: torch.Tensor = model(x["x"])
        return out

    def drawn(act: Callable[[], object]) -> tuple[float, float, float]:
        torch.manual_seed(5), np.random.seed(5), random.seed(5)
        act()
        return float(torch.rand(1)), float(np.random.rand()), random.random()

    assert drawn(lambda: Probe(EXAMPLES, draw).run([model])) == drawn(lambda: None)
    assert [module.training for module in model] == [True, False, True, True]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())


def test_dropout_in_evaluation_is_seen() -> None:
    """Two forward passes that differ are noted as random."""
    model = make_model()
    probe = Probe(torch.ones(50, 3), lambda x: nn.functional.dropout(model(x), 0.5, training=True))
    assert probe.run([model]).is_random


def test_bfloat16_is_stored_exactly() -> None:
    """Narrow logits are stored in a type that holds all their values, with the dtype's name."""
    model = nn.Linear(3, 2).bfloat16()
    record = Probe(torch.ones(1, 3).bfloat16(), model).run([model])
    assert (record.dtype, record.computed_in, record.kind) == ("bfloat16", "bfloat16", "<f4")
    assert record.values.tolist() == model(torch.ones(1, 3).bfloat16()).double().tolist()


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (lambda x: 1.0, "got float"),
        (lambda x: torch.ones(1, dtype=torch.int64), "got torch.int64"),
        (lambda x: torch.ones(1).expand(1 << 27), "134,217,728 logits"),
    ],
)
def test_what_are_no_logits_is_refused(forward: Any, message: str, tmp_path: Path) -> None:
    """And nothing is saved."""
    with pytest.raises(UsageError, match=message):
        rd.save_checkpoint(tmp_path / "a", {"model": nn.Linear(1, 1)}, probe=Probe(1, forward))
    assert not (tmp_path / "a" / ".metadata").exists()


def test_examples_without_bytes_are_refused() -> None:
    """Whether an object is the same after a move could not be known."""
    with pytest.raises(UsageError, match="found object"):
        digest_of([object()])


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False).filter(lambda value: value != 0),
        st.text(max_size=3),
        st.lists(st.integers(-3, 3), max_size=4).map(lambda one: torch.tensor(one, dtype=torch.int64)),
        st.lists(st.integers(-3, 3), max_size=4).map(lambda one: np.array(one, dtype=np.int16)),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def plain(value: Any) -> Any:
    """What examples are, compared in the slow and obvious way."""
    if isinstance(value, (torch.Tensor, np.ndarray)):
        return (str(value.dtype), value.tolist())
    if isinstance(value, dict):
        return ("dict", [(key, plain(item)) for key, item in value.items()])
    if isinstance(value, list):
        return ("list", [plain(item) for item in value])
    return (type(value).__name__, value)


@given(VALUES, VALUES)
def test_digests_are_equal_where_examples_are(first: Any, second: Any) -> None:
    """Examples of other structure, type or value have another digest."""
    assert (digest_of(first) == digest_of(second)) == (plain(first) == plain(second))


RECORD = ProbeRecord(
    examples="0" * 32,
    dtype="float32",
    computed_in="float32",
    shape=(2, 2),
    kind="<f4",
    logits=np.arange(4, dtype="<f4").tobytes(),
)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    """Bytes that are no logits are an error that says so, whatever they are."""
    with pytest.raises(CheckpointError, match="Nothing was compared"):
        ProbeRecord.from_bytes(data)
    assert ProbeRecord.from_bytes(RECORD.to_bytes()) == RECORD


@given(st.integers(0, len(RECORD.to_bytes()) - 1), st.integers(1, 255))
def test_a_changed_byte_is_never_an_error_of_another_kind(at: int, flip: int) -> None:
    """What still reads has logits of the shape it says."""
    data = bytearray(RECORD.to_bytes())
    data[at] ^= flip
    try:
        record = ProbeRecord.from_bytes(bytes(data))
    except CheckpointError:
        return
    assert record.values.shape == record.shape


@pytest.mark.parametrize("damage", ["flip", "cut", "gone"])
def test_damage_is_found(tmp_path: Path, damage: str) -> None:
    """By the check of the checkpoint, at any level."""
    model = make_model()
    rd.save_checkpoint(tmp_path / "a", {"model": model}, probe=probe_of(model))
    file = tmp_path / "a" / PROBE_NAME
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        file.write_bytes(data[:-1] if damage == "cut" else data[:-1] + bytes([data[-1] ^ 1]))
    for level in ("structure", "payload"):
        assert [one.code for one in rd.verify_checkpoint(tmp_path / "a", level).findings] == ["RD858"]
