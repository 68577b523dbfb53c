"""Columns of tokens in Parquet files, Arrow files and folders of datasets."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import sys
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow
import pyarrow.ipc
import pyarrow.parquet
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.errors import SourceError, UsageError
from resumable_data.sources import ArrowTokens, FlatTokens, ParquetTokens, TokenSource, parquet
from tests.unit.sources.writing import Documents, check_source, write_arrow, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCUMENTS = [[1, 2, 3], [4], [], [5, 6, 7, 8], [9], [10, 11]]


def write_folder(folder: Path, shards: list[Documents], names: Any = None) -> Path:
    """A dataset as ``save_to_disk`` writes it: Arrow streams, and a state that lists them."""
    folder.mkdir(exist_ok=True)
    written = [f"data-{number:05}-of-{len(shards):05}.arrow" for number in range(len(shards))]
    for name, documents in zip(written, shards, strict=True):
        write_arrow(folder / name, documents)
    state = {"_data_files": [{"filename": name} for name in names or written], "_fingerprint": "0", "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def write_stream(path: Path, table: Any) -> Path:
    with pyarrow.ipc.new_stream(str(path), table.schema) as writer:
        writer.write_table(table)
    return path


def write_table(path: Path, table: Any) -> Path:
    pyarrow.parquet.write_table(table, path)
    return path


FORMATS = {"parquet": (ParquetTokens, write_table), "arrow": (ArrowTokens, write_stream)}


@pytest.fixture(params=FORMATS)
def opened(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[..., Any]:
    """Writes a table in one of the formats and opens it."""
    kind, write = FORMATS[request.param]
    return lambda table, **options: kind(write(tmp_path / "tokens", table), **options)


@settings(max_examples=40)
@given(
    st.lists(st.lists(st.integers(0, 100), max_size=6), min_size=1, max_size=12).filter(any),
    st.sampled_from(["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]),
    st.integers(1, 5),
)
def test_what_was_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, dtype: str, size: int
) -> None:
    """Documents in batches or row groups of any size and any type of integers are read as they were written."""
    folder = tmp_path_factory.mktemp("columns")
    for source in (
        ParquetTokens(write_parquet(folder / "a", documents, row_group=size, dtype=dtype)),
        ArrowTokens(write_arrow(folder / "b", documents, batch=size, dtype=dtype)),
        ArrowTokens(write_arrow(folder / "c", documents, batch=size, dtype=dtype, stream=False)),
    ):
        check_source(source, documents)
        check_source(pickle.loads(pickle.dumps(source)), documents)
        assert source.dtype == dtype
        assert isinstance(source, TokenSource)
        assert not isinstance(source, FlatTokens)


def test_kinds_of_lists(opened: Callable[..., Any]) -> None:
    """Large lists and lists of one fixed size are documents too, also in slices of a longer column."""
    large = pyarrow.array(DOCUMENTS, pyarrow.large_list(pyarrow.int32()))
    check_source(opened(pyarrow.table({"input_ids": large}).slice(1, 4)), DOCUMENTS[1:5])
    pairs = [[1, 2], [3, 4], [5, 6]]
    fixed = pyarrow.array(pairs, pyarrow.list_(pyarrow.int32(), 2))
    check_source(opened(pyarrow.table({"input_ids": fixed}).slice(1)), pairs[1:])


def test_folder_of_a_dataset(tmp_path: Path) -> None:
    """The files of a folder are read in the order of its state, also after it was moved."""
    folder = write_folder(tmp_path / "data", [DOCUMENTS[3:], DOCUMENTS[:3]])
    source = ArrowTokens(folder)
    check_source(source, DOCUMENTS[3:] + DOCUMENTS[:3])
    assert source.describe()["files"] == 2
    check_source(ArrowTokens(folder.rename(tmp_path / "moved")), DOCUMENTS[3:] + DOCUMENTS[:3])


@pytest.mark.parametrize(
    "state",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"_data_files": []}',
        b'{"_data_files": [{"filename": "../secret.arrow"}]}',
        b'{"_data_files": [{"filename": "/etc/passwd"}]}',
        b'{"_data_files": [{"filename": 5}]}',
        b'{"_data_files": [{"filename": "missing.arrow"}]}',
        b'{"_data_files": 7}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=range(12),
)
def test_damaged_folder_is_refused(tmp_path: Path, state: bytes) -> None:
    """A state that names no files, files elsewhere, or files that are not there is an error."""
    folder = write_folder(tmp_path / "data", [DOCUMENTS])
    (folder / "state.json").write_bytes(state)
    with pytest.raises(SourceError):
        ArrowTokens(folder)


def test_files_of_different_types_are_refused(tmp_path: Path) -> None:
    """One source has one type of tokens."""
    folder = write_folder(tmp_path / "data", [DOCUMENTS, DOCUMENTS])
    write_arrow(folder / "data-00001-of-00002.arrow", DOCUMENTS, dtype="int64")
    with pytest.raises(SourceError, match="expected int32, as in the files before, found int64"):
        ArrowTokens(folder)


def test_column_is_chosen_only_where_it_is_plain(opened: Callable[..., Any]) -> None:
    """``input_ids``, or the only column of lists of integers; else the caller says which."""
    lists = pyarrow.array(DOCUMENTS, pyarrow.list_(pyarrow.int32()))
    other = pyarrow.array([[0] * len(d) for d in DOCUMENTS], pyarrow.list_(pyarrow.int32()))
    check_source(opened(pyarrow.table({"tokens": lists, "n": range(6)})), DOCUMENTS)
    check_source(opened(pyarrow.table({"labels": other, "input_ids": lists})), DOCUMENTS)
    both = pyarrow.table({"a": other, "b": lists})
    check_source(opened(both, column="b"), DOCUMENTS)
    with pytest.raises(UsageError, match=r"found \['a', 'b'\]"):
        opened(both)
    with pytest.raises(UsageError, match="found none among"):
        opened(pyarrow.table({"n": [1, 2]}))
    with pytest.raises(SourceError, match="0 of that name"):
        opened(both, column="c")
    with pytest.raises(SourceError, match="2 of that name"):
        opened(pyarrow.Table.from_arrays([lists, other], ["a", "a"]), column="a")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (pyarrow.array([[1], None]), "a null"),
        (pyarrow.array([[1], [None]]), "a null"),
        (pyarrow.array([[1], [None]], pyarrow.list_(pyarrow.int32(), 1)), "a null"),
        (pyarrow.array([[1.0], [2.0]]), "lists of integers"),
        (pyarrow.array([1, 2]), "lists of integers"),
        (pyarrow.array([[[1]], [[2]]]), "lists of integers"),
        (pyarrow.array([[], []], pyarrow.list_(pyarrow.int32())), "expected tokens, found none"),
        (pyarrow.array([], pyarrow.list_(pyarrow.int32())), "expected tokens, found none"),
    ],
    ids=range(8),
)
def test_column_of_something_else_is_refused(opened: Callable[..., Any], values: Any, message: str) -> None:
    """Nulls are not read as 0, and floats not as integers."""
    with pytest.raises(SourceError, match=message):
        opened(pyarrow.table({"input_ids": values}), column="input_ids")


@pytest.mark.parametrize("edges", [[0, 5, 3, 6], [0, 2, 3, 400], [-5, 2, 3, 6], [0, 2, 3, 2**31 - 1]], ids=str)
def test_offsets_of_lists_are_checked(tmp_path: Path, edges: list[int]) -> None:
    """A list that begins outside the values of its batch is an error, and no byte around them is read."""
    path = write_arrow(tmp_path / "a.arrow", [[1, 2], [3], [4, 5, 6]])
    sound = np.array([0, 2, 3, 6], "<i4").tobytes()
    data = path.read_bytes()
    assert data.count(sound) == 1
    path.write_bytes(data.replace(sound, np.array(edges, "<i4").tobytes()))
    with pytest.raises(SourceError, match="expected Arrow record batches"):
        ArrowTokens(path)


def test_few_row_groups_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Decoded row groups take bounded memory, the one in use excepted."""
    monkeypatch.setattr(parquet, "_CACHE_BYTES_MAX", 1)
    source = ParquetTokens(write_parquet(tmp_path / "a", DOCUMENTS, row_group=2))
    check_source(source, DOCUMENTS)
    assert len(source._cache) == 1


def test_forked_process_opens_its_own_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that was forked does not move the position in its parent's file."""
    monkeypatch.setattr(parquet, "_CACHE_BYTES_MAX", 1)
    source = ParquetTokens(write_parquet(tmp_path / "a", DOCUMENTS, row_group=2))
    context = multiprocessing.get_context("fork")
    results = context.SimpleQueue()

    def read_some() -> None:
        results.put([source.read(number, 0, len(DOCUMENTS[number])).tolist() for number in (5, 0, 3)])
        assert source._file is not None
        results.put(source._file[0])

    child = context.Process(target=read_some)
    child.start()
    child.join(60)
    assert child.exitcode == 0
    assert results.get() == [DOCUMENTS[5], DOCUMENTS[0], DOCUMENTS[3]]
    assert results.get() == child.pid
    check_source(source, DOCUMENTS)


def test_changed_file_is_refused_by_a_worker(tmp_path: Path) -> None:
    """A worker does not read other documents than its parent planned."""
    for kind, write in ((ParquetTokens, write_parquet), (ArrowTokens, write_arrow)):
        data = pickle.dumps(kind(write(tmp_path / "a", DOCUMENTS)))
        write(tmp_path / "a", [*DOCUMENTS, [5] * 1000])
        with pytest.raises(SourceError):
            pickle.loads(data).read(0, 0, 1)


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who lacks pyarrow is told what to install."""
    paths = [write_parquet(tmp_path / "a", DOCUMENTS), write_arrow(tmp_path / "b", DOCUMENTS)]
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.setitem(sys.modules, name, None)
    for kind, path in zip((ParquetTokens, ArrowTokens), paths, strict=True):
        with pytest.raises(UsageError, match=r"resumable-data\[arrow\]"):
            kind(path)


@pytest.mark.parametrize("kind", [ParquetTokens, ArrowTokens])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: Any) -> None:
    """A FIFO does not block, an endless device and an empty file are errors."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "device").symlink_to("/dev/zero")
    (tmp_path / "empty").touch()
    for name in ("fifo", "device", "empty", "missing"):
        with pytest.raises(SourceError):
            kind(tmp_path / name)
