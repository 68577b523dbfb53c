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

    from resumable_data.ledger.row_pieces import RowPieces
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

    Of packed rows whose pieces the ledger holds, these are written too, but into ``.npy``, whose rows are of one size.

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
    return (table for table, _ in _tables_with_pieces(walk, everything))


def _tables_with_pieces(walk: Walk, everything: bool) -> Iterator[tuple[NDArray[Any], RowPieces | None]]:
    for part in walk.parts():
        if not everything:
            part = part.take(part.status == Status.COMMITTED)
        for chunk in chunks(part.records.count):
            yield _table(part.take(chunk), walk)


def _table(part: Part, walk: Walk) -> tuple[NDArray[Any], RowPieces | None]:
    rows = walk.rows(part)
    table = np.empty(rows.id.size, ROW)
    table["attempt"], table["rank"] = part.branch.claim.attempt, part.rank
    table["update"], table["microbatch"] = part.records.update[rows.record], part.records.index[rows.record]
    table["position"], table["id"], table["is_padding"] = rows.position, rows.id, rows.is_padding
    table["status"] = part.status[rows.record]
    return table, rows.pieces


def _write_jsonl(walk: Walk, path: Path, everything: bool) -> int:
    num_rows = 0
    with path.open("xb") as file:
        for table, pieces in _tables_with_pieces(walk, everything):
            names = ROW.names or ()
            for number, row in enumerate(table.tolist()):
                fields = dict(zip(names, row, strict=True))
                fields["status"] = STATUSES[fields["status"]]
                if pieces is not None:
                    fields["pieces"] = pieces.of_row(number)
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
        for table, pieces in _tables_with_pieces(walk, everything):
            columns = {name: table[name] for name in ROW.names or () if name != "status"}
            columns["status"] = pyarrow.DictionaryArray.from_arrays(table["status"], list(STATUSES))
            if walk.recipe.is_packed:
                columns["pieces"] = _arrow_lists(pieces, table.size)
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


def _arrow_lists(pieces: RowPieces | None, num_rows: int) -> Any:
    """A list of (document, start, stop) for each row; null where its pieces are not known."""
    import pyarrow

    names = ("document", "start", "stop")
    kind = pyarrow.struct([(name, pyarrow.int64()) for name in names])
    if pieces is None:
        return pyarrow.nulls(num_rows, pyarrow.list_(kind))
    values = pyarrow.StructArray.from_arrays([getattr(pieces, name) for name in names], names=list(names))
    return pyarrow.ListArray.from_arrays(pieces.edges.astype(np.int32), values)
