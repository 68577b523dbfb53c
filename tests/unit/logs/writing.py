"""Logs as training scripts write them, in every format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.logs import Fields

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


class Row(NamedTuple):
    id: int
    rank: int = 0
    step: int = 0
    epoch: int = 0


NAMES = Row._fields
COLUMNS = Fields(columns=NAMES)


def write_text(path: Path, rows: Sequence[Row]) -> Fields:
    path.write_text("".join(f"{' '.join(map(str, row))}\n" for row in rows))
    return COLUMNS


def write_text_of_lists(path: Path, rows: Sequence[Row]) -> Fields:
    """A line for each run of rows of one rank, step and epoch."""
    lines: list[tuple[tuple[int, ...], list[int]]] = []
    for row in rows:
        if not lines or lines[-1][0] != row[1:]:
            lines.append((row[1:], []))
        lines[-1][1].append(row.id)
    path.write_text("".join(f"{', '.join(map(str, head))}: {ids}\n".replace(":", "") for head, ids in lines))
    return Fields(columns=("rank", "step", "epoch", "ids"))


def write_csv(path: Path, rows: Sequence[Row]) -> Fields:
    path.write_text("".join(f"{','.join(map(str, row))}\r\n" for row in [NAMES, *rows]))
    return Fields()


def write_mixed_csv(path: Path, rows: Sequence[Row]) -> Fields:
    """With columns of no interest, quotes, line ends within quotes, and blank lines."""
    lines = ["loss,sample,rank,note,step,epoch"]
    lines += [f'0.5,"{row.id}",{row.rank},"a ""b""\n{row.id}",{row.step},{row.epoch}' for row in rows]
    path.write_text("\n\n".join(lines))
    return Fields(id="sample")


def write_jsonl(path: Path, rows: Sequence[Row]) -> Fields:
    path.write_text("".join(json.dumps({"loss": 0.5, **row._asdict()}) + "\n" for row in rows))
    return Fields()


def write_npy(path: Path, rows: Sequence[Row]) -> Fields:
    np.save(path, np.array(rows, np.int32).reshape(-1, len(NAMES)))
    return COLUMNS


def write_npy_by_columns(path: Path, rows: Sequence[Row]) -> Fields:
    np.save(path, np.asfortranarray(np.array(rows, ">i8").reshape(-1, len(NAMES))))
    return COLUMNS


def write_structured_npy(path: Path, rows: Sequence[Row]) -> Fields:
    np.save(path, np.array(list(map(tuple, rows)), [("loss", "f4")] * 0 + [(name, "u8") for name in NAMES]))
    return Fields()


def write_two_arrays(path: Path, rows: Sequence[Row]) -> Fields:
    """Two arrays saved to one file, one after the other."""
    table = np.array(rows, np.int64).reshape(-1, len(NAMES))
    with path.open("wb") as file:
        np.save(file, table[: len(rows) // 2])
        np.save(file, table[len(rows) // 2 :])
    return COLUMNS


def write_parquet(path: Path, rows: Sequence[Row]) -> Fields:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    columns = {name: arrow.array([row[at] for row in rows], arrow.int64()) for at, name in enumerate(NAMES)}
    parquet.write_table(arrow.table(columns), path, row_group_size=50)
    return Fields()


WRITERS = {
    "log.txt": write_text,
    "lists.log": write_text_of_lists,
    "log.csv": write_csv,
    "mixed.csv": write_mixed_csv,
    "log.jsonl": write_jsonl,
    "log.npy": write_npy,
    "columns.npy": write_npy_by_columns,
    "structured.npy": write_structured_npy,
    "two.npy": write_two_arrays,
    "log.parquet": write_parquet,
}
