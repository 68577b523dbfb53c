"""The file of tokens that a dataset is written to."""

from __future__ import annotations

import contextlib
import os
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.errors import SourceError
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resumable_data.sources.protocol import TokenArray


class TokenFile:
    """Tokens that are written at any place of a file, which is there already; several processes may have it open.

    Args:
        path: The file.

    Raises:
        OSError: It cannot be opened.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC)

    def __enter__(self) -> TokenFile:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def write(self, tokens: TokenArray, offset: int) -> None:
        """Write tokens from a byte of the file on.

        Raises:
            SourceError: They cannot be written.
        """
        rest = np.ascontiguousarray(tokens, tokens.dtype.newbyteorder("<")).data.cast("B")
        with write_failures(self._path):
            while rest:
                written = os.pwrite(self._descriptor, rest, offset)
                rest, offset = rest[written:], offset + written

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)


@contextlib.contextmanager
def write_failures(path: Path) -> Iterator[None]:
    """What the operating system refuses within the block is a `SourceError` about this file."""
    try:
        yield
    except OSError as error:
        raise SourceError(f"cannot write {shown(path)}: {error.strerror}. Nothing was left of it.") from error
