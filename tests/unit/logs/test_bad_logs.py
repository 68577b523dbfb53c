"""What is no log of sample IDs: our error, with the place, and nothing else."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import LogError, UsageError
from resumable_data.logs import FORMATS, Fields, audit_ids

if TYPE_CHECKING:
    from pathlib import Path

RANK_AND_ID = Fields(columns=("rank", "id"))
RANK_AND_IDS = Fields(columns=("rank", "ids"))


def npy(array: Any) -> bytes:
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def with_shape(shape: str) -> bytes:
    """An array file whose header claims a shape."""
    return npy(np.arange(9)).replace(b"(9,)", shape.encode().ljust(4)[:4])


BAD: list[tuple[str, bytes, Fields | None, str]] = [
    ("log.txt", b"1 2\n3 -4\n", None, r"line 2: expected integers of at least 0, found the negative number -4"),
    ("log.txt", b"1\n\n# a comment 7\n2 3 x4\n", None, r"line 4: .*found 'x4'"),
    ("log.txt", b"1 2.5\n", None, r"line 1: .*found '2\.5'"),
    ("log.txt", b"1 2\n99 3\n", None, r"line 2: expected an id in \[0, 50\), found 99"),
    ("log.txt", b"1\n99999999999999999999\n", None, r"line 2: .*found 9223372036854775807 or more"),
    ("log.txt", b"1\n\x00\xff\x1b[31m\n", None, r"line 2: .*found '.*x00.*xff.*x1b"),
    ("log.txt", b"", None, r"expected sample IDs, found none"),
    ("log.txt", b"\n# nothing\n \n", None, r"expected sample IDs, found none"),
    ("log.txt", b"1 2\n\n3\n", RANK_AND_ID, r"line 3: expected 2 integers \(rank, id\), found 1"),
    ("log.txt", b"1 2 3\n3\n", RANK_AND_IDS, r"line 2: expected at least 2 integers \(rank, ids\), found 1"),
    ("log.txt", b"1 2\n16777216 2\n", RANK_AND_ID, r"line 2: expected a rank in"),
    ("log.txt", b"1 2 3\n2 3 50\n", RANK_AND_IDS, r"line 2: expected an id in"),
    ("log.csv", b"rank,id\n0,1\n0,1,2\n", None, r"line 3: expected 2 columns, found 3"),
    ("log.csv", b"rank,id\n0,1\n0,,1\n", None, r"line 3: expected 2 columns, found 3"),
    ("log.csv", b"rank,id\n0,1\n,2\n", None, r"line 3: expected one integer as rank, found ''"),
    ("log.csv", b"rank,id,x\n0,1,\n,2,3\n", None, r"line 3: expected one integer as rank"),
    ("log.csv", b"rank,id,x\n0,1,\n1 2,2,3\n", None, r"line 3: expected one integer as rank, found '1 2'"),
    ("log.csv", b"rank,id\n0,1\n0,1.0\n", None, r"line 3: .*found '1\.0'"),
    ("log.csv", b'x,id\n"a\nb",1\n"c\nd",#\n', None, r"line 5: .*found '\?'"),
    ("log.csv", b'x,id\n"a,1\n', None, r"expected quotes in pairs"),
    ("log.csv", b'x,id\n"c"d,2', None, r"line 2 or later: expected CSV"),
    ("log.csv", b"x,id\n\xff,1\n", None, r"line 2: expected UTF-8 text, found the byte 0xff"),
    ("log.csv", b"x,y\n1,2\n", None, r"expected one of 'id', .* found 'x', 'y'"),
    ("log.csv", b"id,ids\n1,2\n", None, r"expected one of 'id', .* found 'id', 'ids'"),
    ("log.csv", b"id,y\n1,2\n", Fields(rank="r"), r"expected one of 'r' for the rank.* found 'id', 'y'"),
    ("log.csv", b"1,2\n", None, r"line 1: expected names, or one column, or --columns"),
    ("log.csv", b"id\n", None, r"expected sample IDs, found none"),
    ("log.csv", b"id,x\n0,a\n50,b\n", None, r"line 3: expected an id in"),
    ("log.jsonl", b'{"id": 1}\n{"id": true}\n', None, r"line 2: expected a JSON value"),
    ("log.jsonl", b'{"id": 1}\n\n{"id": [2]}\n', None, r"line 3: "),
    ("log.jsonl", b'{"id": 1, "rank": 0}\n{"id": 1}\n', None, r"line 2: .*missing required field"),
    ("log.jsonl", b"[1, 2]\n3\n", None, r"line 2: "),
    ("log.jsonl", b"[1, 2]\n[3, -1]\n", None, r"line 2: expected an id in \[0, 50\), found -1"),
    ("log.jsonl", b"1\n99999999999999999999999999\n", None, r"line 2: "),
    ("log.jsonl", b'"1"\n', None, r"line 1: .*neither an object, a list nor an integer"),
    ("log.jsonl", b"true\n", None, r"line 1: "),
    ("log.jsonl", b"{\n", None, r"line 1: "),
    ("log.jsonl", b"1\n2 3\n", None, r"line 2: "),
    ("log.jsonl", b"1\n\n2 3\n", None, r"line 3: "),
    ("log.jsonl", b"1\n \t\r\n2 3\n", None, r"line 3: "),
    ("log.jsonl", b"\n2 3\n", None, r"line 2: "),
    ("log.jsonl", b"[" * 100_000, None, r"line 1: "),
    ("log.jsonl", b'{"loss": 1}\n', None, r"expected one of 'id'"),
    ("log.npy", npy(np.array([1, 60])), None, r"row 1: expected an id in \[0, 50\), found 60"),
    ("log.npy", npy(np.array([[1, 2], [3, -1]])), None, r"row 1: .*found -1"),
    ("log.npy", npy(np.array([2**64 - 1], np.uint64)), None, r"row 0: .*or more"),
    ("log.npy", npy(np.array([1.0])), None, r"expected integers, found float64"),
    ("log.npy", npy(np.array([True])), None, r"expected integers, found bool"),
    ("log.npy", npy(np.array([[1, 2, 3]])), RANK_AND_ID, r"expected an array with the columns rank, id"),
    ("log.npy", npy(np.array([[1, 2]])), RANK_AND_IDS, r"expected a column id"),
    ("log.npy", npy(np.zeros((2, 2, 2), int, order="F")), None, r"expected an array in C order"),
    ("log.npy", npy(np.array([(1, 2.0)], [("rank", int), ("id", float)])), None, r"field 'id': expected integers"),
    ("log.npy", npy(np.array([(1,)], [("id", int, (2,))])), None, r"expected integers"),
    ("log.npy", npy(np.array([object()]))[:100] + b"junk", None, r"."),
    ("log.npy", npy(np.arange(9))[:-4], None, r"row 8: expected 9 rows, found a file that ends 68 bytes after"),
    ("log.npy", npy(np.arange(9)) + b"junk", None, r"byte 200: expected an array"),
    ("log.npy", npy(np.arange(9))[:50], None, r"byte 0: expected an array"),
    ("log.npy", with_shape("(-9)"), None, r"byte 0: expected an array"),
    ("log.npy", npy(np.arange(9)).replace(b"(9,), }", b"(9,), ("), None, r"byte 0: expected an array"),
    ("log.npy", b"PK\x03\x04 an archive", None, r"byte 0: expected an array"),
    ("log.npy", npy(np.arange(0)), None, r"expected sample IDs, found none"),
    ("log.parquet", b"PAR1 and nothing else", None, r"expected a Parquet file"),
]


@pytest.mark.parametrize(("name", "content", "fields", "message"), BAD)
def test_bad_log(tmp_path: Path, name: str, content: bytes, fields: Fields | None, message: str) -> None:
    """Each fault is told with file and place, and nothing is counted."""
    (tmp_path / name).write_bytes(content)
    with pytest.raises(LogError, match=message) as caught:
        audit_ids(tmp_path / name, num_samples=50, fields=fields)
    assert str(caught.value).startswith(str(tmp_path / name))
    assert str(caught.value).isprintable()
    assert caught.value.exit_code == 3


class Bomb:
    """Runs code when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("exploded",)


def test_pickles_are_never_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An array of objects is refused before its pickle is looked at."""
    monkeypatch.chdir(tmp_path)
    array = np.empty(1, object)
    array[0] = Bomb()
    np.save("log.npy", array, allow_pickle=True)
    with pytest.raises(LogError, match="expected integers, found pickled objects"):
        audit_ids("log.npy")
    (tmp_path / "raw.npy").write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(LogError):
        audit_ids("raw.npy")
    assert not (tmp_path / "exploded").exists()


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A pipe is not waited for, and a link to a file is as good as the file."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, "/dev/null"):
        with pytest.raises(LogError, match="expected a regular file"):
            audit_ids(path)
    with pytest.raises(LogError, match="No such file"):
        audit_ids(tmp_path / "nothing")
    (tmp_path / "log").write_text("0 1")
    (tmp_path / "link").symlink_to(tmp_path / "log")
    assert audit_ids(tmp_path / "link", num_samples=2).verdict == "clean"


def test_parquet_columns(tmp_path: Path) -> None:
    """Lists of IDs are read, and nulls and columns of other types are told."""
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    path = tmp_path / "log.parquet"
    parquet.write_table(arrow.table({"rank": [0, 1], "ids": [[0, 1], [2]]}), path)
    assert audit_ids(path, num_samples=3).verdict == "clean"
    for columns, message in (
        ({"id": [1, None]}, "row 1: expected an integer as 'id', found a null"),
        ({"ids": [[1], [2, None]]}, "row 0 or later: .*found a null"),
        ({"ids": [[1], None]}, "row 1: .*found a null"),
        ({"id": [1.0]}, "column 'id': expected integers, or lists of them, found double"),
        ({"id": [1], "rank": [[1]]}, "column 'rank': expected integers, found list"),
        ({"id": [1, 60]}, "row 1: expected an id in"),
    ):
        parquet.write_table(arrow.table(columns), path)
        with pytest.raises(LogError, match=message):
            audit_ids(path, num_samples=50)


def test_parquet_without_pyarrow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the error names the extra to install, and the other formats are read."""
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "log.parquet").write_bytes(b"PAR1")
    with pytest.raises(UsageError, match=r"resumable-data\[arrow\]"):
        audit_ids(tmp_path / "log.parquet")


def test_long_lines_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line without an end is refused before it fills the memory."""
    monkeypatch.setattr("resumable_data.logs.files.LINE_BYTES_MAX", 1 << 20)
    (tmp_path / "log").write_bytes(b"1\n" + b"2 " * (3 << 20))
    with pytest.raises(LogError, match="line 2: expected lines of at most 1048576 bytes"):
        audit_ids(tmp_path / "log")


def test_lines_across_blocks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines and quoted cells that lie across the blocks of a file are whole, and places are right after them."""
    monkeypatch.setattr("resumable_data.logs.files._BLOCK_BYTES", 16)
    (tmp_path / "log.txt").write_bytes(b"\xef\xbb\xbf" + b"\n".join(b"%d" % one for one in range(100)))
    assert audit_ids(tmp_path / "log.txt", num_samples=100).verdict == "clean"
    (tmp_path / "log.csv").write_text("x,id\n" + "".join(f'"a\n,{one}b",{one}\n' for one in range(100)))
    assert audit_ids(tmp_path / "log.csv", num_samples=100).verdict == "clean"
    (tmp_path / "log.jsonl").write_text("".join(json.dumps({"ids": [one, one + 1]}) + "\n" for one in range(0, 100, 2)))
    assert audit_ids(tmp_path / "log.jsonl", num_samples=100).verdict == "clean"
    for name, line in (("log.txt", 100), ("log.csv", 201), ("log.jsonl", 50)):
        with pytest.raises(LogError, match=f"line {line}: expected an id in"):
            audit_ids(tmp_path / name, num_samples=99)


SEEDS = [
    npy(np.arange(5)),
    npy(np.array([(1, 2)], [("rank", "i4"), ("id", "i8")])),
    b"id,rank\n1,2\n",
    b'{"ids": [1, 2], "rank": 0}\n',
    b"1 2 3\n",
]


@given(
    content=st.binary(max_size=200)
    | st.text('0123456789,;[]{}"-\n \t#idrank:', max_size=80).map(str.encode)
    | st.tuples(st.sampled_from(SEEDS), st.integers(0, 300), st.binary(max_size=4)).map(
        lambda change: change[0][: change[1]] + change[2] + change[0][change[1] + len(change[2]) :]
    ),
    format=st.sampled_from(FORMATS),
    columns=st.sampled_from([None, ("rank", "id"), ("rank", "ids")]),
)
def test_any_bytes_give_only_our_errors(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, format: str, columns: tuple[str, ...] | None
) -> None:
    """Whatever a file holds, it is counted or refused by an error of ours."""
    path = tmp_path_factory.mktemp("log") / "log"
    path.write_bytes(content)
    with contextlib.suppress(LogError, UsageError):
        audit_ids(path, format=format, fields=Fields(columns=columns))
