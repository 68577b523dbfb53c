"""Gradients from what each rank accumulated to what all of them did, and back: by what handles the parameter."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from torch.nn import Module, Parameter
from torch.nn.parallel import DistributedDataParallel

from resumable_data.errors import StateError, UsageError

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

    from resumable_data.loader import ResumableLoader


class Reduction:
    """How gradients of a model are reduced over ranks.

    FSDP2 reduces its own at each backward, and what ``.grad`` holds of them is a part of the reduced gradient. All
    others are taken for one rank's own, which is right for DDP with or without ``no_sync``: the mean of equal gradients
    is what they are.

    Args:
        model: The model.
        loader: Its loader, which knows whether gradients are averaged or summed.
        group: The processes whose gradients are reduced, where neither FSDP2 nor DDP does it; else None.
    """

    def __init__(self, model: Module, loader: ResumableLoader, group: ProcessGroup | None) -> None:
        self._model = model
        self._loader = loader
        self._group = group

    def reduce(self, parameter: Parameter) -> torch.Tensor:
        """A copy of a parameter's gradient, reduced; zeros where this rank has none. Collective."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        gradient = gradient.detach().clone()
        if self._is_reduced(parameter):
            return _placed(gradient, parameter)
        group = self._group_of_ranks()
        if group is not None:
            local = gradient.to_local() if isinstance(gradient, DTensor) else gradient
            dist.all_reduce(local, group=group)
            if self._loader.gradient_reduction == "mean":
                local /= dist.get_world_size(group)
        return _placed(gradient, parameter)

    def restored(self, gradient: torch.Tensor, parameter: Parameter) -> torch.Tensor:
        """What a parameter's gradient is set to, so that going on and reducing gives the right one. Not collective."""
        gradient = _placed(gradient.detach().clone(), parameter)
        group = None if self._is_reduced(parameter) else self._group_of_ranks()
        if group is not None and self._loader.gradient_reduction == "sum" and dist.get_rank(group):
            return torch.zeros_like(gradient)  # the first rank's is added to all others'
        return gradient

    def _is_reduced(self, parameter: Parameter) -> bool:
        return isinstance(parameter, DTensor) and any(isinstance(part, FSDPModule) for part in self._model.modules())

    def _group_of_ranks(self) -> ProcessGroup | None:
        """The ranks over which the user, or DDP, reduces; None where there is only one.

        Raises:
            UsageError: It is not known.
        """
        for part in self._model.modules():
            if isinstance(part, DistributedDataParallel):
                of_ddp: ProcessGroup = part.process_group
                return of_ddp
        topology = self._loader.topology
        if self._group is not None or self._loader.reduction_size == 1:
            return self._group
        names = [name for name, _ in topology.axes]
        if topology.group is None or set(names) != set(topology.data_axes):
            raise UsageError(
                f"expected to know the {self._loader.reduction_size} processes whose gradients are reduced; neither "
                "FSDP2 nor DDP handles this model, and the process group or mesh has others than these. One rank's "
                "gradient would be saved for all. Nothing was saved; give the process group as group=."
            )
        return topology.group


def _placed(gradient: torch.Tensor, parameter: Parameter) -> torch.Tensor:
    """Sharded as the parameter is: a gradient may be a partial sum."""
    if not isinstance(gradient, DTensor) or not isinstance(parameter, DTensor):
        return gradient
    is_there = gradient.placements == parameter.placements
    return gradient if is_there else gradient.redistribute(placements=parameter.placements)


def require_synchronised(model: Module) -> None:
    """Make sure that FSDP2 keeps no gradient that it has not reduced: such a one is not in ``.grad`` of anything.

    Raises:
        StateError: It does.
    """
    for name, part in model.named_modules():
        if isinstance(part, FSDPModule) and _keeps_gradients(part):
            raise StateError(
                f"expected gradients that FSDP2 has reduced, found some of the module {name!r} that it keeps "
                "to itself: the last backward ran with set_requires_gradient_sync(False) or "
                "set_requires_all_reduce(False). They cannot be saved, and the checkpoint would lack them. Nothing was "
                "saved; let each backward reduce, or the one before a save, or save at an update's border."
            )


def _keeps_gradients(part: FSDPModule) -> bool:
    """Whether one of its parameter groups has a gradient that is not, or not completely, reduced."""
    # torch has no public way to see these; a version that renamed them fails here, and does not pass for having none
    state = part._get_fsdp_state()
    for group in getattr(state, "_fsdp_param_groups", None) or [state._fsdp_param_group]:
        if group is None:  # a module whose parameters its parts handle
            continue
        if group._partial_reduce_output is not None:
            return True
        for parameter in group.fsdp_params:
            unsharded = getattr(parameter, "_unsharded_param", None)  # made by the first forward
            if parameter.unsharded_accumulated_grad is not None or getattr(unsharded, "grad", None) is not None:
                return True
    return False
