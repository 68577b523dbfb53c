"""Help with files that a test writes again and again."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def overwrite(path: Path, data: bytes | bytearray) -> None:
    """Give a file another content.

    `Path.write_bytes` empties the file first, and ext4 then waits for the disk when it is closed: a millisecond.
    """
    with open(path, "r+b" if path.exists() else "wb") as file:
        file.write(data)
        file.truncate()
