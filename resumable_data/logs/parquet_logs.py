"""Logs in Parquet files, with the extra ``arrow``."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np

from resumable_data.errors import ResumableDataError, UsageError
from resumable_data.ledger.frames import shown
from resumable_data.logs.files import bad_log
from resumable_data.logs.rows import Rows, as_int64, make_rows

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from resumable_data.logs.rows import Fields
    from resumable_data.order import Int64Array

_BATCH_ROWS = 1 << 17


def read_parquet(file: IO[bytes], path: Path, fields: Fields) -> Iterator[Rows]:
    """The IDs of a Parquet file: a column of integers or of lists of integers.

    Raises:
        UsageError: pyarrow is not installed.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        raise UsageError(
            f"expected pyarrow to read the Parquet file {path}, found none ({error}). Nothing was counted; install it "
            "with pip install 'resumable-data[arrow]'."
        ) from None
    # What a damaged file makes pyarrow raise is not one family: OSError, its own, ValueError, and more by version.
    try:
        source = pyarrow.parquet.ParquetFile(file)
        roles = fields.resolve(source.schema_arrow.names, path)
        for role, name in roles.items():
            _check_type(source.schema_arrow.field(name).type, role, name, path)
        batches = source.iter_batches(_BATCH_ROWS, columns=list(roles.values()), use_threads=False)
        row = 0
        for batch in batches:
            yield _rows_of(batch, roles, path, row)
            row += batch.num_rows
    except ResumableDataError:
        raise
    except Exception as error:
        found = f"{type(error).__name__}: {error}".split("\n")[0]
        raise bad_log(path, "its contents", "a Parquet file", shown(found)) from None


def _check_type(kind: Any, role: str, name: str, path: Path) -> None:
    import pyarrow

    is_list = pyarrow.types.is_list(kind) or pyarrow.types.is_large_list(kind)
    if not pyarrow.types.is_integer(kind.value_type if is_list and role == "id" else kind):
        raise bad_log(path, f"column {name!r}", "integers" + ", or lists of them" * (role == "id"), str(kind))


def _rows_of(batch: Any, roles: dict[str, str], path: Path, first_row: int) -> Rows:
    found: dict[str, Int64Array] = {}
    counts: Int64Array | None = None
    for role, name in roles.items():
        column = batch.column(name)
        _check_nulls(column, name, path, first_row)
        if hasattr(column, "value_lengths"):
            counts = as_int64(column.value_lengths().to_numpy(zero_copy_only=False))
            column = column.flatten()
            if column.null_count:
                raise bad_log(path, f"row {first_row} or later", f"integers in the lists of {name!r}", "a null")
        found[role] = as_int64(column.to_numpy(zero_copy_only=False))
    return make_rows(found, lambda row: f"row {first_row + row}", counts)


def _check_nulls(column: Any, name: str, path: Path, first_row: int) -> None:
    if column.null_count:
        nulls = np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))
        raise bad_log(path, f"row {first_row + int(nulls[0])}", f"an integer as {name!r}", "a null")
