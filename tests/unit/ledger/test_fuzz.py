"""Every decoder of a ledger, given random and mutated bytes: errors of ours alone, and memory within a bound."""

from __future__ import annotations

import os
import random
import socket
import tracemalloc
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.audit import audit_ledger
from resumable_data.cursor import CoverageSpan, Cursor, Recipe
from resumable_data.errors import LedgerCorruptError, LedgerError, ResumableDataError
from resumable_data.ledger import Ledger, RankHeader, TakenOver, digest_ids
from resumable_data.ledger.frames import (
    CLAIM_KIND,
    FORMAT_VERSION,
    HEADER_BYTES_MAX,
    PIECES_VERSION,
    RANK_KIND,
    FrameReader,
    chain_checksum,
    make_frame,
    make_head,
    measure,
    open_regular,
)
from resumable_data.ledger.frequent import read_frequent
from resumable_data.ledger.reader import read_claim, read_rank
from resumable_data.ledger.records import (
    Again,
    Agreed,
    Commit,
    Delivered,
    End,
    Jump,
    Rewind,
    Saved,
    Unreadable,
    encode_record,
    record_decoder,
)
from resumable_data.order import Sequential
from tests.examples import examples
from tests.files import overwrite
from tests.packed_jobs import PackedJob, make_packed
from tests.texts import texts

PEAK_BYTES_MAX = 16 << 20
HEADER = RankHeader("aa", 1, 0, 2, 0, "digest", 256)
START = Cursor(recipe=Recipe(order=Sequential(100).describe(), global_batch=8))
IDS = [bytes(255), bytes(256), bytes(65_535), bytes(65_536)]  # where msgpack takes another head
RECORDS = [
    Delivered(0, 0, 0, 2, 4, 0, 0, 5),
    Again(False, (1 << 64) - 1),
    Again(True, 3),
    Commit(0, True),
    Commit(200, False),
    Commit(1 << 61, True),
    Delivered(1, 0, 8, 2, 4, 1, 1, 1 << 63, None, 3),
    Unreadable(1, 0, 8, 8),
    Rewind(1),
    Jump(2, 100),
    Agreed(1, 0, 8, 1, 1 << 63),
    Saved(1),
    End(),
]


def file_of(kind: int, payloads: list[bytes], version: int = FORMAT_VERSION) -> bytes:
    data = make_head(kind, version)
    chain = chain_checksum(data)
    for payload in payloads:
        frame, chain = make_frame(payload, chain)
        data += frame
    return data


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fuzz")


@pytest.fixture(scope="module")
def good(folder: Path) -> dict[str, bytes]:
    """Claims, and rank files with digests, full IDs, folded records and pieces, as they are written."""
    files = {"pieces": file_with_pieces(folder)}
    for name, options in (("digest", {}), ("full", {"ids": "full"}), ("fold", {"fold_rows": 3, "key": "x"})):
        ledger = Ledger(folder / name, on_error="raise", **options)
        claim = ledger.claim(START, num_replicas=1, microbatch=2, epochs=None, run_id="aa")
        writer, position = ledger.open_rank(claim, rank=0), 0
        for update in range(4):
            for index in range(4):
                ids = np.arange(position, position + 2, dtype=np.int64)
                writer.delivered(update, index, position, 1, 2, 0, 0, digest_ids(ids), ids, is_last=index == 3)
                position += 2
            writer.commit(update, True)
            writer.agreed(update + 1, CoverageSpan(0, position, (1, 2)))
        writer.rewind(4)
        writer.close()
        files[name] = (ledger.path / "attempt-000001" / "rank-00000.ledger").read_bytes()
        files["claim"] = (ledger.path / "attempt-000001" / "claim").read_bytes()
        inside = TakenOver(5, 1)
        ledger.claim(START, num_replicas=1, microbatch=2, epochs=None, run_id="aa", taken_over=inside)
        files["claim inside"] = (ledger.path / "attempt-000002" / "claim").read_bytes()
    return files


def file_with_pieces(folder: Path) -> bytes:
    ledger = Ledger(folder / "pieces", ids="full", on_error="raise")
    job = PackedJob(make_packed(), 1, global_batch=3, microbatch=2, epochs=1, ledger=ledger)
    with job:
        job.train(5)
    return (ledger.path / "attempt-000001" / "rank-00000.ledger").read_bytes()


def mutated(data: bytes, rng: random.Random) -> bytes:
    """Bits flipped, pieces cut out, repeated, moved, overwritten or exchanged for random bytes."""
    out = bytearray(data)
    for _ in range(rng.randint(1, 4)):
        at, size = rng.randrange(len(out) + 1), rng.choice([1, 2, 4, 8, 12, 40])
        piece = bytes(out[at : at + size])
        kind = rng.randrange(7)
        if kind == 0 and at < len(out):
            out[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del out[at : at + size]
        elif kind == 2:
            out[at:at] = piece
        elif kind == 3:
            to = rng.randrange(len(out) + 1)
            out[to : to + size] = piece
        elif kind == 4:
            out[at : at + size] = rng.randbytes(size)
        elif kind == 5:
            out[at : at + size] = rng.choice([b"\0", b"\xff"]) * size
        else:
            del out[at:]
    return bytes(out)


def read(path: Path, name: str) -> None:
    """Read a file as the audit does; an error of ours is as good as a result."""
    try:
        if name.startswith("claim"):
            read_claim(path)
        else:
            for salvage in (False, True):
                log = read_rank(path, salvage=salvage, keep_records=0)
                assert len(log.all_deliveries()) == log.num_deliveries
                if log.has_pieces and not log.damage:
                    for deliveries, pieces in log.deliveries_with_pieces():
                        assert len(pieces) == deliveries.count.sum()
    except LedgerError:
        pass


def read_within_bounds(path: Path, name: str) -> None:
    tracemalloc.start()
    try:
        read(path, name)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < PEAK_BYTES_MAX


@pytest.mark.parametrize("name", ["claim", "claim inside", "digest", "full", "fold", "pieces"])
@examples(150, quick=50)
@given(seed=st.integers(0, 1 << 32))
def test_mutated_files(folder: Path, good: dict[str, bytes], name: str, seed: int) -> None:
    """Whatever befalls a file, it is read or refused."""
    path = folder / "mutated"
    overwrite(path, mutated(good[name], random.Random(seed)))
    read_within_bounds(path, name)


@pytest.mark.parametrize("name", ["claim", "digest"])
@given(data=st.binary(max_size=200))
def test_random_files(folder: Path, name: str, data: bytes) -> None:
    """Random bytes, with and without the head of a file before them."""
    path = folder / "random"
    for head in (b"", make_head(CLAIM_KIND if name == "claim" else RANK_KIND)):
        overwrite(path, head + data)
        read_within_bounds(path, name)


@pytest.mark.parametrize("name", ["claim", "claim inside", "digest", "full", "fold", "pieces"])
@examples(150, quick=50)
@given(seed=st.integers(0, 1 << 32))
def test_mutated_records_under_right_checksums(folder: Path, good: dict[str, bytes], name: str, seed: int) -> None:
    """The decoders of records do not rely on checksums: one record is changed, and framed again."""
    rng, path = random.Random(seed), folder / "reframed"
    kind = CLAIM_KIND if name.startswith("claim") else RANK_KIND
    overwrite(path, good[name])
    with open_regular(path) as file:
        reader = FrameReader(file, path, kind=kind, payload_bytes_max=1 << 20)
        payloads = [one for _, batch in reader.blocks() for one in batch]
    for _ in range(rng.randint(1, 2)):
        number = rng.randrange(len(payloads))
        payloads[number] = mutated(payloads[number], rng)[: HEADER_BYTES_MAX - 1] or b"\xc0"
    overwrite(path, file_of(kind, payloads, PIECES_VERSION if name == "pieces" else FORMAT_VERSION))
    read_within_bounds(path, name)


def test_pieces_torn_anywhere(folder: Path, good: dict[str, bytes]) -> None:
    """A file that ends anywhere is read up to the tear, with the pieces of what is whole."""
    path, data = folder / "torn", good["pieces"]
    overwrite(path, data)
    rows = [pieces.of_row(row) for _, pieces in read_rank(path).deliveries_with_pieces() for row in range(len(pieces))]
    assert len(rows) == 15
    last = 0
    for size in range(len(data)):
        overwrite(path, data[:size])
        log = read_rank(path)
        found = [] if log.header is None else list(log.deliveries_with_pieces())
        held = [pieces.of_row(row) for _, pieces in found for row in range(len(pieces))]
        assert held == rows[: len(held)]
        assert log.torn_bytes == size - log.num_bytes
        last = max(last, len(held))
    assert last == 15


@pytest.mark.parametrize(("ids", "version"), [("pieces", FORMAT_VERSION), ("full", PIECES_VERSION), ("digest", 2)])
def test_pieces_are_of_their_own_version(tmp_path: Path, ids: str, version: int) -> None:
    """A file of version 1 holds none, and one of version 2 nothing else."""
    header = encode_record(msgspec.structs.replace(HEADER, ids=ids))
    overwrite(tmp_path / "file", file_of(RANK_KIND, [header], version))
    with pytest.raises(
        LedgerCorruptError, match=f"version 2, and only there, found '{ids}' in one of version {version}"
    ):
        read_rank(tmp_path / "file")


@pytest.mark.parametrize("length", [257, 1 << 16, 1 << 31, (1 << 32) - 1])
def test_a_forged_length_allocates_nothing(tmp_path: Path, length: int) -> None:
    """A file of a few bytes whose frame says that gigabytes follow is refused, or torn, for the price of its bytes."""
    header = encode_record(msgspec.structs.replace(HEADER, payload_bytes_max=1 << 31))
    path = tmp_path / "file"
    overwrite(path, file_of(RANK_KIND, [header]) + length.to_bytes(4, "little") + bytes(100))
    read_within_bounds(path, "digest")
    # the lengths within msgpack: an array, a text, bytes and a map of so many items
    for mark in (b"\xdd", b"\xdb", b"\xc6", b"\xdf"):
        for payload in (mark + length.to_bytes(4, "big"), b"\x99\x03\x00\x00" + mark + length.to_bytes(4, "big")):
            overwrite(path, file_of(RANK_KIND, [header, payload]))
            read_within_bounds(path, "digest")
            overwrite(path, file_of(CLAIM_KIND, [payload]))
            read_within_bounds(path, "claim")


@given(depth=st.integers(1, 4000))
def test_nesting_is_refused(folder: Path, depth: int) -> None:
    """Arrays in arrays in arrays are not followed until the stack ends."""
    path = folder / "nested"
    for kind, first in ((CLAIM_KIND, []), (RANK_KIND, [encode_record(HEADER)])):
        overwrite(path, file_of(kind, [*first, b"\x91" * depth + b"\xc0"]))
        with pytest.raises(LedgerCorruptError):
            read_claim(path) if kind == CLAIM_KIND else read_rank(path)


@st.composite
def payloads(draw: st.DrawFn) -> bytes:
    """Records as the writer encodes them, as others may encode them, and mutated."""
    record = draw(st.sampled_from(RECORDS))
    if isinstance(record, Commit) and draw(st.booleans()):
        record = Commit(draw(st.integers(0, 1 << 61)), draw(st.booleans()))
    if isinstance(record, Again) and draw(st.booleans()):
        record = Again(
            draw(st.booleans()),
            draw(st.integers(0, (1 << 64) - 1)),
            draw(st.none() | st.binary(max_size=9) | st.sampled_from(IDS)),
        )
    data = encode_record(record)
    if draw(st.booleans()):
        return data
    kind = draw(st.sampled_from(["bytes", "wide", "signed", "mutated"]))
    if kind == "bytes":
        return draw(st.binary(min_size=1, max_size=14))
    if kind == "mutated":
        return mutated(data, random.Random(draw(st.integers(0, 1 << 32)))) or b"\xc0"
    size, unsigned, signed = draw(st.sampled_from([(1, 0xCC, 0xD0), (2, 0xCD, 0xD1), (4, 0xCE, 0xD2), (8, 0xCF, 0xD3)]))
    mark = signed if kind == "signed" else unsigned
    number = bytes([mark]) + draw(st.integers(0, 200)).to_bytes(8, "big")[-size:]
    return b"\x93\x04" + number + draw(st.sampled_from([b"\xc2", b"\xc3", b"\xc0"]))


@examples(150, quick=50)
@given(batch=st.lists(payloads(), max_size=12))
def test_the_quick_reader_agrees_with_the_decoder(batch: list[bytes]) -> None:
    """What the reader of frequent records takes is what the decoder makes of it; the rest is left, in order."""
    agains, commits, left = read_frequent(batch)
    taken: dict[int, Any] = {}
    ids = {
        int(number): row.tobytes() for kept in agains.kept for number, row in zip(kept.number, kept.ids, strict=True)
    }
    for number, is_next, digest in zip(*(column.tolist() for column in agains[:3]), strict=True):
        taken[number] = Again(is_next, digest, ids.get(number))
    assert ids.keys() <= taken.keys()
    for number, update, applied in zip(*(column.tolist() for column in commits), strict=True):
        taken[number] = Commit(update, applied)
    assert sorted([*taken, *left]) == list(range(len(batch)))
    assert left == sorted(left)
    for number, record in taken.items():
        assert record_decoder.decode(batch[number]) == record


@examples(200, quick=60)
@given(batch=st.lists(payloads(), max_size=12), block=st.sampled_from([1, 30, 1 << 20]))
def test_a_file_says_what_its_records_say(folder: Path, batch: list[bytes], block: int) -> None:
    """Commits, rewinds and deliveries of any file are those of its records one by one, or the file is refused."""
    path = folder / "records"
    overwrite(path, file_of(RANK_KIND, [encode_record(HEADER), *batch]))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resumable_data.ledger.frames._BLOCK_BYTES", block)
        try:
            log = read_rank(path)
        except LedgerError:
            return
    records = [record_decoder.decode(payload) for payload in batch]
    commits = [(one.update, one.applied) for one in records if isinstance(one, Commit)]
    assert list(zip(log.commits.update.tolist(), log.commits.applied.tolist(), strict=True)) == commits
    assert log.rewinds.update.tolist() == [one.update for one in records if isinstance(one, Rewind)]
    assert log.saved.tolist() == [one.update for one in records if isinstance(one, Saved)]
    assert list(log.agreements) == [one for one in records if isinstance(one, Agreed)]
    digests = [one.digest for one in records if isinstance(one, Delivered | Again)]
    assert log.all_deliveries().digest.tolist() == digests
    after = [sum(isinstance(one, Delivered | Again) for one in records[:n]) for n in range(len(records))]
    assert log.commits.after.tolist() == [after[n] for n, one in enumerate(records) if isinstance(one, Commit)]


@pytest.mark.parametrize("kind", ["link", "dangling", "loop", "pipe", "directory", "device", "socket"])
@pytest.mark.parametrize("name", ["claim", "rank-00000.ledger", "rank-00000-peer-00001.ledger"])
def test_what_is_no_regular_file_is_refused(tmp_path: Path, name: str, kind: str) -> None:
    """Neither is it opened, nor waited for; the message says which it is."""
    ledger = Ledger(tmp_path / "ledger", on_error="raise", peers=True)
    claim = ledger.claim(START, num_replicas=1, microbatch=2, epochs=None, run_id="aa")
    for peer in (0, 1):
        ledger.open_rank(claim, rank=0, peer=peer).close()
    path = ledger.path / "attempt-000001" / name
    data = path.read_bytes()
    path.unlink()
    put(path, kind, data)
    with pytest.raises(LedgerCorruptError, match=name):
        audit_ledger(ledger.path)
    with pytest.raises(LedgerError, match=name):
        measure(path)


def put(path: Path, kind: str, data: bytes) -> None:
    if kind == "link":
        path.with_name(".claim-0").write_bytes(data)
        path.symlink_to(".claim-0")
    elif kind == "dangling":
        path.symlink_to("nothing")
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "directory":
        path.mkdir()
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        with socket.socket(socket.AF_UNIX) as one:
            # by a short way: the address of a socket has room for about a hundred characters
            folder = os.open(path.parent, os.O_RDONLY)
            one.bind(f"/proc/self/fd/{folder}/{path.name}")
            os.close(folder)


@pytest.mark.parametrize("path", ["/dev/zero", "/dev/null", "/proc/self", "/"])
def test_devices_and_directories_are_not_opened_as_files(path: str) -> None:
    """A path may be anything; only a regular file is read."""
    with pytest.raises(LedgerError):
        measure(Path(path))


@given(name=texts(min_size=1, max_size=20, without="/\0").filter(lambda name: name not in (".", "..")))
def test_names_of_any_characters_are_shown_escaped(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    """No name in a ledger reaches the terminal as control characters, nor keeps the rest from being audited."""
    ledger = Ledger(tmp_path_factory.mktemp("names") / "ledger", on_error="raise")
    claim = ledger.claim(START, num_replicas=1, microbatch=2, epochs=None, run_id="aa")
    ledger.open_rank(claim, rank=0).close()
    for folder in (ledger.path, ledger.path / "attempt-000001"):
        try:
            (folder / name).write_bytes(b"x")
        except OSError:
            return
    try:
        text = audit_ledger(ledger.path).to_text()
    except ResumableDataError as error:
        text = str(error)
    assert all(line.isprintable() for line in text.split("\n"))


@settings(max_examples=30)
@given(run_id=texts(max_size=30))
def test_texts_in_records_are_shown_escaped(tmp_path_factory: pytest.TempPathFactory, run_id: str) -> None:
    """A run's name may hold anything, and reaches the terminal as printable characters."""
    ledger = Ledger(tmp_path_factory.mktemp("names") / "ledger", on_error="raise")
    for name in (run_id, run_id + "\x1b[2J\r"):
        claim = ledger.claim(START, num_replicas=1, microbatch=2, epochs=None, run_id=name)
        ledger.open_rank(claim, rank=0).close()
    text = audit_ledger(ledger.path).to_text()
    assert "RD111" in text
    assert all(line.isprintable() for line in text.split("\n"))
