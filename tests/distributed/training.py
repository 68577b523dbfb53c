"""A small model and dataset, and gradients of a global batch: of one process, and as DDP and FSDP2 accumulate them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from resumable_data.order import Shuffle
from resumable_data.plan import Schedule

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.loader import Microbatch

Gradients = dict[str, torch.Tensor]

MAX_TOKENS = 99
FEATURES = 6


class TokenDataset(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Sample i has `num_tokens(i)` tokens with features and a target each; the rest of its row is masked."""

    def __init__(self, length: int, *, max_tokens: int = MAX_TOKENS) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(length, max_tokens, FEATURES, generator=generator)
        self.targets = torch.randn(length, max_tokens, generator=generator)
        # lengths 1 and 99, so that a mean of means would be far from the mean
        self.num_tokens = torch.where(torch.arange(length) % 2 == 0, 1, max_tokens)
        self.mask = (torch.arange(max_tokens) < self.num_tokens[:, None]).float()

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {
            "id": torch.tensor(index),
            "features": self.features[index],
            "targets": self.targets[index],
            "mask": self.mask[index],
        }

    def batch(self, ids: torch.Tensor) -> dict[str, torch.Tensor]:
        return {
            "features": self.features[ids],
            "targets": self.targets[ids],
            "mask": self.mask[ids],
            "id": ids,
        }


def make_model() -> nn.Sequential:
    torch.manual_seed(7)
    layers = [nn.Linear(FEATURES, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 8), nn.GELU(), nn.Linear(8, 1)]
    return nn.Sequential(*layers)


def row_losses(model: nn.Module, data: dict[str, torch.Tensor]) -> torch.Tensor:
    """The loss of each row, summed over its tokens: (rows,)."""
    errors = model(data["features"]).squeeze(-1) - data["targets"]
    losses: torch.Tensor = (errors.square() * data["mask"]).sum(dim=1)
    return losses


def scaled_loss(model: nn.Module, microbatch: Microbatch) -> torch.Tensor:
    """What `backward` is called on, as the documentation says."""
    return (row_losses(model, microbatch.data) * microbatch.weights).sum() * microbatch.loss_scale


def one_process_gradients(
    dataset: TokenDataset, *, global_batch: int, tail: str = "carry", normalize: str = "samples"
) -> Iterator[Gradients]:
    """The gradient of each update of one epoch, of the whole global batch at once."""
    schedule = Schedule(length=len(dataset), global_batch=global_batch, tail=tail, epochs=1)
    order = Shuffle(len(dataset))
    epoch, offset = 0, 0
    while (span := schedule.update_at(epoch, offset)) is not None:
        rows = torch.arange(span.start, span.start + span.num_samples + span.padding) % len(dataset)
        data = dataset.batch(torch.from_numpy(order.ids(0, rows.numpy())))
        model = make_model()
        total = row_losses(model, data).sum()
        (total / (len(rows) if normalize == "samples" else data["mask"].sum())).backward()
        yield {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
        epoch, offset, *_ = schedule.after(span)


class DataParallel:
    """A model under DDP or FSDP2, with what differs in accumulating gradients.

    Args:
        kind: ``"ddp"`` or ``"fsdp"``.
        synced: Whether gradients are reduced after every microbatch, or after an update's last only.
        reduction: ``"mean"`` or ``"sum"`` over ranks.
        mesh: For FSDP2, the mesh whose ranks hold shards.
        model: The model, where it is not `make_model()`.
    """

    def __init__(
        self,
        kind: str,
        *,
        synced: bool,
        reduction: str = "mean",
        mesh: DeviceMesh | None = None,
        model: nn.Module | None = None,
    ) -> None:
        self._synced = synced
        model = model or make_model()
        self.model: Any = model
        if kind == "ddp":
            self.model = DistributedDataParallel(model)
            if reduction == "sum":
                self.model.register_comm_hook(None, _sum_hook)
            return
        for layer in model.children():
            if next(layer.parameters(), None) is not None:
                fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        if reduction == "sum":
            for module in model.modules():
                if isinstance(module, FSDPModule):
                    module.set_gradient_divide_factor(1.0)
                    module.set_force_sum_reduction_for_comms(True)

    def backward(self, microbatch: Microbatch, loss: Any = scaled_loss) -> None:
        is_reduced = self._synced or microbatch.is_last
        is_fsdp = hasattr(self.model, "set_requires_gradient_sync")
        if is_fsdp:
            self.model.set_requires_gradient_sync(is_reduced)
        with nullcontext() if is_fsdp or is_reduced else self.model.no_sync():
            loss(self.model, microbatch).backward()

    def gradients(self) -> Gradients:
        """The whole accumulated gradients; clears them. Collective."""
        found = {}
        for name, parameter in self.model.named_parameters():
            gradient = parameter.grad
            assert gradient is not None, name
            whole = gradient.full_tensor() if isinstance(gradient, DTensor) else gradient
            found[name.removeprefix("module.")] = whole.clone()
        self.model.zero_grad(set_to_none=True)
        return found


def _sum_hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    reduced: torch.futures.Future[torch.Tensor] = work.get_future().then(lambda future: future.value()[0])
    return reduced


_sum_hook.__annotations__.clear()  # DDP checks them, and takes none for good, but not those that are strings


def relative_error(found: Gradients, expected: Gradients) -> float:
    """The largest difference, as a part of its tensor's largest entry."""
    assert found.keys() == expected.keys()
    errors = [
        float((found[name] - expected[name]).abs().max() / expected[name].abs().max().clamp(min=1e-30))
        for name in expected
    ]
    return max(errors)
