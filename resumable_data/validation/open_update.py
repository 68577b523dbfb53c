"""What a process was handed of an update, until its step."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch.distributed.tensor import DTensor

from resumable_data.cursor import NO_ROWS, add_lanes, sum_lanes
from resumable_data.errors import UsageError
from resumable_data.plan import loss_factor

if TYPE_CHECKING:
    from resumable_data.loader import Microbatch, ResumableLoader


class OpenUpdate:
    """Microbatches of one update, and their losses.

    Args:
        first: The first of them that this process was handed.

    Attributes:
        update: Index of the update.
        is_whole: Whether `first` is the update's first one; else a part was read before a restart.
        num_losses: Microbatches whose loss is known.
        samples: Samples in them.
        lanes: What they add to a coverage digest.
    """

    def __init__(self, first: Microbatch) -> None:
        self.update = first.update
        self.is_whole = first.index == 0 and first._rows.shape.phase == 0
        self.num_losses = 0
        self.samples = 0
        self.lanes = NO_ROWS
        self._losses: list[torch.Tensor] = []
        self._last = first

    def add(self, microbatch: Microbatch, loss: torch.Tensor | None) -> None:
        """Take down a microbatch.

        Raises:
            UsageError: The loss has several elements.
        """
        if loss is not None:
            value = loss.detach()
            value = value.full_tensor() if isinstance(value, DTensor) else value
            if value.numel() != 1:
                raise UsageError(f"add() expects a loss of one element, got shape {tuple(value.shape)}; give its sum.")
            self._losses.append(value.reshape(()).to(torch.float64))
            self.num_losses += 1
        self.samples += microbatch.ids.size
        self.lanes = add_lanes(self.lanes, sum_lanes(microbatch.positions, microbatch.ids))
        self._last = microbatch

    def loss(self) -> float:
        """The sum of the losses; waits for the device."""
        return float(torch.stack(self._losses).sum()) if self._losses else 0.0

    def tokens(self, loader: ResumableLoader) -> int | None:
        """Target tokens of the update, over all ranks; None where they are not counted."""
        if loader.cursor.recipe.normalize == "targets":
            # set_targets() left them in this scale, which is exact: counts are below 2^48
            factor = loss_factor(loader.gradient_reduction, loader.reduction_size)
            return round(factor / self._last.loss_scale)
        return self._last._rows.tokens or None
