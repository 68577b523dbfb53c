"""A cursor in a file, as commands are given it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.cursor import STATE_NUM_BYTES, Cursor, decode_cursor
from resumable_data.errors import StateError

if TYPE_CHECKING:
    from pathlib import Path

MAX_FILE_BYTES = 2**20


def read_cursor(path: Path) -> Cursor:
    """The cursor in a file, as JSON or in its fixed-size form.

    Raises:
        StateError: The file cannot be read, or holds no cursor.
    """
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise StateError(
            f"expected a cursor in {path}, found a file that cannot be read ({error.strerror}). Nothing was done. "
            "Write loader.cursor.to_json() to a file and name that."
        ) from None
    if len(data) > MAX_FILE_BYTES:
        raise StateError(
            f"expected a cursor in {path}, found more than {MAX_FILE_BYTES:,} bytes. Nothing was done. "
            "Write loader.cursor.to_json() to a file and name that."
        )
    if len(data) == STATE_NUM_BYTES and not data.lstrip().startswith(b"{"):
        return decode_cursor(data)
    return Cursor.from_json(data)
