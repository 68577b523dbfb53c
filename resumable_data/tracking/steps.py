"""Seeing the optimizer's steps, and those that a loss scaler skipped, in a loop that nobody rewrites."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch.optim import Optimizer


class StepWatch:
    """Calls `on_step(applied)` once for each real or skipped step of an optimizer.

    ``torch.distributed.checkpoint``'s ``get_state_dict`` and ``set_state_dict`` give an optimizer without state its
    first one by a step with learning rate 0 and gradients of 0. That is no step of the training loop.

    Args:
        optimizer: Its steps are seen through torch's post-step hook. A fused optimizer's hook fires for a step that its
            loss scaler skipped too; ``found_inf``, which the scaler leaves on the optimizer meanwhile, tells (reading
            it
            waits for the device).
        scaler: A ``torch.amp.GradScaler``. Without fused kernels it skips a step by not calling the optimizer, which no
            hook sees: the scaler's own ``step`` is watched.
        on_step: Called after the step, with whether it was applied.
    """

    def __init__(self, optimizer: Optimizer, scaler: Any, on_step: Callable[[bool], None]) -> None:
        self._on_step = on_step
        self._num_seen = 0
        self._makes_state = False
        try:
            self._hooks = (
                optimizer.register_step_pre_hook(self._before_step),
                optimizer.register_step_post_hook(self._after_step),
            )
        except AttributeError:
            raise _no_hooks(optimizer) from None
        self._scaler = scaler
        if scaler is not None:
            self._watch(scaler, optimizer)

    def close(self) -> None:
        """Stop watching."""
        for hook in self._hooks:
            hook.remove()
        if self._scaler is not None:
            del self._scaler.step
            self._scaler = None

    def _before_step(self, optimizer: Optimizer, *_: object) -> None:
        self._makes_state = not optimizer.state and _changes_nothing(optimizer)

    def _after_step(self, optimizer: Optimizer, *_: object) -> None:
        if self._makes_state:
            return
        self._num_seen += 1
        found_inf = getattr(optimizer, "found_inf", None)
        self._on_step(found_inf is None or not bool(found_inf.item()))

    def _watch(self, scaler: Any, watched: Optimizer) -> None:
        scale_and_step = scaler.step

        def step(optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
            before = self._num_seen
            result = scale_and_step(optimizer, *args, **kwargs)
            if optimizer is watched and self._num_seen == before:
                self._on_step(False)
            return result

        scaler.step = step


def _no_hooks(optimizer: Any) -> UsageError:
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    return UsageError(
        f"track() sees steps by the hooks of a torch.optim.Optimizer; {kind} has none, so no step would be counted. "
        "Give the optimizer inside of it: call track() before the optimizer is wrapped, say by Accelerate's prepare(); "
        "or give none, and call loader.commit() after each step."
    )


def _changes_nothing(optimizer: Optimizer) -> bool:
    """Whether a step would be taken with learning rate 0 and gradients of 0; gradients are read in the first case."""
    groups = optimizer.param_groups
    if any(group.get("lr") != 0 for group in groups):
        return False
    gradients = [parameter.grad for group in groups for parameter in group["params"] if parameter.grad is not None]
    return not any(bool(gradient.any()) for gradient in gradients)
