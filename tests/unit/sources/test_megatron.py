"""Megatron's indexed datasets."""

from __future__ import annotations

import os
import pickle
import struct
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.errors import SourceError, UsageError
from resumable_data.sources import FlatTokens, MegatronTokens, TokenSource
from resumable_data.sources import base as base_module
from resumable_data.sources import megatron as megatron_module
from tests.unit.sources.writing import Documents, check_source, make_index, write_megatron

if TYPE_CHECKING:
    from pathlib import Path

DOCUMENTS: list[Documents] = [[[1, 2, 3]], [[4], [5, 6]], [[7, 8, 9, 10]], [[]], [[11, 12]]]
JOINED = [[token for sequence in document for token in sequence] for document in DOCUMENTS]

sequences = st.lists(st.integers(0, 127), max_size=5)
documents = st.lists(st.lists(sequences, max_size=4), min_size=1, max_size=8)


@settings(max_examples=60)
@given(
    documents.filter(lambda found: any(any(document) for document in found)),
    st.sampled_from(sorted(megatron_module.DTYPE_CODES)),
)
def test_what_was_written_is_read(tmp_path_factory: pytest.TempPathFactory, written: Any, code: int) -> None:
    """Documents of any number of sequences, in any type of the format, are read as they were written."""
    dtype = np.dtype(megatron_module.DTYPE_CODES[code]).name
    source = MegatronTokens(write_megatron(tmp_path_factory.mktemp("corpus"), written, dtype))
    check_source(source, [[token for sequence in document for token in sequence] for document in written])
    assert source.dtype == dtype


@pytest.mark.parametrize("name", ["corpus", "corpus.bin", "corpus.idx"])
def test_any_of_three_names_opens_it(tmp_path: Path, name: str) -> None:
    """The index, the tokens and their common name mean the same dataset, also through a link."""
    write_megatron(tmp_path, DOCUMENTS)
    check_source(MegatronTokens(tmp_path / name), JOINED)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    check_source(MegatronTokens(link / name), JOINED)


def test_it_is_what_it_says(tmp_path: Path) -> None:
    """It keeps both contracts, and says what it is."""
    source = MegatronTokens(write_megatron(tmp_path, DOCUMENTS))
    assert isinstance(source, TokenSource)
    assert isinstance(source, FlatTokens)
    assert source.describe() == {
        "kind": "megatron",
        "path": str(tmp_path / "corpus.idx"),
        "sequences": 6,
        "documents": 5,
        "tokens": 12,
        "dtype": "uint16",
    }


def test_worker_gets_it_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pickled source is small, opens in a process with another working folder, and holds the same."""
    written = [[list(range(100))] for _ in range(1000)]
    write_megatron(tmp_path, written)
    monkeypatch.chdir(tmp_path)
    data = pickle.dumps(MegatronTokens("corpus"))
    assert len(data) < 2000
    monkeypatch.chdir("/")
    check_source(pickle.loads(data), [document[0] for document in written])


def test_file_that_changed_before_a_worker_opens_it_is_refused(tmp_path: Path) -> None:
    """A worker does not read other documents than its parent planned."""
    data = pickle.dumps(MegatronTokens(write_megatron(tmp_path, DOCUMENTS)))
    with (tmp_path / "corpus.bin").open("ab") as file:
        file.write(b"\0\0")
    with pytest.raises(SourceError, match="expected 24 bytes as when it was opened first, found 26"):
        pickle.loads(data)


HEADERS: dict[str, tuple[dict[str, Any], str]] = {
    "magic": ({"magic": b"MMIDIDY\0\0"}, "its first bytes"),
    "version": ({"version": 2}, "its version: expected 1, found 2"),
    "version of 2^63": ({"version": 1 << 63}, "its version"),
    "no type": ({"code": 0}, "its type of tokens"),
    "float64": ({"code": 6}, "its type of tokens"),
    "float32": ({"code": 7}, "its type of tokens"),
    "unknown type": ({"code": 255}, "its type of tokens"),
    "wider type": ({"code": 4}, "sequence 5: expected 8 bytes by its length, found 4"),
    "fewer sequences": ({"num_sequences": 5}, "its size"),
    "more sequences": ({"num_sequences": 7}, "its size"),
    "2^63 sequences": ({"num_sequences": 1 << 63}, "its size"),
    "2^64-1 sequences": ({"num_sequences": (1 << 64) - 1}, "its size"),
    "fewer documents": ({"num_entries": 5}, "its size"),
    "no documents": ({"num_entries": 1}, "its number of documents"),
    "2^63 documents": ({"num_entries": 1 << 63}, "its size"),
    "multimodal": ({"rest": b"\0" * 6}, "multimodal"),
    "a byte too many": ({"rest": b"\0"}, "its size"),
    "length below 0": ({"lengths": [3, 1, 2, -4, 0, 2]}, "length of sequence 3: expected 0 or more, found -4"),
    "last length": ({"lengths": [3, 1, 2, 4, 0, 1]}, "sequence 5: expected 2 bytes by its length, found 4"),
    "a longer length": ({"lengths": [3, 1, 3, 4, 0, 2]}, "sequence 2: expected 6 bytes by its length, found 4"),
    "first pointer": ({"pointers": [2, 6, 8, 12, 20, 20]}, "the first sequence"),
    "pointer below 0": ({"pointers": [0, -6, 8, 12, 20, 20]}, "pointer of sequence 1: .* found -6"),
    "pointer past the end": ({"pointers": [0, 6, 8, 26, 20, 20]}, "pointer of sequence 3: .* found 26"),
    "pointer of 2^63-1": ({"pointers": [0, 6, 8, 2**63 - 1, 20, 20]}, "pointer of sequence 3"),
    "odd pointer": ({"pointers": [0, 7, 8, 12, 20, 20]}, "pointer of sequence 1: expected a multiple of 2"),
    "decreasing pointers": ({"pointers": [0, 6, 12, 8, 20, 20]}, "sequence 1: expected 2 bytes by its length, found 6"),
    "first document": ({"entries": [1, 1, 3, 4, 5, 6]}, "the documents: .* found 1 and 6"),
    "last document": ({"entries": [0, 1, 3, 4, 5, 5]}, "the documents: .* found 0 and 5"),
    "document past the end": ({"entries": [0, 1, 9, 4, 5, 6]}, r"document 1: .* found \[1, 9\)"),
    "decreasing documents": ({"entries": [0, 3, 1, 4, 5, 6]}, r"document 1: .* found \[3, 1\)"),
    "document below 0": ({"entries": [0, -3, 1, 4, 5, 6]}, r"document 0: .* found \[0, -3\)"),
}


@pytest.mark.parametrize("name", HEADERS)
def test_damaged_index_is_refused_by_what_is_wrong(tmp_path: Path, name: str) -> None:
    """Each field of the index, and each entry that does not fit, is an error that says which."""
    change, message = HEADERS[name]
    index = make_index(DOCUMENTS, "uint16")._replace(**change)
    with pytest.raises(SourceError, match=message) as caught:
        MegatronTokens(write_megatron(tmp_path, DOCUMENTS, index=index))
    assert str(tmp_path) in str(caught.value)
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("name", [n for n in HEADERS if n.split()[0] not in ("a", "length", "magic", "version")])
def test_index_too_large_to_look_through_is_checked_before_use(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where opening looks at no entry, no document of a damaged index is read, and no fingerprint is taken of it."""
    monkeypatch.setattr(megatron_module, "CHECKED_AT_OPENING_MAX", 0)
    index = make_index(DOCUMENTS, "uint16")._replace(**HEADERS[name][0])

    def read_all() -> None:
        source = MegatronTokens(write_megatron(tmp_path, DOCUMENTS, index=index))
        for number in range(len(source)):
            source.read(number, 0, int(source.lengths(np.array([number]))[0]))

    with pytest.raises(SourceError):
        read_all()
    with pytest.raises(SourceError):
        MegatronTokens(write_megatron(tmp_path, DOCUMENTS, index=index)).fingerprint()


def test_sound_index_too_large_to_look_through_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The test above would not pass if everything were refused."""
    monkeypatch.setattr(megatron_module, "CHECKED_AT_OPENING_MAX", 0)
    source = MegatronTokens(write_megatron(tmp_path, DOCUMENTS))
    check_source(source, JOINED)
    assert source.fingerprint().startswith("tokens-v1 documents=5 tokens=12 ")
    assert base_module.CHECKED_AT_OPENING_MAX == 1 << 22


@pytest.mark.parametrize("num_bytes", [-1, -2, -24, 1, 2])
def test_tokens_of_another_size_are_refused(tmp_path: Path, num_bytes: int) -> None:
    """A .bin file that was cut, emptied or grew is an error."""
    path = write_megatron(tmp_path, DOCUMENTS).with_suffix(".bin")
    data = path.read_bytes()
    path.write_bytes(data[:num_bytes] if num_bytes < 0 else data + bytes(num_bytes))
    with pytest.raises(SourceError, match="empty" if num_bytes == -24 else "expected"):
        MegatronTokens(path)


@pytest.mark.parametrize("num_bytes", range(0, 34 + 6 * 12 + 6 * 8, 7))
def test_index_cut_anywhere_is_refused(tmp_path: Path, num_bytes: int) -> None:
    """No cut index is taken for a shorter one."""
    path = write_megatron(tmp_path, DOCUMENTS)
    path.write_bytes(path.read_bytes()[:num_bytes])
    with pytest.raises(SourceError, match=r"empty|its header|its size"):
        MegatronTokens(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    """Either file's absence is an error with its name."""
    path = write_megatron(tmp_path, DOCUMENTS)
    path.with_suffix(".bin").unlink()
    with pytest.raises(SourceError, match=r"corpus\.bin: No such file"):
        MegatronTokens(path)
    path.unlink()
    with pytest.raises(SourceError, match=r"corpus\.idx: No such file"):
        MegatronTokens(path)


@pytest.mark.parametrize("suffix", [".idx", ".bin"])
@pytest.mark.parametrize("kind", ["fifo", "device", "folder"])
def test_what_is_no_file_is_refused(tmp_path: Path, suffix: str, kind: str) -> None:
    """A FIFO does not block, and an endless device is not read, also behind a link."""
    path = write_megatron(tmp_path, DOCUMENTS).with_suffix(suffix)
    path.unlink()
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    with pytest.raises(SourceError, match="regular file"):
        MegatronTokens(path)


@pytest.mark.parametrize(
    ("document", "start", "stop"),
    [(5, 0, 0), (-1, 0, 1), (0, 0, 4), (0, 2, 1), (0, -1, 1), (0, 4, 4), (True, 0, 1), (0, 0.0, 1), ("0", 0, 1)],
)
def test_range_outside_a_document_is_refused(tmp_path: Path, document: Any, start: Any, stop: Any) -> None:
    """Nothing is cut short, and no neighbour's token is handed out."""
    source = MegatronTokens(write_megatron(tmp_path, DOCUMENTS))
    with pytest.raises(UsageError):
        source.read(document, start, stop)


@pytest.mark.parametrize("documents", [[5], [-1], [2**63 - 1]])
def test_document_that_does_not_exist_is_refused(tmp_path: Path, documents: list[int]) -> None:
    """Lengths and starts are asked of documents that exist, as int64."""
    source = MegatronTokens(write_megatron(tmp_path, DOCUMENTS))
    for ask in (source.lengths, source.starts):
        with pytest.raises(UsageError, match="no such document"):
            ask(np.array(documents, np.int64))
        with pytest.raises(UsageError, match="int64 array"):
            ask(np.array([0], np.int32))
        with pytest.raises(UsageError, match="int64 array"):
            ask([0])  # type: ignore[arg-type]


def test_lengths_stay_in_the_file(tmp_path: Path) -> None:
    """A billion documents are opened, planned from and read without their lengths in memory (a sparse file)."""
    count = 10**9
    with (tmp_path / "big.idx").open("wb") as file:
        file.write(struct.pack("<9sQBQQ", b"MMIDIDX\0\0", 1, 8, count, count + 1))
        places = {at: at for at in (0, 1, 2, count // 2, count // 2 + 1, count - 2, count - 1, count)}
        for at, value in places.items():
            file.seek(34 + 12 * count + 8 * at)
            file.write(struct.pack("<q", value))
        for at in (count // 2, count - 2, count - 1):
            file.seek(34 + 4 * at)
            file.write(struct.pack("<i", 3 if at == count // 2 else 1))
        for at, value in ((count // 2 + 1, 6), (count - 2, 6), (count - 1, 8)):
            file.seek(34 + 4 * count + 8 * at)
            file.write(struct.pack("<q", value))
    (tmp_path / "big.bin").write_bytes(np.arange(5, dtype=np.uint16).tobytes())
    source = MegatronTokens(tmp_path / "big")
    assert len(source) == count
    assert source.lengths(np.array([count - 1, count // 2, 0])).tolist() == [1, 3, 0]
    assert source.read(count // 2, 0, 3).tolist() == [0, 1, 2]
    assert source.read(count - 1, 0, 1).tolist() == [4]
