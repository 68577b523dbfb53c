r"""Where a file of documents may be cut, so that several processes can read parts of it.

A splitter has two duties that must agree: `split` gives the documents of a part, and `find_end` a place at which a
document ends for certain, found without reading what is before. Parts that end there, read one by one, hold the same
documents as the file read whole.
"""

from __future__ import annotations

import re
from typing import Protocol

from resumable_data.errors import UsageError

BLANK_LINES = "blank-lines"
_ESCAPES = {b"n": b"\n", b"r": b"\r", b"t": b"\t", b"0": b"\0", b"\\": b"\\"}


class Splitter(Protocol):
    """How documents lie in a file."""

    @property
    def margin(self) -> int:
        """Bytes before a place in doubt that `find_end` must see."""
        ...

    def split(self, data: bytes, /) -> list[bytes]:
        """The documents of a part."""
        ...

    def find_end(self, data: bytes, /) -> int:
        """One past an end of a document, the first that is certain; -1 where there is none in `data`."""
        ...


class Whole:
    """A file is one document."""

    margin = 0

    def split(self, data: bytes, /) -> list[bytes]:
        """The one document."""
        return [data]

    def find_end(self, data: bytes, /) -> int:
        """None but the end of the file."""
        return -1


class Lines:
    """A line is a document; blank lines are none."""

    margin = 0

    def split(self, data: bytes, /) -> list[bytes]:
        """The lines that are not blank."""
        return [line for line in data.split(b"\n") if not line.isspace() and line]

    def find_end(self, data: bytes, /) -> int:
        """Past the first line end."""
        return data.find(b"\n") + 1 or -1


class BlankLines:
    """Blank lines stand between documents, one or more; none of them belongs to a document, which is never empty."""

    margin = 0
    _BETWEEN = re.compile(rb"\n(?:[ \t\r\f\v]*\n)+")
    _ONE = re.compile(rb"\n[ \t\r\f\v]*\n")

    def split(self, data: bytes, /) -> list[bytes]:
        """The documents, each without the line end after its last line."""
        return [part.removesuffix(b"\r") for part in self._BETWEEN.split(b"\n\n" + data + b"\n\n") if part]

    def find_end(self, data: bytes, /) -> int:
        """Past the first blank line; those after it do no harm."""
        found = self._ONE.search(data)
        return found.end() if found else -1


class Separator:
    """A separator ends a document, and belongs to none; what follows the last one is a document if it is not empty.

    Args:
        separator: At least one byte.
    """

    def __init__(self, separator: bytes) -> None:
        if not separator:
            raise UsageError(
                "expected a separator of at least one byte, found an empty one. Every byte would be a text."
            )
        self.separator = separator
        self.margin = len(separator) - 1

    def split(self, data: bytes, /) -> list[bytes]:
        """The documents, empty ones between two separators included."""
        parts = data.split(self.separator)
        return parts if parts[-1] else parts[:-1]

    def find_end(self, data: bytes, /) -> int:
        """Past the first separator that none overlaps from before: in ``a---b`` that is the first of two ``--``."""
        at, size = self.margin, len(self.separator)
        while (found := data.find(self.separator, at)) >= 0:
            if data.find(self.separator, found - self.margin, found + self.margin) < 0:
                return found + size
            at = found + 1
        return -1


def parse_separator(text: str) -> bytes:
    r"""A separator as a command is given it: UTF-8, with ``\n``, ``\r``, ``\t``, ``\0``, ``\\`` and ``\xHH``.

    Raises:
        UsageError: Another letter follows a backslash.
    """

    def unescape(match: re.Match[bytes]) -> bytes:
        code = match[1]
        if code[:1] == b"x" and len(code) == 3:
            return bytes([int(code[1:], 16)])
        if code not in _ESCAPES:
            raise UsageError(
                rf"expected \n, \r, \t, \0, \\ or \x and two hexadecimal digits in the separator, found {match[0]!r}. "
                r"Texts would be split elsewhere. Write \\ for a backslash."
            )
        return _ESCAPES[code]

    return re.sub(rb"\\(x[0-9a-fA-F]{2}|.?)", unescape, text.encode("utf-8", "surrogateescape"), flags=re.DOTALL)
