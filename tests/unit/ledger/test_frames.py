"""Frames: what is read back, what is a torn tail, what is damage."""

from __future__ import annotations

import io
import os
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import LedgerCorruptError, LedgerError
from resumable_data.ledger import frames
from resumable_data.ledger.frames import (
    CLAIM_KIND,
    RANK_KIND,
    FrameReader,
    chain_checksum,
    make_frame,
    make_head,
    measure,
    open_regular,
    shown,
)
from tests.files import overwrite

if TYPE_CHECKING:
    from pathlib import Path

PAYLOADS = [b"one", b"two" * 20, b"3", b"the last one"]


def file_of(payloads: list[bytes]) -> bytes:
    parts = [make_head(RANK_KIND)]
    chain = chain_checksum(parts[0])
    for payload in payloads:
        frame, chain = make_frame(payload, chain)
        parts.append(frame)
    return b"".join(parts)


def read(path: Path, payload_bytes_max: int = 100) -> tuple[list[bytes], int]:
    """All payloads and the bytes of the torn tail."""
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=payload_bytes_max)
        payloads = [one for _, batch in frames.blocks() for one in batch]
        return payloads, frames.torn_bytes


def test_payloads_come_back(tmp_path: Path) -> None:
    """What was framed is read, in order, with nothing torn."""
    path = tmp_path / "file"
    path.write_bytes(file_of(PAYLOADS))
    assert read(path) == (PAYLOADS, 0)


def test_many_blocks(tmp_path: Path) -> None:
    """Files larger than a block are read whole, and each batch knows where it starts."""
    path = tmp_path / "file"
    payloads = [b"%07d" % number * 13 for number in range(60_000)]
    path.write_bytes(file_of(payloads))
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=100)
        assert frames.first() == payloads[0]
        batches = list(frames.blocks())
        assert frames.offset == path.stat().st_size
    assert [one for _, batch in batches for one in batch] == payloads[1:]
    assert len(batches) > 2
    size = len(payloads[0]) + 12
    starts = [16 + size + size * sum(len(batch) for _, batch in batches[:n]) for n in range(len(batches))]
    assert [offset for offset, _ in batches] == starts


def test_every_cut_is_a_torn_tail(tmp_path: Path) -> None:
    """A file cut anywhere gives the frames before the cut, and the number of bytes after the last one."""
    path = tmp_path / "file"
    whole = file_of(PAYLOADS)
    ends = [len(file_of(PAYLOADS[:n])) for n in range(len(PAYLOADS) + 1)]
    for cut in range(len(whole)):
        overwrite(path, whole[:cut])
        payloads, torn = read(path)
        num_whole = sum(end <= cut for end in ends[1:])
        assert payloads == PAYLOADS[:num_whole]
        assert torn == cut - ends[num_whole] if cut >= 16 else torn == cut


@pytest.mark.parametrize("num_zeros", [1, 3, 4, 11, 12, 5000, 3 << 20])
def test_zeros_at_the_end_are_torn(tmp_path: Path, num_zeros: int) -> None:
    """File systems leave zeros where a file grew and its data was lost."""
    path = tmp_path / "file"
    path.write_bytes(file_of(PAYLOADS) + bytes(num_zeros))
    assert read(path) == (PAYLOADS, num_zeros)


@pytest.mark.parametrize("written", [512, 1024])
@pytest.mark.parametrize("num_zeros", [0, 5, 5000])
def test_a_frame_of_which_only_the_first_sectors_were_written_is_torn(
    tmp_path: Path, written: int, num_zeros: int
) -> None:
    """A disk that lost its power wrote whole sectors; where the file's size was written first, the rest is zeros."""
    path = tmp_path / "file"
    whole = file_of([*PAYLOADS, b"x" * 1500])
    path.write_bytes(whole[:written] + bytes(len(whole) - written + num_zeros))
    good = len(file_of(PAYLOADS))
    assert read(path, 2000) == (PAYLOADS, len(whole) - good + num_zeros)
    for changed in (whole[: written - 1] + bytes(len(whole) - written + 1 + num_zeros) + b"x", whole[:-8] + bytes(8)):
        path.write_bytes(changed)
        with pytest.raises(LedgerCorruptError, match=f"byte {good}: expected a frame with checksum"):
            read(path, 2000)


@pytest.mark.parametrize("num_zeros", [16, 100, 3 << 20])
def test_a_file_of_zeros_is_torn(tmp_path: Path, num_zeros: int) -> None:
    """Of a file whose size was written before the head, nothing is lost but what was never acknowledged."""
    path = tmp_path / "file"
    path.write_bytes(bytes(num_zeros))
    assert read(path) == ([], num_zeros)
    path.write_bytes(bytes(num_zeros) + b"x")
    with pytest.raises(LedgerCorruptError, match="byte 0: expected a rank file"):
        read(path)


def test_what_is_good_comes_before_the_damage(tmp_path: Path) -> None:
    """All frames before a damaged one are read, however near they are; so --salvage loses none of them."""
    path = tmp_path / "file"
    whole = bytearray(file_of(PAYLOADS))
    whole[-9] ^= 1
    for data in (bytes(whole), file_of(PAYLOADS[:3]) + b"\xff" * 4):
        overwrite(path, data)
        with open_regular(path) as file:
            frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=100)
            blocks = frames.blocks()
            assert next(blocks) == (16, PAYLOADS[:3])
            with pytest.raises(LedgerCorruptError, match=f"byte {len(file_of(PAYLOADS[:3]))}:"):
                next(blocks)


def test_data_after_zeros_is_damage(tmp_path: Path) -> None:
    """Zeros in the middle of a file are no torn tail."""
    path = tmp_path / "file"
    path.write_bytes(file_of(PAYLOADS) + bytes(5000) + b"x")
    with pytest.raises(LedgerCorruptError, match=rf"file, byte {len(file_of(PAYLOADS))}: .*or bytes after zeros"):
        read(path)


def test_every_flipped_bit_is_located(tmp_path: Path) -> None:
    """A changed bit is damage and never taken for a tear, also in the length of the last frame."""
    path = tmp_path / "file"
    whole = file_of(PAYLOADS)
    for bit in range(8 * len(whole)):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        overwrite(path, data)
        with pytest.raises(LedgerCorruptError) as caught:
            read(path)
        assert int(str(caught.value).split("byte ")[1].split(":")[0]) <= bit // 8


@pytest.mark.parametrize("place", [2, 20, -3], ids=["length", "payload", "checksum"])
def test_all_before_damage_is_read(tmp_path: Path, place: int) -> None:
    """Damage is reported after the frames before it, which --salvage reads, however small the file is."""
    path = tmp_path / "file"
    start, stop = (len(file_of(PAYLOADS[:n])) for n in (1, 2))
    data = bytearray(file_of(PAYLOADS))
    data[start + place if place > 0 else stop + place] ^= 0x40
    path.write_bytes(data)
    with open_regular(path) as file:
        blocks = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=100).blocks()
        assert next(blocks) == (16, PAYLOADS[:1])
        with pytest.raises(LedgerCorruptError, match=f"byte {start}"):
            next(blocks)


@pytest.mark.parametrize("change", ["swap", "drop", "repeat"])
def test_order_of_frames_is_part_of_the_chain(tmp_path: Path, change: str) -> None:
    """Frames that are each whole, but exchanged, left out or repeated, are damage."""
    edges = [len(file_of(PAYLOADS[:n])) for n in range(len(PAYLOADS) + 1)]
    whole = file_of(PAYLOADS)
    head, frames = whole[:16], [whole[a:b] for a, b in pairwise(edges)]
    order = {"swap": [0, 2, 1, 3], "drop": [0, 2, 3], "repeat": [0, 1, 1, 2, 3]}[change]
    path = tmp_path / "file"
    path.write_bytes(head + b"".join(frames[number] for number in order))
    with pytest.raises(LedgerCorruptError, match="a frame with checksum"):
        read(path)


def test_lengths_are_bounded(tmp_path: Path) -> None:
    """A length that no frame of the file has is damage, before anything of that size is read or made."""
    path = tmp_path / "file"
    path.write_bytes(file_of([b"x" * 101]))
    with pytest.raises(LedgerCorruptError, match="expected a frame of 1 to 100 bytes, found a length of 101"):
        read(path)
    path.write_bytes(make_head(RANK_KIND) + b"\xff\xff\xff\xff")
    with pytest.raises(LedgerCorruptError, match="found a length of 4294967295"):
        read(path)


@pytest.mark.parametrize(
    ("head", "message"),
    [
        (b"PK\x03\x04" + bytes(40), "byte 0: expected a rank file of a ledger"),
        (make_head(CLAIM_KIND), "byte 12: expected a rank file .kind 2., found kind 1"),
        (make_head(RANK_KIND, 3), "byte 8: expected format version 1 or 2, found version 3"),
        (b"RDL\0\0", "byte 0: expected a rank file"),
    ],
)
def test_other_files(tmp_path: Path, head: bytes, message: str) -> None:
    """A file of another kind, or of a later format, is told apart from a damaged one."""
    path = tmp_path / "file"
    path.write_bytes(head)
    with pytest.raises(LedgerCorruptError, match=message):
        read(path)


def test_only_regular_files_are_read(tmp_path: Path) -> None:
    """A link may lead anywhere, and reading a FIFO may wait for ever."""
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    (tmp_path / "folder").mkdir()
    for name in ("fifo", "link", "folder"):
        with pytest.raises(LedgerCorruptError, match="expected a regular file"), open_regular(tmp_path / name):
            pass
    with pytest.raises(LedgerError, match="No such file"), open_regular(tmp_path / "nothing"):
        pass


@pytest.mark.parametrize("call", ["fstat", "pread", "read", "close"])
def test_a_disk_that_fails_while_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str) -> None:
    """Whatever the disk refuses, the error says which file cannot be read."""
    path = tmp_path / "file"
    path.write_bytes(file_of(PAYLOADS))

    class Failing(io.FileIO):
        def read(self, size: int | None = -1) -> bytes:
            return fail() if call == "read" else super().read(size) or b""

        def close(self) -> None:
            super().close()
            if call == "close":
                fail()

    def fail(*_: object) -> bytes:
        raise OSError(5, "Input/output error")

    def try_it() -> None:
        with monkeypatch.context() as patch:
            if call in ("fstat", "pread"):
                patch.setattr(os, call, fail)
            patch.setattr(frames, "open", lambda descriptor, *_, **__: Failing(descriptor), raising=False)
            _ = measure(path) if call == "pread" else read(path)

    with pytest.raises(LedgerError, match=r"cannot read .*file: Input/output error"):
        try_it()


def test_names_are_shown_escaped() -> None:
    """Control characters and surrogates in names do not reach the terminal."""
    assert shown("a\x1b[31m\n\udcff\u00e9") == "a\\x1b[31m\\n\\udcff\u00e9"


@given(data=st.binary(max_size=300))
def test_random_bytes_give_only_our_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever follows the head, there is an error of ours, or a tear."""
    path = tmp_path_factory.mktemp("frames") / "file"
    path.write_bytes(make_head(RANK_KIND) + data)
    try:
        payloads, torn = read(path)
    except LedgerCorruptError:
        return
    assert (payloads, torn) == ([], len(data))
