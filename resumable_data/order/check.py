"""A cheap look at an order that somebody else wrote, before a run is built on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order.protocol import Int64Array
from resumable_data.order.registry import OUR_ORDERS, is_known_kind, order_from_description

_METHODS = ("__len__", "ids", "offsets", "describe")
_REMEDY = "See the docstring of resumable_data.order.Order for the contract and a minimal implementation."


def check_order(order: object) -> None:
    """Refuse an object that breaks the contract of `Order` where a few questions can show it.

    Asks for a handful of offsets in epochs 0 and 1: types, shapes, range, distinct IDs, the same answer twice, the
    inverse, a usable description. It cannot prove a bijection. Orders of this package are taken as they are.

    Raises:
        UsageError: naming what was expected and found.
    """
    if type(order) in OUR_ORDERS:
        return
    missing = [name for name in _METHODS if not callable(getattr(order, name, None))]
    if missing or isinstance(order, type):
        raise UsageError(
            f"an order must be an object with the methods {', '.join(_METHODS)}; found"
            f" {type(order).__name__} {'(a class, not an object)' if isinstance(order, type) else ''}"
            f" without {', '.join(missing) or 'an instance'}. Its samples cannot be named. {_REMEDY}"
        )
    checked: Any = order
    length = len(checked)
    if length < 1:
        raise UsageError(f"an order must have at least 1 sample; found {length}. It cannot fill an update. {_REMEDY}")
    for epoch in (0, 1):
        _check_epoch(checked, epoch, length)
    _check_description(checked, length)


def _check_epoch(order: Any, epoch: int, length: int) -> None:
    probe = np.unique(np.array([0, 1, length // 3, length // 2, length - 1], dtype=np.int64) % length)
    ids = order.ids(epoch, probe.copy())
    _check_answer(f"ids({epoch}, offsets)", ids, probe.size, length)
    if np.unique(ids).size != probe.size:
        raise _refusal(
            f"ids({epoch}, {probe.tolist()})", "distinct IDs", ids.tolist(), "samples would be repeated and lost"
        )
    again = order.ids(epoch, probe[::-1].copy())
    _check_answer(f"ids({epoch}, offsets)", again, probe.size, length)
    if not np.array_equal(again[::-1], ids):
        raise _refusal(
            f"ids({epoch}, ...), asked twice,",
            f"{ids.tolist()} both times",
            again[::-1].tolist(),
            "a resumed run would not see the samples that are left",
        )
    offsets = order.offsets(epoch, ids.copy())
    _check_answer(f"offsets({epoch}, ids)", offsets, probe.size, length)
    if not np.array_equal(offsets, probe):
        raise _refusal(
            f"offsets({epoch}, {ids.tolist()})", probe.tolist(), offsets.tolist(), "an audit would report wrong samples"
        )
    nothing = np.empty(0, dtype=np.int64)
    _check_answer(f"ids({epoch}, offsets) of no offsets", order.ids(epoch, nothing), 0, length)


def _check_answer(what: str, values: object, size: int, length: int) -> None:
    expected = f"an int64 array of shape ({size},)"
    if not isinstance(values, np.ndarray):
        raise _refusal(what, expected, type(values).__name__, "IDs could lose exactness or wrap around")
    if values.dtype != np.int64 or values.shape != (size,):
        found = f"{values.dtype} of shape {values.shape}"
        raise _refusal(what, expected, found, "IDs could lose exactness or wrap around")
    if size and not (values.min() >= 0 and values.max() < length):
        raise _refusal(what, f"values in [0, {length})", values.tolist(), "there are no such samples")


def _check_description(order: Any, length: int) -> None:
    description = order.describe()
    if not isinstance(description, Mapping):
        raise _refusal("describe()", "a flat dict", type(description).__name__, _UNTOLD)
    for key, value in description.items():
        if not isinstance(key, str) or type(value) not in (int, str):
            raise _refusal("describe()", "a flat dict of str to int or str", f"{key!r}: {value!r}", _UNTOLD)
    kind, version = description.get("kind"), description.get("version")
    if type(kind) is not str or not kind or type(version) is not int:
        found = f"kind {kind!r} and version {version!r}"
        raise _refusal("describe()", "a kind (str) and a version (int)", found, _UNTOLD)
    if description.get("length") != length:
        raise _refusal("describe()", f"a length of {length}", description.get("length"), _UNTOLD)
    if is_known_kind(kind):
        _check_not_an_impostor(order, description, length)


def _check_not_an_impostor(order: Any, description: Mapping[str, int | str], length: int) -> None:
    """An order that describes itself as one of this package's must give that order's IDs."""
    rebuilt = order_from_description(description)
    probe: Int64Array = np.unique(np.linspace(0, length - 1, 64).astype(np.int64).clip(0, length - 1))
    if not np.array_equal(rebuilt.ids(1, probe), order.ids(1, probe)):
        raise _refusal(
            "describe()",
            "a kind of its own",
            f"kind {description['kind']!r}, whose IDs are others",
            "an audit would rebuild the wrong order",
        )


_UNTOLD = "a checkpoint could not tell a changed order"


def _refusal(what: str, expected: object, found: object, effect: str) -> UsageError:
    return UsageError(f"{what} of an order must give {expected}; found {found}: {effect}. {_REMEDY}")
