"""What a source of tokens is: the contract between files of documents and everything that reads them."""

from __future__ import annotations

from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from resumable_data.order.protocol import Int64Array

TokenArray: TypeAlias = npt.NDArray[np.integer[Any]]
"""``(n,)`` array of tokens, in the source's own integer type."""


@runtime_checkable
class TokenSource(Protocol):
    """Documents of tokens, numbered from 0.

    An implementation must be

    * constant: the same document and range give the same tokens for as long as a run goes on, in every process;
    * vectorised in `lengths`: it is asked for anything from no document to a million of them, in any order, with
      repeats, and is asked for all of them when a fingerprint is taken;
    * thread-safe, and picklable where DataLoader workers are spawned;
    * strict: a document that does not exist or a range that leaves it is an error, never cut short.

    Arguments and results are as in `SourceBase`. The least that is needed:

    Example:
        >>> import numpy as np
        >>> from resumable_data.sources import content_fingerprint
        >>> class Squares:
        ...     dtype, num_tokens = np.dtype(np.int32), 60
        ...     def __len__(self):
        ...         return 10
        ...     def lengths(self, documents):
        ...         return np.full(documents.size, 6)
        ...     def read(self, document, start, stop):
        ...         return np.arange(start, stop, dtype=np.int32) ** 2 + document
        ...     def describe(self):
        ...         return {"kind": "squares"}
        ...     def fingerprint(self, full=False, documents=None):
        ...         return content_fingerprint(self, full=full, documents=documents)
        >>> Squares().read(2, 1, 4).tolist()
        [3, 6, 11]
    """

    @property
    def num_tokens(self) -> int:
        """Tokens of all documents."""
        ...

    @property
    def dtype(self) -> np.dtype[Any]:
        """The integer type of the stored tokens."""
        ...

    def __len__(self) -> int:
        """Number of documents."""
        ...

    def lengths(self, documents: Int64Array, /) -> Int64Array:
        """Tokens of each document: (k,) int64 -> (k,) int64, all of them at least 0."""
        ...

    def read(self, document: int, start: int, stop: int, /) -> TokenArray:
        """Tokens ``[start, stop)`` of one document, as a 1-D array that nobody writes to."""
        ...

    def describe(self) -> dict[str, int | str]:
        """What messages say of it: its kind, and where it lives."""
        ...

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        """A short text that tells these contents from others, see `content_fingerprint`.

        Args:
            full: Whether every token counts, and not a sample of them.
            documents: Only the first so many documents; all by default.
        """
        ...


@runtime_checkable
class FlatTokens(TokenSource, Protocol):
    """A source whose tokens all lie in one array, so that a batch can be copied without a call for each piece.

    Documents lie in `tokens` one after another, in the order of their numbers and without gaps. The fast way to copy
    many pieces is ``view = source.tokens.data`` and ``raw[to : to + n] = view[at : at + n]``, with one cast of
    the whole batch; asking a ``np.memmap`` for slices is slower than reading them.
    """

    @property
    def tokens(self) -> TokenArray:
        """All tokens: ``(num_tokens,)``, contiguous, in the machine's byte order, read-only, mapped where in a file."""
        ...

    def starts(self, documents: Int64Array, /) -> Int64Array:
        """Where each document begins in `tokens`: (k,) int64 -> (k,) int64, in ``[0, num_tokens]``."""
        ...

    def prefetch(self, starts: Int64Array, lengths: Int64Array, /) -> None:
        """Ask the operating system for ranges of `tokens` that are read soon, without waiting for them.

        Args:
            starts: (k,) int64, where ranges begin in `tokens`.
            lengths: (k,) int64, their tokens.
        """
        ...
