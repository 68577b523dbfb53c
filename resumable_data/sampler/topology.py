"""Which data-parallel rank this process is: from arguments, a device mesh, or the process group."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch.distributed as dist

from resumable_data.errors import TopologyError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed import ProcessGroup
    from torch.distributed.device_mesh import DeviceMesh


@dataclass(frozen=True, kw_only=True)
class Topology:
    """This process among the data-parallel ranks.

    Attributes:
        rank: Data-parallel rank. TP, CP and PP peers of one data-parallel rank share it.
        num_replicas: Number of data-parallel ranks.
        axes: Names and sizes of all axes of the job's mesh, the slowest first.
        data_axes: Those along which ranks read different samples.
        group: The process group of all ranks that read, peers included; None where there is none: no process group,
            one of a single process that simulates several ranks, or a loader that reads everything by itself.
    """

    rank: int
    num_replicas: int
    group: ProcessGroup | None
    axes: tuple[tuple[str, int], ...] = ()
    data_axes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.axes:
            object.__setattr__(self, "axes", (("dp", self.num_replicas),))
            object.__setattr__(self, "data_axes", ("dp",))


def resolve_topology(
    *,
    rank: int | None = None,
    num_replicas: int | None = None,
    mesh: DeviceMesh | None = None,
    data_axes: str | Sequence[str] | None = None,
) -> Topology:
    """The topology from the arguments, else the mesh, else the process group, else a single process.

    Args:
        rank: Data-parallel rank; given together with `num_replicas`. In a job of several processes all of them make
            the loader, peers of one data-parallel rank with the same arguments; `num_replicas` 1 reads alone.
        num_replicas: Number of data-parallel ranks.
        mesh: The job's device mesh.
        data_axes: Names of the mesh's data-parallel axes; a one-dimensional mesh needs none.

    Raises:
        TopologyError: The arguments contradict each other, name no axis, or leave the rank open.
    """
    if (rank is None) != (num_replicas is None):
        raise TopologyError(f"rank and num_replicas go together, got rank={rank} and num_replicas={num_replicas}")
    if mesh is not None:
        if rank is not None:
            raise TopologyError("give either rank and num_replicas, or a mesh; both were given")
        return _from_mesh(mesh, data_axes)
    if data_axes is not None:
        raise TopologyError(f"data_axes={data_axes!r} names axes of a mesh; give mesh= as well")
    if rank is not None and num_replicas is not None:
        return Topology(rank=rank, num_replicas=num_replicas, group=_group_of_arguments(rank, num_replicas))
    if _is_initialized():
        return Topology(rank=dist.get_rank(), num_replicas=dist.get_world_size(), group=dist.group.WORLD)
    rank_text, size_text = os.environ.get("RANK", "0"), os.environ.get("WORLD_SIZE", "1")
    if (rank_text, size_text) != ("0", "1"):
        raise TopologyError(
            f"RANK={rank_text} and WORLD_SIZE={size_text} are set but there is no process group: every process would "
            "read all samples. Call torch.distributed.init_process_group() before the loader is made, or give rank= "
            "and num_replicas=."
        )
    return Topology(rank=0, num_replicas=1, group=None)


def _is_initialized() -> bool:
    return dist.is_available() and dist.is_initialized()


def _group_of_arguments(rank: int, num_replicas: int) -> ProcessGroup | None:
    """The default group, unless the arguments describe a loader that asks nobody."""
    if not _is_initialized():
        return None
    # Arguments that are wrong on one process must reach the others, which else wait for it until a timeout; and peers
    # that were given as arguments must share one attempt of the ledger. So the numbers need not be the group's own.
    is_shared = num_replicas > 1 and dist.get_world_size() > 1
    return dist.group.WORLD if is_shared or (rank, num_replicas) == (dist.get_rank(), dist.get_world_size()) else None


def _from_mesh(mesh: DeviceMesh, data_axes: str | Sequence[str] | None) -> Topology:
    names = mesh.mesh_dim_names or tuple(str(axis) for axis in range(mesh.ndim))
    if isinstance(data_axes, str):
        data_axes = (data_axes,)
    if data_axes is None:
        if mesh.ndim != 1:
            raise TopologyError(
                f"the mesh has the axes {names}; name those along which ranks read different samples, say "
                'data_axes=("dp",). Counting a tensor- or pipeline-parallel axis would split samples between peers '
                "that must read the same ones."
            )
        data_axes = names
    unknown = [name for name in data_axes if name not in names]
    if unknown or not data_axes or len(set(data_axes)) != len(data_axes):
        raise TopologyError(f"data_axes must name axes of the mesh, each once, of {names}; got {tuple(data_axes)}")
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        raise TopologyError("this process is not in the mesh; make the loader only on the processes of the mesh")
    rank, num_replicas = 0, 1
    for axis, name in enumerate(names):
        if name in data_axes:
            rank = rank * mesh.size(axis) + coordinate[axis]
            num_replicas *= mesh.size(axis)
    axes = tuple((name, mesh.size(axis)) for axis, name in enumerate(names))
    group = _group_of(mesh)
    return Topology(rank=rank, num_replicas=num_replicas, group=group, axes=axes, data_axes=tuple(data_axes))


def _group_of(mesh: DeviceMesh) -> ProcessGroup | None:
    """The group of all ranks of the job, or of a one-dimensional mesh that is only a part of it."""
    # a slice such as mesh["dp"] knows only its own axes; its root knows the tensor-parallel peers too
    root = mesh._get_root_mesh() if hasattr(mesh, "_get_root_mesh") else mesh
    if root.size() == dist.get_world_size():
        return dist.group.WORLD
    if root.ndim == 1:
        return root.get_group()
    raise TopologyError(
        f"the mesh has {root.size()} processes of {dist.get_world_size()}; a mesh of several axes must hold all "
        "processes of the job. Give rank= and num_replicas= instead."
    )
