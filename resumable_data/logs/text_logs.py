"""Logs of plain text and CSV."""

from __future__ import annotations

import csv
import io
from typing import IO, TYPE_CHECKING, Any

import numpy as np

from resumable_data.logs.files import LINE_BYTES_MAX, Block, bad_log, line_blocks
from resumable_data.logs.integers import NotAnInteger, counts_per_line, describe, parse_integers
from resumable_data.logs.rows import IGNORED, Rows, make_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from resumable_data.logs.rows import Fields
    from resumable_data.order import Int64Array

_INTEGERS = "integers of at least 0"
_PLAIN_CSV_BYTES = b"0123456789,\r\n"


def read_text(file: IO[bytes], path: Path, fields: Fields) -> Iterator[Rows]:
    """The IDs of a text with integers; all of them are IDs where `fields` has no columns."""
    return _rows_of_text(line_blocks(file, path), path, fields.columns)


def _rows_of_text(blocks: Iterator[Block], path: Path, columns: tuple[str, ...] | None) -> Iterator[Rows]:
    for block in blocks:
        values, blanked = _parse(block, path)
        if columns is None:
            yield Rows(values, None, None, None, _locator(block, blanked))
        else:
            yield _split(values, counts_per_line(blanked), columns, block, path)


def _parse(block: Block, path: Path) -> tuple[Int64Array, bytes]:
    try:
        return parse_integers(block.data)
    except NotAnInteger as error:
        raise bad_log(path, f"line {block.line + error.at}", _INTEGERS, error.found) from None


def _locator(block: Block, blanked: bytes) -> Callable[[int], str]:
    def locate(row: int) -> str:
        ends = np.cumsum(counts_per_line(blanked))
        return f"line {block.line + int(np.searchsorted(ends, row, 'right'))}"

    return locate


def _split(values: Int64Array, counts: Int64Array, columns: tuple[str, ...], block: Block, path: Path) -> Rows:
    """Lines of integers as columns; blank lines have no meaning."""
    width = len(columns)
    is_open = columns[-1] == "ids"
    lines = np.flatnonzero(counts)
    counts = counts[lines]
    wrong = np.flatnonzero(counts < width if is_open else counts != width)
    if wrong.size:
        expected = f"{'at least ' * is_open}{width} integers ({', '.join(columns)})"
        raise bad_log(path, f"line {block.line + int(lines[wrong[0]])}", expected, str(counts[wrong[0]]))
    starts = np.cumsum(counts) - counts
    found = {name: values[starts + at] for at, name in enumerate(columns) if name not in ("ids", IGNORED)}
    if is_open:
        place = np.arange(values.size) - np.repeat(starts, counts)
        found["id"] = values[place >= width - 1]
        counts = counts - (width - 1)
    return make_rows(found, lambda line: f"line {block.line + int(lines[line])}", counts if is_open else None)


def read_csv(file: IO[bytes], path: Path, fields: Fields, delimiter: str = ",") -> Iterator[Rows]:
    """The IDs of a CSV file. Its first line has names, unless it has nothing but integers."""
    blocks = _whole_rows(line_blocks(file, path), path)
    first = next(blocks, None)
    if first is None:
        return
    head, _, rest = first.data.partition(b"\n")
    names = [name.strip() for name in next(iter(_cells(Block(first.line, head), path, delimiter)), [])]
    everything = _chain(Block(first.line + 1, rest), blocks)
    if all(name.isascii() and name.isdigit() for name in names):
        if fields.columns is None and len(names) > 1:
            expected = "names, or one column, or --columns to say what the columns are"
            raise bad_log(path, "line 1", expected, f"{len(names)} columns of integers")
        yield from _rows_of_text(_chain(first, blocks), path, fields.columns or ("id",))
        return
    roles = fields.resolve(names, path)
    at = {role: names.index(name) for role, name in roles.items()}
    for block in everything:
        yield _rows_of_csv(block, path, at, len(names), delimiter)


def _chain(first: Block, blocks: Iterator[Block]) -> Iterator[Block]:
    if first.data:
        yield first
    yield from blocks


def _whole_rows(blocks: Iterator[Block], path: Path) -> Iterator[Block]:
    """Blocks that end between rows: quotes, which may enclose a line's end, come in pairs in a row."""
    for block in blocks:
        data = block.data
        while data.count(b'"') % 2:
            following = next(blocks, None)
            if following is None or len(data) > LINE_BYTES_MAX:
                raise bad_log(path, f"line {block.line} or later", "quotes in pairs", "one that never closes")
            data += following.data
        yield Block(block.line, data)


def _cells(block: Block, path: Path, delimiter: str) -> list[list[str]]:
    """The rows of a block; blank lines are empty rows."""
    try:
        return list(_reader(block, delimiter))
    except UnicodeDecodeError as error:
        line = block.line + block.data.count(b"\n", 0, error.start)
        raise bad_log(path, f"line {line}", "UTF-8 text", f"the byte {block.data[error.start]:#04x}") from None
    except csv.Error as error:
        raise bad_log(path, f"line {block.line} or later", "CSV", str(error)) from None


def _reader(block: Block, delimiter: str) -> Any:
    return csv.reader(io.StringIO(block.data.decode("utf-8"), newline=""), delimiter=delimiter, strict=True)


def _row_locator(block: Block, delimiter: str) -> Callable[[int], str]:
    """Where the row k that is not blank ends; a row may have several lines, so the block is read again."""

    def locate(row: int) -> str:
        reader = _reader(block, delimiter)
        lines = [block.line + reader.line_num - 1 for cells in reader if cells]
        return f"line {lines[row]}"

    return locate


def _rows_of_csv(block: Block, path: Path, at: dict[str, int], width: int, delimiter: str) -> Rows:
    if delimiter == "," and not block.data.translate(None, _PLAIN_CSV_BYTES):
        values, blanked = _parse(block, path)
        counts = counts_per_line(blanked)
        lines = np.flatnonzero(counts)
        if (counts[lines] == width).all() and block.data.count(b",") == lines.size * (width - 1):
            table = values.reshape(-1, width)
            found = {role: table[:, column] for role, column in at.items()}
            return make_rows(found, lambda row: f"line {block.line + int(lines[row])}")
    return _rows_of_cells(block, path, at, width, delimiter)


def _rows_of_cells(block: Block, path: Path, at: dict[str, int], width: int, delimiter: str) -> Rows:
    cells = [row for row in _cells(block, path, delimiter) if row]
    locate = _row_locator(block, delimiter)
    if not set(map(len, cells)) <= {width}:
        row = next(number for number, row in enumerate(cells) if len(row) != width)
        raise bad_log(path, locate(row), f"{width} columns", str(len(cells[row])))
    found: dict[str, Int64Array] = {}
    counts = np.empty(0, np.int64)
    for role, column in at.items():
        texts = [row[column] for row in cells]
        found[role], count = _column(texts, locate, path)
        wrong = np.flatnonzero(count < 1 if role == "id" else count != 1)
        if wrong.size:
            row = int(wrong[0])
            expected = f"{'at least ' * (role == 'id')}one integer as {role}"
            raise bad_log(path, locate(row), expected, describe(texts[row].encode()))
        counts = count if role == "id" else counts
    return make_rows(found, locate, counts)


def _column(cells: list[str], locate: Callable[[int], str], path: Path) -> tuple[Int64Array, Int64Array]:
    """The integers of a column's cells, and how many each cell has."""
    if not cells:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    text = "\n".join(cells) + "\n"
    if text.count("\n") != len(cells) or "#" in text:
        # in a cell, a line's end is a space, and nothing is a comment
        text = "\n".join([cell.replace("\n", " ").replace("#", "?") for cell in cells]) + "\n"
    try:
        values, blanked = parse_integers(text.encode())
    except NotAnInteger as error:
        raise bad_log(path, locate(error.at), _INTEGERS, error.found) from None
    return values, counts_per_line(blanked)
