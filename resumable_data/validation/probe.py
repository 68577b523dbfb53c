"""Norms over all of a model's parameters, whatever ranks hold them: of the gradient, and of what a step changed."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.distributed as dist
import xxhash
from torch.distributed.tensor import DTensor

from resumable_data.checkpoint.collective import gather_bytes
from resumable_data.checkpoint.live_digest import tensor_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable

    from torch import nn
    from torch.distributed import ProcessGroup

_CPU_BLOCK = 1 << 16
_DEVICE_BLOCK = 1 << 22
"""Elements that are converted to float64 at once: on a CPU what stays in its cache, elsewhere 32 MiB."""


class ParameterProbe:
    """Sums over a model's trainable parameters, each element counted by one of the processes that hold it.

    Which one is agreed on once, at the first use: the first of those that hold the same part of a parameter, as
    DTensors tell their parts. So replicas (DDP, HSDP, parameters that all tensor-parallel peers have) count once, and
    shards (of FSDP2, TP, pipeline stages) add up. Parameters are told apart by their names, which must mean the same
    everywhere.

    Sums are of the elements as they are stored, in float64: their relative error is below 1e-12. Each method gives this
    process's part; the parts of all processes are to be added.

    Cost: at the first use, one all-gather of 8 bytes per parameter. At each update every counted gradient is read once,
    converted in blocks; one core reads about 2 GB/s of float32. `remember` and `change_square` copy each counted
    parameter, in its own dtype, for as long as the step takes, and read both once: of FSDP2 this rank's shards, of DDP
    the whole model on one rank alone. Each waits for the device once. A gradient that is a partial sum over ranks is
    reduced for it; those that torch's DDP, FSDP2 and TP leave for the optimizer are none.

    Args:
        model: The model, in its wrapper.
        group: The processes that have it; None for this one alone.
    """

    def __init__(self, model: nn.Module, group: ProcessGroup | None) -> None:
        self._model = model
        self._group = group
        self._counted: frozenset[str] | None = None
        self._before: dict[str, torch.Tensor] = {}

    def gradient_square(self) -> float:
        """The sum of the squares of the gradients; not finite where one of them is not. Collective."""
        counted = self._find_counted()
        gradients = {name: _gradient(parameter) for name, parameter in self._parameters().items()}
        return _total(
            _square(block.to(torch.float64))
            for name, gradient in gradients.items()
            if gradient is not None and name in counted
            for block in _blocks(gradient)
        )

    def remember(self) -> None:
        """Keep copies of the parameters as they are before the step. Collective at the first use."""
        counted = self._find_counted()
        self._before = {name: _local(p).clone() for name, p in self._parameters().items() if name in counted}

    def change_square(self) -> float:
        """The sum of the squares of what changed since `remember`, whose copies it drops."""
        before, self._before = self._before, {}
        parameters = self._parameters()
        return _total(
            _square(after.to(torch.float64).sub_(earlier))
            for name, value in before.items()
            for after, earlier in zip(_blocks(parameters[name]), _blocks(value), strict=True)
        )

    def _parameters(self) -> dict[str, nn.Parameter]:
        return {name: p for name, p in self._model.named_parameters() if p.requires_grad}

    def _find_counted(self) -> frozenset[str]:
        """Names of the parameters whose elements this process counts. Collective at the first use."""
        if self._counted is None:
            held = {name: _part(name, parameter) for name, parameter in self._parameters().items()}
            told = np.array([part for part in held.values() if part], np.uint64).tobytes()
            everyones = [told] if self._group is None else gather_bytes(told, self._group)
            rank = 0 if self._group is None else dist.get_rank(self._group)
            earlier = {part for before in everyones[:rank] for part in np.frombuffer(before, np.uint64).tolist()}
            self._counted = frozenset(name for name, part in held.items() if part and part not in earlier)
        return self._counted


def _part(name: str, parameter: torch.Tensor) -> int:
    """A number for what this process holds of a parameter; 0 for nothing."""
    boxes = [(offsets, tuple(box.shape)) for offsets, box in tensor_chunks(parameter)]
    return xxhash.xxh3_64_intdigest(repr((name, tuple(parameter.shape), boxes)).encode()) if boxes else 0


def _gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """A parameter's gradient, sharded as the parameter is."""
    gradient = parameter.grad
    if isinstance(gradient, DTensor) and isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
        return gradient.redistribute(placements=parameter.placements)
    return gradient


def _local(tensor: torch.Tensor) -> torch.Tensor:
    """The elements that this process holds, not copied."""
    tensor = tensor.detach()
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def _blocks(tensor: torch.Tensor) -> Iterable[torch.Tensor]:
    local = _local(tensor)
    if local.is_sparse:
        local = local.coalesce().values()
    flat = (torch.view_as_real(local) if local.is_complex() else local).reshape(-1)
    size = _CPU_BLOCK if flat.device.type == "cpu" else _DEVICE_BLOCK
    blocks: Iterable[torch.Tensor] = torch.split(flat, size)
    return blocks


def _square(block: torch.Tensor) -> torch.Tensor:
    """The sum of squares of (n,) float64: () float64, where they are."""
    return torch.dot(block, block)


def _total(squares: Iterable[torch.Tensor]) -> float:
    """Their sum; waits once for each device that they are on."""
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for square in squares:
        by_device.setdefault(square.device, []).append(square)
    return sum(float(torch.stack(on_one).sum()) for on_one in by_device.values())
