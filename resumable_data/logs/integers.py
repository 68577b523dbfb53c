"""Integers in text, all of a block at once."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from numpy.typing import NDArray

_SEPARATORS = b",;[](){}\t\r\v\f"
_TO_SPACES = bytes.maketrans(_SEPARATORS, b" " * len(_SEPARATORS))
_DIGITS_AND_SPACE = b"0123456789 \n"
_COMMENT = re.compile(rb"^[ \t]*#[^\n]*", re.MULTILINE)
_NEWLINE, _ZERO = 10, 48
_SHOWN_BYTES = 40


class NotAnInteger(Exception):
    """Something in a block is no integer of at least 0; `at` is the line in the block, from 0."""

    def __init__(self, at: int, token: bytes) -> None:
        super().__init__(token)
        self.at = at
        self.found = describe(token)


def describe(token: bytes) -> str:
    """What a piece of text is, for an error."""
    text = shown(token[:_SHOWN_BYTES].decode("utf-8", "backslashreplace"))
    if len(token) > _SHOWN_BYTES:
        text += "..."
    return f"the negative number {text}" if re.fullmatch(rb"-[0-9]+", token) else repr(text)


def parse_integers(data: bytes) -> tuple[NDArray[np.int64], bytes]:
    """All integers of a block of lines, in order, and the block with everything but digits and line ends blanked.

    Spaces, commas, semicolons and brackets stand between integers. A line that starts with ``#`` is a comment.
    A number past 64 bits comes out as the largest int64.

    Raises:
        NotAnInteger: Anything else is there.
    """
    if b"#" in data:
        data = _COMMENT.sub(b"", data)
    data = data.translate(_TO_SPACES)
    if data.translate(None, _DIGITS_AND_SPACE):
        raise _first_wrong(data)
    if data.isspace() or not data:
        return np.empty(0, np.int64), data
    return np.fromstring(data, np.int64, sep=" "), data


def counts_per_line(blanked: bytes) -> NDArray[np.int64]:
    """How many integers each line of a block from `parse_integers` has: (num_lines,) int64."""
    codes = np.frombuffer(blanked, np.uint8)
    is_digit = codes >= _ZERO
    starts = is_digit.copy()
    starts[1:] &= ~is_digit[:-1]
    line_ends = np.flatnonzero(codes == _NEWLINE)
    if not line_ends.size or line_ends[-1] != codes.size - 1:
        line_ends = np.append(line_ends, codes.size)
    before = np.concatenate([[0], np.cumsum(starts)])[np.minimum(line_ends, codes.size)]
    return np.diff(before, prepend=0).astype(np.int64)


def _first_wrong(data: bytes) -> NotAnInteger:
    wrong = re.search(rb"[^0-9 \n]", data)
    assert wrong is not None
    start = wrong.start()
    while start and data[start - 1 : start] not in (b" ", b"\n"):
        start -= 1
    token = re.compile(rb"[^ \n]+").match(data, start)
    assert token is not None
    return NotAnInteger(data.count(b"\n", 0, start), token[0])
