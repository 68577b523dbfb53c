"""Parquet files, with the extra ``arrow``."""

from __future__ import annotations

import os
from collections import OrderedDict
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import ResumableDataError
from resumable_data.ledger.frames import shown
from resumable_data.sources.columns import ColumnTokens, Part, checked_part, choose_column, need_pyarrow
from resumable_data.sources.files import bad_source, read_head

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.order.protocol import Int64Array
    from resumable_data.sources.protocol import TokenArray

MAGIC = b"PAR1"
_CACHE_BYTES_MAX = 1 << 28


class ParquetTokens(ColumnTokens):
    """A column of lists of integers in a Parquet file.

    A row group must be decoded to read any document of it. Opening decodes all of them once, for the lengths; decoded
    row groups are kept up to 256 MiB, and always the last one. Read a larger file in an order of near documents, such
    as `BlockShuffle`, or write it in another format.

    Args:
        path: The file.
        column: Name of the column; ``input_ids``, or the only column of lists of integers.

    Raises:
        UsageError: pyarrow is not installed, or `column` is needed.
        SourceError: The file cannot be read or is damaged, or the column holds something else.
    """

    def __init__(self, path: str | os.PathLike[str], /, *, column: str | None = None) -> None:
        path = Path(os.path.abspath(path))
        self._size = read_head(path, 1)[1]
        self._start_reading()
        try:
            name, dtype = self._run(path, lambda file: choose_column(file.schema_arrow, column, path))
        except ImportError as error:
            raise need_pyarrow(path, error) from None
        self._path, self._column = path, name
        super().__init__(path, name, dtype, self._group_lengths())

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in vars(self).items() if key not in ("_cache", "_lock", "_file")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._start_reading()

    def describe(self) -> dict[str, int | str]:
        """What messages say of it."""
        groups = len(self._firsts) - 1
        return self._described("parquet", path=shown(self._path), row_groups=groups, column=self._column)

    def _start_reading(self) -> None:
        self._cache: OrderedDict[int, Part] = OrderedDict()
        self._lock = Lock()
        self._file: tuple[int, Any] | None = None

    def _group_lengths(self) -> Iterator[Int64Array]:
        for number in range(self._run(self._path, lambda file: int(file.num_row_groups))):
            yield np.diff(self._part(number).offsets)

    def _part(self, number: int) -> Part:
        with self._lock:
            part = self._cache.pop(number, None)
            if part is None:
                part = self._run(self._path, lambda file: self._decode(file, number))
            self._cache[number] = part
            while len(self._cache) > 1 and sum(map(_num_bytes, self._cache.values())) > _CACHE_BYTES_MAX:
                self._cache.popitem(last=False)
            return part

    def _decode(self, file: Any, number: int) -> Part:
        column = file.read_row_group(number, columns=[self._column], use_threads=False).column(self._column)
        parts = [checked_part(chunk, self._path, self._column) for chunk in column.chunks]
        if len(parts) == 1:
            return parts[0]
        ends: list[Int64Array] = [np.zeros(1, np.int64)]
        for part in parts:
            ends.append(part.offsets[1:] + ends[-1][-1])
        values: list[TokenArray] = [part.values for part in parts]
        joined = np.concatenate(values) if values else np.zeros(0, np.int64)
        joined.flags.writeable = False
        return Part(joined, np.concatenate(ends))

    def _run(self, path: Path, job: Any) -> Any:
        """What a job gets from the opened file; a process that was forked opens its own."""
        import pyarrow.parquet

        # What a damaged file makes pyarrow raise is not one family: OSError, its own, ValueError, and more by version.
        try:
            if self._file is None or self._file[0] != os.getpid():
                now = read_head(path, 1)[1]
                if now != self._size:
                    raise bad_source(path, "its size", f"{self._size} bytes as before", str(now), "Open it again.")
                self._file = (os.getpid(), pyarrow.parquet.ParquetFile(path))
            return job(self._file[1])
        except ResumableDataError:
            raise
        except Exception as error:
            found = shown(f"{type(error).__name__}: {error}".split("\n")[0])
            raise bad_source(path, "its contents", "a Parquet file", found, "Write the file again.") from None


def _num_bytes(part: Part) -> int:
    return part.values.nbytes + part.offsets.nbytes
