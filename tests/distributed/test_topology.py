"""Rank and size from real device meshes."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from resumable_data.errors import TopologyError
from resumable_data.sampler import resolve_topology
from tests.distributed.ranks import run_ranks

Place = tuple[int, int, int]


def place(**arguments: Any) -> Place:
    """(rank, num_replicas, processes that agree with each other), made without a warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        topology = resolve_topology(**arguments)
    return topology.rank, topology.num_replicas, dist.get_world_size(topology.group) if topology.group else 0


def refusal(**arguments: Any) -> str:
    with pytest.raises(TopologyError) as caught:
        resolve_topology(**arguments)
    return str(caught.value)


def places_on_meshes() -> dict[str, Place]:
    named = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("pp", "dp", "tp"))
    hsdp = init_device_mesh("cpu", (2, 2, 2), mesh_dim_names=("dp_replicate", "dp_shard", "tp"))
    plane = init_device_mesh("cpu", (4, 2), mesh_dim_names=("dp", "tp"))
    swapped = init_device_mesh("cpu", (2, 4), mesh_dim_names=("tp", "dp"))
    return {
        "the process group": place(),
        "one axis": place(mesh=init_device_mesh("cpu", (8,), mesh_dim_names=("dp",))),
        "one axis without a name": place(mesh=init_device_mesh("cpu", (8,))),
        "dp of pp, dp, tp": place(mesh=named, data_axes="dp"),
        "all axes": place(mesh=named, data_axes=("pp", "dp", "tp")),
        "two axes of three": place(mesh=named, data_axes=["tp", "pp"]),
        "a slice": place(mesh=named["dp"]),
        "a slice of two": place(mesh=named["pp", "dp"], data_axes="dp"),
        "hsdp": place(mesh=hsdp, data_axes=("dp_replicate", "dp_shard")),
        "hsdp, names in another order": place(mesh=hsdp, data_axes=("dp_shard", "dp_replicate")),
        "hsdp flattened": place(mesh=hsdp["dp_replicate", "dp_shard"]._flatten("dp")),
        "dp, tp": place(mesh=plane, data_axes="dp"),
        "tp, dp": place(mesh=swapped, data_axes="dp"),
        "unnamed axes by number": place(mesh=init_device_mesh("cpu", (4, 2)), data_axes="0"),
    }


def test_every_data_rank_is_there_once_per_peer() -> None:
    """On any mesh the data ranks are 0 .. size - 1, each on as many processes as there are peers."""
    results = run_ranks(places_on_meshes, 8)
    for name in results[0]:
        ranks = [result[name][0] for result in results]
        sizes = {result[name][1] for result in results}
        assert len(sizes) == 1, name
        size = sizes.pop()
        assert sorted(ranks) == sorted(list(range(size)) * (8 // size)), name
        assert {result[name][2] for result in results} == {8}, name


def test_ranks_follow_the_mesh_layout() -> None:
    """A data rank counts along the data axes in the mesh's order, whichever axes lie before or between."""
    results = run_ranks(places_on_meshes, 8)

    def ranks(name: str) -> list[int]:
        return [result[name][0] for result in results]

    assert ranks("the process group") == ranks("one axis") == ranks("all axes") == list(range(8))
    assert ranks("dp of pp, dp, tp") == ranks("a slice") == ranks("a slice of two") == [0, 0, 1, 1, 0, 0, 1, 1]
    assert ranks("two axes of three") == [0, 1, 0, 1, 2, 3, 2, 3]
    assert ranks("hsdp") == ranks("hsdp flattened") == ranks("dp, tp") == [0, 0, 1, 1, 2, 2, 3, 3]
    assert ranks("hsdp, names in another order") == ranks("hsdp")
    assert ranks("tp, dp") == [0, 1, 2, 3, 0, 1, 2, 3]
    assert ranks("unnamed axes by number") == [0, 0, 1, 1, 2, 2, 3, 3]


def refusals_of_meshes() -> list[str]:
    plane = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    part = DeviceMesh("cpu", torch.arange(3), mesh_dim_names=("dp",))
    found = [
        refusal(mesh=plane),
        refusal(mesh=plane, data_axes="data"),
        refusal(mesh=plane, data_axes=()),
        refusal(mesh=plane, data_axes=("dp", "dp")),
        refusal(mesh=plane, data_axes="dp", rank=0, num_replicas=2),
        refusal(data_axes="dp"),
        refusal(rank=0),
    ]
    if dist.get_rank() == 3:
        return [*found, refusal(mesh=part)]
    assert place(mesh=part) == (dist.get_rank(), 3, 3)
    return [*found, ""]


def test_what_a_mesh_leaves_open_is_refused() -> None:
    """Unnamed, unknown, empty or repeated data axes, arguments beside a mesh, and a process outside are refused."""
    expected = ["name those along which", "got ('data',)", "got ()", "got ('dp', 'dp')", "both were given"]
    expected += ["names axes of a mesh", "go together"]
    for rank, messages in enumerate(run_ranks(refusals_of_meshes, 4)):
        for message, part in zip(messages[:-1], expected, strict=True):
            assert part in message
        assert messages[-1].startswith("this process is not in the mesh" if rank == 3 else "")
