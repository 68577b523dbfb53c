"""Validation of what callers hand to an order; every refusal says expected, found, effect and remedy."""

from __future__ import annotations

from operator import index
from typing import Any

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order.protocol import Int64Array

MAX_SEED = 2**63 - 1
MAX_EPOCH = 2**63 - 1
MAX_NAME_BYTES = 255


def checked_length(value: object, maximum: int) -> int:
    """Return a dataset length as an int.

    Raises:
        UsageError: when it is not an integer in ``[1, maximum]``.
    """
    length = _integer("n, the number of samples,", value, "pass len(dataset)")
    if length < 1:
        raise UsageError(
            f"n, the number of samples, must be at least 1; found {length}. An order of no samples cannot"
            " fill an update. Check that the dataset found its files."
        )
    if length > maximum:
        raise UsageError(
            f"n, the number of samples, must be at most {maximum}; found {length}. Beyond it IDs would"
            " collide. Split the data into several datasets."
        )
    return length


def checked_size(what: str, value: object, maximum: int) -> int:
    """Return a number of samples that are kept together as an int.

    Raises:
        UsageError: when it is not an integer in ``[1, maximum]``.
    """
    size = _integer(what, value, "pass a number of samples")
    if not 1 <= size <= maximum:
        raise UsageError(
            f"{what} must be from 1 to {maximum} samples; found {size}. The samples cannot be arranged by it. Pass a"
            " number of samples, or use Shuffle to mix all of them."
        )
    return size


def checked_seed(value: object) -> int:
    """Return a seed as an int.

    Raises:
        UsageError: when it is not an integer in ``[0, 2**63)``.
    """
    return _in_range("seed", value, MAX_SEED, "pass a fixed int: the seed decides the order of the samples")


def checked_epoch(value: object) -> int:
    """Return an epoch as an int.

    Raises:
        UsageError: when it is not an integer in ``[0, 2**63)``.
    """
    return _in_range("epoch", value, MAX_EPOCH, "count epochs from 0")


def checked_name(value: object) -> str:
    """Return the name of a random stream.

    Raises:
        UsageError: when it is not a string, cannot be encoded as UTF-8 or is longer than `MAX_NAME_BYTES`.
    """
    if not isinstance(value, str):
        raise UsageError(f"name must be a str; found {_found(value)}. The order is keyed by it: pass a text.")
    try:
        num_bytes = len(value.encode("utf-8"))
    except UnicodeEncodeError as error:
        raise UsageError(
            f"name must be text that UTF-8 can encode; found {value!a}. It could not be stored in a"
            " checkpoint. Remove the unpaired surrogates."
        ) from error
    if num_bytes > MAX_NAME_BYTES:
        raise UsageError(
            f"name must take at most {MAX_NAME_BYTES} bytes of UTF-8; found {num_bytes}. The cursor that"
            " holds it has a fixed size. Shorten the name."
        )
    return value


def check_values(what: str, values: Int64Array, length: int) -> None:
    """Refuse anything but a ``(k,)`` int64 array of values in ``[0, length)``; one pass over the values.

    Raises:
        UsageError: with the first offending value.
    """
    check_vector(what, values)
    # Seen as unsigned, a negative value is larger than any length: one comparison finds both ends.
    if values.size and int(values.view(np.uint64).max()) >= length:
        wrong = np.flatnonzero((values < 0) | (values >= length))
        raise UsageError(
            f"{what} must be in [0, {length}); found {int(values[wrong[0]])} at index {int(wrong[0])}"
            f" ({wrong.size} of {values.size} values are outside). There is no such sample. A position in the"
            " run is epoch * n + offset: use ids_at(order, positions) for those."
        )


def check_vector(what: str, values: object) -> None:
    """Refuse anything but a ``(k,)`` int64 array.

    Raises:
        UsageError: when type, dtype or number of dimensions differ.
    """
    if not isinstance(values, np.ndarray):
        found = _found(values)
    elif values.dtype != np.int64 or values.ndim != 1:
        found = f"{values.dtype} of shape {values.shape}"
    else:
        return
    raise UsageError(
        f"{what} must be an int64 array of shape (k,); found {found}. Other types lose exactness above 2**53"
        f" or wrap around. Pass np.asarray({what}, dtype=np.int64)."
    )


def _in_range(what: str, value: object, maximum: int, remedy: str) -> int:
    number = _integer(what, value, remedy)
    if not 0 <= number <= maximum:
        raise UsageError(f"{what} must be in [0, {maximum}]; found {number}. Checkpoints cannot hold it: {remedy}.")
    return number


def _integer(what: str, value: Any, remedy: str) -> int:
    if type(value) is int:
        return value
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        return index(value)
    except TypeError:
        raise UsageError(
            f"{what} must be an int; found {_found(value)}. A rounded or guessed number would name another"
            f" order: {remedy}."
        ) from None


def _found(value: object) -> str:
    text = repr(value)
    return f"{type(value).__name__} {text if len(text) <= 80 else text[:77] + '...'}"
