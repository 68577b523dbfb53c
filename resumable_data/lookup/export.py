"""A ledger's rows as a table in a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from resumable_data.audit.rows import chunks
from resumable_data.errors import UsageError
from resumable_data.lookup.walk import STATUSES, Status

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from resumable_data.lookup.walk import Part, Walk

FORMATS = (".jsonl", ".npy", ".parquet")
ROW = np.dtype(
    [
        ("attempt", "<i8"),
        ("rank", "<i8"),
        ("update", "<i8"),
        ("microbatch", "<i8"),
        ("position", "<i8"),
        ("id", "<i8"),
        ("is_padding", "?"),
        ("status", "i1"),
    ]
)


def export_rows(walk: Walk, output: Path, *, everything: bool = False) -> int:
    """Write the rows of a ledger to a file; the number of rows.

    Args:
        walk: The ledger.
        output: A new file, ``.jsonl``, ``.npy`` (a structured array) or ``.parquet`` (needs pyarrow).
        everything: Discarded rows and those in flight too.

    Raises:
        UsageError: The file exists, or its name has another ending, or pyarrow is missing.
    """
    if output.suffix not in FORMATS:
        raise UsageError(f"the output's name must end in one of {', '.join(FORMATS)}, got {output.name!r}")
    if output.exists():
        raise UsageError(f"{output} exists; nothing was written. Name a new file.")
    write = {".jsonl": _write_jsonl, ".npy": _write_npy, ".parquet": _write_parquet}[output.suffix]
    unfinished = output.with_name(f".{output.name}.unfinished")
    try:
        num_rows = write(walk, unfinished, everything)
        unfinished.rename(output)
    finally:
        unfinished.unlink(missing_ok=True)
    return num_rows


def tables(walk: Walk, everything: bool) -> Iterator[NDArray[Any]]:
    """The rows as arrays of `ROW`, some ten thousand at a time."""
    for part in walk.parts():
        held = np.ones(len(part.records), np.bool_) if everything else part.status == Status.COMMITTED
        records, status = part.records.take(held), part.status[held]
        for chunk in chunks(records.count):
            yield _table(walk, part._replace(records=records.take(chunk), status=status[chunk]))


def _table(walk: Walk, part: Part) -> NDArray[Any]:
    rows = walk.rows(part)
    table = np.empty(rows.id.size, ROW)
    table["attempt"], table["rank"] = part.branch.claim.attempt, part.rank
    table["update"], table["microbatch"] = part.records.update[rows.record], part.records.index[rows.record]
    table["position"], table["id"], table["is_padding"] = rows.position, rows.id, rows.is_padding
    table["status"] = part.status[rows.record]
    return table


def _write_jsonl(walk: Walk, path: Path, everything: bool) -> int:
    num_rows = 0
    with path.open("xb") as file:
        for table in tables(walk, everything):
            names = ROW.names or ()
            for row in table.tolist():
                fields = dict(zip(names, row, strict=True))
                fields["status"] = STATUSES[fields["status"]]
                file.write(msgspec.json.encode(fields) + b"\n")
            num_rows += table.size
    return num_rows


def _write_npy(walk: Walk, path: Path, everything: bool) -> int:
    num_rows = sum(
        int(part.records.count[part.status == Status.COMMITTED].sum() if not everything else part.records.count.sum())
        for part in walk.parts()
    )
    with path.open("xb") as file:
        np.lib.format.write_array_header_1_0(
            file, {"descr": np.lib.format.dtype_to_descr(ROW), "fortran_order": False, "shape": (num_rows,)}
        )
        for table in tables(walk, everything):
            file.write(table.tobytes())
    return num_rows


def _write_parquet(walk: Walk, path: Path, everything: bool) -> int:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise UsageError(
            "a .parquet file needs pyarrow, which is not installed: pip install 'resumable_data[arrow]', or name a "
            ".jsonl or .npy file"
        ) from None
    num_rows, writer = 0, None
    try:
        for table in tables(walk, everything):
            columns = {name: table[name] for name in ROW.names or () if name != "status"}
            columns["status"] = pyarrow.DictionaryArray.from_arrays(table["status"], list(STATUSES))
            batch = pyarrow.table(columns)
            writer = writer or pyarrow.parquet.ParquetWriter(path, batch.schema)
            writer.write_table(batch)
            num_rows += table.size
        if writer is None:
            path.touch()
    finally:
        if writer is not None:
            writer.close()
    return num_rows
