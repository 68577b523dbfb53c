"""The values of one tensor, read from files: for what is small and must be known without torch, as a cursor is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from resumable_data.checkpoint.files.opening import open_file
from resumable_data.checkpoint.files.pickled import PickleFormatError
from resumable_data.cursor import STATE_KEY, STATE_NUM_BYTES, Cursor, decode_cursor
from resumable_data.errors import CheckpointError, StateError

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from resumable_data.checkpoint.files.archives import ItemContent
    from resumable_data.checkpoint.files.findings import Findings
    from resumable_data.checkpoint.files.tensors import TensorLayout
    from resumable_data.checkpoint.files.zips import Record


def is_cursor_key(key: str) -> bool:
    """Whether a flat key is that of a loader's cursor, at any place in the state."""
    return key == STATE_KEY or key.endswith("." + STATE_KEY)


def read_cursors(path: Path, contents: Iterable[ItemContent], findings: Findings) -> dict[str, Cursor]:
    """The cursors among the items of a checkpoint, by flat key."""
    cursors: dict[str, Cursor] = {}
    for content in contents:
        item, layout = content.item, content.layout
        if layout is None or not is_cursor_key(item.key):
            continue
        cursor = read_cursor(path / item.file, item.key, content.record, layout, findings)
        if cursor is not None:
            cursors[item.key] = cursor
    return cursors


def read_cursor(path: Path, key: str, record: Record | None, layout: TensorLayout, findings: Findings) -> Cursor | None:
    """The cursor in a tensor; None, and a finding, where it holds none."""
    try:
        if record is None or layout.shape != (STATE_NUM_BYTES,) or layout.dtype != "uint8" or not layout.is_row_major:
            raise PickleFormatError(f"{layout.dtype} of sizes {list(layout.shape)}")
        with open_file(path) as file:
            return decode_cursor(file.read(record.start, min(record.size, STATE_NUM_BYTES)))
    except (StateError, CheckpointError, PickleFormatError, FileNotFoundError) as error:
        findings.add("RD861", file=path.name, key=key, expected=f"uint8 of sizes [{STATE_NUM_BYTES}]", found=str(error))
        return None
