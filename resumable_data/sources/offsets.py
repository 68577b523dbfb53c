"""Flat tokens with the offsets of their documents: raw files, ``.npy`` files, and arrays in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from resumable_data.sources.arguments import check_documents
from resumable_data.sources.base import CHECKED_AT_OPENING_MAX, FlatBase
from resumable_data.sources.files import bad_source

if TYPE_CHECKING:
    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.files import StoredArray

_CHUNK = 1 << 20


class OffsetTokens(FlatBase):
    """Document d is ``tokens[offsets[d] : offsets[d + 1]]``.

    Args:
        tokens: All tokens.
        offsets: ``(documents + 1,)`` of any integer type, never decreasing, from 0 to the number of tokens.
        kind: What `describe` calls it.
        place: Where it lives, for messages.
        boundaries: What the offsets were taken from, for messages.

    Raises:
        SourceError: The offsets do not fit the tokens. Beyond `CHECKED_AT_OPENING_MAX` documents only the first and the
            last are looked at here, and the others before they are used.
    """

    def __init__(self, tokens: StoredArray, offsets: StoredArray, *, kind: str, place: str, boundaries: str) -> None:
        self._offsets = offsets
        self._kind, self._place, self._boundaries = kind, place, boundaries
        num_documents = offsets.array.size - 1
        if num_documents < 1:
            raise self._bad("their number", "at least 2, the first document's start and end", str(offsets.array.size))
        super().__init__(num_documents, tokens)
        for name, at, expected in (("the first", 0, 0), ("the last", -1, self.num_tokens)):
            if int(offsets.array[at]) != expected:
                raise self._bad(name, f"{expected}, as there are {self.num_tokens} tokens", str(offsets.array[at]))
        if num_documents <= CHECKED_AT_OPENING_MAX:
            for first in range(0, num_documents, _CHUNK):
                self.lengths(np.arange(first, min(first + _CHUNK, num_documents)))

    def lengths(self, documents: Int64Array, /) -> Int64Array:
        """Tokens of each document: (k,) int64 -> (k,) int64."""
        starts, stops = self._spans(documents)
        return stops - starts

    def starts(self, documents: Int64Array, /) -> Int64Array:
        """Where each document begins in `tokens`: (k,) int64 -> (k,) int64."""
        return self._spans(documents)[0]

    def describe(self) -> dict[str, int | str]:
        """What messages say of it."""
        return self._described(self._kind, path=self._place, boundaries=self._boundaries)

    def _spans(self, documents: Int64Array) -> tuple[Int64Array, Int64Array]:
        check_documents(documents, len(self))
        starts = self._offsets.array[documents].astype(np.int64, copy=False)
        stops = self._offsets.array[documents + 1].astype(np.int64, copy=False)
        wrong = (starts < 0) | (starts > stops) | (stops > self.num_tokens)  # above 2^63 an offset became negative
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise self._bad(
                f"of document {int(documents[at])}",
                f"start and end in order, from 0 to {self.num_tokens}",
                f"{int(starts[at])} and {int(stops[at])}",
            )
        return starts, stops

    def _bad(self, which: str, expected: str, found: str) -> Exception:
        return bad_source(
            self._place,
            f"offsets by {self._boundaries}, {which}",
            expected,
            found,
            "Offsets are where documents begin, and after them the number of tokens; write them again.",
        )
