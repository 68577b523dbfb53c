"""The tokenizer that needs no vocabulary: each byte is its own token."""

from __future__ import annotations

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.tokenizing.protocol import TokenizerName, Tokens, dtype_of

_NUM_BYTES = 256
_DTYPE = dtype_of(_NUM_BYTES + 1)


class ByteTokenizer:
    """Tokens 0 to 255 are the bytes; 256 ends a document.

    Args:
        end_token: The token after each document, 0 to 256, or None for none.

    Raises:
        UsageError: It is another one.
    """

    needs_text = False

    def __init__(self, end_token: int | None = _NUM_BYTES) -> None:
        if end_token is not None and not 0 <= end_token <= _NUM_BYTES:
            raise UsageError(
                f"expected an end token from 0 to {_NUM_BYTES} for the byte tokenizer, found {end_token}. Its "
                "vocabulary is the 256 bytes and one more. Leave it out for 256."
            )
        self._end_token = end_token

    @property
    def name(self) -> TokenizerName:
        """What a report says of it."""
        vocabulary = _NUM_BYTES + (self._end_token == _NUM_BYTES)
        return TokenizerName(kind="bytes", vocabulary=vocabulary, end_token=self._end_token)

    def encode(self, documents: list[bytes], /) -> Tokens:
        """The tokens of documents."""
        lengths = np.fromiter(map(len, documents), np.int64, len(documents))
        if self._end_token is None:
            return Tokens(np.frombuffer(b"".join(documents), np.uint8).astype(_DTYPE), lengths)
        lengths += 1
        tokens = np.frombuffer(b"\0".join([*documents, b""]), np.uint8).astype(_DTYPE)
        tokens[np.cumsum(lengths) - 1] = self._end_token
        return Tokens(tokens, lengths)
