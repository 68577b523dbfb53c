"""What an optimizer says of itself: learning rates by group, step counters, and whether it stepped."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import torch
import xxhash

if TYPE_CHECKING:
    from collections.abc import Iterator


class StepSettings(NamedTuple):
    """What a step is made with.

    Attributes:
        learning_rates: By parameter group, see `group_rates`.
        loss_scale: The scaler's factor; 1 without one.
        scheduler_step: The scheduler's counter; None without one.
    """

    learning_rates: dict[str, float]
    loss_scale: float
    scheduler_step: int | None

    @classmethod
    def of(cls, optimizer: torch.optim.Optimizer, scheduler: Any, scaler: Any) -> Self:
        """As they are now."""
        loss_scale = 1.0 if scaler is None else float(scaler.get_scale())
        return cls(group_rates(optimizer), loss_scale, getattr(scheduler, "last_epoch", None))

    def hash(self) -> int:
        """64 bits that are equal where all of them are."""
        return xxhash.xxh3_64_intdigest(repr(tuple(self)).encode())


def group_rates(optimizer: torch.optim.Optimizer) -> dict[str, float]:
    """The learning rate of each parameter group, by the group's ``"name"``, else by its number."""
    rates: dict[str, float] = {}
    for number, group in enumerate(optimizer.param_groups):
        name = str(group.get("name", number))
        rates[f"{name} ({number})" if name in rates else name] = float(group["lr"])
    return rates


class StepWatch:
    """Sees whether an optimizer steps.

    A scaler that skips a step does not call the optimizer; or it does, and fused optimizers leave all as it is, their
    counters too.

    Args:
        optimizer: The optimizer.
    """

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._num_calls = 0
        self._handle = optimizer.register_step_post_hook(self._count)
        self.is_skipped = False

    def _count(self, *_: Any) -> None:
        self._num_calls += 1

    @contextmanager
    def watch(self) -> Iterator[None]:
        """Sets `is_skipped` to whether the step inside the block was skipped."""
        calls, counters = self._num_calls, self.counters()
        yield
        now = self.counters()
        self.is_skipped = self._num_calls == calls or (bool(now) and now == counters)

    def counters(self) -> list[int]:
        """The step counters of the optimizer, see `step_counters`."""
        return step_counters(self._optimizer)

    def close(self) -> None:
        """Stop watching."""
        self._handle.remove()


def step_counters(optimizer: torch.optim.Optimizer) -> list[int]:
    """The step counters of all parameters that have state; waits for the device where they are there."""
    found = [state["step"] for state in optimizer.state.values() if isinstance(state, dict) and "step" in state]
    on_device = [one for one in found if isinstance(one, torch.Tensor)]
    numbers = [int(one) for one in found if not isinstance(one, torch.Tensor)]
    by_device: dict[torch.device, list[torch.Tensor]] = {}
    for one in on_device:
        by_device.setdefault(one.device, []).append(one.reshape(()))
    for tensors in by_device.values():
        numbers += [int(number) for number in torch.stack(tensors).tolist()]
    return numbers
