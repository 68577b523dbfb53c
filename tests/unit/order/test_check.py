"""check_order: a user's order is refused where a few questions show that it breaks the contract."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from resumable_data.errors import UsageError
from resumable_data.order import Order, Sequential, Shuffle, TorchShuffle, check_order


class Reversed:
    """A right order, to be broken in one place at a time."""

    def __init__(self, n: int = 1_000) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def ids(self, epoch: int, offsets: Any) -> Any:
        return self.n - 1 - offsets

    def offsets(self, epoch: int, ids: Any) -> Any:
        return self.n - 1 - ids

    def describe(self) -> Any:
        return {"kind": "reversed", "version": 1, "length": self.n}


@pytest.mark.parametrize("n", [1, 2, 3, 1_000, 2**62])
def test_a_right_order_passes(n: int) -> None:
    """Of any length."""
    check_order(Reversed(n))
    assert isinstance(Reversed(n), Order)


def test_our_own_orders_pass_at_once() -> None:
    """They are not asked: the answer of TorchShuffle may cost seconds."""
    order = TorchShuffle(1_000)
    check_order(order)
    assert not order._permutations
    check_order(Sequential(5))
    check_order(Shuffle(2**62))


BROKEN: dict[str, tuple[dict[str, Any], str]] = {
    "no inverse": ({"offsets": None}, "without offsets"),
    "no samples": ({"__len__": lambda self: 0}, "at least 1 sample; found 0"),
    "a list": ({"ids": lambda self, epoch, offsets: offsets.tolist()}, "found list"),
    "int32": ({"ids": lambda self, epoch, offsets: offsets.astype(np.int32)}, "found int32"),
    "float64": ({"ids": lambda self, epoch, offsets: offsets * 1.0}, "found float64"),
    "a scalar": ({"ids": lambda self, epoch, offsets: np.int64(3)}, "found int64"),
    "another shape": ({"ids": lambda self, epoch, offsets: offsets[:, None]}, "shape"),
    "one ID too many": ({"ids": lambda self, epoch, offsets: offsets + 1}, r"values in \[0, 1000\)"),
    "negative IDs": ({"ids": lambda self, epoch, offsets: -offsets}, r"values in \[0, 1000\)"),
    "equal IDs": ({"ids": lambda self, epoch, offsets: offsets * 0}, "distinct IDs"),
    "wrong in epoch 1": ({"ids": lambda self, epoch, offsets: self.n - 1 - offsets + epoch}, r"ids\(1, offsets\)"),
    "another inverse": ({"offsets": lambda self, epoch, ids: ids}, "an audit would report wrong samples"),
    "no float inverse": ({"offsets": lambda self, epoch, ids: ids / 1}, "found float64"),
    "random": ({"ids": lambda self, epoch, offsets: np.random.permutation(1000)[offsets]}, "both times"),
    "place in the call": ({"ids": lambda self, epoch, offsets: np.arange(offsets.size)}, "both times"),
    "no description": ({"describe": lambda self: None}, "a flat dict"),
    "nested": ({"describe": lambda self: {"kind": "x", "version": 1, "length": 1000, "a": [1]}}, "int or str"),
    "bool": ({"describe": lambda self: {"kind": "x", "version": True, "length": 1000}}, "int or str"),
    "no kind": ({"describe": lambda self: {"version": 1, "length": 1000}}, "kind None and version 1"),
    "no version": ({"describe": lambda self: {"kind": "x", "length": 1000}}, "version None"),
    "another length": ({"describe": lambda self: {"kind": "x", "version": 1, "length": 9}}, "a length of 1000"),
    "an impostor": ({"describe": lambda self: Shuffle(1000).describe()}, "a kind of its own"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_order_is_refused(name: str) -> None:
    """Whatever is wrong is said, with the way to the contract."""
    members, message = BROKEN[name]
    with pytest.raises(UsageError, match=message) as caught:
        check_order(type("Broken", (Reversed,), members)())
    assert "resumable_data.order.Order" in str(caught.value)


@pytest.mark.parametrize("thing", [None, 5, [1, 2], Reversed, np.arange(5)])
def test_what_is_no_order_is_refused(thing: object) -> None:
    """Lists, arrays and classes are not orders."""
    with pytest.raises(UsageError, match="an order must be an object with the methods"):
        check_order(thing)


def test_a_subclass_that_changes_nothing_passes() -> None:
    """A subclass of one of our orders is asked like any other, and may keep the description if the IDs are the same."""
    check_order(type("Named", (Shuffle,), {})(70_000, 3))
