"""The file of a trace: what is written is read bit for bit, and damage is told."""

from __future__ import annotations

import json
import math
import os
import struct
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.errors import TraceError, UsageError
from resumable_data.validation import trace as trace_module
from resumable_data.validation.trace import Trace, UpdateRecord
from resumable_data.validation.trace_writer import TraceWriter
from tests.unit.validation.tracing import make_header, make_record, make_trace, write

any_float = st.floats(allow_nan=True, allow_infinity=True)
any_count = st.integers(0, 2**63 - 1)


@st.composite
def records(draw: st.DrawFn, update: int) -> UpdateRecord:
    return make_record(
        update,
        loss=draw(any_float),
        gradient_norm=draw(any_float),
        update_norm=draw(st.none() | any_float),
        learning_rates=draw(st.dictionaries(st.text(max_size=5), any_float, max_size=3)),
        loss_scale=draw(any_float),
        skipped=draw(st.booleans()),
        optimizer_steps=draw(st.none() | st.tuples(any_count, any_count)),
        scheduler_step=draw(st.none() | st.integers(-1, 2**60)),
        samples=draw(any_count),
        tokens=draw(st.none() | any_count),
        throughput=None,
    )


def bits(value: object) -> object:
    """A value in which equal floats are those with equal bits, but for the many that are no number."""
    if isinstance(value, float):
        return "nan" if math.isnan(value) else struct.pack("<d", value)
    if isinstance(value, dict):
        return {key: bits(item) for key, item in value.items()}
    return value


@settings(max_examples=40)
@given(data=st.data(), first=st.integers(0, 2**62))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, first: int) -> None:
    """Every float comes back bit for bit, those that are not finite too, and every line is JSON."""
    written = [data.draw(records(first + at)) for at in range(data.draw(st.integers(0, 3)))]
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    with TraceWriter(path, make_header(precision="bf16 autocast, \n and 'ü'")) as writer:
        for record in written:
            writer.append(record)
    found = Trace.read(path)
    assert (found.header, found.is_torn) == (make_header(precision="bf16 autocast, \n and 'ü'"), False)
    assert [bits(msgspec.structs.asdict(record)) for record in found.updates] == [
        bits(msgspec.structs.asdict(record)) for record in written
    ]

    def refuse(name: str) -> float:
        raise AssertionError(f"{name} is not JSON")

    for line in path.read_bytes().splitlines():  # those of text would cut at other characters too
        json.loads(line, parse_constant=refuse)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return write(tmp_path_factory.mktemp("whole") / "trace.jsonl", make_trace(7, 10)).read_bytes()


def read_bytes(folder: Path, contents: bytes) -> Trace:
    path = folder / "damaged.jsonl"
    path.write_bytes(contents)
    return Trace.read(path)


@given(data=st.data())
def test_a_cut_file_is_read_up_to_its_last_whole_line(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    """Cut anywhere after its header, a trace gives the updates whose lines are whole, and says that it is torn."""
    header = whole.index(b"\n") + 1
    cut = data.draw(st.integers(0, len(whole)))
    folder = tmp_path_factory.mktemp("cut")
    if cut < header:
        with pytest.raises(TraceError, match="line 1"):
            read_bytes(folder, whole[:cut])
        return
    found = read_bytes(folder, whole[:cut])
    num_whole = whole[:cut].count(b"\n") - 1
    assert found.updates == make_trace(7, 10).updates[:num_whole]
    assert found.is_torn == (whole[cut - 1 : cut] != b"\n")


@given(data=st.data())
def test_any_other_damage_is_an_error(
    tmp_path_factory: pytest.TempPathFactory, whole: bytes, data: st.DataObject
) -> None:
    """A changed byte, a lost, doubled or moved line, and a line of another trace are found, with file and line."""
    lines = whole.splitlines(keepends=True)
    kind = data.draw(st.sampled_from(["byte", "lost", "doubled", "moved", "foreign"]))
    if kind == "byte":
        at = data.draw(st.integers(0, len(whole) - 2))  # the last line end makes a torn line
        damaged = whole[:at] + bytes([whole[at] ^ data.draw(st.integers(1, 255))]) + whole[at + 1 :]
    else:
        at = data.draw(st.integers(0, len(lines) - 2))
        if kind == "lost":
            lines.pop(at)
        elif kind == "doubled":
            lines.insert(at, lines[at])
        elif kind == "moved":
            lines[at], lines[at + 1] = lines[at + 1], lines[at]
        else:
            folder = tmp_path_factory.mktemp("foreign")
            other = write(folder / "other.jsonl", make_trace(7, 10, run_id="00000000000000bb")).read_bytes()
            at = data.draw(st.integers(1, len(lines) - 1))
            lines[at] = other.splitlines(keepends=True)[at]
        damaged = b"".join(lines)
    with pytest.raises(TraceError, match=r"damaged\.jsonl, line \d"):
        read_bytes(tmp_path_factory.mktemp("damaged"), damaged)


def test_what_is_no_trace_is_told(tmp_path: Path) -> None:
    """A missing file, a directory, a FIFO, another file, and a newer version end in an error of one line."""
    with pytest.raises(TraceError, match="No such file"):
        Trace.read(tmp_path / "none")
    with pytest.raises(TraceError, match="expected the file of a trace"):
        Trace.read(tmp_path)
    os.mkfifo(tmp_path / "fifo")
    with pytest.raises(TraceError, match="expected the file of a trace"):
        Trace.read(tmp_path / "fifo")
    for contents in (b"", b'{"loss": 1}\n', b"\x80\x04\x95\n", b"\n" * 9):
        with pytest.raises(TraceError, match="line 1: expected"):
            read_bytes(tmp_path, contents)
    path = write(tmp_path / "newer.jsonl", make_trace(1, 2))
    with TraceWriter(tmp_path / "newer.jsonl", make_header(schema_version=2), replace=True):
        pass
    with pytest.raises(TraceError, match="schema version 1, which this version reads, found 2"):
        Trace.read(path)


def test_what_is_read_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line, or a number of lines, beyond its bound is an error."""
    path = write(tmp_path / "trace.jsonl", make_trace(0, 4))
    monkeypatch.setattr(trace_module, "UPDATES_MAX", 3)
    with pytest.raises(TraceError, match="at most 3 updates"):
        Trace.read(path)
    monkeypatch.setattr(trace_module, "LINE_BYTES_MAX", 100)
    with pytest.raises(TraceError, match="at most 100 bytes"):
        Trace.read(path)


def test_updates_come_one_after_another(tmp_path: Path) -> None:
    """A line for an update that is not the next one is refused, and the file stays good."""
    with TraceWriter(tmp_path / "trace.jsonl", make_header()) as writer:
        writer.append(make_record(3))
        for update in (3, 5, 2):
            with pytest.raises(UsageError, match="expected update 4"):
                writer.append(make_record(update))
        writer.append(make_record(4))
    assert [record.update for record in Trace.read(tmp_path / "trace.jsonl").updates] == [3, 4]


def test_a_file_is_not_written_over_by_accident(tmp_path: Path) -> None:
    """A name that is taken is refused, unless it is to be replaced; there is never half a header."""
    path = write(tmp_path / "deep" / "trace.jsonl", make_trace(0, 2))
    before = path.read_bytes()
    with pytest.raises(UsageError, match="is there already"):
        TraceWriter(path, make_header())
    assert path.read_bytes() == before
    with TraceWriter(path, make_header(run_id="00000000000000bb"), replace=True):
        assert Trace.read(path).header.run_id == "00000000000000bb"
    assert os.listdir(path.parent) == ["trace.jsonl"]


def test_a_directory_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """A file where a directory should be is a TraceError, not an OSError."""
    (tmp_path / "file").write_text("")
    with pytest.raises(TraceError, match="cannot write"):
        TraceWriter(tmp_path / "file" / "trace.jsonl", make_header())
