"""From one rank set to another within a process: what changes, and whether it may change now."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from resumable_data.errors import CommitError, UsageError
from resumable_data.plan import loss_factor
from resumable_data.sampler import Topology, resolve_topology

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.loader.session import JobSettings, Session


@dataclass(frozen=True, kw_only=True)
class Placement:
    """What the user said about ranks and the reduction over them.

    Attributes:
        rank: As for `resolve_topology`, like the next three.
        num_replicas: See there.
        mesh: See there.
        data_axes: See there.
        gradient_reduction: ``"mean"`` or ``"sum"``.
        reduction_size: Ranks that gradients are reduced over, None for the data-parallel ones.
    """

    rank: int | None
    num_replicas: int | None
    mesh: DeviceMesh | None
    data_axes: str | Sequence[str] | None
    gradient_reduction: str
    reduction_size: int | None

    def resolve(self) -> Topology:
        """This process among the others, as things are now."""
        return resolve_topology(
            rank=self.rank, num_replicas=self.num_replicas, mesh=self.mesh, data_axes=self.data_axes
        )

    def loss_factor(self, num_replicas: int) -> float:
        """See `resumable_data.plan.loss_factor`."""
        size = num_replicas if self.reduction_size is None else self.reduction_size
        return loss_factor(self.gradient_reduction, size)

    def moved(
        self,
        *,
        rank: int | None,
        num_replicas: int | None,
        mesh: DeviceMesh | None,
        data_axes: str | Sequence[str] | None,
        reduction_size: int | None,
    ) -> Placement:
        """At another place, where one is given: rank and size, or a mesh, or other axes of the mesh there is."""
        size = self.reduction_size if reduction_size is None else reduction_size
        has_rank = rank is not None or num_replicas is not None
        if not has_rank and mesh is None and data_axes is None:
            return replace(self, reduction_size=size)
        if not has_rank:
            mesh, data_axes = mesh or self.mesh, data_axes or self.data_axes
        return replace(self, rank=rank, num_replicas=num_replicas, mesh=mesh, data_axes=data_axes, reduction_size=size)


def remap_settings(
    settings: JobSettings, placement: Placement, *, microbatch: int | None, has_new_size: bool
) -> JobSettings:
    """A job's settings at another place.

    Args:
        settings: Those until now.
        placement: The new place.
        microbatch: The new largest number of rows of a microbatch, None for the one until now.
        has_new_size: Whether the reduction size was given for the new place.

    Raises:
        UsageError: The reduction size was given for another number of ranks.
        TopologyError: The new place is not known.
    """
    topology = placement.resolve()
    before = settings.topology.num_replicas
    if placement.reduction_size is not None and not has_new_size and topology.num_replicas != before:
        raise UsageError(
            f"reduction_size={placement.reduction_size} was given for {before} data-parallel ranks, and now there are "
            f"{topology.num_replicas}: gradients would be off by the ratio. Nothing changed; give remap() the new "
            "reduction_size= too."
        )
    layout = replace(
        settings.layout,
        rank=topology.rank,
        num_replicas=topology.num_replicas,
        microbatch=settings.layout.microbatch if microbatch is None else microbatch,
    )
    factor = placement.loss_factor(topology.num_replicas)
    return replace(settings, topology=topology, layout=layout, loss_factor=factor)


def check_remap(session: Session, *, rollback: bool) -> None:
    """Make sure that a session is at an update's start, or that it may be taken back to one.

    Raises:
        CommitError: It is not, and may not.
    """
    if (session.has_uncommitted or session.num_behind) and not rollback:
        raise CommitError(
            f"remap() expects to be called at an update's start; microbatches of update {session.cursor.updates} or "
            "later were delivered, or taken over from a checkpoint, and are not committed. Nothing changed. Commit "
            "first; or clear the gradients and call remap(..., rollback=True): they are then read again by the new "
            "ranks, and count as discarded."
        )
