"""Validation of what is to be packed; every refusal says expected, found, effect and remedy."""

from __future__ import annotations

from operator import index

import numpy as np

from resumable_data.errors import UsageError

MAX_ROW_LENGTH = 2**24
"""Tokens; a histogram of lengths is kept in memory."""

MAX_ROWS = 2**28
"""Full rows that the documents of one call may fill; more would not fit into memory."""

MAX_WINDOW = 2**22
"""Documents of a window."""


def checked_int(what: str, value: object, minimum: int, maximum: int, remedy: str) -> int:
    """Return an int in ``[minimum, maximum]``.

    Raises:
        UsageError: when it is not one.
    """
    try:
        if isinstance(value, (bool, np.bool_)):
            raise TypeError
        number = index(value)  # type: ignore[arg-type]  # what has no index raises TypeError
    except TypeError:
        number = minimum - 1
    if not minimum <= number <= maximum:
        raise UsageError(
            f"{what} must be an int from {minimum} to {maximum}; found {value!r}. Rows cannot be planned with it."
            f" {remedy}"
        )
    return number


def checked_row_length(value: object) -> int:
    """Return the tokens of a full row as an int.

    Raises:
        UsageError: when it is not an integer in ``[1, MAX_ROW_LENGTH]``.
    """
    return checked_int("row_length", value, 1, MAX_ROW_LENGTH, "Pass the number of tokens of a row.")


def check_lengths(lengths: object, row_length: int) -> None:
    """Refuse anything but a ``(k,)`` int64 array of lengths, at least 0, that rows of this length can hold.

    Raises:
        UsageError: when type, dtype, number of dimensions or a value differ, or there would be more than `MAX_ROWS`.
    """
    if not isinstance(lengths, np.ndarray) or lengths.dtype != np.int64 or lengths.ndim != 1:
        found = f"{lengths.dtype} of shape {lengths.shape}" if isinstance(lengths, np.ndarray) else type(lengths)
        raise UsageError(
            f"lengths must be an int64 array of shape (k,); found {found}. Other types lose exactness or wrap around."
            " Pass np.asarray(lengths, dtype=np.int64)."
        )
    if lengths.size and lengths.min() < 0:
        wrong = int(np.argmax(lengths < 0))
        raise UsageError(
            f"lengths must be at least 0; found {int(lengths[wrong])} at index {wrong}. No document has fewer than no"
            " tokens: the source is damaged, or its lengths wrapped around. Check the source."
        )
    # Summed as floating point, which cannot wrap around; below the limit every count fits into int64.
    num_rows = float(lengths.sum(dtype=np.float64)) / row_length
    if num_rows > MAX_ROWS:
        raise UsageError(
            f"lengths must fill at most {MAX_ROWS} rows of {row_length} tokens; found {num_rows:.0f}. Their plan would"
            " not fit into memory. Check the source's lengths, or use smaller windows or longer rows."
        )
