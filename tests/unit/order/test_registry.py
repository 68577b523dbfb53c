"""Descriptions lead back to the order, or are refused."""

from __future__ import annotations

import json
from typing import Any

import pytest

from resumable_data.errors import UsageError
from resumable_data.order import BlockShuffle, Order, Sequential, Shuffle, TorchShuffle, order_from_description

ORDERS = [
    Sequential(2**53 + 1),
    Shuffle(10, 2**63 - 1, "é"),
    Shuffle(2**62),
    TorchShuffle(100, 7),
    BlockShuffle(2**62, 2**62, 2**32, 1, "é"),
]


@pytest.mark.parametrize("order", ORDERS, ids=repr)
def test_a_description_rebuilds_the_order(order: Order) -> None:
    """Also after a journey through JSON, with integers beyond 2^53."""
    description = json.loads(json.dumps(order.describe()))
    rebuilt = order_from_description(description)
    assert rebuilt == order
    assert type(rebuilt) is type(order)


GOOD: dict[str, Any] = {"kind": "shuffle", "version": 1, "length": 10, "seed": 0, "name": ""}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "mine"}, "kind must be one of block-shuffle, sequential, shuffle, torch_shuffle; found 'mine'"),
        ({"kind": None}, "found None"),
        ({"kind": ["shuffle"]}, "must be one of"),
        ({"version": 2}, "must have version 1; found 2"),
        ({"version": True}, "must have version 1; found True"),
        ({"version": "1"}, "must have version 1; found '1'"),
        ({"block": 4}, "must have the keys kind, version, length, seed, name; found"),
        ({"length": 0}, "at least 1"),
        ({"length": 10.0}, "must be an int"),
        ({"seed": -1}, "seed must be in"),
        ({"name": 5}, "name must be a str"),
    ],
)
def test_other_descriptions_are_refused(changes: dict[str, Any], message: str) -> None:
    """An unknown kind, version, key or value is refused and named."""
    with pytest.raises(UsageError, match=message):
        order_from_description(GOOD | changes)


@pytest.mark.parametrize("key", GOOD)
def test_each_key_is_needed(key: str) -> None:
    """A missing key is not filled in with a default."""
    with pytest.raises(UsageError, match="must"):
        order_from_description({name: value for name, value in GOOD.items() if name != key})


def test_what_is_no_mapping_is_refused() -> None:
    """A list of pairs is not a description."""
    with pytest.raises(UsageError, match="must be a mapping; found list"):
        order_from_description(list(GOOD.items()))  # type: ignore[arg-type]
