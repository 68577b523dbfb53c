"""Rank files: what is written is read back, and trouble with the disk stays with the ledger."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.cursor import Cursor, Recipe
from resumable_data.errors import LedgerCorruptError, LedgerWriteError
from resumable_data.ledger import Ledger, RankHeader, RankWriter, digest_ids, frames
from resumable_data.ledger.columns import COLUMNS
from resumable_data.ledger.frames import RANK_KIND, chain_checksum, make_frame, make_head
from resumable_data.ledger.reader import read_claim, read_rank
from resumable_data.ledger.records import encode_record
from resumable_data.ledger.row_pieces import RowPieces
from resumable_data.order import Sequential
from tests.files import overwrite

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

HEADER = RankHeader("aa", 1, 0, 2, 0, "digest", 256)
BIG = 1 << 60
REAL_WRITE = os.write


def write_some(writer: RankWriter) -> None:
    writer.delivered(0, 0, 0, 2, 4, 0, 0, (1 << 64) - 1)
    writer.delivered(0, 1, 8, 2, 3, 0, 1, 5)
    writer.commit(0, True)
    writer.delivered(1, 0, BIG, 2, 4, 1, 0, 7)
    writer.rewind(1)
    writer.delivered(1, 0, BIG, 2, 4, 1, 0, 7)
    writer.commit(1, False)


def test_records_come_back(tmp_path: Path) -> None:
    """All fields, in order, with the places of commits and rewinds among the deliveries."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    write_some(writer)
    writer.sync()
    writer.close()
    writer.close()
    log = read_rank(path)
    assert (log.header, log.has_end, log.torn_bytes, log.num_bytes) == (HEADER, True, 0, path.stat().st_size)
    deliveries = log.all_deliveries()
    assert deliveries.update.tolist() == [0, 0, 1, 1]
    assert deliveries.index.tolist() == [0, 1, 0, 0]
    assert deliveries.start.tolist() == [0, 8, BIG, BIG]
    assert deliveries.stride.tolist() == [2] * 4
    assert deliveries.count.tolist() == [4, 3, 4, 4]
    assert deliveries.padding.tolist() == [0, 0, 1, 1]
    assert deliveries.filler.tolist() == [0, 1, 0, 0]
    assert deliveries.digest.tolist() == [(1 << 64) - 1, 5, 7, 7]
    assert (log.commits.update.tolist(), log.commits.applied.tolist()) == ([0, 1], [True, False])
    assert log.commits.after.tolist() == [2, 4]
    assert [column.tolist() for column in (log.rewinds.update, log.rewinds.after, log.rewinds.after_commits)] == [
        [1],
        [3],
        [1],
    ]


def test_each_record_is_in_the_file_at_once(tmp_path: Path) -> None:
    """A killed process loses nothing that was recorded: nothing waits in a buffer."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    sizes = [path.stat().st_size]
    write_some(writer)
    assert len(read_rank(path).all_deliveries()) == 4
    assert path.stat().st_size > sizes[0]
    assert not read_rank(path).has_end


def test_a_file_without_records(tmp_path: Path) -> None:
    """A rank that was killed before its first delivery leaves a header, or part of one."""
    path = tmp_path / "rank"
    RankWriter(path, HEADER)
    assert (read_rank(path).header, len(read_rank(path).all_deliveries())) == (HEADER, 0)
    data = path.read_bytes()
    for cut in range(len(data)):
        overwrite(path, data[:cut])
        assert (read_rank(path).header, read_rank(path).torn_bytes) == (None, cut if cut < 16 else cut - 16)


def test_numpy_integers_are_recorded(tmp_path: Path) -> None:
    """Callers may pass numpy's integers as well as Python's."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    values: list[Any] = [*(np.int64(n) for n in (0, 0, 5, 2, 4, 0, 0)), np.uint64((1 << 64) - 1)]
    writer.delivered(*values)
    assert (writer.broken, read_rank(path).all_deliveries().start.tolist()) == (False, [5])


def test_full_ids_are_kept_and_checked(tmp_path: Path) -> None:
    """With ids="full" the IDs are in the file; IDs that are not those of the digest are damage."""
    ledger = Ledger(tmp_path / "ledger", ids="full")
    start = Cursor(recipe=Recipe(order=Sequential(100).describe(), global_batch=8))
    claim = ledger.claim(start, num_replicas=1, microbatch=100, epochs=None, run_id="aa")
    writer = ledger.open_rank(claim, rank=0)
    ids = np.arange(100, dtype=np.int64)
    writer.delivered(0, 0, 0, 1, 100, 0, 0, digest_ids(ids), ids)
    path = ledger.path / "attempt-000001" / "rank-00000.ledger"
    assert ids.astype(np.uint8).tobytes() in path.read_bytes()
    assert read_rank(path).all_deliveries().count.tolist() == [100]
    writer.delivered(0, 1, 0, 1, 100, 0, 0, digest_ids(ids) ^ 1, ids)
    with pytest.raises(LedgerCorruptError, match="expected 100 bytes of IDs with the record's digest"):
        read_rank(path)


def test_digest_mode_keeps_no_ids(tmp_path: Path) -> None:
    """With ids="digest" a record takes some forty bytes however many samples it is about."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    before = path.stat().st_size
    ids = np.arange(100_000, dtype=np.int64)
    writer.delivered(1000, 0, BIG, 8, 100_000, 0, 0, digest_ids(ids), ids)
    assert path.stat().st_size - before < 56


@pytest.mark.parametrize(
    "fail",
    [
        lambda descriptor, data: (_ for _ in ()).throw(OSError(28, "No space left on device")),
        lambda descriptor, data: REAL_WRITE(descriptor, data[:5]),
    ],
    ids=["error", "short write"],
)
def test_a_failed_write_ends_the_ledger_and_nothing_else(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    fail: Callable[[int, bytes], int],
) -> None:
    """It is logged once; what was written before stays readable, and nothing is written after it."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    writer.commit(0, True)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", fail)
        writer.commit(1, True)
    for _ in range(3):
        writer.commit(2, True)
        writer.sync()
    writer.close()
    assert writer.broken
    assert len(caplog.records) == 1
    assert "Training goes on" in caplog.text
    log = read_rank(path)
    assert (log.commits.update.tolist(), log.has_end) == ([0], False)


def test_a_failed_sync_ends_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """After a failed fdatasync nobody knows what is on the disk, so nothing more is claimed."""

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    writer = RankWriter(tmp_path / "rank", HEADER)
    monkeypatch.setattr(os, "fdatasync", fail)
    writer.sync()
    assert writer.broken
    assert "Input/output error" in caplog.text


def test_a_failed_close_ends_the_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """File systems that write late say so when a file is closed; that does not stop training either."""
    real_close = os.close

    def fail(descriptor: int) -> None:
        real_close(descriptor)
        raise OSError(122, "Disk quota exceeded")

    closed, failed = RankWriter(tmp_path / "closed", HEADER), RankWriter(tmp_path / "failed", HEADER)
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", fail)
        closed.close()
        failed.commit(1 << 70, True)  # no record holds it
    assert closed.broken
    assert failed.broken
    assert "Disk quota exceeded" in caplog.records[0].message
    assert len(caplog.records) == 2
    assert read_rank(tmp_path / "closed").has_end


@pytest.mark.parametrize("bad", ["text", None, -(1 << 70), 3.5])
def test_nothing_but_a_log_line_comes_out_of_a_bad_value(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, bad: Any
) -> None:
    """A value that cannot be recorded does not stop training either."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    writer.delivered(0, 0, bad, 1, 1, 0, 0, 1)
    if not writer.broken:
        with pytest.raises(LedgerCorruptError, match="a record of this format"):
            read_rank(path)


def test_a_failed_write_raises_where_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With on_error="raise" the job stops, with the cause."""
    writer = RankWriter(tmp_path / "rank", HEADER, on_error="raise")

    def fail(descriptor: int, data: bytes) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "write", fail)
    with pytest.raises(LedgerWriteError, match="No space left on device"):
        writer.commit(0, True)


def test_records_after_the_end_are_damage(tmp_path: Path) -> None:
    """Nothing follows a file's orderly end, not even part of a frame."""
    path = tmp_path / "rank"
    writer = RankWriter(path, HEADER)
    write_some(writer)
    chain = writer._chain
    writer.close()
    whole = path.read_bytes()
    path.write_bytes(whole + b"\0")
    with pytest.raises(LedgerCorruptError, match="the end of the file"):
        read_rank(path)
    end = whole[-(12 + len(encode_record(_end()))) :]
    again, _ = make_frame(encode_record(_end()), int.from_bytes(end[-8:], "little"))
    path.write_bytes(whole + again)
    assert chain != 0
    with pytest.raises(LedgerCorruptError, match="nothing after the record of the file's end"):
        read_rank(path)


def _end() -> Any:
    from resumable_data.ledger import End

    return End()


@pytest.mark.parametrize(
    "payload",
    [
        b"\xc0",
        msgspec.msgpack.encode([3, 0, 0, 0, 0, 1, 0, 0, 0]),
        msgspec.msgpack.encode([4, -1, True]),
        msgspec.msgpack.encode([9, 1]),
        encode_record(HEADER),
        msgspec.msgpack.encode([4, 1, True]) + b"\xc0",
        b"\x93\x04",
    ],
)
def test_payloads_of_another_format_are_damage(tmp_path: Path, payload: bytes) -> None:
    """Frames whose checksum is right and whose record is none of ours are located."""
    good = encode_record(HEADER), msgspec.msgpack.encode([4, 0, True])
    data = make_head(RANK_KIND)
    chain = chain_checksum(data)
    for one in (*good, payload):
        offset = len(data)
        frame, chain = make_frame(one, chain)
        data += frame
    path = tmp_path / "rank"
    path.write_bytes(data)
    with pytest.raises(LedgerCorruptError, match=f"byte {offset}: expected a record of this format"):
        read_rank(path)


@given(payload=st.binary(min_size=1, max_size=60))
def test_random_payloads_give_only_our_errors(tmp_path_factory: pytest.TempPathFactory, payload: bytes) -> None:
    """Decoding never fails in another way, in rank files and in claims."""
    path = tmp_path_factory.mktemp("fuzz") / "file"
    for kind, first in ((RANK_KIND, [encode_record(HEADER)]), (1, [])):
        data = make_head(kind)
        chain = chain_checksum(data)
        for one in (*first, payload):
            frame, chain = make_frame(one, chain)
            data += frame
        overwrite(path, data)
        with contextlib.suppress(LedgerCorruptError):
            read_rank(path) if kind == RANK_KIND else read_claim(path)


def test_delivered_is_cheap(tmp_path: Path) -> None:
    """A record costs microseconds; the bound is ten times what it takes on a quiet machine."""
    writer = RankWriter(tmp_path / "rank", HEADER)
    best = min(_cost_us(writer) for _ in range(20))
    assert best < 40


def _cost_us(writer: RankWriter) -> float:
    start = time.perf_counter()
    for update in range(500):
        writer.delivered(update, 0, 123456789, 8, 512, 0, 0, 12345678901234567890)
    return (time.perf_counter() - start) / 500 * 1e6


@pytest.mark.parametrize("count", [1, 505, 600, 5000])
def test_full_ids_of_any_microbatch_come_back(tmp_path: Path, count: int) -> None:
    """The first record may be longer than a header may be: the header says how long."""
    ledger = Ledger(tmp_path, ids="full", on_error="raise")
    start = Cursor(recipe=Recipe(order=Sequential(100_000).describe(), global_batch=count))
    claim = ledger.claim(start, num_replicas=1, microbatch=count, epochs=None, run_id="aa")
    writer, ids = ledger.open_rank(claim, rank=0), np.arange(count, dtype=np.int64)
    writer.delivered(0, 0, 0, 1, count, 0, 0, digest_ids(ids), ids)
    writer.close()
    log = read_rank(tmp_path / "attempt-000001" / "rank-00000.ledger")
    assert log.all_deliveries().count.tolist() == [count]
    assert log.has_end


@pytest.mark.parametrize(("length", "width"), [(256, 1), (257, 2), (1 << 16, 2), (1 << 32, 4), ((1 << 32) + 1, 8)])
def test_ids_take_the_fewest_bytes(tmp_path: Path, length: int, width: int) -> None:
    """The largest ID of an order comes back from as few bytes as hold it; one beyond ends the ledger, and is named."""
    ledger = Ledger(tmp_path, ids="full")
    start = Cursor(recipe=Recipe(order=Sequential(length).describe(), global_batch=8))
    claim = ledger.claim(start, num_replicas=1, microbatch=8, epochs=None, run_id="aa")
    writer, ids = ledger.open_rank(claim, rank=0), np.array([length - 1, 0], np.int64)
    writer.delivered(0, 0, 0, 1, 2, 0, 0, digest_ids(ids), ids)
    writer.sync()
    log = read_rank(tmp_path / "attempt-000001" / "rank-00000.ledger")
    assert log.header is not None
    assert (log.header.id_bytes, len(log.all_deliveries()), writer.broken) == (width, 1, False)
    beyond = np.array([1 << 8 * width if width < 8 else -1], np.int64)
    writer.delivered(0, 1, 0, 1, 1, 0, 0, digest_ids(beyond), beyond)
    assert writer.broken


@st.composite
def runs_of_deliveries(draw: st.DrawFn) -> list[tuple[tuple[int, ...], bool]]:
    """Deliveries as runs and jumps: update, index, start, stride, count, padding, filler; committed or not."""
    made: list[tuple[tuple[int, ...], bool]] = []
    update, index, start, stride, count = 0, 0, 0, 2, 3
    for _ in range(draw(st.integers(0, 15))):
        change = draw(st.sampled_from(["again", "next", "next", "shape", "padding", "place"]))
        padding = filler = 0
        start += stride * count
        index += 1
        if change == "next":
            update, index = update + 1, 0
        elif change == "shape":
            stride, count = draw(st.integers(1, 4)), draw(st.integers(0, 4))
        elif change == "padding":
            padding, filler = draw(st.integers(0, count)), draw(st.integers(0, 2))
        elif change == "place":
            update, index, start = (draw(st.integers(0, 1 << 40)) for _ in range(3))
        made.append(((update, index, start, stride, count, padding, filler), draw(st.booleans())))
    return made


@given(runs=runs_of_deliveries(), block=st.sampled_from([1, 50, 100, 1 << 20]), kept=st.sampled_from([0, 3, 100]))
def test_deliveries_that_are_like_the_one_before_come_back(
    tmp_path_factory: pytest.TempPathFactory, runs: list[tuple[tuple[int, ...], bool]], block: int, kept: int
) -> None:
    """Whatever is said in short is read in full, across blocks of any size, kept in memory or read again."""
    path = tmp_path_factory.mktemp("run") / "rank"
    writer = RankWriter(path, HEADER)
    for number, (shape, is_committed) in enumerate(runs):
        update, index, start, stride, count, padding, filler = shape
        writer.delivered(update, index, start, stride, count, padding, filler, number)
        if is_committed:
            writer.commit(update, True)
    writer.close()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(frames, "_BLOCK_BYTES", block)
        log = read_rank(path, keep_records=kept)
        found = log.all_deliveries()
    columns = [getattr(found, name).tolist() for name in COLUMNS[:7]]
    assert list(zip(*columns, strict=True)) == [shape for shape, _ in runs]
    assert found.digest.tolist() == list(range(len(runs)))
    assert found.parts.tolist() == [1] * len(runs)


def test_packed_rows_without_their_pieces_end_the_ledger(tmp_path: Path) -> None:
    """A writer that was promised pieces writes nothing in their place."""
    recipe = Recipe(order={"kind": "packed-rows", "length": 1 << 61, "row_length": 8}, global_batch=4)
    ledger = Ledger(tmp_path / "ledger", ids="full", on_error="raise")
    claim = ledger.claim(Cursor(recipe=recipe), num_replicas=1, microbatch=4, epochs=None, run_id="aa")
    for number, pieces in enumerate((None, RowPieces(*np.array([[0, 1], [0, 1], [0, 1], [0, 1]], np.int64)))):
        writer = ledger.open_rank(claim, rank=0, peer=number)
        assert (writer.needs_pieces, writer.needs_ids) == (True, False)
        with pytest.raises(LedgerWriteError, match="the pieces of 4 rows were not given"):
            writer.delivered(0, 0, 0, 1, 4, 0, 0, 5, pieces=pieces)
        assert writer.broken


@pytest.mark.parametrize("ids", ["digest", "full"])
@pytest.mark.parametrize("fold_rows", [1, 5, 6, 100])
def test_small_microbatches_are_folded_into_one_record(tmp_path: Path, ids: str, fold_rows: int) -> None:
    """Microbatches of one update become records of about fold_rows rows; none is lost when the file is closed."""
    ledger = Ledger(tmp_path, ids=ids, fold_rows=fold_rows)
    start = Cursor(recipe=Recipe(order=Sequential(100).describe(), global_batch=8))
    claim = ledger.claim(start, num_replicas=1, microbatch=8, epochs=None, run_id="aa")
    writer, position = ledger.open_rank(claim, rank=0), 0
    for update in range(2):
        for index in range(5):
            rows = np.arange(position, position + 2, dtype=np.int64)
            writer.delivered(update, index, position, 1, 2, 0, 0, digest_ids(rows), rows, is_last=index == 4)
            position += 2
    rows = np.arange(20, 22, dtype=np.int64)
    writer.delivered(2, 0, 20, 1, 2, 0, 0, digest_ids(rows), rows, is_last=False)
    writer.close()
    found = read_rank(tmp_path / "attempt-000001" / "rank-00000.ledger").all_deliveries()
    size = {1: 1, 5: 3, 6: 3, 100: 5}[fold_rows]
    parts = [min(size, 5 - first) for first in range(0, 5, size)]
    assert found.parts.tolist() == [*parts, *parts, 1]
    assert found.count.tolist() == [2 * n for n in [*parts, *parts, 1]]
    starts = np.cumsum([0, *found.count.tolist()])[:-1]
    assert found.start.tolist() == starts.tolist()
    wanted = [digest_ids(np.arange(s, s + c)) for s, c in zip(starts.tolist(), found.count.tolist(), strict=True)]
    assert found.digest.tolist() == wanted
