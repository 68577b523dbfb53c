"""Logs of one JSON value per line: objects with fields, lists of IDs, or IDs."""

from __future__ import annotations

import re
from itertools import chain
from typing import IO, TYPE_CHECKING, Any

import msgspec
import numpy as np

from resumable_data.logs.files import Block, bad_log, line_blocks
from resumable_data.logs.integers import describe
from resumable_data.logs.rows import ROLES, Rows, make_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resumable_data.logs.rows import Fields
    from resumable_data.order import Int64Array

_BLANK_LINE = re.compile(rb"(?:^|\n)\s*\n")
_NOT_INT64 = (OverflowError, msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_jsonl(file: IO[bytes], path: Path, fields: Fields) -> Iterator[Rows]:
    """The IDs of a file of JSON lines, all of the kind of the first one; other fields are ignored."""
    shape: _Shape | None = None
    for block in line_blocks(file, path):
        if shape is None:
            shape = _shape(block, path, fields)
        if shape is not None:
            yield _rows(shape, block, path)


class _Shape:
    """What every line of a file is.

    Args:
        roles: Role to name of the fields of an object; None where the line is the ID or the list itself.
        is_list: Whether there are several IDs on a line.
    """

    def __init__(self, roles: dict[str, str] | None, *, is_list: bool) -> None:
        ids: Any = list[int] if is_list else int
        self.is_list = is_list
        self.roles = ("id",) if roles is None else tuple(role for role in ROLES if role in roles)
        self.is_bare = roles is None
        kind: Any = ids
        if roles is not None:
            types = [(role, ids if role == "id" else int) for role in self.roles]
            kind = msgspec.defstruct("LogLine", types, rename=roles, gc=False)
        self.decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind)

    def columns(self, lines: list[Any]) -> tuple[dict[str, Int64Array], Int64Array | None]:
        """The columns of decoded lines, and how many IDs each line has.

        Raises:
            OverflowError: A number does not fit int64.
        """
        ids = lines if self.is_bare else [line.id for line in lines]
        size = len(lines)
        counts = np.fromiter(map(len, ids), np.int64, size) if self.is_list else None
        found = {"id": np.fromiter(chain.from_iterable(ids) if self.is_list else ids, np.int64)}
        for role in self.roles[1:]:
            found[role] = np.fromiter([getattr(line, role) for line in lines], np.int64, size)
        return found, counts


def _shape(block: Block, path: Path, fields: Fields) -> _Shape | None:
    """The kind of the first line; None where the block has blank lines only."""
    lines = _numbered(block)
    if not lines:
        return None
    number, line = lines[0]
    try:
        value = msgspec.json.decode(line)
    except _NOT_INT64 as error:
        raise _bad_line(path, number, line, error) from None
    if isinstance(value, dict):
        roles = fields.resolve([name for name in value if isinstance(name, str)], path)
        return _Shape(roles, is_list=isinstance(value[roles["id"]], list))
    if isinstance(value, (int, list)) and not isinstance(value, bool):
        return _Shape(None, is_list=isinstance(value, list))
    raise _bad_line(path, number, line, ValueError("neither an object, a list nor an integer"))


def _rows(shape: _Shape, block: Block, path: Path) -> Rows:
    try:
        values = shape.decoder.decode_lines(block.data)
        columns, counts = shape.columns(values)
    except _NOT_INT64:
        raise _first_wrong(shape, block, path) from None
    if len(values) != _num_lines(block):
        raise _first_wrong(shape, block, path)  # several values on a line
    return make_rows(columns, _locator(block), counts)


def _num_lines(block: Block) -> int:
    """Lines of a block that are not blank; where none is blank, they are not looked at one by one."""
    is_plain = block.data.endswith(b"\n") and not _BLANK_LINE.search(block.data)
    return block.data.count(b"\n") if is_plain else len(_numbered(block))


def _locator(block: Block) -> Callable[[int], str]:
    return lambda at: f"line {_numbered(block)[at][0]}"


def _numbered(block: Block) -> list[tuple[int, bytes]]:
    """The lines of a block that are not blank, each with its number in the file."""
    lines = enumerate(block.data.split(b"\n"), block.line)
    return [(number, line) for number, line in lines if line.strip()]


def _first_wrong(shape: _Shape, block: Block, path: Path) -> Exception:
    for number, line in _numbered(block):
        try:
            shape.columns([shape.decoder.decode(line)])
        except _NOT_INT64 as error:
            return _bad_line(path, number, line, error)
    return bad_log(path, f"line {block.line} or later", "one JSON value per line", "several, or a part of one")


def _bad_line(path: Path, number: int, line: bytes, error: Exception) -> Exception:
    expected = "a JSON value of integers, like those of the lines before"
    return bad_log(path, f"line {number}", expected, f"{describe(line.strip())} ({error})")
