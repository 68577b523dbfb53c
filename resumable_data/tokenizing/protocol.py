"""What a tokenizer is: the contract between texts and the tokens that are written for them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, Protocol

import msgspec
import numpy as np

if TYPE_CHECKING:
    from typing import Any

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenArray

_UINT16_VOCABULARY_MAX = 1 << 16


class Tokens(NamedTuple):
    """Tokens of documents.

    Attributes:
        tokens: ``(n,)`` of the tokenizer's type, document after document.
        lengths: ``(k,)`` int64, the tokens of each document.
    """

    tokens: TokenArray
    lengths: Int64Array


class TokenizerName(msgspec.Struct, frozen=True, kw_only=True):
    """What made tokens, for a report.

    Attributes:
        kind: ``"bytes"`` or ``"tokenizers"``.
        path: Its file, empty where there is none.
        digest: The xxh3_128 of the file's bytes, empty where there is none.
        vocabulary: One more than the largest token.
        end_token: The token after each document, or None.
    """

    kind: str
    path: str = ""
    digest: str = ""
    vocabulary: int
    end_token: int | None


class Tokenizer(Protocol):
    """Turns documents into tokens.

    An implementation must be deterministic, document by document: the tokens of a document must not depend on those
    that are encoded with it, nor on the process. It is pickled where several processes work.
    """

    @property
    def name(self) -> TokenizerName:
        """What a report says of it."""
        ...

    @property
    def needs_text(self) -> bool:
        """Whether documents must be UTF-8."""
        ...

    def encode(self, documents: list[bytes], /) -> Tokens:
        """The tokens of documents, with the end token after each where there is one, in `dtype_of` its vocabulary."""
        ...


def dtype_of(vocabulary: int) -> np.dtype[Any]:
    """The type in which tokens of a vocabulary are written: uint16 where they fit, else int32, as Megatron does."""
    return np.dtype("<u2" if vocabulary <= _UINT16_VOCABULARY_MAX else "<i4")
