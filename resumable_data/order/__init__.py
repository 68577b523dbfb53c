"""Orders: from an epoch and an offset to a sample ID and back. Never imports torch at import time."""

from __future__ import annotations

from resumable_data.order.block_shuffle import BlockShuffle
from resumable_data.order.check import check_order
from resumable_data.order.protocol import Int64Array, Order
from resumable_data.order.registry import order_from_description
from resumable_data.order.sequence import ids_at
from resumable_data.order.sequential import Sequential
from resumable_data.order.shuffle import Shuffle
from resumable_data.order.torch_shuffle import TorchShuffle

__all__ = [
    "BlockShuffle",
    "Int64Array",
    "Order",
    "Sequential",
    "Shuffle",
    "TorchShuffle",
    "check_order",
    "ids_at",
    "order_from_description",
]
