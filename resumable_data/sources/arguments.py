"""Validation of what callers hand to a source; every refusal says expected, found, effect and remedy."""

from __future__ import annotations

from operator import index
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from resumable_data.order.protocol import Int64Array


def check_documents(documents: Int64Array, length: int) -> None:
    """Refuse anything but a ``(k,)`` int64 array of documents in ``[0, length)``; one pass over the values.

    Raises:
        UsageError: With the first document that does not exist.
    """
    if not isinstance(documents, np.ndarray) or documents.dtype != np.int64 or documents.ndim != 1:
        is_array = isinstance(documents, np.ndarray)
        found = f"{documents.dtype} of shape {documents.shape}" if is_array else type(documents).__name__
        raise UsageError(
            f"documents must be an int64 array of shape (k,); found {found}. Other types lose exactness above 2**53 or "
            "wrap around. Pass np.asarray(documents, dtype=np.int64)."
        )
    # Seen as unsigned, a negative value is larger than any length: one comparison finds both ends.
    if documents.size and int(documents.view(np.uint64).max()) >= length:
        wrong = documents[(documents < 0) | (documents >= length)]
        raise UsageError(
            f"documents must be in [0, {length}); found {int(wrong[0])} ({wrong.size} of {documents.size} "
            "are outside). There is no such document. Count documents from 0 to len(source) - 1."
        )


def checked_integer(what: str, value: Any, low: int, high: int) -> int:
    """A whole number in ``[low, high]``.

    Raises:
        UsageError: It is none, or outside.
    """
    try:
        number = index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, (bool, np.bool_)) or not low <= number <= high:
        raise UsageError(
            f"{what} must be an integer from {low} to {high}; found {value!r:.80}. Other tokens than those meant would "
            "be read."
        )
    return number


def check_range(start: int, stop: int, length: int, document: int) -> None:
    """Refuse a range that leaves its document.

    Raises:
        UsageError: It does.
    """
    if not 0 <= start <= stop <= length:
        raise UsageError(
            f"expected a range within the {length} tokens of document {document}, found [{start}, {stop}). Nothing was "
            "read, as a range that is cut short would be taken for a whole one. Take lengths from source.lengths()."
        )


def checked_dtype(dtype: object) -> np.dtype[Any]:
    """The integer type in which tokens are stored.

    Raises:
        UsageError: It is no integer type, or of the other byte order.
    """
    try:
        kind: np.dtype[Any] | None = np.dtype(dtype)  # type: ignore[call-overload]  # what is no type raises TypeError
    except TypeError:
        kind = None
    if dtype is None or kind is None or kind.kind not in "iu" or not kind.isnative:
        raise UsageError(
            f"dtype must be an integer type in this machine's byte order; found {dtype!r:.80}. Bytes read as another "
            "type are other tokens. Pass what the tokens were written as, say np.uint16."
        )
    return kind
