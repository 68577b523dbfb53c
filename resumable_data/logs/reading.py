"""A log in any of the formats, as rows."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Protocol

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.ledger.frames import shown
from resumable_data.logs.files import no_ids, open_log
from resumable_data.logs.json_logs import read_jsonl
from resumable_data.logs.npy_logs import read_npy
from resumable_data.logs.parquet_logs import read_parquet
from resumable_data.logs.rows import Fields, Rows, check_rows
from resumable_data.logs.text_logs import read_csv, read_text

if TYPE_CHECKING:
    from collections.abc import Iterator


class _Reader(Protocol):
    def __call__(self, file: IO[bytes], path: Path, fields: Fields) -> Iterator[Rows]: ...


_READERS: dict[str, _Reader] = {
    "text": read_text,
    "csv": read_csv,
    "tsv": partial(read_csv, delimiter="\t"),
    "jsonl": read_jsonl,
    "npy": read_npy,
    "parquet": read_parquet,
}
FORMATS = tuple(_READERS)
_BY_SUFFIX = {
    ".csv": "csv",
    ".tsv": "tsv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".npy": "npy",
    ".parquet": "parquet",
    ".pq": "parquet",
}


class Source(Protocol):
    """One log, which can be read again."""

    name: str

    def read(self) -> Iterator[Rows]:
        """Its rows, a block at a time."""
        ...


class LogFile:
    """A file of sample IDs.

    Args:
        path: The file.
        format: One of `FORMATS`; by the name's ending when None, text where that says nothing.
        fields: What in it means what.
        num_samples: IDs are below; None where that is unknown.
        rank: The rank whose IDs these are, where the file does not say itself.

    Raises:
        UsageError: There is no such format.
    """

    def __init__(
        self, path: Path, *, format: str | None, fields: Fields, num_samples: int | None, rank: int | None = None
    ) -> None:
        if format is not None and format not in _READERS:
            raise UsageError(f"format must be one of {', '.join(FORMATS)}; got {format!r}")
        self.name = shown(path)
        self._path = path
        self._reader = _READERS[format or _BY_SUFFIX.get(path.suffix.lower(), "text")]
        self._fields = fields
        self._num_samples = num_samples
        self._rank = rank

    def read(self) -> Iterator[Rows]:
        """The rows of the file, checked.

        Raises:
            LogError: It is no log of sample IDs.
        """
        num_ids = 0
        with open_log(self._path) as file:
            for rows in self._reader(file, self._path, self._fields):
                if not rows.id.size:
                    continue
                check_rows(rows, self._path, self._num_samples)
                num_ids += rows.id.size
                yield rows if self._rank is None else self._with_rank(rows)
        if not num_ids:
            raise no_ids(self._path)

    def _with_rank(self, rows: Rows) -> Rows:
        if rows.rank is not None:
            raise UsageError(f"{self.name} says its ranks itself; leave out rank_per_file")
        assert self._rank is not None
        return rows._replace(rank=np.full(rows.id.size, self._rank, np.int64))
