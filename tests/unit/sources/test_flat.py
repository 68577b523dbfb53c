"""Raw files, ``.npy`` files and arrays in memory, and where documents end in them."""

from __future__ import annotations

import os
import pickle
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.errors import ResumableDataError, SourceError, UsageError
from resumable_data.sources import FlatTokens, boundaries, offsets, open_array, open_npy, open_raw
from tests.unit.sources.writing import Documents, check_source, flat, write_npy

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS = [[1, 2, 0], [0], [3, 4, 5, 0], [6, 0]]
TOKENS = flat(DOCUMENTS)
LENGTHS = [3, 1, 4, 2]
OFFSETS = [0, 3, 4, 8, 10]

integer_types = st.sampled_from(["uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64"])


def write_raw(path: Path, tokens: list[int] = TOKENS, dtype: str = "uint16") -> Path:
    path.write_bytes(np.array(tokens, dtype).tobytes())
    return path


def split_after(tokens: list[int], end_token: int) -> Documents:
    """The documents, written the obvious way."""
    found: Documents = [[]]
    for token in tokens:
        found[-1].append(token)
        if token == end_token:
            found.append([])
    return found if found[-1] else found[:-1]


@settings(max_examples=60)
@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), integer_types, st.integers(1, 7))
def test_end_token_ends_its_document(
    tmp_path_factory: pytest.TempPathFactory, tokens: list[int], dtype: str, chunk: int
) -> None:
    """The end token belongs to the document that it ends; what follows the last one is a document too."""
    path = write_raw(tmp_path_factory.mktemp("raw") / "train.bin", [*tokens, 0], dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(boundaries, "_CHUNK_TOKENS", chunk)
        check_source(open_raw(path, dtype=dtype, end_token=0), split_after([*tokens, 0], 0))
        array = np.array([0, *tokens], dtype)
        check_source(open_array(array, end_token=0), split_after([0, *tokens], 0))


@settings(max_examples=60)
@given(st.lists(st.lists(st.integers(0, 100), max_size=6), min_size=1, max_size=8).filter(any), integer_types)
def test_lengths_and_offsets_are_taken_as_given(
    tmp_path_factory: pytest.TempPathFactory, documents: Documents, dtype: str
) -> None:
    """Documents by lengths, by offsets and by a file of offsets are the same, empty ones included."""
    folder = tmp_path_factory.mktemp("flat")
    lengths = [len(document) for document in documents]
    edges = [sum(lengths[:i]) for i in range(len(lengths) + 1)]
    raw = write_raw(folder / "tokens.npy", flat(documents), dtype)  # as OLMo names its raw files
    check_source(open_raw(raw, dtype=dtype, lengths=lengths), documents)
    check_source(open_raw(raw, dtype=dtype, offsets=np.array(edges, np.uint64)), documents)
    source = open_raw(raw, dtype=dtype, offsets=write_npy(folder / "offsets.npy", edges, "int32"))
    check_source(source, documents)
    check_source(pickle.loads(pickle.dumps(source)), documents)
    real = write_npy(folder / "real.npy", flat(documents), dtype)
    check_source(open_npy(real, offsets=edges), documents)
    check_source(open_npy(str(real), dtype=dtype, lengths=tuple(lengths)), documents)
    check_source(pickle.loads(pickle.dumps(open_array(np.array(flat(documents), dtype), lengths=lengths))), documents)


def test_numpy_writes_what_is_read(tmp_path: Path) -> None:
    """A file of ``np.save`` is read, its tokens mapped and not copied."""
    np.save(tmp_path / "saved.npy", np.array(TOKENS, np.uint32))
    source = open_npy(tmp_path / "saved.npy", end_token=0)
    check_source(source, DOCUMENTS)
    assert isinstance(source, FlatTokens)
    assert not source.tokens.flags.owndata
    assert type(source.tokens) is np.ndarray


def test_array_in_memory_is_not_copied() -> None:
    """A large array is not held twice, and cannot be written to through the source."""
    array = np.array(TOKENS, np.uint16)
    source = open_array(array, end_token=0)
    assert np.shares_memory(source.tokens, array)
    assert array.flags.writeable
    with pytest.raises(ValueError, match="read-only"):
        source.tokens[0] = 1


def test_offsets_of_the_caller_may_change_afterwards() -> None:
    """A source keeps its own copy of offsets that are not in a file."""
    edges = np.array(OFFSETS)
    source = open_array(np.array(TOKENS), offsets=edges)
    edges[:] = 0
    check_source(source, DOCUMENTS)


BAD_OFFSETS = {
    "first": [1, 3, 4, 8, 10],
    "last": [0, 3, 4, 8, 9],
    "past the end": [0, 3, 4, 8, 11],
    "decreasing": [0, 4, 3, 8, 10],
    "out of range": [0, 3, 40, 8, 10],
    "below 0": [0, -3, 4, 8, 10],
    "2^63": [0, 3, 2**63, 8, 10],
    "starts alone": [0, 3, 4, 8],
    "one": [0],
}


@pytest.mark.parametrize("limit", [1 << 22, 0])
@pytest.mark.parametrize("name", BAD_OFFSETS)
def test_offsets_that_do_not_fit_are_refused(
    tmp_path: Path, name: str, limit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets out of range or order are an error: at opening, or before use where there are too many to look at."""
    monkeypatch.setattr(offsets, "CHECKED_AT_OPENING_MAX", limit)
    values = BAD_OFFSETS[name]
    path = write_npy(tmp_path / "offsets.npy", values, "uint64" if name == "2^63" else "int64")

    def read_all(given: Any) -> None:
        source = open_array(np.array(TOKENS), offsets=given)
        if limit:
            return
        for number in range(len(source)):
            source.read(number, 0, int(source.lengths(np.array([number]))[0]))

    for given_offsets in (path, np.load(path)):
        with pytest.raises(SourceError, match="offsets by offsets"):
            read_all(given_offsets)


@pytest.mark.parametrize(
    ("lengths", "error", "message"),
    [
        ([3, 1, 4, 1], SourceError, "the sum of lengths: expected all 10 tokens, found 9"),
        ([3, 1, 4, 3], SourceError, "found 11"),
        ([3, 1, -4, 10], SourceError, r"lengths\[2\]"),
        ([2**62] * 4, SourceError, r"lengths\[0\]"),
        ([], UsageError, "at least one"),
        ([1.0] * 10, UsageError, "float64"),
        ([[10]], UsageError, "1-D"),
        (10, UsageError, "found int"),
        ("10", UsageError, "found str"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths: Any, error: type[Exception], message: str) -> None:
    """Lengths are whole numbers whose sum is all tokens."""
    with pytest.raises(error, match=message):
        open_array(np.array(TOKENS), lengths=lengths)


@pytest.mark.parametrize(
    ("end_token", "error", "message"),
    [
        (7, SourceError, "found no such token among 10"),
        (-1, UsageError, "uint16"),
        (65536, UsageError, "from 0 to 65535"),
        (0.0, UsageError, "integer"),
        (False, UsageError, "integer"),
        ("0", UsageError, "integer"),
    ],
)
def test_end_token_that_never_ends_anything_is_refused(end_token: Any, error: type[Exception], message: str) -> None:
    """A token that is not there, or cannot be, is not taken for one that happens not to occur."""
    with pytest.raises(error, match=message):
        open_array(np.array(TOKENS, np.uint16), end_token=end_token)


@pytest.mark.parametrize("given", [{}, {"end_token": 0, "lengths": LENGTHS}, {"offsets": OFFSETS, "lengths": LENGTHS}])
def test_boundaries_are_given_once(given: Any) -> None:
    """Where documents end is neither guessed nor said twice."""
    with pytest.raises(UsageError, match="expected one of lengths=, end_token= and offsets="):
        open_array(np.array(TOKENS), **given)


@pytest.mark.parametrize("dtype", [None, float, "float32", bool, "S2", ">u2", "nonsense", object, "datetime64[s]"])
def test_raw_file_needs_an_integer_type(tmp_path: Path, dtype: Any) -> None:
    """What a raw file's bytes are is said by the caller, and is integers."""
    with pytest.raises(UsageError, match="dtype must be an integer type"):
        open_raw(write_raw(tmp_path / "a.bin"), dtype=dtype, end_token=0)


def test_raw_file_of_another_size_is_refused(tmp_path: Path) -> None:
    """Half a token is a wrong type or a cut file."""
    path = write_raw(tmp_path / "a.bin")
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(SourceError, match="a multiple of 2 bytes"):
        open_raw(path, dtype="uint16", end_token=0)


@pytest.mark.parametrize("kind", ["fifo", "device", "folder", "empty", "missing", "null in name"])
def test_what_is_no_file_is_refused(tmp_path: Path, kind: str) -> None:
    """Only a file with something in it is opened, whatever reads it."""
    path = tmp_path / "a.npy"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "folder":
        path.mkdir()
    elif kind == "empty":
        path.touch()
    elif kind == "null in name":
        path = tmp_path / "a\0"
    with pytest.raises(SourceError):
        open_raw(path, dtype="uint16", end_token=0)
    with pytest.raises(SourceError):
        open_npy(path, end_token=0)
    with pytest.raises(SourceError):
        open_array(np.array(TOKENS), offsets=path)


def npy_with(tmp_path: Path, **changes: Any) -> Path:
    settings: dict[str, Any] = {"values": TOKENS, "dtype": "uint16", **changes}
    return write_npy(tmp_path / "a.npy", **settings)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dtype": "float32"}, "dtype '<f4'"),
        ({"dtype": ">u2"}, "dtype '>u2'"),
        ({"dtype": "bool"}, "dtype"),
        ({"dtype": "M8[s]"}, "dtype"),
        ({"shape": "(2, 5)"}, "one dimension"),
        ({"shape": "()"}, "one dimension"),
        ({"shape": "(-1,)"}, "its header: expected one dimension"),
        ({"shape": "(9,)"}, "its size"),
        ({"shape": "(11,)"}, "its size"),
        ({"shape": f"({2**63},)"}, "its size"),
        ({"shape": "(10.0,)"}, "its header"),
        ({"shape": "(True,)"}, "its header|its size"),
        ({"values": [], "shape": "(0,)"}, "at least one value"),
    ],
)
def test_damaged_npy_is_refused(tmp_path: Path, changes: Any, message: str) -> None:
    """Each part of the header that says something else than integers in one dimension, all there, is an error."""
    with pytest.raises(SourceError, match=message):
        open_npy(npy_with(tmp_path, **changes), end_token=0)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    """No file makes this package run its code."""
    np.save(tmp_path / "a.npy", np.array([[1], [1, 2]], dtype=object), allow_pickle=True)
    with pytest.raises(SourceError, match="pickled objects"):
        open_npy(tmp_path / "a.npy", end_token=0)


@pytest.mark.parametrize(("position", "byte"), [(0, 0), (6, 9), (8, 255), (9, 255), (12, 0)])
def test_npy_with_a_changed_byte_is_refused(tmp_path: Path, position: int, byte: int) -> None:
    """Magic, version, length of the header and the header are checked."""
    path = npy_with(tmp_path)
    data = bytearray(path.read_bytes())
    assert data[position] != byte
    data[position] = byte
    path.write_bytes(data)
    with pytest.raises(SourceError, match="its header"):
        open_npy(path, end_token=0)


def test_other_type_than_asked_for_is_refused(tmp_path: Path) -> None:
    """A type that the caller expects and a header or array that says another are an error."""
    with pytest.raises(SourceError, match="expected dtype int32, as was asked for, found uint16"):
        open_npy(npy_with(tmp_path), dtype=np.int32, end_token=0)
    with pytest.raises(UsageError, match="dtype=int32 was asked for"):
        open_array(np.array(TOKENS, np.uint16), dtype=np.int32, end_token=0)


@pytest.mark.parametrize(
    "array",
    [np.zeros((2, 2), int), np.zeros(4), np.zeros(4, ">i4"), np.arange(8)[::2], np.zeros(4, bool), np.zeros(0, int)],
    ids=["two dimensions", "floats", "other byte order", "not contiguous", "booleans", "empty"],
)
def test_array_that_cannot_be_documents_is_refused(array: Any) -> None:
    """A 1-D contiguous array of integers, with something in it, is needed."""
    with pytest.raises(ResumableDataError):
        open_array(array, end_token=0)
