"""`open_tokens` opens what is meant, and asks where that is not plain."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from resumable_data import open_tokens
from resumable_data.errors import SourceError, UsageError
from resumable_data.sources import ArrowTokens, MegatronTokens, OffsetTokens, ParquetTokens, open_raw
from tests.unit.sources.test_columns import write_folder
from tests.unit.sources.writing import check_source, flat, write_arrow, write_megatron, write_npy, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCUMENTS = [[1, 2, 0], [0], [3, 4, 5, 0]]
TOKENS = flat(DOCUMENTS)
BOUNDARIES: dict[str, Any] = {"lengths": [3, 1, 4], "end_token": 0, "offsets": [0, 3, 4, 8]}


def write_raw(folder: Path, name: str = "train.bin") -> Path:
    (folder / name).write_bytes(np.array(TOKENS, np.uint16).tobytes())
    return folder / name


WRITERS: dict[str, tuple[Callable[[Path], Path], type]] = {
    "megatron": (lambda folder: write_megatron(folder, [[document] for document in DOCUMENTS]), MegatronTokens),
    "parquet": (lambda folder: write_parquet(folder / "a.parquet", DOCUMENTS), ParquetTokens),
    "parquet by content": (lambda folder: write_parquet(folder / "a.bin", DOCUMENTS), ParquetTokens),
    "arrow stream": (lambda folder: write_arrow(folder / "a.arrow", DOCUMENTS), ArrowTokens),
    "arrow file": (lambda folder: write_arrow(folder / "a", DOCUMENTS, stream=False), ArrowTokens),
    "folder": (lambda folder: write_folder(folder / "data", [DOCUMENTS]), ArrowTokens),
}


@pytest.mark.parametrize("name", WRITERS)
def test_format_that_says_all_is_opened_by_its_path(tmp_path: Path, name: str) -> None:
    """A path as text or as a Path is enough, and any argument that says it again is refused by name."""
    write, kind = WRITERS[name]
    path = write(tmp_path)
    for form in (path, str(path)):
        source = open_tokens(form)
        assert type(source) is kind
        check_source(source, DOCUMENTS)
    for argument, value in {**BOUNDARIES, "dtype": "uint16"}.items():
        if name == "arrow stream" and argument == "dtype":
            continue  # any bytes may be raw tokens
        with pytest.raises(UsageError, match=rf"^{argument}= cannot be given for"):
            open_tokens(path, **{argument: value})


@pytest.mark.parametrize("argument", BOUNDARIES)
def test_flat_tokens_are_opened_with_their_boundaries(tmp_path: Path, argument: str) -> None:
    """Raw files, .npy files and arrays need to be told where documents end."""
    given = {argument: BOUNDARIES[argument]}
    sources = [
        open_tokens(write_raw(tmp_path), dtype=np.uint16, **given),
        open_tokens(write_raw(tmp_path, "olmo.npy"), dtype="uint16", **given),
        open_tokens(write_npy(tmp_path / "real.bin", TOKENS, "int32"), **given),
        open_tokens(np.array(TOKENS), **given),
    ]
    for source, kind in zip(sources, ["raw", "raw", "npy", "memory"], strict=True):
        assert isinstance(source, OffsetTokens)
        assert source.describe()["kind"] == kind
        check_source(source, DOCUMENTS)


def test_type_is_never_guessed(tmp_path: Path) -> None:
    """A file that says nothing of itself is opened only with a dtype, and with one way to find documents."""
    path = write_raw(tmp_path)
    with pytest.raises(UsageError, match=r"no dtype=\. Bytes read as a guessed type are other tokens"):
        open_tokens(path, end_token=0)
    with pytest.raises(UsageError, match="found none of them"):
        open_tokens(path, dtype=np.uint16)
    with pytest.raises(UsageError, match="found lengths= and end_token="):
        open_tokens(path, dtype=np.uint16, lengths=[8], end_token=0)


def test_raw_file_beside_an_index_is_asked_about(tmp_path: Path) -> None:
    """Two answers to what a file is are refused, with both ways out."""
    path = write_megatron(tmp_path, [[[*document, 9]] for document in DOCUMENTS]).with_suffix(".bin")
    with pytest.raises(UsageError, match=r"dtype= and end_token= cannot be given .*sources\.open_raw\(\)"):
        open_tokens(path, dtype=np.uint16, end_token=9)
    check_source(open_tokens(path), [[*document, 9] for document in DOCUMENTS])
    check_source(open_raw(path, dtype=np.uint16, end_token=9), [[*document, 9] for document in DOCUMENTS])


def test_index_under_another_name_is_refused(tmp_path: Path) -> None:
    """An index is not read as tokens."""
    path = write_megatron(tmp_path, [[document] for document in DOCUMENTS])
    renamed = path.rename(tmp_path / "renamed")
    with pytest.raises(UsageError, match="the index of a Megatron dataset under another name"):
        open_tokens(renamed, dtype=np.uint8, end_token=0)


@pytest.mark.parametrize("write", [write_raw, lambda folder: write_npy(folder / "a.npy", TOKENS, "int32")])
def test_column_is_refused_where_there_are_none(tmp_path: Path, write: Any) -> None:
    """No argument is passed over."""
    with pytest.raises(UsageError, match=r"^column= cannot be given for"):
        open_tokens(write(tmp_path), dtype="int32", end_token=0, column="input_ids")
    with pytest.raises(UsageError, match=r"^column= cannot be given for"):
        open_tokens(np.array(TOKENS), end_token=0, column="input_ids")


def test_folder_that_is_no_dataset_is_refused(tmp_path: Path) -> None:
    """Which files of a folder are meant, or which split, is not guessed."""
    with pytest.raises(UsageError, match=r"found a folder without state\.json"):
        open_tokens(tmp_path)
    for split in ("train", "test"):
        write_folder(tmp_path / split, [DOCUMENTS])
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(UsageError, match=r"the splits \['test', 'train'\]"):
        open_tokens(tmp_path)


@pytest.mark.parametrize("value", [TOKENS, None, 5, b"train.bin", iter(TOKENS)], ids=lambda value: type(value).__name__)
def test_what_is_neither_path_nor_array_is_refused(value: Any) -> None:
    """Lists, tensors and iterators are not converted in silence."""
    with pytest.raises(UsageError, match="expected a path or a numpy array of tokens"):
        open_tokens(value, end_token=0)


@pytest.mark.parametrize("kind", ["fifo", "device", "empty", "missing"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Nothing blocks, and nothing endless is read."""
    path = tmp_path / "tokens"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "empty":
        path.touch()
    with pytest.raises(SourceError):
        open_tokens(path, dtype="uint16", end_token=0)
