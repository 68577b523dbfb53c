"""Digests of live tensors on real ranks: equal for equal values on any placement, and equal to those of DCP's files."""

from __future__ import annotations

import io
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from resumable_data.checkpoint.digest import box_digest, combine, finish
from resumable_data.checkpoint.live_digest import dtype_name, gather_digests, local_digests, tensor_chunks
from resumable_data.errors import DisagreementError, UsageError
from tests import digest_oracle
from tests.distributed.ranks import run_ranks
from tests.distributed.training import FEATURES, make_model

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn

Digests = dict[str, str]


def oracle_digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
    return digest_oracle.digest(data, tensor.element_size(), dtype_name(tensor.dtype), tensor.shape)


def shard(model: nn.Module, **arguments: Any) -> nn.Module:
    for layer in model.children():
        if next(layer.parameters(), None) is not None:
            fully_shard(layer, **arguments)
    fully_shard(model, **arguments)
    return model


def tensor_parallel(model: nn.Module) -> nn.Module:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    plan = {"3": ColwiseParallel(), "5": RowwiseParallel()}
    return shard(parallelize_module(model, mesh["tp"], plan), mesh=mesh["dp"])


def hybrid(model: nn.Module) -> nn.Module:
    return shard(model, mesh=init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard")))


PARALLEL: dict[str, Callable[[nn.Module], nn.Module]] = {
    "plain": lambda model: model,
    "ddp": DistributedDataParallel,
    "fsdp": shard,
    "hsdp": hybrid,
    "tp": tensor_parallel,
}


def flat_tensors(state: dict[str, Any], prefix: str = "") -> dict[str, torch.Tensor]:
    """The tensors of a state by the keys that DCP gives them."""
    found: dict[str, torch.Tensor] = {}
    for name, value in state.items():
        if isinstance(value, dict):
            found |= flat_tensors(value, f"{prefix}{name}.")
        elif isinstance(value, torch.Tensor):
            found[f"{prefix}{name}"] = value
    return found


def file_digests(path: Path) -> Digests:
    """The digests of a checkpoint's tensors, from the bytes and strides of each item of its files."""
    metadata = dcp.FileSystemReader(path).read_metadata()
    parts: dict[str, list[int]] = {}
    for index, stored in metadata.storage_data.items():
        kind = metadata.state_dict_metadata[index.fqn]
        if not isinstance(kind, TensorStorageMetadata):
            continue
        with (path / stored.relative_path).open("rb") as file:
            file.seek(stored.offset)
            item = torch.load(io.BytesIO(file.read(stored.length)), weights_only=True)
        raw = bytes(item.untyped_storage())
        box = (tuple(index.offset or ()), tuple(item.shape), item.stride())
        parts.setdefault(index.fqn, []).append(box_digest(raw, item.element_size(), kind.size, *box))
    kinds = metadata.state_dict_metadata
    return {
        key: finish(combine(parts[key]), dtype_name(kind.properties.dtype), kind.size)
        for key, kind in kinds.items()
        if isinstance(kind, TensorStorageMetadata)
    }


def train_and_save(names: list[str], dtype: torch.dtype, path: str) -> dict[str, tuple[Digests, Digests, Digests]]:
    """For each kind of parallelism: digests of the model before training, and of all after it, live and in the file."""
    results = {}
    for name in names:
        model = PARALLEL[name](make_model().to(dtype))
        before = gather_digests(flat_tensors(get_state_dict(model, [])[0]))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        torch.manual_seed(3)
        model(torch.randn(4, FEATURES, dtype=dtype)).square().sum().backward()
        optimizer.step()
        states = get_state_dict(model, optimizer)
        state = {"model": states[0], "optim": states[1]}
        folder = Path(path) / f"{name}-{dist.get_world_size()}-{dtype_name(dtype)}"
        dcp.save(state, checkpoint_id=folder)
        live = gather_digests(flat_tensors(state))
        results[name] = before, live, file_digests(folder)
    return results


@pytest.mark.parametrize(
    ("num_ranks", "names", "dtype"),
    [
        (4, ["tp"], torch.float32),
        (3, ["fsdp"], torch.bfloat16),
        (1, ["plain"], torch.float32),
        pytest.param(4, ["fsdp", "hsdp", "ddp"], torch.float32, marks=pytest.mark.slow),
        pytest.param(4, ["fsdp", "tp"], torch.bfloat16, marks=pytest.mark.slow),
        pytest.param(2, ["fsdp", "ddp"], torch.float32, marks=pytest.mark.slow),
        pytest.param(1, ["fsdp", "ddp"], torch.float64, marks=pytest.mark.slow),
    ],
)
def test_live_digests_are_the_files(num_ranks: int, names: list[str], dtype: torch.dtype, tmp_path: Path) -> None:
    """Model and optimizer have the digests of the plain model's values, and then those of the files DCP made."""
    expected = {key: oracle_digest(value) for key, value in make_model().to(dtype).state_dict().items()}
    results = run_ranks(train_and_save, num_ranks, names, dtype, str(tmp_path))
    assert all(result == results[0] for result in results)
    for before, live, filed in results[0].values():
        assert before == expected
        assert len(live) > 3 * len(expected)
        assert {key: filed[key] for key in live} == live
        assert set(before.values()).isdisjoint(live.values())  # trained


LAYOUTS: list[tuple[tuple[int, ...], tuple[Any, ...]]] = [
    ((4,), (Shard(0),)),
    ((4,), (Shard(1),)),
    ((4,), (Replicate(),)),
    ((2, 2), (Shard(0), Shard(0))),
    ((2, 2), (Shard(1), Shard(0))),
    ((2, 2), (Replicate(), Shard(2))),
    ((2, 2), (Shard(2), Replicate())),
]
DTYPES = [torch.bfloat16, torch.float16, torch.float64, torch.int8, torch.bool, torch.complex64]


def values(dtype: torch.dtype) -> list[torch.Tensor]:
    """Tensors of 0 to 3 dimensions that 4 ranks do not share evenly."""
    shapes: list[tuple[int, ...]] = [(), (3,), (1001,), (5, 131), (0, 2), (9, 3, 3), (2, 1, 4500)]
    return [(torch.arange(torch.Size(shape).numel()).reshape(shape) * 37 % 101).to(dtype) for shape in shapes]


def distribute(expected: dict[torch.dtype, list[str]]) -> list[tuple[str, str, str]]:
    """What differs from the expected digests, on layouts by dtypes."""
    wrong = []
    for sizes, placements in LAYOUTS:
        mesh = init_device_mesh("cpu", sizes)
        state, digests = {}, {}
        for dtype, oracle in expected.items():
            for value, digest in zip(values(dtype), oracle, strict=True):
                if all(placement.is_replicate() or placement.dim < value.dim() for placement in placements):
                    key = f"{dtype} {list(value.shape)} {placements}"
                    state[key] = distribute_tensor(value, mesh, placements)
                    digests[key] = digest
        found = gather_digests(state)
        wrong += [(key, found[key], digests[key]) for key in state if found[key] != digests[key]]
    return wrong


def test_any_placement_has_the_digest_of_its_values() -> None:
    """Even and uneven shards of any dimensions, replicas and empty shards give the digest of the whole tensor."""
    expected = {dtype: [oracle_digest(value) for value in values(dtype)] for dtype in DTYPES}
    assert run_ranks(distribute, 4, expected) == [[], [], [], []]


def strided_shards() -> list[str]:
    """Placements of parameters that FSDP shards on top of tensor parallelism, where digests are as expected."""
    expected = {key: oracle_digest(value) for key, value in make_model().state_dict().items()}
    model = tensor_parallel(make_model())
    state = model.state_dict()
    assert gather_digests(state) == expected
    return sorted({type(placement).__name__ for value in state.values() for placement in value.placements})


def test_strided_shards_are_among_them() -> None:
    """The model under FSDP and tensor parallelism has dimensions that both cut."""
    assert "_StridedShard" in run_ranks(strided_shards, 4)[0]


def told_by(change: Callable[[dict[str, torch.Tensor]], None]) -> str:
    """What `gather_digests` says of replicas and shards after a change on some rank."""
    grid = init_device_mesh("cpu", (2, 2))
    state = {
        "step": torch.tensor(3.0),
        "rows": distribute_tensor(torch.arange(40.0).reshape(8, 5), grid, (Replicate(), Shard(0))),
    }
    change(state)
    try:
        gather_digests(state)
    except (DisagreementError, UsageError) as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def flip(key: str, rank: int, state: dict[str, torch.Tensor]) -> None:
    value = state[key]
    local = value.to_local() if isinstance(value, DTensor) else value
    if dist.get_rank() == rank:
        local.view(torch.int32).view(-1)[0] ^= 1


def lose(rank: int, state: dict[str, torch.Tensor]) -> None:
    for key in list(state) if dist.get_rank() == rank else []:
        del state[key]


def make_partial(state: dict[str, torch.Tensor]) -> None:
    if dist.get_rank() == 1:
        state["step"] = DTensor.from_local(torch.ones(3), init_device_mesh("cpu", (4,)), [Partial()])
    else:
        init_device_mesh("cpu", (4,))


CHANGES: dict[str, Callable[[dict[str, torch.Tensor]], None]] = {
    "none": lambda state: None,
    "plain": partial(flip, "step", 2),
    "replica": partial(flip, "rows", 3),
    "lost replica": partial(lose, 3),
    "partial": make_partial,
}


def told_of_changes() -> dict[str, str]:
    return {name: told_by(change) for name, change in CHANGES.items()}


def test_replicas_that_differ_are_named_on_all_ranks() -> None:
    """One flipped bit of a replica names its key, its part and the ranks, on every rank; so does a rank's bad value."""
    results = run_ranks(told_of_changes, 4)
    assert [result["none"] for result in results] == ["nothing"] * 4
    assert [result["lost replica"] for result in results] == ["nothing"] * 4  # another rank holds the same
    for result in results:
        assert "DisagreementError: step[]: ranks hold different values of one part" in result["plain"]
        assert "on rank 0, 1, 3\n" in result["plain"]
        assert "on rank 2\n" in result["plain"]
        assert "rows[4:8, 0:5]: ranks hold" in result["replica"]
        assert "on rank 1\n" in result["replica"]
        assert "on rank 3\n" in result["replica"]
    assert all("UsageError" in result["partial"] and "Partial placement" in result["partial"] for result in results)
    assert "on rank 1: step: expected values" in results[0]["partial"]


def held_by_some() -> tuple[int, str]:
    """Chunks of a tensor on ranks 0 and 1 only, and what a group without rank 1 says of it."""
    from torch.distributed.device_mesh import DeviceMesh

    mesh = DeviceMesh("cpu", [0, 1])
    group = dist.new_group([0, 2])
    local = torch.ones(2, 3)
    tensor = DTensor.from_local(local, mesh, [Shard(0)], shape=torch.Size((4, 3)), stride=(3, 1))
    assert gather_digests({"weight": tensor})["weight"] == oracle_digest(torch.ones(4, 3))
    assert local_digests({"weight": tensor})[0].shape == (4, 3)
    with pytest.raises(DisagreementError) if dist.get_rank() != 1 else nullcontext() as caught:
        if dist.get_rank() != 1:
            gather_digests({"weight": tensor}, group)
    return len(tensor_chunks(tensor)), str(caught.value) if caught else ""


def test_ranks_outside_the_mesh_hold_nothing() -> None:
    """A tensor on some of the ranks is whole among all of them, and missing elements are told among fewer."""
    found = run_ranks(held_by_some, 3)
    assert [num_chunks for num_chunks, _ in found] == [1, 1, 0]
    assert "weight: expected the parts on rank 0, 1" in found[0][1]
    assert "6 of 12 elements are there" in found[0][1]
