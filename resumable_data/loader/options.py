"""The dataset and the order that a loader is given."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch.utils.data

from resumable_data.errors import UsageError
from resumable_data.order import Shuffle, check_order
from resumable_data.packing import PackedTokens

if TYPE_CHECKING:
    from resumable_data.order import Order


def check_dataset(dataset: Any) -> int:
    """The number of samples of a map-style dataset.

    Raises:
        UsageError: It is an IterableDataset, is empty, or lacks ``__len__`` or ``__getitem__``.
    """
    refuse_iterable(dataset)
    if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
        raise UsageError(f"expected a map-style dataset, with __len__ and __getitem__; got {type(dataset).__name__}")
    length = len(dataset)
    if length < 1:
        raise UsageError(f"the dataset is empty (len is {length}); there is nothing to train on")
    return length


def refuse_iterable(dataset: Any) -> None:
    """Make sure that `dataset` can be asked for a sample.

    Raises:
        UsageError: It is an IterableDataset, or rows of packed tokens.
    """
    if isinstance(dataset, PackedTokens):
        raise UsageError(
            "PackedTokens is no dataset of samples: its rows are planned as they are read. Give it to "
            "resumable_data.ResumableLoader, or to evaluation_loader."
        )
    if isinstance(dataset, torch.utils.data.IterableDataset):
        raise UsageError(
            f"{type(dataset).__name__} is an IterableDataset: it decides itself what comes next, so no cursor can say "
            "what was read. Give a map-style dataset, with __len__ and __getitem__, over the same items."
        )


def choose_order(order: Order | None, length: int, seed: int) -> Order:
    """The order that was given for `length` samples; a `Shuffle` by `seed` when None.

    Raises:
        UsageError: It is no order, or has another length.
    """
    if order is None:
        return Shuffle(length, seed=seed)
    check_order(order)
    if len(order) != length:
        raise UsageError(
            f"the order has {len(order)} samples and the dataset {length}: samples would never be seen, or asked for "
            "and not there. Make the order with the length of the dataset."
        )
    return order
