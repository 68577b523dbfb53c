"""Arrow files, and the folders that Hugging Face's ``save_to_disk`` writes, with the extra ``arrow``."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import ResumableDataError, SourceError
from resumable_data.ledger.frames import shown
from resumable_data.sources.columns import ColumnTokens, Part, checked_part, choose_column, need_pyarrow
from resumable_data.sources.files import bad_source, read_head

if TYPE_CHECKING:
    from collections.abc import Iterator

FILE_MAGIC = b"ARROW1"
STREAM_MAGIC = b"\xff\xff\xff\xff"
STATE_NAME = "state.json"
SPLITS_NAME = "dataset_dict.json"
_STATE_BYTES_MAX = 1 << 24
_FILES_MAX = 1 << 20


class ArrowTokens(ColumnTokens):
    """A column of lists of integers in Arrow files, mapped: IPC streams, IPC files (Feather), or a dataset's folder.

    Files with compressed buffers are decompressed into memory.

    Args:
        path: A file, or a folder with a ``state.json`` that lists files.
        column: Name of the column; ``input_ids``, or the only column of lists of integers.

    Raises:
        UsageError: pyarrow is not installed, or `column` is needed.
        SourceError: A file cannot be read or is damaged, or the column holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], /, *, column: str | None = None) -> None:
        path = Path(os.path.abspath(path))
        self._files = _files_of(path)
        self._parts: list[Part] = []
        found: str | None = column
        dtype: np.dtype[Any] | None = None
        for file in self._files:
            try:
                name, kind = self._read_file(file, found)
            except ImportError as error:
                raise need_pyarrow(path, error) from None
            if dtype not in (None, kind):
                raise bad_source(file, f"column {name!r}", f"{dtype}, as in the files before", str(kind), "Cast it.")
            found, dtype = name, kind
        assert found is not None  # there is a file
        assert dtype is not None
        super().__init__(path, found, dtype, (np.diff(part.offsets) for part in self._parts))

    def __reduce__(self) -> tuple[Any, ...]:
        return _reopen, (self._path, self._column, len(self), self.num_tokens)

    def describe(self) -> dict[str, int | str]:
        """What messages say of it."""
        return self._described("arrow", path=shown(self._path), files=len(self._files), column=self._column)

    def _part(self, number: int) -> Part:
        return self._parts[number]

    def _read_file(self, path: Path, column: str | None) -> tuple[str, np.dtype[Any]]:
        """Map one file; its column and type."""
        import pyarrow

        read_head(path, 1)  # a FIFO would block the one that maps it
        # What a damaged file makes pyarrow raise is not one family: OSError, its own, ValueError, and more by version.
        try:
            reader = _reader(pyarrow, path)
            name, dtype = choose_column(reader.schema, column, path)
            for batch in _batches(reader):
                self._parts.append(checked_part(batch.column(name), path, name))
        except ResumableDataError:
            raise
        except Exception as error:
            found = shown(f"{type(error).__name__}: {error}".split("\n")[0])
            raise bad_source(path, "its contents", "Arrow record batches", found, "Write the file again.") from None
        return name, dtype


def _reader(pyarrow: Any, path: Path) -> Any:
    import pyarrow.ipc as ipc

    mapped = pyarrow.memory_map(str(path), "r")
    is_file = read_head(path, len(FILE_MAGIC))[0] == FILE_MAGIC
    return ipc.open_file(mapped) if is_file else ipc.open_stream(mapped)


def _batches(reader: Any) -> Iterator[Any]:
    if hasattr(reader, "num_record_batches"):
        yield from (reader.get_batch(number) for number in range(reader.num_record_batches))
    else:
        yield from reader


def _files_of(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]
    state = path / STATE_NAME
    data, size = read_head(state, _STATE_BYTES_MAX)
    remedy = "Write the dataset again with save_to_disk()."
    if size > _STATE_BYTES_MAX:
        raise bad_source(state, "its size", f"at most {_STATE_BYTES_MAX} bytes", str(size), remedy)
    try:
        names = [entry["filename"] for entry in json.loads(data)["_data_files"]]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        found = f"{type(error).__name__}: {error}"
        raise bad_source(state, "its contents", "a list of files as _data_files", shown(found), remedy) from None
    if not names or not all(_is_plain_name(name) for name in names) or len(names) > _FILES_MAX:
        raise bad_source(state, "_data_files", "names of files in the same folder", shown(f"{names!r:.80}"), remedy)
    return [path / name for name in names]


def _is_plain_name(name: object) -> bool:
    """Whether it names something in the same folder, and nothing else on the machine."""
    return isinstance(name, str) and name not in ("", ".", "..") and not set(name) & {"/", "\\", "\0"}


def _reopen(path: Path, column: str, num_documents: int, num_tokens: int) -> ArrowTokens:
    source = ArrowTokens(path, column=column)
    if (len(source), source.num_tokens) != (num_documents, num_tokens):
        raise SourceError(
            f"{shown(path)}: expected {num_documents} documents of {num_tokens} tokens as when it was opened first, "
            f"found {len(source)} of {source.num_tokens}. Documents would hold other tokens than were planned. "
            "Leave files alone while they are read; open the source again."
        )
    return source
