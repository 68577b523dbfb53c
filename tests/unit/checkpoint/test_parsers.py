"""The readers of untrusted bytes: what they read is right, and what is wrong is their own error, soon."""

from __future__ import annotations

import collections
import contextlib
import pickle
import pickletools
import struct
import time
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.checkpoint.files import payload
from resumable_data.checkpoint.files.cover import check_cover
from resumable_data.checkpoint.files.crc_combine import crc32_combine
from resumable_data.checkpoint.files.metadata import Chunk, parse_metadata
from resumable_data.checkpoint.files.opening import open_file
from resumable_data.checkpoint.files.payload import range_crc32
from resumable_data.checkpoint.files.pickled import Object, PickleFormatError
from resumable_data.checkpoint.files.pickles import parse_pickle
from resumable_data.checkpoint.files.tensors import tensor_layout, walk_tensors
from resumable_data.checkpoint.files.zips import ArchiveError, Window, read_archive
from resumable_data.errors import CheckpointError
from tests.checkpoints import archive_of, odd_state, save
from tests.examples import examples
from tests.files import overwrite

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda values: (
        st.lists(values)
        | st.tuples(values, values, values, values)
        | st.dictionaries(st.text() | st.integers(), values)
    ),
    max_leaves=20,
)


@examples(100, quick=25)
@given(plain, st.integers(3, 5))
def test_plain_values_are_read_as_pickle_reads_them(value: Any, protocol: int) -> None:
    """What holds no objects comes out as Python's own unpickler makes it."""
    assert parse_pickle(pickle.dumps(value, protocol))[0] == value


@examples(50, quick=20)
@given(st.lists(plain, max_size=3), st.integers(3, 5))
def test_memo_of_any_pickler(values: list[Any], protocol: int) -> None:
    """What is remembered is found again, also where a pickle numbers only what it needs, or leaves numbers out."""
    data = pickle.dumps([values, tuple(values), values], protocol)
    expected = [values, tuple(values), values]
    for pickled in (data, pickletools.optimize(data)):
        assert pickle.loads(pickled) == parse_pickle(pickled)[0] == expected


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02]r\xff\xff\x00\x00(K\x01q\x05h\x05K\x02q\x05h\x05j\xff\xff\x00\x000e.",  # far, and given again
        b"\x80\x04](K\x01q\x07K\x02\x94h\x07h\x01e.",  # MEMOIZE takes the number of those remembered
        b"\x80\x04](K\x01\x94K\x02q\x00h\x00h\x00e.",
        b"\x80\x04]((K\x01\x94K\x02\x94\x86\x94\x85\x94h\x00h\x01h\x02h\x03te.",
    ],
)
def test_numbers_of_the_memo(data: bytes) -> None:
    """Numbers that are far apart, given again, or mixed with counted ones mean what they mean to Python."""
    assert parse_pickle(data)[0] == pickle.loads(data)


def test_objects_stay_names() -> None:
    """A call stays a call, with its arguments, and its content where it stands for a container."""
    value, names = parse_pickle(pickle.dumps(collections.OrderedDict(a=1)))
    assert (type(value), str(value.name), value.items) == (Object, "collections.OrderedDict", {"a": 1})
    assert [str(name) for name in names] == ["collections.OrderedDict"]


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("saved") / "checkpoint", odd_state())


def read_window(path: Path, data: bytes) -> None:
    """Read an archive as far as a check does."""
    overwrite(path, data)
    with open_file(path) as file:
        window = Window(file, 0, file.size)
        archive = read_archive(window)
        record = archive.find("data.pkl")
        if record is not None:
            list(walk_tensors(parse_pickle(window.read(record.start, record.size))[0]))


@examples(200, quick=60)
@given(data=st.data())
def test_mutated_metadata_is_our_error_or_metadata(sample: Path, data: st.DataObject) -> None:
    """Bytes of .metadata that are changed, cut or repeated are read, or refused by our own error."""
    bytes_ = mutate((sample / ".metadata").read_bytes(), data)
    with contextlib.suppress(PickleFormatError):
        parse_metadata(bytes_)


@examples(200, quick=60)
@given(data=st.data())
def test_mutated_archive_is_our_error_or_an_archive(
    sample: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Bytes of an archive that are changed, cut or repeated are read, or refused by our own error."""
    whole = archive_of(sample, "model.weight")
    with contextlib.suppress(ArchiveError, PickleFormatError, CheckpointError):
        read_window(tmp_path_factory.getbasetemp() / "archive", mutate(whole, data))


def test_archive_that_is_not_mutated_is_read(sample: Path, tmp_path: Path) -> None:
    """What the test above mutates is read as it is, so that it does not meet errors alone."""
    read_window(tmp_path / "archive", archive_of(sample, "model.weight"))
    assert parse_metadata((sample / ".metadata").read_bytes()).tensors["model.weight"].shape == (4, 5)


@given(st.binary(max_size=200))
def test_random_pickle_is_our_error_or_a_value(data: bytes) -> None:
    """Random bytes are no way to any other exception."""
    for start in (b"", b"\x80\x04", b"\x80\x02}q\x00"):
        try:
            value, _ = parse_pickle(start + data)
            tensor_layout(value)
            list(walk_tensors(value))
        except PickleFormatError:
            pass


def mutate(data: bytes, draw: st.DataObject) -> bytes:
    """Bytes with up to four changes."""
    changed = bytearray(data)
    for _ in range(draw.draw(st.integers(1, 4))):
        at = draw.draw(st.integers(0, max(0, len(changed) - 1)))
        how = draw.draw(st.sampled_from(["flip", "cut", "set", "repeat"]))
        if how == "flip" and changed:
            changed[at] ^= 1 << draw.draw(st.integers(0, 7))
        elif how == "cut":
            del changed[at : at + draw.draw(st.integers(1, 9))]
        elif how == "set":
            changed[at : at + 8] = struct.pack(
                "<Q", draw.draw(st.sampled_from([0, 2**31, 2**32 - 1, 2**63, 2**64 - 1]))
            )
        else:
            changed[at:at] = changed[at : at + 64]
    return bytes(changed)


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x8e" + b"\xff" * 8 + b".",  # bytes of length 2^64 - 1
        b"\x80\x04\x8d" + struct.pack("<Q", 2**63) + b".",  # a text
        b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",  # a bytearray
        b"\x80\x04\x8b" + struct.pack("<i", 2**31 - 1) + b".",  # an integer of 2^31 bytes
        b"\x80\x04\x95" + b"\xff" * 8 + b"N",  # a frame, and no end
        b"\x80\x04h\x05.",  # what was never memoized
        b"\x80\x04" + b"(" * 100_000 + b".",
        # tracing what these allocate takes seconds
        pytest.param(b"\x80\x04]" + b"\x85" * 100_000, marks=pytest.mark.slow),
        pytest.param(b"\x80\x04N" + b"2\x86" * 100_000 + b"}" + b"2\x86s.", marks=pytest.mark.slow),
    ],
)
def test_forged_lengths_cost_nothing(data: bytes) -> None:
    """A length, depth or index in a pickle allocates no memory before it is refused, so that none is filled either."""
    tracemalloc.start()
    with pytest.raises(PickleFormatError):
        parse_pickle(data)
    assert tracemalloc.get_traced_memory()[1] < 50_000_000
    tracemalloc.stop()


def test_memo_index_allocates_nothing() -> None:
    """Memoizing under the index 2^32 - 1 takes one entry, not four thousand million."""
    tracemalloc.start()
    assert parse_pickle(b"\x80\x04Nr\xff\xff\xff\xff.")[0] is None
    assert tracemalloc.get_traced_memory()[1] < 1_000_000
    tracemalloc.stop()


def test_nested_pairs_are_not_expanded() -> None:
    """A pair of a pair of a pair, which holds 2^60 values by reference, is neither hashed nor walked as so many."""
    bomb = b"\x80\x04N" + b"2\x86" * 60
    value, _ = parse_pickle(b"\x80\x04}" + bomb[2:] + b"Ns.")
    assert len(value) == 1
    assert list(walk_tensors(parse_pickle(bomb + b".")[0])) == []


@given(st.binary(max_size=300), st.integers(0, 300))
def test_combined_crc(data: bytes, at: int) -> None:
    """The CRC32s of two pieces give that of the whole."""
    first, second = data[:at], data[at:]
    assert crc32_combine(zlib.crc32(first), zlib.crc32(second), len(second)) == zlib.crc32(data)


@pytest.mark.parametrize("length", [0, 5, 2**20 - 1, 2**23 + 12345, 2**24 + 4096])
@pytest.mark.parametrize("start", [0, 1, 4095, 4096, 70_001])
def test_crc_of_a_range(tmp_path: Path, length: int, start: int) -> None:
    """The checksum of a range is that of its bytes, mapped or read, at any alignment."""
    data = np.random.default_rng(0).bytes(start + length + 10)
    (tmp_path / "file").write_bytes(data)
    with open_file(tmp_path / "file") as file:
        assert range_crc32(file, start, length, zlib.crc32) == zlib.crc32(data[start : start + length])
        with pytest.raises(CheckpointError, match="are asked for"):
            range_crc32(file, start, length + 11, zlib.crc32)


@st.composite
def boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], list[Chunk]]:
    """A small tensor and boxes: a partition by cuts, of which some boxes may be lost, repeated or moved."""
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=3)))
    chunks = [Chunk((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 4)) if shape else 0):
        at = draw(st.integers(0, len(chunks) - 1))
        axis = draw(st.integers(0, len(shape) - 1))
        offsets, sizes = chunks.pop(at)
        left = draw(st.integers(0, sizes[axis]))
        for move, size in ((0, left), (left, sizes[axis] - left)):
            chunks.append(
                Chunk(
                    (*offsets[:axis], offsets[axis] + move, *offsets[axis + 1 :]),
                    (*sizes[:axis], size, *sizes[axis + 1 :]),
                )
            )
    for _ in range(draw(st.integers(0, 2))):
        at = draw(st.integers(0, len(chunks) - 1)) if chunks else 0
        how = draw(st.sampled_from(["keep", "drop", "repeat", "move"]))
        if how == "drop" and chunks:
            del chunks[at]
        elif how == "repeat" and chunks:
            chunks.append(chunks[at])
        elif how == "move" and chunks:
            chunks[at] = Chunk(tuple(draw(st.integers(0, 3)) for _ in shape), chunks[at].sizes)
    return shape, chunks


@given(boxes())
def test_cover_is_what_counting_elements_says(case: tuple[tuple[int, ...], list[Chunk]]) -> None:
    """Boxes outside, holes and overlaps are found exactly where a count of every element shows them."""
    shape, chunks = case
    cover = check_cover(shape, chunks)
    outside = [c for c in chunks if any(o + s > n for o, s, n in zip(c.offsets, c.sizes, shape, strict=True))]
    assert (cover.outside is not None) == bool(outside)
    if outside:
        return
    counts = np.zeros(shape, int)
    for chunk in chunks:
        counts[tuple(slice(o, o + s) for o, s in zip(chunk.offsets, chunk.sizes, strict=True))] += 1
    assert (cover.hole is not None) == bool((counts == 0).any())
    assert (cover.overlap is not None) == bool((counts > 1).any())
    assert cover.hole is None or counts[cover.hole] == 0
    assert cover.overlap is None or counts[cover.overlap] > 1


def test_cover_of_forged_boxes_is_bounded() -> None:
    """Boxes that no grid fits are said not to be checked, in little time and memory."""
    rng = np.random.default_rng(0)
    chunks = [Chunk(tuple(map(int, rng.integers(0, 2**60, 8))), (1,) * 8) for _ in range(500)]
    assert not check_cover((2**61,) * 8, chunks).is_checked
    assert check_cover((2**62, 2**62), [Chunk((0, 0), (2**62, 2**62 - 1))]).hole == (0, 2**62 - 1)


@pytest.mark.parametrize("dtype", [getattr(torch, n) for n in dir(torch) if isinstance(getattr(torch, n), torch.dtype)])
def test_sizes_of_dtypes(dtype: torch.dtype) -> None:
    """Every dtype of this torch is known, with the size that torch gives it."""
    from resumable_data.checkpoint.files.dtypes import ITEM_BYTES

    assert ITEM_BYTES[str(dtype).removeprefix("torch.")] == dtype.itemsize


def test_file_that_becomes_shorter_while_it_is_read(tmp_path: Path) -> None:
    """A file cut after it was opened is an error, not the signal that ends a process which reads mapped pages."""
    path = tmp_path / "file"
    path.write_bytes(bytes(3 * 2**23))
    with open_file(path) as file:
        path.write_bytes(bytes(2**23 + 5))
        with pytest.raises(CheckpointError, match="became shorter"):
            range_crc32(file, 0, file.size, zlib.crc32)


def test_without_a_way_to_ask_for_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system that cannot ask for mapped pages nothing is mapped, and the checksum is the same."""
    monkeypatch.setattr(payload, "_POPULATE_READ", 10_000)
    data = np.random.default_rng(0).bytes(2**23 + 99)
    (tmp_path / "file").write_bytes(data)
    with open_file(tmp_path / "file") as file:
        assert payload._mapped_crc32(file, 0, 2**23, 0, zlib.crc32) is None
        assert range_crc32(file, 0, file.size, zlib.crc32) == zlib.crc32(data)


def test_every_crc_library_agrees() -> None:
    """Whatever is installed gives zlib's CRC32, which is there always, also where it goes on from a value."""
    libraries = dict(payload.crc32_libraries())
    assert list(libraries)[-1] == "zlib"
    for crc32 in libraries.values():
        assert crc32(memoryview(b"abcd"), crc32(b"xyz", 0)) == zlib.crc32(b"xyzabcd")


def _many_numbers(data: bytes, places: list[int]) -> list[bytes]:
    """The bytes with each of these places set to numbers that no file reaches."""
    forged = []
    for at in places:
        for size, value in ((4, 2**31), (4, 2**32 - 1), (8, 2**63), (8, 2**64 - 1)):
            forged.append(data[:at] + value.to_bytes(size, "little") + data[at + size :])
    return forged


def test_forged_sizes_of_an_archive(sample: Path, tmp_path: Path) -> None:
    """Counts, lengths and offsets of up to 2^64 in any header of an archive are refused at once."""
    whole = archive_of(sample, "model.weight")
    magics = [b"PK\x03\x04", b"PK\x01\x02", b"PK\x06\x06", b"PK\x06\x07", b"PK\x05\x06"]
    places = [at for magic in magics for at in range(whole.index(magic) + 4, whole.index(magic) + 44, 2)]
    refused = 0
    began = time.perf_counter()
    for forged in _many_numbers(whole, places):
        try:
            read_window(tmp_path / "archive", forged)
        except (ArchiveError, CheckpointError, PickleFormatError):
            refused += 1
    assert refused > 250
    assert time.perf_counter() - began < 20
