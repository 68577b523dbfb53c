"""What the sources of this package share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.sources.arguments import check_range, checked_integer
from resumable_data.sources.fingerprint import content_fingerprint

if TYPE_CHECKING:
    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.files import StoredArray
    from resumable_data.sources.protocol import TokenArray

CHECKED_AT_OPENING_MAX = 1 << 22
"""Documents up to which every offset is checked when a source is opened. Beyond, opening takes no time: a document is
checked before it is read, and all are checked when a fingerprint is taken."""


class SourceBase(ABC):
    """A source of tokens, see `TokenSource`. To be inherited where a Protocol's ten lines are too many.

    Args:
        num_documents: Documents, at least 1.
        num_tokens: Tokens of all documents.
        dtype: Integer type of the stored tokens.
    """

    def __init__(self, num_documents: int, num_tokens: int, dtype: np.dtype[Any]) -> None:
        self._num_documents = num_documents
        self._num_tokens = num_tokens
        self._dtype = dtype

    def __len__(self) -> int:
        return self._num_documents

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        return self._num_tokens

    @property
    def dtype(self) -> np.dtype[Any]:
        """The integer type of the stored tokens."""
        return self._dtype

    @abstractmethod
    def lengths(self, documents: Int64Array, /) -> Int64Array:
        """Tokens of each document: (k,) int64 -> (k,) int64.

        Raises:
            UsageError: A document does not exist.
            SourceError: What the source says of it cannot be.
        """

    @abstractmethod
    def read(self, document: int, start: int, stop: int, /) -> TokenArray:
        """Tokens ``[start, stop)`` of one document: a read-only 1-D array of `dtype`.

        Raises:
            UsageError: The document does not exist, or the range leaves it.
            SourceError: What the source says of it cannot be.
        """

    @abstractmethod
    def describe(self) -> dict[str, int | str]:
        """What messages say of it."""

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        """The fingerprint of the contents, see `content_fingerprint`."""
        return content_fingerprint(self, full=full, documents=documents)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(f'{key}={value!r}' for key, value in self.describe().items())})"

    def _described(self, kind: str, **more: int | str) -> dict[str, int | str]:
        counts: dict[str, int | str] = {"documents": len(self), "tokens": self.num_tokens, "dtype": self.dtype.name}
        return {"kind": kind, **more, **counts}

    def _checked_range(self, document: int, start: int, stop: int) -> tuple[int, int, int]:
        document = checked_integer("document", document, 0, len(self) - 1)
        start, stop = (checked_integer(name, value, 0, 2**63 - 1) for name, value in (("start", start), ("stop", stop)))
        check_range(start, stop, int(self.lengths(np.array([document]))[0]), document)
        return document, start, stop


class FlatBase(SourceBase):
    """A source whose tokens lie in one array, see `FlatTokens`.

    Args:
        num_documents: Documents, at least 1.
        tokens: All tokens, those of a document after those of the one before.
    """

    def __init__(self, num_documents: int, tokens: StoredArray) -> None:
        super().__init__(num_documents, tokens.array.size, tokens.array.dtype)
        self._tokens = tokens

    @property
    def tokens(self) -> TokenArray:
        """All tokens: ``(num_tokens,)``, contiguous, read-only, mapped where in a file."""
        return self._tokens.array

    @abstractmethod
    def starts(self, documents: Int64Array, /) -> Int64Array:
        """Where each document begins in `tokens`: (k,) int64 -> (k,) int64.

        Raises:
            UsageError: A document does not exist.
            SourceError: What the source says of it cannot be.
        """

    def read(self, document: int, start: int, stop: int, /) -> TokenArray:
        """Tokens ``[start, stop)`` of one document: a view of the mapped file."""
        document, start, stop = self._checked_range(document, start, stop)
        begin = int(self.starts(np.array([document]))[0])
        return self.tokens[begin + start : begin + stop]

    def prefetch(self, starts: Int64Array, lengths: Int64Array, /) -> None:
        """Ask the operating system for ranges of `tokens` that are read soon, without waiting for them."""
        self._tokens.prefetch(starts, lengths)
