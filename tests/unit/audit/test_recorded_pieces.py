"""Tokens by recorded pieces: proven for honest ledgers; a piece that is another one is named, whoever made it so.

What is in the files is read by `tests.pieces_oracle`, and tokens are counted one by one.
"""

from __future__ import annotations

import contextlib
import shutil
import tracemalloc
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data import BestFit, Concat, Fill, NoPacking, Sequential
from resumable_data.audit import piece_sums, tokens
from resumable_data.errors import LedgerCorruptError, ResumableDataError
from resumable_data.ledger import Commit, Delivered, Rewind
from resumable_data.ledger.frames import RANK_KIND, FrameReader, open_regular
from resumable_data.ledger.records import record_decoder
from resumable_data.lookup import Walk, find_document
from resumable_data.packing import PackedRows
from tests.examples import examples
from tests.packed_jobs import LENGTHS, POLICIES, make_packed, make_source
from tests.pieces_oracle import Rows, decode, digest_of, encode
from tests.unit.audit.forging import EXTREMES, forge, numbers_in
from tests.unit.audit.test_lies import edit_rank, written_out
from tests.unit.audit.test_packed_audit import (
    PEAK_BYTES_MAX,
    LedgerRun,
    Losing,
    Swapped,
    chain_of,
    codes,
    lose_first,
    lose_last,
    trade,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable_data import AuditReport
    from resumable_data.ledger.records import RankRecord
    from resumable_data.order import Int64Array
    from resumable_data.packing import Policy
    from tests.unit.audit.forging import Place

    Change = Callable[[Rows], object]

TOKEN_CODES = {"RD212", "RD213", "RD214"}


def full(path: Path, policy: Policy | None = None, **options: Any) -> LedgerRun:
    """A run whose ledger holds pieces."""
    return LedgerRun(path, policy, ids="full", **options)


class Held(NamedTuple):
    """A committed row, as a file tells it."""

    attempt: int
    rank: int
    update: int
    position: int
    pieces: list[tuple[int, int, int]]


def committed(run: LedgerRun, stops: dict[int, int]) -> list[Held]:
    """All rows before the update in `stops` of each attempt that no rewind took back, record by record."""
    rows = []
    for file in sorted(run.path.rglob("*.ledger")):
        attempt, rank = int(file.parent.name[8:]), int(file.name[5:10])
        with open_regular(file) as opened:
            frames = FrameReader(opened, file, kind=RANK_KIND, payload_bytes_max=1 << 20)
            frames.first()
            records = [record_decoder.decode(one) for _, payloads in frames.blocks() for one in payloads]
        own: list[Held] = []
        for record in written_out(records):
            if isinstance(record, Rewind):
                own = [row for row in own if row.update < record.update]
            if isinstance(record, Delivered) and record.update < stops[attempt]:
                places = [record.start + n * record.stride for n in range(record.count)]
                held = decode(record.ids or b"", record.count)
                assert held is not None
                own += [Held(attempt, rank, record.update, *one) for one in zip(places, held, strict=True)]
        rows += own
    return sorted(rows, key=lambda row: row.position)


def stops_of(report: AuditReport) -> dict[int, int]:
    """Up to which update each attempt survives."""
    return {one.attempt: one.stop_update if one.survives else 0 for one in report.attempts}


def expect_honest(run: LedgerRun) -> None:
    """Proven, all rows by their pieces; and by counting tokens one by one."""
    report = run.audit()
    assert report.verdict == "proven", report.to_text()
    assert report.piece_rows == report.position == run.cursor.position
    assert f"of {report.position} rows recorded" in report.to_text()
    rows = committed(run, stops_of(report))
    assert [row.position for row in rows] == list(range(report.position))
    assert [row.pieces for row in rows] == pieces_of(run)[: len(rows)]
    seen = Counter((piece[0], token) for row in rows for piece in row.pieces for token in range(*piece[1:]))
    assert run.cursor.packed
    assert max(seen.values()) <= run.cursor.packed.epoch + 1
    assert sum(seen.values()) == run.cursor.packed.tokens


def pieces_of(run: LedgerRun) -> list[list[tuple[int, int, int]]]:
    """The rows of all epochs."""
    return [row.pieces for epoch in range(run.epochs) for row in run.packed.rows(epoch)]


# Honest runs


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_honest_runs_are_proven_by_their_pieces(tmp_path: Path, policy: Policy) -> None:
    """2 -> 3 -> 1 ranks in the middle of windows; then across ends of epochs; then to the end."""
    run = chain_of(full(tmp_path, policy))
    expect_honest(run)
    for num_updates in (4, None):
        run.launch(num_updates, 2, 3)
        expect_honest(run)


@pytest.mark.parametrize("options", [{"fold_rows": 4}, {"batch": {"global_batch_tokens": 45}}], ids=str)
def test_folded_records_and_updates_by_tokens(tmp_path: Path, options: dict[str, Any]) -> None:
    """Whatever a record is of, it holds the pieces of its rows."""
    run = full(tmp_path, Concat(), **options)
    run.launch(3, 2, 1)
    run.launch(9, 3, 2)
    expect_honest(run)


@examples(8, quick=4)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any),
    policy=st.sampled_from(POLICIES),
    window=st.integers(1, 6),
    row_length=st.integers(1, 10),
    launches=st.lists(st.tuples(st.integers(0, 5), st.integers(1, 3), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_any_honest_run_is_proven_by_its_pieces(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    policy: Policy,
    window: int,
    row_length: int,
    launches: list[tuple[int, int, int]],
) -> None:
    """Whatever the documents, the packing and the chain, windows without rows among them."""
    packed = make_packed(lengths, policy=policy, window=window, sequence_length=row_length)
    run = full(tmp_path_factory.mktemp("run"), packed=packed, epochs=2, batch={"global_batch": 3})
    for launch in launches:
        if run.cursor.position == len(pieces_of(run)):
            break
        left = -(-(len(pieces_of(run)) - run.cursor.position) // 3)
        run.launch(min(launch[0], left), *launch[1:])
    report = run.audit()
    assert report.verdict == "proven", report.to_text()
    assert (report.piece_rows or 0) == report.position


def test_several_processes_say_the_same(tmp_path: Path) -> None:
    """With `jobs`, which reads rank files elsewhere, pieces are counted as without."""
    run = full(tmp_path)
    run.launch(6, 2, 2)
    assert run.audit(jobs=2).to_json() == run.audit().to_json()


def test_a_ledger_of_digests_tells_no_pieces(tmp_path: Path) -> None:
    """Nothing is counted by pieces that nobody wrote down, and the plan alone proves as much as it did."""
    run = chain_of(LedgerRun(tmp_path))
    report = run.audit()
    assert (report.verdict, report.piece_rows) == ("proven", msgspec.UNSET)
    assert b"piece_rows" not in report.to_json()


def test_epochs_that_are_recorded_in_part(tmp_path: Path) -> None:
    """Digests up to the middle of an epoch and pieces from there on: whole epochs of pieces are counted."""
    run = LedgerRun(tmp_path)
    run.launch(3, 2, 2)
    run.ledger.ids = "full"
    run.launch(None, 3, 2)
    report = run.audit()
    per_epoch = [run.packed.count_rows(epoch) for epoch in range(4)]
    assert (report.verdict, report.piece_rows) == ("proven", sum(per_epoch[1:]))


def test_rows_in_another_order_than_the_plan_hold_each_token_once(tmp_path: Path) -> None:
    """What a policy does otherwise now is found by the IDs; tokens were counted all the same, and are right."""
    run = full(tmp_path, packed=Swapped(make_source(LENGTHS), sequence_length=8, window=6))
    run.launch(8, 2, 2)
    report = run.audit(packed=make_packed())
    assert report.verdict == "violated"
    assert "RD204" in codes(report)
    assert not TOKEN_CODES & set(codes(report))
    assert report.piece_rows == report.position


@pytest.mark.parametrize("fault", [lose_last, lose_first, trade])
def test_a_policy_that_loses_a_token_is_found_by_pieces(
    tmp_path: Path, fault: Callable[[dict[str, Int64Array]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows are as planned, and each ID is right: the documents tell that a token is in none of them."""
    monkeypatch.setattr(PackedRows, "check", lambda self, lengths: None)
    run = full(tmp_path, packed=make_packed([5, 3, 8, 2, 6, 4], policy=Losing(fault)), batch={"global_batch": 2})
    run.launch(None, 1, 2, ahead=0)
    found = codes(run.audit())
    assert {"RD211", "RD213"} <= set(found)
    assert "RD204" not in found


class Shortened:
    """A user's policy that leaves out the last token of every document of five tokens or more, and says so."""

    def pack(self, lengths: Int64Array, row_length: int) -> PackedRows:
        kept = np.where(lengths >= 5, lengths - 1, lengths)
        rows = NoPacking().pack(kept, row_length)
        number = int((kept < lengths).sum())
        return replace(rows, num_truncated_documents=number, num_truncated_tokens=number)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "shortened", "version": 1}


def test_a_rule_of_ones_own_for_truncation_is_noted(tmp_path: Path) -> None:
    """Where documents end is then the policy's word: what is proven is what the plan proves, and that is said."""
    run = full(tmp_path, packed=make_packed(policy=Shortened()))
    run.launch(6, 2, 2)
    report = run.audit()
    assert (report.verdict, codes(report), report.piece_rows) == ("proven", ["RD216"], msgspec.UNSET)


# Lies


def changed(number: int, change: Change, *, digest: bool) -> Callable[[list[RankRecord]], list[RankRecord]]:
    """The rows of a file's delivery of this number are changed; with `digest` its digest is made right."""

    def edit(records: list[RankRecord]) -> list[RankRecord]:
        where = [n for n, record in enumerate(records) if isinstance(record, Delivered)][number]
        record = records[where]
        assert isinstance(record, Delivered)
        rows = decode(record.ids or b"", record.count)
        assert rows is not None
        if rows:  # else there is filler only
            change(rows)
        values: dict[str, Any] = {"ids": encode(rows)} | ({"digest": digest_of(rows)} if digest else {})
        return [*records[:where], msgspec.structs.replace(record, **values), *records[where + 1 :]]

    return edit


def shift(rows: Rows) -> None:
    document, start, stop = rows[0][0]
    rows[0][0] = (document, start + 1, stop + 1)


def shorten(rows: Rows) -> None:
    document, start, stop = rows[0][0]
    rows[0][0] = (document, start, stop - 1) if stop - start > 1 else (document + 1, start, stop)


def drop(rows: Rows) -> None:
    rows[0] = rows[0][1:] or [(0, 0, 1)]


def double(rows: Rows) -> None:
    rows[0].append(rows[0][-1])


def swap(rows: Rows) -> None:
    rows[0][0], rows[1][0] = rows[1][0], rows[0][0]


def other_document(rows: Rows) -> None:
    rows[0][0] = (3, *rows[0][0][1:])  # of 12 tokens


def beyond(rows: Rows) -> None:
    document, start, _ = rows[0][0]
    rows[0][0] = (document, start, LENGTHS[document] + 1)


def unknown(rows: Rows) -> None:
    rows[0][0] = (len(LENGTHS), 0, 1)


def far_away(rows: Rows) -> None:
    rows[0][0] = (2**60 - 1, 2**60 - 1, 2**60)


CHANGES = [shift, shorten, drop, double, swap, other_document, beyond, unknown, far_away]


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> dict[str, LedgerRun]:
    """Runs of several policies: two whole epochs and some, on 2, 3 and 1 ranks."""
    runs = {}
    for name, policy in (("best-fit", BestFit()), ("fill", Fill()), ("concat", Concat()), ("cut", NoPacking(True))):
        run = runs[name] = full(tmp_path_factory.mktemp(name), policy)
        run.launch(4, 2, 2)
        run.launch(4, 3, 1)
        run.launch(5, 1, 3)
        assert run.audit().verdict == "proven"
    return runs


def copy_of(run: LedgerRun, path: Path) -> LedgerRun:
    """The same run with a ledger to lie in."""
    other = LedgerRun(path, packed=run.packed)
    shutil.rmtree(other.path, ignore_errors=True)
    shutil.copytree(run.path, other.path)
    return other


@pytest.mark.parametrize("digest", [False, True], ids=["", "with its digest"])
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
@pytest.mark.parametrize("name", ["best-fit", "cut"])
def test_a_changed_piece_is_named(
    tmp_path: Path, honest: dict[str, LedgerRun], name: str, change: Change, digest: bool
) -> None:
    """Checksums are right, and perhaps the digest: what contradicts it is said, with documents and tokens."""
    run = copy_of(honest[name], tmp_path)
    edit_rank(run, 1, 0, changed(0, change, digest=digest))
    report = run.audit()
    found = set(codes(report))
    assert report.verdict == "violated", report.to_text()
    assert ("RD204" in found, "RD215" in found) == (digest, not digest)
    assert bool(found & TOKEN_CODES) == (change is not swap), report.to_text()
    for one in report.findings:
        if one.code in TOKEN_CODES:
            assert "document" in one.found
            assert "tokens [" in one.found


@examples(15, quick=6)
@given(data=st.data())
def test_findings_are_what_counting_finds(
    tmp_path_factory: pytest.TempPathFactory, honest: dict[str, LedgerRun], data: st.DataObject
) -> None:
    """Any few changes of any rows of a whole epoch: a token is told as held twice or never where counting says so."""
    run = copy_of(honest[data.draw(st.sampled_from(sorted(honest)))], tmp_path_factory.mktemp("lie"))
    stops = stops_of(run.audit())
    before = committed(run, stops)
    for _ in range(data.draw(st.integers(1, 2))):
        attempt = data.draw(st.sampled_from([1, 2, 3]))
        rank = data.draw(st.integers(0, [2, 3, 1][attempt - 1] - 1))
        change = data.draw(st.sampled_from([shift, shorten, drop, double, other_document]))
        number = data.draw(st.integers(0, 2))
        digest = data.draw(st.booleans())
        edit_rank(run, attempt, rank, changed(number, change, digest=digest))
    report, rows = run.audit(), committed(run, stops)
    if [row.pieces for row in rows] == [row.pieces for row in before]:
        return
    assert report.verdict == "violated"
    first, wanted = 0, set()
    keeps = run.packed.sequence_length if run.packed.truncates else 2**60
    for epoch in range(2):
        stop = first + run.packed.count_rows(epoch)
        pieces = [piece for row in rows[first:stop] for piece in row.pieces]
        first = stop
        inside = [p for p in pieces if p[2] <= min(keeps, LENGTHS[p[0]])]
        seen = Counter((document, token) for document, *span in inside for token in range(*span))
        expected = {(d, token) for d, length in enumerate(LENGTHS) for token in range(min(keeps, length))}
        wanted |= {("RD212", epoch)} if max(seen.values()) > 1 else set()
        wanted |= {("RD213", epoch)} if expected - set(seen) else set()
    told = {(one.code, int(one.where.split()[1])) for one in report.findings if one.code in ("RD212", "RD213")}
    assert {one for one in told if one[1] < 2} == wanted, report.to_text()


def test_the_first_document_and_its_tokens_are_said(tmp_path: Path) -> None:
    """Tokens [2, 4) of document 1 in no row, and [4, 6) in two; counted in ranges."""
    packed = make_packed([4, 8, 6], policy=NoPacking(), order=Sequential(3), window=3)
    run = full(tmp_path, packed=packed, epochs=1, batch={"global_batch": 3})
    run.launch(None, 1, 3, ahead=0)

    def change(rows: Rows) -> None:
        where = next(n for n, row in enumerate(rows) if row[0][0] == 1)
        rows[where] = [(1, 0, 2), (1, 4, 8)]
        rows[(where + 1) % 3].append((1, 4, 6))

    edit_rank(run, 1, 0, changed(0, change, digest=True))
    report = run.audit()
    found = {one.code: (one.where, one.found) for one in report.findings}
    assert found["RD212"] == ("epoch 0", "document 1, tokens [4, 6), twice")
    assert found["RD213"] == ("epoch 0", "document 1, tokens [2, 4), in none")


def test_a_window_that_is_not_at_its_end(tmp_path: Path) -> None:
    """Of its rows, tokens held twice, and documents of windows before and behind, are found; none is missing yet."""
    for policy, change, code in (
        (BestFit(), double, "RD212"),
        (BestFit(), lambda rows: rows[0].__setitem__(0, (0, 0, 1)), "RD214"),
        (BestFit(), lambda rows: rows[0].__setitem__(0, (19, 0, 1)), "RD214"),
        (Concat(), double, "RD212"),
    ):
        name = f"{policy!r}-{code}-{len(list(tmp_path.iterdir()))}"
        packed = make_packed(policy=policy, order=Sequential(20))
        run = full(tmp_path / name, packed=packed, epochs=1, batch={"global_batch": 1})
        second = next(n for n, row in enumerate(packed.rows()) if row.window == 1)
        run.launch(second + 2, 1, 1, ahead=0)
        expect_honest(run)
        edit_rank(run, 1, 0, changed(second + 1, change, digest=True))
        found = codes(run.audit())
        assert code in found
        assert "RD213" not in found


def test_a_row_longer_than_rows_are(tmp_path: Path, honest: dict[str, LedgerRun]) -> None:
    """More tokens than a row has places is what no run writes."""
    run = copy_of(honest["best-fit"], tmp_path)
    edit_rank(run, 1, 0, changed(0, lambda rows: rows[0].append((6, 0, 8)), digest=True))
    assert "RD207" in codes(run.audit())


def test_missing_evidence_is_not_a_missing_token(tmp_path: Path, honest: dict[str, LedgerRun]) -> None:
    """Without a rank's file, or with its end cut off, tokens are not known, and none is said to be in no row."""
    for number, spoil in enumerate((lambda p: p.unlink(), lambda p: p.write_bytes(p.read_bytes()[:-200]))):
        run = copy_of(honest["best-fit"], tmp_path / str(number))
        spoil(run.path / "attempt-000002" / "rank-00001.ledger")
        report = run.audit()
        assert not TOKEN_CODES & set(codes(report))
        assert report.verdict == "unproven"


def test_rows_that_were_delivered_twice_are_told_by_position(tmp_path: Path, honest: dict[str, LedgerRun]) -> None:
    """A repeat within the declared bounds is a note: its tokens are not held against the run once more."""
    run = copy_of(honest["best-fit"], tmp_path)

    def again(records: list[RankRecord]) -> list[RankRecord]:
        where = next(n for n, record in enumerate(records) if isinstance(record, Commit))
        return [*records[:where], records[where - 1], *records[where:]]

    edit_rank(run, 1, 0, again)
    report = run.audit(max_replayed=2)
    assert (report.verdict, codes(report)) == ("proven", ["RD202"])


def test_bytes_that_are_no_pieces_are_damage(tmp_path: Path, honest: dict[str, LedgerRun]) -> None:
    """With right checksums too: the file and the byte are named, and nothing is audited."""
    run = copy_of(honest["best-fit"], tmp_path)

    def cut(records: list[RankRecord]) -> list[RankRecord]:
        where = next(n for n, record in enumerate(records) if isinstance(record, Delivered))
        record = records[where]
        assert isinstance(record, Delivered)
        return [*records[:where], msgspec.structs.replace(record, ids=(record.ids or b"")[:-1]), *records[where + 1 :]]

    edit_rank(run, 1, 1, cut)
    with pytest.raises(LedgerCorruptError, match=r"rank-00001.ledger, byte \d+: expected the pieces of 2 packed rows"):
        run.audit()
    report = run.audit(salvage=True)
    assert report.verdict == "unproven"
    assert "RD114" in codes(report)
    assert not TOKEN_CODES & set(codes(report))


@pytest.mark.parametrize("size", [1, 3])
def test_chunks_of_documents_are_added_up(
    tmp_path: Path, honest: dict[str, LedgerRun], size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Documents by the chunk, and few of them searched at a time: the same verdicts."""
    monkeypatch.setattr(tokens, "_CHUNK_DOCUMENTS", size)
    monkeypatch.setattr(tokens, "_NUM_BUCKETS", size)
    monkeypatch.setattr(tokens, "_SEARCHED_DOCUMENTS", 1)
    for number, name in enumerate(("best-fit", "concat")):
        run = copy_of(honest[name], tmp_path / str(number))
        assert run.audit().verdict == "proven"
        edit_rank(run, 1, 0, changed(1, double, digest=True))
        assert "RD212" in codes(run.audit())


@examples(8, quick=4)
@given(data=st.data())
def test_forged_numbers_and_bytes(
    tmp_path_factory: pytest.TempPathFactory, honest: dict[str, LedgerRun], data: st.DataObject
) -> None:
    """Any number of any record, and any byte of any pieces, may be another: a report or an error of ours, and no hang.

    Questions are asked without the documents, too.
    """
    run = copy_of(honest["concat"], tmp_path_factory.mktemp("forged"))
    place = data.draw(st.sampled_from([one for file in sorted(run.path.rglob("*")) for one in places_in(file)]))
    forge({place: data.draw(st.sampled_from(EXTREMES))})
    file = data.draw(st.sampled_from(sorted(run.path.rglob("*.ledger"))))
    at, value = data.draw(st.integers(0, 40)), data.draw(st.integers(0, 255))

    def spoil(records: list[RankRecord]) -> list[RankRecord]:
        where = data.draw(st.sampled_from([n for n, one in enumerate(records) if isinstance(one, Delivered)]))
        record = records[where]
        assert isinstance(record, Delivered)
        held = bytearray(record.ids or b"")
        held[at : at + 1] = [value]
        return [*records[:where], msgspec.structs.replace(record, ids=bytes(held)), *records[where + 1 :]]

    tracemalloc.start()
    try:
        for question in (
            lambda: run.audit().to_text(),
            lambda: find_document(Walk(run.path), 3),
            lambda: edit_rank(run, int(file.parent.name[8:]), int(file.name[5:10]), spoil),
            lambda: run.audit().to_json(),
            lambda: find_document(Walk(run.path), 3),
        ):
            with contextlib.suppress(ResumableDataError, msgspec.DecodeError):
                question()
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


def places_in(file: Path) -> list[Place]:
    """Numbers of a claim's progress, and of all records."""
    names = ("applied", "skipped", "samples", "tokens", "epoch", "offset", "packed", "coverage", "attempt")
    numbers = numbers_in(file) if file.is_file() else []
    return [one for one in numbers if file.name != "claim" or (one.keys[0] == 3 and one.keys[1] in names)]


# Sums and faults, by themselves


SPANS = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(1, 5)).map(lambda s: (s[0], s[1], s[1] + s[2])),
    max_size=12,
)


def as_spans(spans: list[tuple[int, int, int]]) -> piece_sums.Spans:
    return piece_sums.Spans(*np.array(spans, np.int64).reshape(-1, 3).T)


def counted(spans: list[tuple[int, int, int]]) -> Counter[tuple[int, int]]:
    return Counter((document, token) for document, *span in spans for token in range(*span))


@given(one=SPANS, other=SPANS)
def test_sums_are_equal_where_tokens_are(one: list[tuple[int, int, int]], other: list[tuple[int, int, int]]) -> None:
    """Whatever the pieces and their order, the sum tells how often each token is held, and nothing else."""
    sums = [piece_sums.sum_spans(as_spans(spans), np.zeros(len(spans), np.int64), 1) for spans in (one, other)]
    assert (sums[0] == sums[1]).all() == (counted(one) == counted(other))
    by_document = piece_sums.sum_spans(as_spans(one), as_spans(one).document, 4)
    assert (by_document.sum(axis=0, dtype=np.uint64) == sums[0][0]).all()


@given(spans=SPANS, first=st.lists(st.integers(0, 4), min_size=4, max_size=4))
def test_faults_are_those_of_counting(spans: list[tuple[int, int, int]], first: list[int]) -> None:
    """Each token that is held again, as often as it is, and each that is not; documents expected from a token on."""
    expected = [(document, start, 14) for document, start in enumerate(first)]
    faults = piece_sums.find_faults(as_spans(spans), as_spans(expected))
    twice, never = (counted(list(zip(*(c.tolist() for c in one), strict=True))) for one in faults)
    wanted, seen = counted(expected), counted(spans)
    before = counted([(document, 0, start) for document, start in enumerate(first)])
    assert never == Counter({token: 1 for token in wanted if token not in seen})
    assert set(twice) == {token for token, times in (seen + before).items() if times > 1}
