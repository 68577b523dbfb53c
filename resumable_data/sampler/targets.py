"""How much each update's loss weighs: over samples, or over target tokens known ahead."""

from __future__ import annotations

from dataclasses import dataclass
from math import nan
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.sampler.padding import row_ids

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike, NDArray

    from resumable_data.order import Order
    from resumable_data.plan import Segment, UpdateSpan

    NumTargetTokens = ArrayLike | Callable[[NDArray[np.int64]], ArrayLike]

NORMALIZATIONS = ("samples", "tokens", "targets")

_CHUNK = 65_536


class TargetTokens:
    """Target tokens of samples, from an array over the dataset or a function of IDs.

    Args:
        source: (N,) integers, one per sample ID, or a function from (k,) int64 IDs to (k,) integers.
        length: N, the samples of the dataset.

    Raises:
        UsageError: It is neither, or the array has another shape or type; negative counts are found when they are used.
    """

    def __init__(self, source: NumTargetTokens, *, length: int) -> None:
        self._function: Callable[[NDArray[np.int64]], ArrayLike] | None = source if callable(source) else None
        self._array: NDArray[Any] | None = None
        if self._function is None:
            self._array = np.asarray(source)
            if self._array.shape != (length,) or not np.issubdtype(self._array.dtype, np.integer):
                raise UsageError(
                    f"num_target_tokens must hold one integer per sample, shape ({length},); got shape "
                    f"{self._array.shape} of {self._array.dtype}. Or give a function from an array of IDs to counts."
                )

    def count(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Target tokens of samples: (k,) int64 -> (k,) int64.

        Raises:
            UsageError: The user's function gave another shape, no integers, or a negative count.
        """
        counts = self._array[ids] if self._array is not None else np.asarray(self._call(ids))
        if counts.shape != ids.shape or not np.issubdtype(counts.dtype, np.integer):
            raise UsageError(
                f"num_target_tokens must give one integer per ID, shape {ids.shape}; got shape {counts.shape} of "
                f"{counts.dtype}"
            )
        if counts.size and counts.min() < 0:
            raise UsageError(f"num_target_tokens gave {counts.min()} for sample {ids[counts.argmin()]}; expected >= 0")
        return counts.astype(np.int64, copy=False)

    def count_rows(self, order: Order, rows: NDArray[np.int64], span: UpdateSpan) -> NDArray[np.int64]:
        """Target tokens of rows of updates like `span`, see `row_ids`: (k,) int64 -> (k,) int64."""
        return self.count(row_ids(order, rows, span))

    def _call(self, ids: NDArray[np.int64]) -> ArrayLike:
        assert self._function is not None
        return self._function(ids)


class TargetCounts(Protocol):
    """Knows the target tokens of rows ahead."""

    def count_rows(self, order: Order, rows: NDArray[np.int64], span: UpdateSpan) -> NDArray[np.int64]:
        """Target tokens of rows of updates like `span`, see `row_ids`: (k,) int64 -> (k,) int64."""
        ...


@dataclass(frozen=True, kw_only=True)
class LossWeight:
    """What a microbatch's summed loss is multiplied by.

    Attributes:
        normalize: What the gradient is a mean over: ``"samples"``, ``"tokens"`` (target tokens known ahead), or
            ``"targets"`` (counted when an update is at hand; its loss scale is NaN until then).
        factor: See `resumable_data.plan.loss_factor`.
        targets: Target tokens per sample, where known.
    """

    normalize: str
    factor: float
    targets: TargetCounts | None = None

    def __post_init__(self) -> None:
        if self.normalize not in NORMALIZATIONS:
            raise UsageError(f"normalize must be one of {NORMALIZATIONS}, got {self.normalize!r}")
        if self.normalize == "tokens" and self.targets is None:
            raise UsageError(
                'normalize="tokens" needs num_target_tokens=: an array of one integer per sample, or a function of IDs'
            )
        if self.normalize == "targets" and self.targets is not None:
            raise UsageError(
                'normalize="targets" counts target tokens by update.set_targets(), and num_target_tokens= was given '
                'too. Leave it out; or, if these counts are right, use normalize="tokens": it needs no communication.'
            )


class UpdateWeights:
    """Loss scale and token count of each update of one segment, computed some updates ahead."""

    def __init__(self, weight: LossWeight, order: Order, segment: Segment) -> None:
        self._weight = weight
        self._order = order
        self._segment = segment
        self._first = 0
        self._tokens: list[tuple[int, int]] = []
        self._loss_scale = nan if weight.normalize == "targets" else weight.factor / segment.span.num_rows

    def of(self, numbers: list[int]) -> tuple[list[float], list[int]]:
        """Loss scales, and target tokens, of the segment's updates `numbers`, which must never decrease."""
        if self._weight.targets is None:
            return [self._loss_scale] * len(numbers), [0] * len(numbers)
        pairs = [self._of(number) for number in numbers]
        return [loss_scale for loss_scale, _ in pairs], [tokens for _, tokens in pairs]

    def _of(self, number: int) -> tuple[float, int]:
        while number >= self._first + len(self._tokens):
            self._first += len(self._tokens)
            self._tokens = self._count(self._first)
        of_rows, of_samples = self._tokens[number - self._first]
        if self._weight.normalize == "tokens":
            return self._weight.factor / max(of_rows, 1), of_samples
        return self._loss_scale, of_samples

    def _count(self, first: int) -> list[tuple[int, int]]:
        """Target tokens of all rows, and of all samples, of some updates from `first` on, whoever reads them."""
        span, num_updates_left = self._segment
        num_updates = min(max(1, _CHUNK // span.num_rows), num_updates_left - first)
        start = span.start + first * span.num_samples
        if span.num_rows > _CHUNK:
            return [self._count_in_chunks(start)]
        counts = self._count_rows(start, num_updates * span.num_rows).reshape(num_updates, span.num_rows)
        of_samples = counts[:, : span.num_samples].sum(axis=1)
        return list(zip(counts.sum(axis=1).tolist(), of_samples.tolist(), strict=True))

    def _count_in_chunks(self, start: int) -> tuple[int, int]:
        """The same of one update that is too large to be looked at in one piece."""
        span = self._segment.span
        of_rows = of_samples = 0
        for row in range(0, span.num_rows, _CHUNK):
            counts = self._count_rows(start + row, min(_CHUNK, span.num_rows - row))
            of_rows += int(counts.sum())
            of_samples += int(counts[: max(0, span.num_samples - row)].sum())
        return of_rows, of_samples

    def _count_rows(self, start: int, num_rows: int) -> NDArray[np.int64]:
        """Target tokens of the rows from position `start` on: (num_rows,) int64."""
        assert self._weight.targets is not None
        rows = start + np.arange(num_rows, dtype=np.int64)
        return self._weight.targets.count_rows(self._order, rows, self._segment.span)
