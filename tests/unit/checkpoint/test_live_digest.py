"""Digests of tensors in memory, casts of saved ones, and what is made of what the ranks tell."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.checkpoint import device_digest
from resumable_data.checkpoint.agreed_digests import ChunkDigest, LocalDigest, merge_digests
from resumable_data.checkpoint.device_digest import device_sum
from resumable_data.checkpoint.digest import array_digest, box_digest, finish
from resumable_data.checkpoint.live_digest import cast_box_digest, dtype_name, gather_digests, local_digests
from resumable_data.errors import DisagreementError, UsageError
from tests import digest_oracle

DTYPES = [
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.uint8,
    torch.uint16,
    torch.uint32,
    torch.uint64,
    torch.bool,
    torch.complex64,
    torch.complex128,
]


def random_tensor(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    random = np.random.default_rng(seed)
    size = math.prod(shape) * dtype.itemsize
    data = random.integers(0, 2 if dtype == torch.bool else 256, size, dtype=np.uint8)
    return torch.from_numpy(data).view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)


def oracle_digest(tensor: torch.Tensor) -> str:
    data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return digest_oracle.digest(data, tensor.element_size(), dtype_name(tensor.dtype), tensor.shape)


def live_digest(tensor: torch.Tensor) -> str:
    return gather_digests({"tensor": tensor})["tensor"]


@pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)
@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (5,), (3, 7), (2, 5, 130)])
def test_every_dtype(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """A tensor in memory has the digest of its bytes in C order, whatever its dtype and number of dimensions."""
    tensor = random_tensor(shape, dtype)
    assert live_digest(tensor) == oracle_digest(tensor)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.int64, torch.bool])
def test_views(dtype: torch.dtype) -> None:
    """Transposed, sliced, expanded and channels-last tensors, and parameters, count as their elements do."""
    tensor = random_tensor((6, 9), dtype)
    for view in (tensor.t(), tensor[1:, ::2], tensor[:, 3], tensor[0].expand(4, 9), tensor.unfold(0, 2, 1)):
        assert live_digest(view) == oracle_digest(view.contiguous())
    image = random_tensor((2, 3, 5, 4), dtype)
    assert live_digest(image.to(memory_format=torch.channels_last)) == oracle_digest(image)
    if dtype.is_floating_point:
        assert live_digest(torch.nn.Parameter(tensor)) == oracle_digest(tensor)


def test_lazy_conjugates_and_negations() -> None:
    """A complex tensor that torch has yet to conjugate or negate counts as what it means."""
    tensor = torch.complex(torch.arange(6.0), torch.ones(6))
    assert live_digest(tensor.conj()) == oracle_digest(tensor.conj().resolve_conj())
    assert live_digest(tensor.conj().imag) == oracle_digest(-torch.ones(6))


@given(
    st.sampled_from([(7,), (9001,), (3, 65), (5, 3, 7), (4, 130, 2), (2, 4500)]),
    st.sampled_from([torch.int8, torch.bfloat16, torch.float32, torch.complex128]),
    st.integers(0, 3),
    st.randoms(use_true_random=False),
)
@settings(max_examples=60)
def test_accelerators_sum_is_the_hosts(shape: tuple[int, ...], dtype: torch.dtype, skip: int, random: object) -> None:
    """What a device computes of a box is the number that the host computes, whatever parts it takes at once."""
    whole = random_tensor(shape, dtype)
    offsets = tuple(random.randrange(size) for size in shape)  # type: ignore[attr-defined]
    stops = [random.randrange(o + 1, size + 1) for o, size in zip(offsets, shape, strict=True)]  # type: ignore[attr-defined]
    box = whole[tuple(slice(o, stop) for o, stop in zip(offsets, stops, strict=True))]
    # elements that do not begin at a word
    box = torch.cat([torch.zeros(skip, dtype=dtype), box.reshape(-1)])[skip:].reshape(box.shape)
    data = box.contiguous().reshape(-1).view(torch.uint8).numpy()
    expected = box_digest(data.tobytes(), dtype.itemsize, shape, offsets, box.shape)
    for part_bytes in (device_digest._PART_BYTES, 300):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(device_digest, "_PART_BYTES", part_bytes)
            assert int(device_sum(box, shape, offsets)) % 2**64 == expected


def test_sums_on_a_device_are_fetched_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums that lie on an accelerator come back in their order, as unsigned numbers."""
    state = {f"t{number}": random_tensor((number, 70), torch.float32, number) for number in range(5)}
    expected = local_digests(state)
    monkeypatch.setattr(
        "resumable_data.checkpoint.live_digest.array_digest",
        lambda array, shape, offsets: device_sum(torch.from_numpy(array.copy()), shape, offsets),
    )
    assert local_digests(state) == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "step: expected a tensor, got int"),
        (torch.eye(3).to_sparse(), "step: expected a strided tensor"),
        (torch.empty(3, device="meta"), "step: expected a strided tensor with values, .* on meta"),
    ],
)
def test_value_without_bytes_is_refused(value: torch.Tensor, message: str) -> None:
    """A value that has no bytes in C order is an error that names its key."""
    with pytest.raises(UsageError, match=message):
        gather_digests({"step": value})


@pytest.mark.parametrize("live", [torch.bfloat16, torch.float16, torch.float64, torch.int32])
@pytest.mark.parametrize("saved", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_cast(saved: torch.dtype, live: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """A box's saved bytes give the partial sum of what `copy_` makes of them, in any strides and in parts."""
    monkeypatch.setattr("resumable_data.checkpoint.live_digest._CAST_BYTES", 100)
    values = (torch.arange(15 * 7).reshape(15, 7) - 50).to(saved)
    loaded = torch.empty((15, 7), dtype=live).copy_(values)
    expected = live_digest(loaded)
    raw = values.reshape(-1).view(torch.uint8).numpy().tobytes()
    permuted = values.t().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    for data, strides in ((raw, None), (permuted, (1, 15))):
        total = cast_box_digest(data, saved, live, (15, 7), (0, 0), (15, 7), strides)
        assert finish(total, dtype_name(live), (15, 7)) == expected
    half = cast_box_digest(raw[7 * 8 * saved.itemsize :], saved, live, (15, 7), (8, 0), (7, 7))
    assert half == array_digest(
        loaded[8:].contiguous().view(torch.uint8).numpy().view(f"u{live.itemsize}"), (15, 7), (8, 0)
    )


def told(*chunks: tuple[tuple[int, ...], tuple[int, ...], int], dtype: str = "float32") -> list[LocalDigest]:
    return [LocalDigest("weight", dtype, (4, 6), tuple(ChunkDigest(*chunk) for chunk in chunks))]


TOP, BOTTOM = ((0, 0), (2, 6)), ((2, 0), (2, 6))


def test_replicas_count_once() -> None:
    """Parts that several ranks hold count once, and a rank may hold several parts or none."""
    expected = {"weight": finish(12, "float32", (4, 6))}
    assert merge_digests([told((*TOP, 5)), told((*BOTTOM, 7))]) == expected
    assert merge_digests([told((*TOP, 5)), told((*TOP, 5), (*BOTTOM, 7)), told(), []]) == expected


@pytest.mark.parametrize(
    ("gathered", "message"),
    [
        (
            [told((*TOP, 5)), told((*BOTTOM, 7)), told((*TOP, 6)), told((*BOTTOM, 7)), told((*TOP, 5))],
            r"weight\[0:2, 0:6\]: ranks hold different values of one part:\n"
            r"  0{15}5  on rank 0, 4\n  0{15}6  on rank 2\n",
        ),
        (
            [told((*TOP, 5)), told((*BOTTOM, 7), dtype="bfloat16")],
            r"weight: ranks disagree on dtype and shape:\n  float32\[4, 6\]  on rank 0\n  bfloat16\[4, 6\]  on rank 1",
        ),
        ([told((*TOP, 5)), told()], "weight: expected the parts on rank 0, 1 .* 12 of 24 elements are there"),
        ([told(((0, 0), (3, 6), 5)), told((*BOTTOM, 7))], "overlap"),
        ([told()], "0 of 24 elements are there"),
    ],
)
def test_ranks_that_do_not_agree_are_named(gathered: list[list[LocalDigest]], message: str) -> None:
    """Differing replicas, kinds of tensor, gaps and overlaps name the tensor and the ranks."""
    with pytest.raises(DisagreementError, match=message):
        merge_digests(gathered)


def test_tensor_without_elements_needs_no_parts() -> None:
    """An empty tensor has a digest of its own though nobody holds a part of it."""
    empty = [LocalDigest("none", "int8", (0, 3), ())]
    assert merge_digests([empty, empty]) == {"none": finish(0, "int8", (0, 3))}
