"""Shadow files: what a kill leaves is read, anything else is an error of ours."""

from __future__ import annotations

import contextlib
import os
from functools import partial
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import LedgerCorruptError, LedgerError
from resumable_data.ledger.frames import SHADOW_KIND, chain_checksum, make_frame, make_head
from resumable_data.shadowing import audit_shadow
from resumable_data.shadowing.reader import read_directory, read_file, read_values
from resumable_data.shadowing.recorder import Recorder
from resumable_data.shadowing.records import (
    Begin,
    End,
    Hashes,
    Header,
    Ids,
    Record,
    Saved,
    Stopped,
    encode_record,
    file_name,
)
from tests.examples import examples

if TYPE_CHECKING:
    from pathlib import Path

HEADER = Header("", 0, 1, 5, "0")
BEGIN, IDS, HASHES = Begin(3, 9, 0, 1, None), Ids(bytes(range(16))), Hashes(bytes(8))
RECORDS: list[Record] = [BEGIN, IDS, Saved(), IDS, End(), Saved(), BEGIN, HASHES, Stopped("disk")]


def content(records: list[Record], header: Header = HEADER) -> bytes:
    parts = [make_head(SHADOW_KIND)]
    chain = chain_checksum(parts[0])
    for record in [header, *records]:
        frame, chain = make_frame(encode_record(record), chain)
        parts.append(frame)
    return b"".join(parts)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / file_name(0, 5)


def test_records_come_back(path: Path) -> None:
    """What was written is read, iteration by iteration."""
    path.write_bytes(content(RECORDS))
    file = read_file(path)
    assert file is not None
    assert (file.header, file.stopped, file.torn_bytes) == (HEADER, "disk", 0)
    first, second = file.iterations
    assert (first.num_batches, first.num_rows, first.num_hashed, first.has_end, first.saved) == (2, 4, 0, True, 2)
    assert (second.num_batches, second.num_rows, second.num_hashed, second.has_end) == (1, 1, 1, False)
    values = read_values(file, 0)
    assert values.value.tolist() == [int.from_bytes(bytes(range(8 * n, 8 * n + 8)), "little") for n in (0, 1)] * 2
    assert values.batch.tolist() == [0, 0, 1, 1]
    assert read_values(file, 1).value.tolist() == [0]


def test_written_by_a_recorder(tmp_path: Path) -> None:
    """The recorder writes this format, and its name is that of a shadow file."""
    recorder = Recorder(tmp_path, 3, 4)
    recorder.record(partial(Begin, 3, 9, 0, 1, None))
    recorder.record(partial(Ids, bytes(range(16))))
    (file,) = read_directory(tmp_path).files
    assert (file.header.rank, file.header.num_replicas, file.iterations[0].num_rows) == (3, 4, 2)
    assert file.path.read_bytes() == content([BEGIN, IDS], file.header)


def test_every_cut_is_read_up_to_it(path: Path) -> None:
    """A file cut anywhere gives what was whole before the cut."""
    whole = content(RECORDS)
    num_rows = []
    for cut in range(len(whole) + 1):
        path.write_bytes(whole[:cut])
        file = read_file(path)
        num_rows.append(-1 if file is None else sum(one.num_rows for one in file.iterations))
    assert num_rows == sorted(num_rows)
    assert set(num_rows) == {-1, 0, 2, 4, 5}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([IDS], "expected the begin of an iteration"),
        ([BEGIN, End(), IDS], "expected the begin of an iteration"),
        ([Saved()], "expected the begin of an iteration"),
        ([Stopped("x"), BEGIN], "expected nothing after the record of a stop"),
        ([BEGIN, Ids(bytes(7))], "expected values of 8 bytes"),
    ],
)
def test_records_in_wrong_places(path: Path, records: list[Record], message: str) -> None:
    """Records that no shadow writes are damage, located."""
    path.write_bytes(content(records))
    with pytest.raises(LedgerCorruptError, match=rf"shadow, byte \d+: {message}"):
        read_file(path)


def test_other_contents(path: Path) -> None:
    """Other records, other files and ranks that cannot be are damage."""
    other: list[Record] = [HEADER]  # type: ignore[list-item]
    path.write_bytes(content(other))
    with pytest.raises(LedgerCorruptError, match="a record of this format"):
        read_file(path)
    path.write_bytes(content([], Header("", 4, 4, 0, "")))
    with pytest.raises(LedgerCorruptError, match="a rank below 4, found rank 4"):
        read_file(path)
    path.write_bytes(content([], BEGIN))  # type: ignore[arg-type]
    with pytest.raises(LedgerCorruptError, match="a header of this format"):
        read_file(path)
    path.write_bytes(b"RDLEDGER\1\0\0\0\2\0\0\0")
    with pytest.raises(LedgerCorruptError, match="a shadow file"):
        read_file(path)


def test_flipped_bits_are_caught(path: Path) -> None:
    """A changed bit is damage, wherever it is."""
    whole = content(RECORDS)
    for bit in range(0, 8 * len(whole), 3):
        data = bytearray(whole)
        data[bit // 8] ^= 1 << bit % 8
        path.write_bytes(data)
        with pytest.raises(LedgerCorruptError):
            read_file(path)


def test_only_regular_files(tmp_path: Path) -> None:
    """A pipe in the place of a file is refused."""
    os.mkfifo(tmp_path / file_name(0, 1))
    with pytest.raises(LedgerCorruptError, match="expected a regular file"):
        read_directory(tmp_path)


RECORD = st.sampled_from(RECORDS) | st.builds(Ids, st.binary(max_size=24)) | st.builds(Begin, *[st.integers(0, 9)] * 5)


@examples(200, quick=60)
@given(
    data=st.binary(max_size=120).map(lambda tail: make_head(SHADOW_KIND) + tail)
    | st.lists(RECORD, max_size=6).map(content)
    | st.tuples(st.integers(0, 400), st.binary(max_size=5)).map(
        lambda change: content(RECORDS)[: change[0]] + change[1] + content(RECORDS)[change[0] + len(change[1]) :]
    )
)
def test_any_bytes_give_only_our_errors(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    """Whatever a file holds, it is audited or refused by an error of ours."""
    root = tmp_path_factory.mktemp("shadow")
    (root / file_name(0, 5)).write_bytes(data)
    with contextlib.suppress(LedgerError):
        audit_shadow(root).to_text()
