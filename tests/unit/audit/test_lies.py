"""Each kind of lie, told to a ledger that is correct otherwise, leads to its own finding and to no other."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Protocol

import msgspec
import pytest

from resumable_data.audit import audit_ledger
from resumable_data.cursor import CoverageSpan, Cursor
from resumable_data.errors import LedgerCorruptError
from resumable_data.ledger import Claim, Commit, Delivered, RankHeader
from resumable_data.ledger.frames import (
    CLAIM_KIND,
    FORMAT_VERSION,
    RANK_KIND,
    FrameReader,
    chain_checksum,
    make_frame,
    make_head,
    measure,
    open_regular,
)
from resumable_data.ledger.layout import attempt_name, rank_name
from resumable_data.ledger.records import Again, claim_decoder, encode_record, header_decoder, record_decoder
from resumable_data.order import Shuffle
from tests.files import overwrite
from tests.unit.audit.simulator import RUN_ID, Run
from tests.unit.audit.test_clean_histories import assert_clean, make_recipe

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable_data.audit import AuditReport
    from resumable_data.ledger.records import RankRecord

    Tamper = Callable[[int, dict[str, int]], list[dict[str, int]]]
    Edit = Callable[[list[RankRecord]], list[RankRecord]]


class HasLedger(Protocol):
    """A run that wrote a ledger."""

    @property
    def path(self) -> Path:
        """The ledger's directory."""


def honest_run(path: Path, *, tamper: Tamper | None = None, tail: str = "carry") -> Run:
    """An update of 11 rows, 23 samples: 3 ranks from update 0, 2 ranks from update 4 to 8."""
    run = Run(path / "ledger", make_recipe(23, 11, tail))
    if tamper:
        run.tamper = tamper
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(4)
    run.deliver(stop_after=1)
    saved = run.checkpoint()
    run.kill()
    run.launch(saved, num_replicas=2, microbatch=2)
    run.train(5)
    run.close()
    return run


def codes(report: AuditReport) -> list[str]:
    return [finding.code for finding in report.findings]


def at(rank: int, update: int, index: int, change: Callable[[dict[str, int]], list[dict[str, int]]]) -> Tamper:
    """Change one microbatch's record."""

    def tamper(found_rank: int, record: dict[str, int]) -> list[dict[str, int]]:
        is_it = (found_rank, record["update"], record["index"]) == (rank, update, index)
        return change(record) if is_it else [record]

    return tamper


def change(record_type: type, index: int, **values: object) -> Edit:
    """Change the record of a type with this number; without values it is taken out."""

    def edit(records: list[RankRecord]) -> list[RankRecord]:
        place = [n for n, record in enumerate(records) if isinstance(record, record_type)][index]
        if not values:
            return records[:place] + records[place + 1 :]
        changed = msgspec.structs.replace(records[place], **values)
        return [*records[:place], changed, *records[place + 1 :]]

    return edit


def edit_rank(run: HasLedger, attempt: int, rank: int, edit: Edit, *, peer: int = 0, in_full: bool = True) -> None:
    """Write a rank's file again with other records and right checksums; `in_full`, none goes on from another."""
    path = run.path / attempt_name(attempt) / rank_name(rank, peer)
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=4096)
        header = frames.first()
        assert header is not None
        records = [record_decoder.decode(one) for _, payloads in frames.blocks() for one in payloads]
    records = written_out(records) if in_full else records
    payloads = [header, *(encode_record(record) for record in edit(records))]
    write_frames(path, RANK_KIND, payloads, version=frames.version)
    forge_measures(run.path)


def forge_measures(ledger: Path) -> None:
    """Let claims say of older files what these are now: a liar who forgets that is found by it alone."""
    for claim in sorted(ledger.glob("attempt-*/claim")):
        with open_regular(claim) as file:
            payload = FrameReader(file, claim, kind=CLAIM_KIND, payload_bytes_max=1 << 25).first()
        assert payload is not None
        said = claim_decoder.decode(payload)
        older = [
            msgspec.structs.replace(one, num_bytes=size, checksum=checksum)
            for one in said.older
            for size, checksum in [measure(ledger / attempt_name(one.attempt) / rank_name(one.rank, one.peer))]
        ]
        write_frames(claim, CLAIM_KIND, [encode_record(msgspec.structs.replace(said, older=tuple(older)))])


def written_out(records: list[RankRecord]) -> list[RankRecord]:
    """Deliveries that say that they are like the one before, in full."""
    whole: list[RankRecord] = []
    last = None
    for record in records:
        if isinstance(record, Again):
            assert last is not None
            place = (last.update + 1, 0) if record.is_next else (last.update, last.index + last.parts)
            start = last.start + last.stride * last.count
            record = Delivered(*place, start, last.stride, last.count, 0, 0, record.digest, record.ids, last.parts)
        last = record if isinstance(record, Delivered) else last
        whole.append(record)
    return whole


def edit_claim(run: HasLedger, attempt: int, edit: Callable[[Claim], Claim]) -> None:
    path = run.path / f"attempt-{attempt:06d}" / "claim"
    with open_regular(path) as file:
        payload = FrameReader(file, path, kind=CLAIM_KIND, payload_bytes_max=1 << 25).first()
    assert payload is not None
    write_frames(path, CLAIM_KIND, [encode_record(edit(claim_decoder.decode(payload)))])


def edit_start(run: HasLedger, number: int, /, **changes: object) -> None:
    def edit(claim: Claim) -> Claim:
        return msgspec.structs.replace(claim, start=msgspec.structs.replace(claim.start, **changes))

    edit_claim(run, number, edit)


def write_frames(path: Path, kind: int, payloads: list[bytes], *, version: int = FORMAT_VERSION) -> None:
    data = make_head(kind, version)
    chain = chain_checksum(data)
    for payload in payloads:
        frame, chain = make_frame(payload, chain)
        data += frame
    overwrite(path, data)


def test_the_run_that_is_lied_about_is_clean(tmp_path: Path) -> None:
    """Without a lie there is no finding, also after reading and writing its files again."""
    run = honest_run(tmp_path)
    edit_rank(run, 1, 0, lambda records: records)
    edit_claim(run, 2, lambda claim: claim)
    run._sizes.clear()  # written again, and measured again
    assert_clean(run, audit_ledger(run.path))


def test_missing_record(tmp_path: Path) -> None:
    """A microbatch without a record was never delivered."""
    run = honest_run(tmp_path, tamper=at(1, 2, 0, lambda record: []))
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("violated", ["RD201"])
    assert (report.omitted.low, report.omitted.high, report.replayed.high) == (2, 2, 0)
    assert [attempt.omitted.low for attempt in report.attempts] == [2, 0]
    (finding,) = report.findings
    assert (finding.attempt, finding.ranks, finding.first_update, finding.last_update) == (1, "1", 2, 2)
    assert audit_ledger(run.path, max_omitted=2).verdict == "proven"
    assert audit_ledger(run.path, max_omitted=1).verdict == "violated"


def test_duplicate_record(tmp_path: Path) -> None:
    """A microbatch recorded twice was trained on twice."""
    run = honest_run(tmp_path, tamper=at(1, 6, 1, lambda record: [record, record]))
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("violated", ["RD202"])
    assert (report.replayed.low, report.replayed.high, report.omitted.high) == (2, 2, 0)
    assert [attempt.replayed.low for attempt in report.attempts] == [0, 2]
    assert audit_ledger(run.path, max_replayed=2).verdict == "proven"


def test_another_ranks_share(tmp_path: Path) -> None:
    """Rows of another rank are repeated, and the rank's own are missing."""
    run = honest_run(tmp_path, tamper=at(1, 2, 0, lambda record: [{**record, "start": record["start"] + 1}]))
    report = audit_ledger(run.path, max_replayed=9, max_omitted=9)
    assert (report.verdict, codes(report)) == ("violated", ["RD201", "RD203"][::-1])
    assert (report.replayed.low, report.omitted.low) == (2, 2)


def test_rows_of_the_future(tmp_path: Path) -> None:
    """Rows outside the history's range are no repeats, but their places are missing."""
    run = honest_run(tmp_path, tamper=at(0, 2, 0, lambda record: [{**record, "start": record["start"] + 1000}]))
    report = audit_ledger(run.path)
    assert "RD203" in codes(report)
    assert (report.replayed.low, report.omitted.low) == (0, 2)


def test_unknown_microbatch(tmp_path: Path) -> None:
    """A microbatch that its update does not have is found, and its rows are repeats."""
    extra = at(0, 2, 1, lambda record: [record, {**record, "index": 7}])
    report = audit_ledger(honest_run(tmp_path, tamper=extra).path)
    assert (report.verdict, codes(report)) == ("violated", ["RD203"])
    assert (report.replayed.low, report.omitted.low) == (2, 0)


def test_other_seed(tmp_path: Path) -> None:
    """A dataset shuffled by another seed gives other IDs at the same positions: nothing is certain then."""
    run = Run(tmp_path / "ledger", make_recipe(23, 11, "carry"))
    run.order = Shuffle(23, seed=4)
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(4)
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("violated", ["RD204"])
    # one of the 24 records is of a single row, which both seeds fill with the same ID
    assert (report.findings[0].ranks, report.findings[0].count) == ("0-2", 23)
    assert (report.replayed.low, report.replayed.high, report.omitted.high) == (0, 43, 43)


def test_wrong_digest(tmp_path: Path) -> None:
    """One microbatch whose fetched IDs differ is found."""
    run = honest_run(tmp_path, tamper=at(1, 6, 1, lambda record: [{**record, "digest": 1}]))
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report), report.omitted.high) == ("violated", ["RD204"], 2)


def test_dropped_rank_file(tmp_path: Path) -> None:
    """Without one rank's file its share is open: it may have been delivered or not."""
    run = honest_run(tmp_path)
    (run.path / "attempt-000001" / "rank-00001.ledger").unlink()
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("unproven", ["RD105"])
    assert (report.omitted.low, report.omitted.high) == (0, 16)
    assert report.discarded.high is None


def test_dropped_rank_file_of_the_newest_attempt(tmp_path: Path) -> None:
    """Other ranks committed, so a rank without a file is missing evidence, not a rank that never began."""
    run = honest_run(tmp_path)
    (run.path / "attempt-000002" / "rank-00000.ledger").unlink()
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report), report.updates) == ("unproven", ["RD105"], 9)


def test_file_that_ends_too_early(tmp_path: Path) -> None:
    """A rank's file that is cut between two frames, before what the next attempt went on from."""
    run = honest_run(tmp_path)
    edit_rank(run, 1, 2, lambda records: records[:5])
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("unproven", ["RD106"])
    assert (report.omitted.low, report.findings[0].first_update) == (0, 1)


def test_file_of_the_newest_attempt_that_stops_long_before_the_others(tmp_path: Path) -> None:
    """Commits that all other ranks recorded are part of the history, and unproven."""
    run = honest_run(tmp_path)
    edit_rank(run, 2, 1, lambda records: records[:9])
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report), report.updates) == ("unproven", ["RD106"], 9)


def test_swapped_files(tmp_path: Path) -> None:
    """Two ranks' files under each other's name are told apart from the ranks' own."""
    run = honest_run(tmp_path)
    first, second = (run.path / "attempt-000001" / f"rank-0000{rank}.ledger" for rank in (0, 1))
    spare = tmp_path / "spare"
    first.rename(spare), second.rename(first), spare.rename(second)
    forge_measures(run.path)
    report = audit_ledger(run.path)
    assert (report.verdict, set(codes(report))) == ("violated", {"RD110", "RD105"})


def test_file_spliced_from_another_run(tmp_path: Path) -> None:
    """A file whose head names another run is not this rank's evidence."""
    run = honest_run(tmp_path)
    path = run.path / "attempt-000001" / "rank-00001.ledger"
    with open_regular(path) as file:
        frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=4096)
        header = header_decoder.decode(frames.first() or b"")
        rest = [one for _, payloads in frames.blocks() for one in payloads]
    header = msgspec.structs.replace(header, run_id="another")
    write_frames(path, RANK_KIND, [encode_record(header), *rest])
    assert set(codes(audit_ledger(run.path))) == {"RD110", "RD105", "RD115"}
    forge_measures(run.path)
    assert set(codes(audit_ledger(run.path))) == {"RD110", "RD105"}


def test_file_of_a_rank_that_the_attempt_does_not_have(tmp_path: Path) -> None:
    """A fourth rank's file among three ranks is found."""
    run = honest_run(tmp_path)
    folder = run.path / "attempt-000001"
    shutil.copy(folder / "rank-00000.ledger", folder / "rank-00003.ledger")
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("violated", ["RD110"])


def test_altered_commit(tmp_path: Path) -> None:
    """A commit turned from applied to skipped on one rank contradicts the others."""

    def skip(records: list[RankRecord]) -> list[RankRecord]:
        return [Commit(r.update, False) if isinstance(r, Commit) and r.update == 5 else r for r in records]

    run = honest_run(tmp_path)
    edit_rank(run, 2, 1, skip)
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("violated", ["RD302"])


def test_commits_altered_on_all_ranks(tmp_path: Path) -> None:
    """The next attempt's cursor counts applied updates, so all ranks together cannot alter one."""

    def skip(records: list[RankRecord]) -> list[RankRecord]:
        return [Commit(r.update, False) if isinstance(r, Commit) and r.update == 2 else r for r in records]

    run = honest_run(tmp_path)
    for rank in range(3):
        edit_rank(run, 1, rank, skip)
    assert codes(audit_ledger(run.path)) == ["RD401"]


def test_removed_commit(tmp_path: Path) -> None:
    """Commits follow one another without a gap; what comes after one proves nothing."""

    def remove(records: list[RankRecord]) -> list[RankRecord]:
        return [r for r in records if not (isinstance(r, Commit) and r.update == 1)]

    run = honest_run(tmp_path)
    edit_rank(run, 1, 0, remove)
    report = audit_ledger(run.path)
    assert (report.verdict, set(codes(report))) == ("violated", {"RD301", "RD106"})


def test_deliveries_in_another_order(tmp_path: Path) -> None:
    """Two microbatches in exchanged places are found, although nothing is missing."""

    def swap(records: list[RankRecord]) -> list[RankRecord]:
        return [records[1], records[0], *records[2:]]

    run = honest_run(tmp_path)
    edit_rank(run, 1, 0, swap)
    report = audit_ledger(run.path)
    assert (codes(report), report.omitted.high) == (["RD205"], 0)


def test_delivery_after_its_commit(tmp_path: Path) -> None:
    """A microbatch that was delivered after the commit of its update was not trained on in it."""

    def delay(records: list[RankRecord]) -> list[RankRecord]:
        assert isinstance(records[2], Commit)
        return [records[0], records[2], records[1], *records[3:]]

    run = honest_run(tmp_path)
    edit_rank(run, 1, 0, delay)
    assert codes(audit_ledger(run.path)) == ["RD205"]


def test_filler_as_real(tmp_path: Path) -> None:
    """A filler row counted as a sample is no share of the rank."""
    run = Run(tmp_path / "ledger", make_recipe(23, 1, "carry"))
    run.tamper = at(1, 2, 0, lambda record: [{**record, "count": 1, "filler": 0}])
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(4)
    report = audit_ledger(run.path)
    assert set(codes(report)) == {"RD203", "RD201"}
    assert report.replayed.low == 1


def test_impossible_filler(tmp_path: Path) -> None:
    """More filler than a microbatch has room for."""
    run = honest_run(tmp_path, tamper=at(1, 2, 0, lambda record: [{**record, "filler": 1}]))
    assert codes(audit_ledger(run.path)) == ["RD206"]


@pytest.mark.parametrize("change", [{"count": 1 << 40}, {"start": 1 << 61, "stride": 1 << 61}, {"padding": 9}])
def test_impossible_record(tmp_path: Path, change: dict[str, int]) -> None:
    """Numbers that no run reaches are found, and not computed with."""

    def forge(records: list[RankRecord]) -> list[RankRecord]:
        assert isinstance(records[0], Delivered)
        return [msgspec.structs.replace(records[0], **change), *records[1:]]

    run = honest_run(tmp_path)
    edit_rank(run, 1, 0, forge)
    assert set(codes(audit_ledger(run.path))) == {"RD207", "RD201"}


def test_update_from_before_the_attempt(tmp_path: Path) -> None:
    """An attempt delivers nothing of updates before its start cursor."""

    def add(records: list[RankRecord]) -> list[RankRecord]:
        assert isinstance(records[0], Delivered)
        return [msgspec.structs.replace(records[0], update=0), *records]

    run = honest_run(tmp_path)
    edit_rank(run, 2, 0, add)
    assert codes(audit_ledger(run.path)) == ["RD207"]


def test_rewind_behind_a_commit(tmp_path: Path) -> None:
    """What was committed is not discarded by a rewind in the same file."""
    run = honest_run(tmp_path)
    run.launch(run.checkpoint(), num_replicas=2, microbatch=2)
    run.train(1)
    run._writers[0].rewind(0)
    run.train(1)
    report = audit_ledger(run.path)
    assert (codes(report), report.omitted.high) == (["RD303"], 0)


def test_updates_after_the_end_of_the_run(tmp_path: Path) -> None:
    """A run of one epoch has no updates in the second."""
    run = honest_run(tmp_path)
    edit_claim(run, 2, lambda claim: msgspec.structs.replace(claim, epochs=2))
    assert "RD304" in codes(audit_ledger(run.path))


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"offset": 22, "samples": 45}, "RD401"),
        ({"samples": 43, "dropped": 1}, "RD401"),
        ({"padding": 1}, "RD401"),
        ({"applied": 3, "skipped": 1}, "RD401"),
        ({"applied": 5}, "RD401"),
        ({"applied": 0}, "RD401"),
        ({"run_id": "another"}, "RD401"),
        ({"coverage": (CoverageSpan(0, 44, (1, 2)),)}, "RD403"),
        ({"recipe": make_recipe(23, 11, "pad")}, "RD402"),
        ({"attempt": 2}, "RD401"),
        ({"attempt": 7}, "RD401"),
    ],
)
def test_altered_start_cursor(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    """A start cursor that the attempt before it does not lead to is found."""
    run = honest_run(tmp_path)
    edit_start(run, 2, **changes)
    report = audit_ledger(run.path)
    assert code in codes(report)
    assert report.verdict == "violated"


@pytest.mark.parametrize(("position", "replayed", "omitted"), [(33, 11, 0), (50, 0, 6)])
def test_cursor_with_another_place(tmp_path: Path, position: int, replayed: int, omitted: int) -> None:
    """A job resumed at a place that its number of updates does not lead to repeats or skips what lies between."""
    run = Run(tmp_path / "ledger", make_recipe(23, 11, "carry"))
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(4)
    saved = run.checkpoint()
    run.close()
    place = {"epoch": position // 23, "offset": position % 23, "samples": position, "coverage": ()}
    saved.cursor = msgspec.structs.replace(saved.cursor, **place)
    run.launch(saved, num_replicas=2, microbatch=2)
    run.train(5)
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("violated", ["RD401"])
    assert (report.replayed.low, report.omitted.low) == (replayed, omitted)


def test_missing_attempt(tmp_path: Path) -> None:
    """Without the attempt that the newest goes on from, the beginning has no evidence but the cursor's digest."""
    run = honest_run(tmp_path)
    shutil.rmtree(run.path / "attempt-000001")
    report = audit_ledger(run.path)
    assert (report.verdict, set(codes(report))) == ("unproven", {"RD103", "RD104"})
    edit_start(run, 2, coverage=())
    report = audit_ledger(run.path)
    assert set(codes(report)) == {"RD103", "RD104", "RD109"}
    assert (report.omitted.low, report.omitted.high) == (0, None)


def test_missing_claim(tmp_path: Path) -> None:
    """Rank files without a claim belong to nothing."""
    run = honest_run(tmp_path)
    (run.path / "attempt-000001" / "claim").unlink()
    assert set(codes(audit_ledger(run.path))) == {"RD102", "RD104"}


def test_attempt_of_another_run(tmp_path: Path) -> None:
    """Two runs in one ledger are found."""
    run = honest_run(tmp_path)
    edit_claim(run, 1, lambda claim: msgspec.structs.replace(claim, run_id="another"))
    assert "RD111" in codes(audit_ledger(run.path))


def test_beginning_without_a_ledger_is_proven_by_the_cursors_digest(tmp_path: Path) -> None:
    """A ledger that begins in mid-run is enough where the start cursor's digest covers all before it."""
    run = honest_run(tmp_path)
    shutil.rmtree(run.path / "attempt-000001")
    (run.path / "attempt-000002").rename(run.path / "attempt-000001")
    for rank in range(2):
        path = run.path / "attempt-000001" / f"rank-0000{rank}.ledger"
        with open_regular(path) as file:
            frames = FrameReader(file, path, kind=RANK_KIND, payload_bytes_max=4096)
            frames.first()
            rest = [one for _, payloads in frames.blocks() for one in payloads]
        header = RankHeader(RUN_ID, 1, rank, 2, 0, "digest", 256)
        write_frames(path, RANK_KIND, [encode_record(header), *rest])
    edit_claim(run, 1, lambda claim: msgspec.structs.replace(claim, attempt=1))
    edit_start(run, 1, attempt=0)
    report = audit_ledger(run.path)
    assert (report.verdict, report.samples, codes(report)) == ("proven", 99, [])
    edit_start(run, 1, coverage=())
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("unproven", ["RD109"])


def test_order_of_ones_own(tmp_path: Path) -> None:
    """An order that this package cannot rebuild leaves the IDs unverified."""
    run = honest_run(tmp_path)
    recipe = msgspec.structs.replace(run.recipe, order={"kind": "mine", "version": 1, "length": 23})
    for attempt in (1, 2):
        edit_start(run, attempt, recipe=recipe)
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("unproven", ["RD108"])
    assert report.omitted.high is None


def test_declared_bound_of_discarded_samples(tmp_path: Path) -> None:
    """More discarded than declared is a violation; what cannot be bounded is unproven."""
    run = honest_run(tmp_path)
    assert audit_ledger(run.path, max_discarded=6).verdict == "proven"
    assert codes(audit_ledger(run.path, max_discarded=5)) == ["RD501"]
    path = run.path / "attempt-000001" / "rank-00000.ledger"
    path.write_bytes(path.read_bytes()[:-3])
    report = audit_ledger(run.path, max_discarded=6)
    assert (report.verdict, codes(report)) == ("unproven", ["RD501", "RD107", "RD115"])


def test_foreign_entries(tmp_path: Path) -> None:
    """What no ledger holds is named, with what does not print escaped."""
    run = honest_run(tmp_path)
    (run.path / "notes\n.txt").write_text("x")
    (run.path / "attempt-1").mkdir()
    (run.path / "attempt-000002" / "rank-1.ledger").write_text("x")
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("proven", ["RD101"] * 3)
    assert "notes\\n.txt" in report.to_text()


def test_leftovers_of_a_killed_claim_are_no_finding(tmp_path: Path) -> None:
    """A launch killed while claiming leaves a directory, or a file without a name; neither has a meaning."""
    run = honest_run(tmp_path)
    (run.path / "attempt-000003").mkdir()
    (run.path / "attempt-000003" / ".claim-0123456789abcdef").write_bytes(b"RDLED")
    assert_clean(run, audit_ledger(run.path))


@pytest.mark.parametrize("attempt", [1, 2])
def test_torn_tail(tmp_path: Path, attempt: int) -> None:
    """A file that ends within its last record is read up to there, and the tear is reported."""
    run = honest_run(tmp_path)
    path = run.path / f"attempt-00000{attempt}" / "rank-00000.ledger"
    path.write_bytes(path.read_bytes()[:-3])
    report = audit_ledger(run.path)
    assert (report.verdict, codes(report)) == ("proven", ["RD107", "RD115"] if attempt == 1 else ["RD107"])
    assert (report.updates, report.discarded.high) == (9, None)


def test_damaged_start_cursor_is_not_computed_with(tmp_path: Path) -> None:
    """Numbers of a start cursor that no run reaches are an error, not an endless computation."""
    run = honest_run(tmp_path)
    edit_start(run, 2, applied=1 << 62)
    with pytest.raises(LedgerCorruptError, match="no run reaches"):
        audit_ledger(run.path)


def test_claim_of_another_number(tmp_path: Path) -> None:
    """A renamed attempt is damage."""
    run = honest_run(tmp_path)
    (run.path / "attempt-000002").rename(run.path / "attempt-000003")
    with pytest.raises(LedgerCorruptError, match="expected the claim of attempt 3, found that of attempt 2"):
        audit_ledger(run.path)


def test_everything_is_wrong(tmp_path: Path) -> None:
    """When every record lies, the counts are still those of the positions recorded."""
    run = honest_run(tmp_path, tamper=lambda rank, record: [{**record, "start": 0, "stride": 1}])
    report = audit_ledger(run.path)
    positions = [k for attempt in (1, 2) for k in _recorded(run, attempt)]
    in_range = [p for p in positions if p < report.position]
    assert report.replayed.low == len(in_range) - len(set(in_range))
    assert report.omitted.low == report.position - len(set(in_range))


def _recorded(run: Run, attempt: int) -> list[int]:
    """Surviving positions of an attempt's files, one at a time."""
    positions: list[int] = []

    def collect(records: list[RankRecord]) -> list[RankRecord]:
        for record in records:
            if isinstance(record, Delivered) and not (attempt == 1 and record.update >= 4):
                positions.extend(record.start + k * record.stride for k in range(record.count - record.padding))
        return records

    for rank in range(len(list((run.path / f"attempt-00000{attempt}").glob("rank*")))):
        edit_rank(run, attempt, rank, collect)
    return positions


def test_cursor_of_the_start_type(tmp_path: Path) -> None:
    """The claim keeps the whole start cursor."""
    run = honest_run(tmp_path)
    path = run.path / "attempt-000002" / "claim"
    with open_regular(path) as file:
        payload = FrameReader(file, path, kind=CLAIM_KIND, payload_bytes_max=1 << 25).first()
    assert isinstance(claim_decoder.decode(payload or b"").start, Cursor)
