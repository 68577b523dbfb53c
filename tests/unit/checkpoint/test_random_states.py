"""The bytes of random states, and the part of a state that makes them of the generators and gives them back."""

from __future__ import annotations

import random
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from resumable_data.checkpoint.random_layout import (
    NUM_BYTES,
    Place,
    decode_numpy,
    decode_python,
    decode_states,
    encode_numpy,
    encode_python,
    encode_states,
)
from resumable_data.checkpoint.random_states import RandomStates
from resumable_data.errors import CorruptStateError, StateError, UsageError
from resumable_data.loader import ResumableLoader
from resumable_data.rng import update_seed
from tests.distributed.saves import draw

PLACE = Place(4, 3, 2, 1)


def make(rank: int = 0, num_replicas: int = 1, **options: Any) -> RandomStates:
    loader = ResumableLoader(
        torch.arange(6), global_batch=2, microbatch=2, seed=5, rank=rank, num_replicas=num_replicas
    )
    return RandomStates(loader, **options)


def test_the_layout_is_the_documented_one() -> None:
    """Another program reads it by the page alone."""
    data = encode_states(PLACE, {"torch": b"abc", "random": b""})
    assert len(data) == NUM_BYTES
    assert data[:16] == b"RDRANDOM" + (1).to_bytes(4, "little") + (35).to_bytes(4, "little")
    assert np.frombuffer(data, "<u4", 4, 24).tolist() == [4, 3, 2, 1]
    assert data[40:59] == b"\1\0\0\0\3\0\0\0abc\4\0\0\0\0\0\0\0"
    assert not any(data[59:])
    assert decode_states(data) == (PLACE, {"torch": b"abc", "random": b""})


@pytest.mark.parametrize("at", [0, 8, 12, 16, 24, 40, 41, 50])
def test_any_changed_byte_is_found(at: int) -> None:
    """Also in places and lengths."""
    data = bytearray(encode_states(PLACE, {"torch": b"abcdef"}))
    data[at] ^= 4
    with pytest.raises(CorruptStateError, match="random states are damaged"):
        decode_states(bytes(data))


def test_other_sizes_are_refused() -> None:
    """Of the tensor, and of a state that would not fit it."""
    with pytest.raises(CorruptStateError, match="expected 12288 bytes"):
        decode_states(b"RDRANDOM")
    with pytest.raises(StateError, match="torch 13000"):
        encode_states(PLACE, {"torch": bytes(13000)})


@pytest.mark.parametrize("num_drawn", [0, 1, 2])
def test_states_of_generators(num_drawn: int) -> None:
    """They come back equal, with and without the second number of a pair that a generator keeps."""
    of_numpy, of_python = np.random.RandomState(3), random.Random(3)
    for _ in range(num_drawn):
        of_numpy.standard_normal()
        of_python.gauss()
    again, again_python = np.random.RandomState(0), random.Random(0)
    again.set_state(decode_numpy(encode_numpy(of_numpy.get_state(legacy=False))))
    again_python.setstate(decode_python(encode_python(of_python.getstate())))
    assert again.standard_normal(5).tolist() == of_numpy.standard_normal(5).tolist()
    assert [again_python.gauss() for _ in range(5)] == [of_python.gauss() for _ in range(5)]


def test_states_come_back() -> None:
    """As with dcp.load, where there is nobody else to ask; taking them draws nothing."""
    states = make()
    draw(3)
    saved = {key: value.clone() for key, value in states.state_dict().items()}
    first = draw(5)
    assert list(saved) == ["rank0"]
    draw(2)
    states.load_state_dict(saved)
    assert draw(5) == first
    assert states.policy == "refuse"


def test_other_ranks() -> None:
    """Refused, or seeded anew by what is declared."""
    saved = make(1, 2).state_dict()
    with pytest.raises(StateError, match="saved by 1 processes of 2 data-parallel ranks, now there are 1 processes"):
        make().load_state_dict(saved)
    states = make(0, 2, on_change="reseed")
    states.load_state_dict(saved)
    found = draw(5)
    torch.manual_seed(update_seed(5, 0, 0))
    assert torch.rand(5).tolist() == found["torch"]
    assert states.policy == (
        "reseed; seeded anew at update 0: saved by process 0 as data-parallel rank 1 of 2, process 0 is rank 0 now"
    )
    with pytest.raises(UsageError, match="on_change must be one of"):
        make(on_change="ignore")


def test_reseed_is_of_seed_update_and_rank() -> None:
    """Equal where these are, and else other numbers from each generator."""
    found = []
    for rank, update in ((0, 3), (0, 4), (1, 3), (0, 3)):
        make(rank, 2).reseed(update)
        found.append(draw(3))
    assert found[0] == found[3]
    for name in ("torch", "numpy", "random"):
        assert len({str(one[name]) for one in found}) == 3


def test_another_generator_of_numpy() -> None:
    """A kind that somebody set in place of numpy's own is refused."""
    state: Any = np.random.Generator(np.random.PCG64(1)).bit_generator.state
    with pytest.raises(StateError, match="found PCG64"):
        encode_numpy(state)


def test_cuda_or_none_is_a_part_of_what_must_be_the_same() -> None:
    """A state that cannot be given back, or is missing, is not passed over; only names are needed to tell."""
    states, saved = make(), make().place
    assert states.describe_change(saved, {"torch": b""}) == ""
    with patch.object(torch.cuda, "is_available", return_value=False):
        assert "now there is no CUDA device" in states.describe_change(saved, {"cuda": b""})
    with patch.object(torch.cuda, "is_initialized", return_value=True):
        assert "saved without a state for CUDA" in states.describe_change(saved, {"torch": b""})


def test_the_state_of_cuda_is_saved_and_set() -> None:
    """Where CUDA is in use; a stand-in takes the device's place."""
    of_device = torch.arange(16, dtype=torch.uint8)
    given: list[torch.Tensor] = []
    with (
        patch.object(torch.cuda, "is_initialized", return_value=True),
        patch.object(torch.cuda, "is_available", return_value=True),
        patch.object(torch.cuda, "get_rng_state", return_value=of_device),
        patch.object(torch.cuda, "set_rng_state", given.append),
    ):
        states = make()
        states.load_state_dict(states.state_dict())
    assert [one.tolist() for one in given] == [of_device.tolist()]
