"""What the training loop is handed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from resumable_data.sampler import MicrobatchRows


class Microbatch:
    """One forward and backward pass of one rank.

    Attributes:
        data: What ``collate_fn`` made of the samples, filler rows included (they are the last ones).
        loss_scale: The factor for the *sum* of the rows' losses, each times its weight. With it the accumulated
            gradient, after the averaging over ranks that DDP and FSDP do, is the mean over the global batch.
        update: Index of the update in the run.
        index: Index of this microbatch in its update, in [0, count).
        count: Microbatches of this update, the same on all ranks.
        is_last: Whether the optimizer steps after this one.
    """

    __slots__ = ("_moved", "_rows", "data", "is_last", "loss_scale")

    def __init__(self, data: Any, rows: MicrobatchRows, moved: tuple[torch.device, bool] | None = None) -> None:
        self.data = data
        self.loss_scale = rows.loss_scale
        self.is_last = rows.is_last
        self._rows = rows
        self._moved = moved  # the device that `to` was called with, and non_blocking

    @property
    def update(self) -> int:
        """Index of the update in the run."""
        return self._rows.update

    @property
    def index(self) -> int:
        """Index of this microbatch in its update, in [0, count)."""
        return self._rows.microbatch

    @property
    def count(self) -> int:
        """Microbatches of this update, the same on all ranks."""
        return self._rows.shape.num_microbatches

    @property
    def ids(self) -> NDArray[np.int64]:
        """IDs of the samples, without padding and filler rows: (num_samples,) int64."""
        return self._rows.ids[: self._rows.num_samples]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of these samples in the run's global sequence: (num_samples,) int64."""
        return self._rows.positions()

    @property
    def weights(self) -> torch.Tensor:
        """1 for each row of a sample, 0 for filler rows, which come last: (rows,) float32."""
        num_rows = self._rows.num_rows
        weights = torch.ones(num_rows + self._rows.num_filler)
        if self._rows.num_filler:
            weights[num_rows:] = 0
        if self._moved is None:
            return weights
        device, non_blocking = self._moved
        return weights.to(device, non_blocking=non_blocking)

    def to(self, device: torch.device | str, *, non_blocking: bool = False) -> Microbatch:
        """The same microbatch with `data` and `weights` on `device`.

        Args:
            device: Where to.
            non_blocking: As for ``torch.Tensor.to``; of use with pinned memory.
        """
        device = torch.device(device)
        return Microbatch(_to(self.data, device, non_blocking), self._rows, (device, non_blocking))

    def __repr__(self) -> str:
        return f"Microbatch(update={self.update}, index={self.index}, count={self.count}, ids={self.ids.tolist()})"


def _to(data: Any, device: torch.device, non_blocking: bool) -> Any:
    """`data` with every tensor in its dicts, lists, tuples and named tuples moved to `device`."""
    if hasattr(data, "to"):
        return data.to(device, non_blocking=non_blocking)
    if isinstance(data, dict):
        return {key: _to(value, device, non_blocking) for key, value in data.items()}
    if isinstance(data, tuple) and hasattr(data, "_fields"):
        return type(data)(*(_to(value, device, non_blocking) for value in data))
    if isinstance(data, (list, tuple)):
        return type(data)(_to(value, device, non_blocking) for value in data)
    return data
