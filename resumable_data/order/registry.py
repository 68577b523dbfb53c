"""From a description in a checkpoint or a ledger back to the order itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from resumable_data.errors import UsageError
from resumable_data.order.block_shuffle import BlockShuffle
from resumable_data.order.protocol import Order
from resumable_data.order.sequential import Sequential
from resumable_data.order.shuffle import Shuffle
from resumable_data.order.torch_shuffle import TorchShuffle

OUR_ORDERS = (Sequential, Shuffle, TorchShuffle, BlockShuffle)
_CLASSES: dict[str, type[Sequential] | type[Shuffle] | type[TorchShuffle] | type[BlockShuffle]] = {
    cls.kind: cls for cls in OUR_ORDERS
}
_FIXED_KEYS = ("kind", "version", "length")


def is_known_kind(kind: object) -> bool:
    """Whether `order_from_description` can rebuild orders of this kind."""
    return isinstance(kind, str) and kind in _CLASSES


def order_from_description(description: Mapping[str, int | str]) -> Order:
    """Rebuild one of this package's orders from what its ``describe()`` returned.

    Args:
        description: as returned by ``describe()``; it may come from a file and is not trusted.

    Raises:
        UsageError: when the kind or version is unknown, a key is missing or unknown, or a value is not
            acceptable to the order.

    Example:
        >>> order_from_description({"kind": "shuffle", "version": 1, "length": 10, "seed": 3, "name": ""})
        Shuffle(10, seed=3, name='')
    """
    if not isinstance(description, Mapping):
        raise UsageError(
            f"an order's description must be a mapping; found {type(description).__name__}. The order cannot be"
            " rebuilt from it. Pass what order.describe() returned."
        )
    kind, version = description.get("kind"), description.get("version")
    if not isinstance(kind, str) or kind not in _CLASSES:
        raise UsageError(
            f"an order's kind must be one of {', '.join(sorted(_CLASSES))}; found {kind!r}. An order of your own"
            " cannot be rebuilt from its description. Pass the order object itself where one can be given."
        )
    cls = _CLASSES[kind]
    if type(version) is not int or version != cls.version:
        raise UsageError(
            f"order kind {kind!r} must have version {cls.version}; found {version!r}. Another version is another"
            " sequence of samples. Use the release of resumable_data that wrote it."
        )
    expected = cls(1).describe().keys()
    if description.keys() != expected:
        raise UsageError(
            f"a description of order kind {kind!r} must have the keys {', '.join(expected)}; found"
            f" {', '.join(map(repr, description))}. A missing or unknown key may mean another sequence of samples."
            " Pass what order.describe() returned, whole."
        )
    arguments: dict[str, Any] = {key: value for key, value in description.items() if key not in _FIXED_KEYS}
    order: Order = cls(cast(int, description["length"]), **arguments)
    return order
