"""What a worker sends of a microbatch, and what arrives."""

from __future__ import annotations

import pickle
from collections import OrderedDict
from multiprocessing.reduction import ForkingPickler
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.utils.data
from hypothesis import given
from hypothesis import strategies as st

from resumable_data import ResumableLoader
from resumable_data.loader.parcel import LARGEST_BYTES, Parcel, pack
from tests.examples import examples

DTYPES = (torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.float16, torch.float32)


class Pair(NamedTuple):
    inputs: Any
    labels: Any


class Scaled(Pair):
    """A named tuple made of one argument."""

    __slots__ = ()

    def __new__(cls, inputs: Any) -> Scaled:
        return cls._make((inputs, inputs + 1))

    def __getnewargs__(self) -> tuple[Any]:
        return (self.inputs,)


class Noted(Pair):
    """A named tuple with attributes of its own."""


def make(dtype: torch.dtype, shape: list[int], seed: int) -> torch.Tensor:
    return torch.randint(0, 2, shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


tensors = st.builds(make, st.sampled_from(DTYPES), st.lists(st.integers(0, 3), max_size=3), st.integers(0, 99))
plain = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(), st.binary())
data_of_a_batch = st.recursive(
    tensors | plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


def is_same(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return type(found) is torch.Tensor and found.dtype == expected.dtype and torch.equal(found, expected)
    if isinstance(expected, dict):
        return list(found) == list(expected) and all(is_same(found[key], expected[key]) for key in expected)
    if isinstance(expected, (list, tuple)):
        same_length = type(found) is type(expected) and len(found) == len(expected)
        return same_length and all(map(is_same, found, expected))
    return type(found) is type(expected) and bool(found == expected)


def has_tensor(data: Any) -> bool:
    if isinstance(data, dict):
        data = list(data.values())
    return isinstance(data, torch.Tensor) or (isinstance(data, (list, tuple)) and any(map(has_tensor, data)))


@examples(300, quick=60)
@given(data_of_a_batch)
def test_what_arrives_is_what_was_sent(data: Any) -> None:
    """Data of any form arrives as it was, its tensors without a shared memory of their own, writable."""
    packed = pack(data)
    if not has_tensor(data):
        assert packed is data
        return
    sent = bytes(ForkingPickler.dumps(packed))
    assert b"torch.multiprocessing" not in sent
    received = pickle.loads(sent)
    assert type(received) is Parcel
    arrived = received.data()
    assert is_same(arrived, data)
    for tensor in arrived if isinstance(arrived, (list, tuple)) else [arrived]:
        if isinstance(tensor, torch.Tensor) and tensor.dtype == torch.int64:
            tensor += 1


WHOLE = torch.zeros(8, 4)
SELF: list[Any] = [torch.zeros(3)]
SELF.append(SELF)


@pytest.mark.parametrize(
    "data",
    [
        WHOLE[:4],
        WHOLE.t(),
        (WHOLE, WHOLE),
        {"a": WHOLE, "b": WHOLE.view(-1)},
        torch.zeros(2, dtype=torch.bfloat16),
        torch.zeros(2, dtype=torch.complex64),
        torch.zeros(2, requires_grad=True),
        torch.nn.Parameter(torch.zeros(2)),
        torch.zeros(2).to_sparse(),
        torch.zeros(LARGEST_BYTES // 4 + 1),
        [torch.zeros(LARGEST_BYTES // 8), torch.zeros(LARGEST_BYTES // 8 + 1)],
        OrderedDict(a=torch.zeros(2)),
        [torch.zeros(2), np.zeros(2)],
        torch.zeros(2, device="meta"),
        Scaled(torch.zeros(2)),
        Noted(torch.zeros(2), 1),
        SELF,
    ],
    ids=lambda data: type(data).__name__,
)
def test_what_only_torch_can_send_is_left_to_it(data: Any) -> None:
    """Tensors that share memory, large ones, and those of other kinds are sent as torch sends them."""
    assert pack(data) is data


class Dictionaries(torch.utils.data.Dataset[dict[str, Any]]):
    """Samples with tensors and other values."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {"pixels": torch.full((3, 2), float(index)), "label": index, "name": f"sample {index}"}


def test_workers_give_what_the_training_process_reads() -> None:
    """Microbatches are the same with and without workers, and their tensors lie in this process's own memory."""
    options: dict[str, Any] = {"global_batch": 4, "microbatch": 4, "epochs": 1, "rank": 0, "num_replicas": 1}
    alone, sent = (list(ResumableLoader(Dictionaries(), num_workers=num_workers, **options)) for num_workers in (0, 2))
    assert [one.ids.tolist() for one in sent] == [one.ids.tolist() for one in alone]
    assert all(is_same(one.data, other.data) for one, other in zip(sent, alone, strict=True))
    assert not any(one.data["pixels"].is_shared() for one in sent)


def test_pinning_pins_the_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataLoader's pinning thread makes pinned tensors of a parcel."""
    monkeypatch.setattr(torch.Tensor, "pin_memory", lambda tensor, device=None: tensor + 1)
    packed = pack({"a": torch.zeros(3), "b": "text"})
    assert is_same(packed.pin_memory(), {"a": torch.ones(3), "b": "text"})
