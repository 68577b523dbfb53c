"""Random and changed bytes: an error of ours or documents within the file, never anything else."""

from __future__ import annotations

import contextlib
import tracemalloc
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import ResumableDataError, SourceError, UsageError
from resumable_data.sources import megatron, open_npy, open_tokens
from tests.examples import examples
from tests.unit.sources.writing import flat, write_arrow, write_megatron, write_npy, write_parquet

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

DOCUMENTS = [[1, 2, 3], [4], [5, 6], [7, 8, 9, 10], [11, 12]]

FORMATS: dict[str, tuple[Callable[[Path], Path], dict[str, Any]]] = {
    "megatron": (lambda folder: write_megatron(folder, [[document] for document in DOCUMENTS]), {}),
    "npy": (lambda folder: write_npy(folder / "a.npy", flat(DOCUMENTS), "uint16"), {"lengths": [3, 1, 2, 4, 2]}),
    "parquet": (lambda folder: write_parquet(folder / "a.parquet", DOCUMENTS), {}),
    "stream": (lambda folder: write_arrow(folder / "a.arrow", DOCUMENTS), {}),
    "file": (lambda folder: write_arrow(folder / "a.feather", DOCUMENTS, stream=False), {}),
}


def read_all(path: Path, **given: Any) -> None:
    """Open and read everything; a source that opens must hold what it says."""
    with contextlib.suppress(SourceError, UsageError):
        source = open_tokens(path, **given)
        lengths = source.lengths(np.arange(len(source)))
        assert int(lengths.sum()) == source.num_tokens
        for number, length in enumerate(lengths.tolist()):
            assert source.read(number, 0, length).size == length
        source.fingerprint(full=True)


@pytest.fixture(autouse=True)
def few_bytes() -> Any:
    """No damaged count makes this package allocate what it says."""
    tracemalloc.start()
    yield
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 27


@pytest.mark.parametrize("name", FORMATS)
@examples(150, quick=35)
@given(data=st.data())
def test_changed_bytes(tmp_path_factory: pytest.TempPathFactory, name: str, data: st.DataObject) -> None:
    """Some bytes of a sound file are others, or the file is cut or longer."""
    write, given_arguments = FORMATS[name]
    path = write(tmp_path_factory.mktemp("fuzz"))
    content = bytearray(path.read_bytes())
    changes = st.lists(st.tuples(st.integers(0, len(content) - 1), st.integers(0, 255)), max_size=4)
    for position, byte in data.draw(changes):
        content[position] = byte
    content = content[: data.draw(st.integers(0, len(content)) | st.just(len(content)))]
    path.write_bytes(content + data.draw(st.binary(max_size=9)))
    read_all(path, **given_arguments)


@examples(150, quick=35)
@given(data=st.data())
def test_changed_index_that_was_not_looked_through(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Entries looked at only before use lead to no range outside the file, and a fingerprint means that all fits."""
    path = write_megatron(tmp_path_factory.mktemp("fuzz"), [[document] for document in DOCUMENTS])
    content = bytearray(path.read_bytes())
    changes = st.lists(st.tuples(st.integers(34, len(content) - 1), st.integers(0, 255)), max_size=4)
    for position, byte in data.draw(changes):
        content[position] = byte
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch, contextlib.suppress(SourceError):
        patch.setattr(megatron, "CHECKED_AT_OPENING_MAX", 0)
        source = open_tokens(path)
        for number in data.draw(st.permutations(range(len(source)))):
            with contextlib.suppress(SourceError):
                length = int(source.lengths(np.array([number]))[0])
                assert source.read(number, 0, length).size == length
        source.fingerprint()
        assert int(source.lengths(np.arange(len(source))).sum()) == source.num_tokens


@examples(150, quick=35)
@given(
    head=st.sampled_from(
        [b"", b"MMIDIDX\0\0\1\0\0\0\0\0\0\0\x08", b"\x93NUMPY\1\0", b"PAR1", b"ARROW1\0\0", b"\xff" * 4]
    ),
    body=st.binary(max_size=200),
)
def test_random_bytes(tmp_path_factory: pytest.TempPathFactory, head: bytes, body: bytes) -> None:
    """Random bytes behind the first bytes of each format."""
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "a.bin").write_bytes(body or b"\0")
    for name in ("a.idx", "b"):
        (folder / name).write_bytes(head + body)
    read_all(folder / "a.idx")
    read_all(folder / "b")
    read_all(folder / "b", dtype="uint8", end_token=0)
    read_all(folder / "b", end_token=0)


@given(st.text(alphabet="{}'():,descrfotanhpTuelF<u2i4 01[]", max_size=80))
def test_random_header_of_npy(tmp_path_factory: pytest.TempPathFactory, header: str) -> None:
    """A header that is parsed as Python's literals does nothing but fail."""
    path = tmp_path_factory.mktemp("fuzz") / "a.npy"
    path.write_bytes(b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header.encode() + bytes(8))
    with pytest.raises(ResumableDataError):
        open_npy(path, end_token=0)
