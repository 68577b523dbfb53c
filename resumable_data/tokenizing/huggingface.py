"""Any tokenizer of Hugging Face's ``tokenizers``, by its ``tokenizer.json``; with the extra ``tokenizers``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from resumable_data.errors import SourceError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.sources.files import bad_source, open_regular
from resumable_data.tokenizing.protocol import TokenizerName, Tokens, dtype_of

_FILE_BYTES_MAX = 1 << 30
_ENDS_SHOWN = 8


class HuggingFaceTokenizer:
    """Encodes with a ``tokenizer.json``. What the file says of truncation, padding and added tokens is left aside.

    Truncation would lose text, and padding and the tokens of a template, say one for the begin, would be put into every
    document. The name of a special token within a text becomes that token, as in ``tokenizers`` itself.

    Args:
        path: The file.
        end_token: The token after each document, by its name or its number; None for none. It is not guessed.

    Raises:
        UsageError: The package is not installed, or the vocabulary has no such token.
        SourceError: The file cannot be read or holds no tokenizer.
    """

    needs_text = True

    def __init__(self, path: str | os.PathLike[str], end_token: int | str | None = None) -> None:
        path = Path(os.path.abspath(path))
        self._load(path, _read(path), end_token)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (self._path, self._data, self._end_token)

    @property
    def name(self) -> TokenizerName:
        """What a report says of it."""
        return TokenizerName(
            kind="tokenizers",
            path=shown(self._path),
            digest=xxhash.xxh3_128_hexdigest(self._data),
            vocabulary=self._vocabulary,
            end_token=self._end_token,
        )

    def encode(self, documents: list[bytes], /) -> Tokens:
        """The tokens of documents, which are UTF-8."""
        texts = [document.decode() for document in documents]
        end = [] if self._end_token is None else [self._end_token]
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        parts = [np.array(encoding.ids + end, self._dtype) for encoding in encodings]
        lengths = np.fromiter(map(len, parts), np.int64, len(parts))
        return Tokens(np.concatenate([np.zeros(0, self._dtype), *parts]), lengths)

    def _load(self, path: Path, data: bytes, end_token: int | str | None) -> None:
        self._path, self._data = path, data
        self._tokenizer = _parse(path, data)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._vocabulary = 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1)
        self._dtype = dtype_of(self._vocabulary)
        self._end_token = self._number_of(end_token)

    def _number_of(self, end_token: int | str | None) -> int | None:
        if end_token is None:
            return None
        is_number = isinstance(end_token, int)
        # id_to_token() takes 32 bits, and fails in its own words on more.
        if is_number and 0 <= int(end_token) < self._vocabulary and self._tokenizer.id_to_token(end_token) is not None:
            return int(end_token)
        number: int | None = None if is_number else self._tokenizer.token_to_id(end_token)
        if number is None:
            added = self._tokenizer.get_added_tokens_decoder()
            names = [token.content for _, token in sorted(added.items())][:_ENDS_SHOWN]
            raise UsageError(
                f"expected a token of {shown(self._path)} as the end token, found {end_token!r:.80}, which is not in "
                f"its vocabulary. Documents would end in a token that no model knows. Its special tokens are {names}."
            )
        return number


def _restore(path: Path, data: bytes, end_token: int | None) -> HuggingFaceTokenizer:
    """The tokenizer in another process, from the same bytes: its file may have changed since."""
    tokenizer = HuggingFaceTokenizer.__new__(HuggingFaceTokenizer)
    tokenizer._load(path, data, end_token)
    return tokenizer


def _read(path: Path) -> bytes:
    with open(open_regular(path, "a tokenizer"), "rb") as file:
        try:
            data = file.read(_FILE_BYTES_MAX + 1)
        except OSError as error:
            raise SourceError(f"cannot read {shown(path)}: {error.strerror}. Nothing was written.") from None
    if len(data) > _FILE_BYTES_MAX:
        raise bad_source(path, "its size", f"at most {_FILE_BYTES_MAX} bytes", "more", "Pass a tokenizer.json.")
    return data


def _parse(path: Path, data: bytes) -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            f"expected the package tokenizers to use {shown(path)}, found none ({error}). Nothing was written; install "
            "it with pip install 'resumable-data[tokenizers]'."
        ) from None
    try:
        return tokenizers.Tokenizer.from_buffer(data)
    except Exception as error:  # the package raises plain Exception
        found = shown(f"{type(error).__name__}: {error}".split("\n")[0])
        remedy = "Pass the tokenizer.json that tokenizer.save() wrote."
        raise bad_source(path, "its contents", "a tokenizer of Hugging Face's tokenizers", found, remedy) from None
