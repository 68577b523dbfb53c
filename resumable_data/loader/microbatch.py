"""What the training loop is handed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from resumable_data.loader.targets import UpdateScale
    from resumable_data.packing import PackedRows
    from resumable_data.sampler import MicrobatchRows


class Microbatch:
    """One forward and backward pass of one rank.

    Attributes:
        data: What ``collate_fn`` made of the samples, filler rows included (they are the last ones).
        loss_scale: The factor for the *sum* of the rows' losses, each times its weight. With it the accumulated
            gradient, after the averaging over ranks that DDP and FSDP do, is the mean over the global batch. With
            ``normalize="targets"`` it can be read after `Update.set_targets`.
        update: Index of the update in the run.
        index: Index of this microbatch in its update, in [0, count).
        count: Microbatches of this update, the same on all ranks.
        is_last: Whether the optimizer steps after this one.
        unreadable: Rows whose samples could not be read, of weight 0 (``on_unreadable="filler"``); they hold the data
            of another row. Their `ids` and `positions` stay in their places.
    """

    __slots__ = ("_moved", "_packed", "_rows", "_scale", "data", "is_last", "unreadable")

    def __init__(
        self,
        data: Any,
        rows: MicrobatchRows,
        moved: tuple[torch.device, bool] | None = None,
        unreadable: tuple[int, ...] = (),
        packed: PackedRows | None = None,
    ) -> None:
        self.data = data
        self.is_last = rows.is_last
        self.unreadable = unreadable
        self._rows = rows
        self._packed = packed
        self._scale: float | UpdateScale = rows.loss_scale
        self._moved = moved  # the device that `to` was called with, and non_blocking

    @property
    def loss_scale(self) -> float:
        """The factor for the sum of the rows' losses."""
        scale = self._scale
        return scale if type(scale) is float else cast("UpdateScale", scale).get()

    @loss_scale.setter
    def loss_scale(self, value: float) -> None:
        self._scale = float(value)

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
    def pieces(self) -> list[list[tuple[int, int, int]]]:
        """``(document, start, stop)`` of the pieces of each packed row, without filler rows; see `PackedTokens`.

        Raises:
            UsageError: The loader reads samples.
        """
        if self._packed is None:
            raise UsageError("pieces are those of packed rows; this loader reads samples, which `ids` tells")
        return [self._packed.pieces(row) for row in range(self._rows.num_samples)]

    @property
    def positions(self) -> NDArray[np.int64]:
        """Positions of these samples in the run's global sequence: (num_samples,) int64."""
        return self._rows.positions()

    @property
    def weights(self) -> torch.Tensor:
        """1 for each row of a sample, 0 for filler rows, which come last, and unreadable ones: (rows,) float32."""
        num_rows = self._rows.num_rows
        weights = torch.ones(num_rows + self._rows.num_filler)
        if self._rows.num_filler:
            weights[num_rows:] = 0
        if self.unreadable:
            weights[list(self.unreadable)] = 0
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
        moved = Microbatch(
            _to(self.data, device, non_blocking), self._rows, (device, non_blocking), self.unreadable, self._packed
        )
        moved._scale = self._scale
        return moved

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
