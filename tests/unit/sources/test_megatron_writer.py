"""Writing Megatron's indexed datasets."""

from __future__ import annotations

import os
import resource
import stat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import resumable_data as rd
from resumable_data.errors import SourceError, UsageError
from resumable_data.sources import megatron_writer as module
from resumable_data.sources.megatron_writer import MegatronWriter
from resumable_data.sources.token_file import TokenFile
from tests.unit.sources.writing import check_source, flat, make_index
from tests.unit.tokenizing.reading import read_megatron

DTYPES = ("uint8", "int8", "uint16", "int16", "int32", "int64")
documents = st.lists(st.lists(st.integers(0, 127), max_size=6), min_size=1, max_size=12)


def write(prefix: Path, batches: list[list[list[int]]], dtype: str = "uint16", **options: Any) -> None:
    with MegatronWriter(prefix, dtype=dtype, **options) as writer:
        for batch in batches:
            lengths = np.array([len(document) for document in batch], np.int64)
            writer.add(np.array(flat(batch), dtype), lengths)


@settings(max_examples=25)
@given(documents.filter(any), documents, st.sampled_from(DTYPES))
def test_what_is_written_is_read(
    tmp_path_factory: pytest.TempPathFactory, first: list[list[int]], second: list[list[int]], dtype: str
) -> None:
    """Both files hold what the format's description says, byte for byte, and are opened as that."""
    prefix = tmp_path_factory.mktemp("corpus") / "corpus"
    write(prefix, [first, second], dtype)
    expected = make_index([[document] for document in first + second], dtype)
    assert prefix.with_suffix(".idx").read_bytes() == expected.encode()
    assert prefix.with_suffix(".bin").read_bytes() == np.array(flat(first + second), dtype).tobytes()
    check_source(rd.open_tokens(prefix), first + second)


def test_index_is_written_in_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An index of many chunks is that of one."""
    monkeypatch.setattr(module, "_CHUNK", 3)
    for count in range(1, 11):
        written = [list(range(at % 4)) for at in range(count)] + [[7]]
        write(tmp_path / f"corpus.{count}", [written])
        assert read_megatron(tmp_path / f"corpus.{count}") == written


def test_someone_else_may_write_the_tokens(tmp_path: Path) -> None:
    """Room that was reserved is filled in any order; room that was not is an error, and nothing is left."""
    with MegatronWriter(tmp_path / "corpus", dtype=np.uint16) as writer, TokenFile(writer.unfinished_path) as file:
        places = [writer.reserve(np.array([2, 1])), writer.reserve(np.array([1]))]
        assert places == [0, 6]
        file.write(np.array([9], np.uint16), places[1])
        file.write(np.array([5, 6, 7], np.uint16), places[0])
    assert read_megatron(tmp_path / "corpus") == [[5, 6], [7], [9]]
    with (
        pytest.raises(UsageError, match="as their documents were reserved; found 0 bytes"),
        MegatronWriter(tmp_path / "other", dtype=np.uint16) as writer,
    ):
        writer.reserve(np.array([2, 1]))
    assert sorted(os.listdir(tmp_path)) == ["corpus.bin", "corpus.idx"]


def test_files_appear_at_the_end(tmp_path: Path) -> None:
    """Until the last document is written, and where one fails, no file has a dataset's name."""

    def fail() -> None:
        with MegatronWriter(tmp_path / "corpus", dtype=np.uint16) as writer:
            writer.add(np.array([1], np.uint16), np.array([1]))
            assert sorted(os.listdir(tmp_path)) == [".corpus.bin.unfinished", ".corpus.idx.unfinished"]
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("fails", ["corpus.bin", "corpus.idx"])
def test_failure_at_the_end_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str) -> None:
    """Tokens without their index are removed again."""
    rename = os.rename

    def refuse(old: Path, new: Path) -> None:
        if new.name == fails:
            raise OSError(28, "No space left on device")
        rename(old, new)

    monkeypatch.setattr(os, "rename", refuse)
    with pytest.raises(SourceError, match="No space left"):
        write(tmp_path / "corpus", [[[1, 2]]])
    assert os.listdir(tmp_path) == []


def test_full_disk_leaves_nothing(tmp_path: Path) -> None:
    """What the system refuses to write is an error that says so."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(SourceError, match=r"cannot write .*: File too large"):
            write(tmp_path / "corpus", [[[1] * 1000]] * 5)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert os.listdir(tmp_path) == []


def test_what_exists_stays(tmp_path: Path) -> None:
    """Either file that exists is a refusal, and is replaced only where that is asked for."""
    for name in ("corpus.bin", "corpus.idx"):
        (tmp_path / name).write_text("mine")
        with pytest.raises(UsageError, match=rf"{name} exist already"):
            write(tmp_path / "corpus", [[[1]]])
        assert (tmp_path / name).read_text() == "mine"
        assert os.listdir(tmp_path) == [name]
        (tmp_path / name).unlink()
    write(tmp_path / "corpus", [[[1]]])
    write(tmp_path / "corpus.bin", [[[2], [3]]], force=True)
    assert read_megatron(tmp_path / "corpus") == [[2], [3]]


def test_old_index_never_stands_beside_new_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each step of a replacement, what could be opened is the old dataset or the new one."""
    seen = []
    rename, unlink, path_type = os.rename, Path.unlink, type(tmp_path)

    def look() -> None:
        if (tmp_path / "corpus.idx").exists():
            seen.append(read_megatron(tmp_path / "corpus"))

    def renamed(old: Path, new: Path) -> None:
        rename(old, new)
        look()

    def unlinked(self: Path, missing_ok: bool = False) -> None:
        look()
        unlink(self, missing_ok)
        look()

    write(tmp_path / "corpus", [[[1]]])
    monkeypatch.setattr(os, "rename", renamed)
    monkeypatch.setattr(path_type, "unlink", unlinked)
    write(tmp_path / "corpus", [[[2]]], force=True)
    assert seen == [[[1]], [[2]]]


def test_two_writers_of_one_dataset(tmp_path: Path) -> None:
    """The second one is refused while the first writes, and what a killed one left is written over."""
    (tmp_path / ".corpus.bin.unfinished").write_bytes(b"x" * 100)
    (tmp_path / ".corpus.idx.unfinished").write_bytes(b"x" * 1000)
    with MegatronWriter(tmp_path / "corpus", dtype=np.uint16) as writer:
        with pytest.raises(UsageError, match="another process is writing"):
            write(tmp_path / "corpus", [[[1]]], force=True)
        writer.add(np.array([5], np.uint16), np.array([1]))
    assert read_megatron(tmp_path / "corpus") == [[5]]


def test_link_in_the_way_is_not_followed(tmp_path: Path) -> None:
    """Nothing is written through a link that has a temporary name."""
    (tmp_path / "precious").write_text("mine")
    (tmp_path / ".corpus.bin.unfinished").symlink_to(tmp_path / "precious")
    with pytest.raises(SourceError, match="cannot write"):
        write(tmp_path / "corpus", [[[1]]])
    assert (tmp_path / "precious").read_text() == "mine"


def test_files_have_the_usual_permissions(tmp_path: Path) -> None:
    """Who may read the files is what the process's mask says."""
    before = os.umask(0o027)
    try:
        write(tmp_path / "corpus", [[[1]]])
    finally:
        os.umask(before)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o640}


def test_no_tokens_is_an_error(tmp_path: Path) -> None:
    """A dataset that could not be opened is not written."""
    with pytest.raises(SourceError, match="found none in 2 documents"):
        write(tmp_path / "corpus", [[[], []]])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("tokens", "lengths", "message"),
    [
        (np.zeros(3, np.int32), [3], "expected 3 tokens of type uint16"),
        (np.zeros(3, np.uint16), [2], "expected 2 tokens"),
        (np.zeros((3, 1), np.uint16), [3], r"shape \(3, 1\)"),
        (np.zeros(0, np.uint16), [1, -1], "found -1 to 1"),
    ],
)
def test_documents_that_do_not_fit(tmp_path: Path, tokens: Any, lengths: list[int], message: str) -> None:
    """Other lengths or another type than the tokens have is an error."""
    with (
        pytest.raises(UsageError, match=message),
        MegatronWriter(tmp_path / "corpus", dtype=np.uint16) as writer,
    ):
        writer.add(tokens, np.array(lengths))
    assert os.listdir(tmp_path) == []


def test_document_that_the_format_cannot_say(tmp_path: Path) -> None:
    """Lengths are int32 in the index, and are not wrapped around."""
    with (
        pytest.raises(UsageError, match="expected documents of 0 to 2147483647 tokens"),
        MegatronWriter(tmp_path / "corpus", dtype=np.uint16) as writer,
    ):
        writer.reserve(np.array([2**31]))


def test_type_and_folder_are_checked(tmp_path: Path) -> None:
    """A type that the format does not have, and a folder that is not there, are usage errors."""
    with pytest.raises(UsageError, match="int16, int32, int64, int8, uint16, uint8; found uint32"):
        MegatronWriter(tmp_path / "corpus", dtype=np.uint32)
    with pytest.raises(UsageError, match="there is no folder"):
        write(tmp_path / "missing" / "corpus", [[[1]]])
