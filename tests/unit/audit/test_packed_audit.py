"""Audits of runs over packed rows: proven for honest ones, violated for every lie, refused for other documents."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data import (
    BestFit,
    Concat,
    Cursor,
    Fill,
    Ledger,
    PackedTokens,
    ResumableLoader,
    Sequential,
    audit_cursor,
    audit_ledger,
    open_tokens,
)
from resumable_data.errors import ResumableDataError, UsageError
from resumable_data.ledger import Delivered
from resumable_data.packing import PackedRows
from tests.examples import examples
from tests.packed_jobs import LENGTHS, POLICIES, PackedJob, PackedProgress, make_oracle, make_packed, make_source
from tests.simulated_ranks import Numbers
from tests.unit.audit.forging import EXTREMES, forge, numbers_in
from tests.unit.audit.test_lies import change, edit_claim, edit_rank

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable_data import AuditReport
    from resumable_data.ledger import Claim
    from resumable_data.order import Int64Array
    from resumable_data.packing import Carry, PlannedWindow, Policy
    from tests.unit.audit.forging import Place

PEAK_BYTES_MAX = 800 << 20


class LedgerRun:
    """A run with a ledger: launch after launch on other ranks, each killed in the middle of something.

    Args:
        path: Where the ledger goes.
        policy: See `make_packed`.
        epochs: Of the run.
        batch: ``global_batch=`` or ``global_batch_tokens=``.
        packed: The rows; by `policy` when None.
        **ledger: For `Ledger`.
    """

    def __init__(
        self,
        path: Path,
        policy: Policy | None = None,
        *,
        epochs: int = 4,
        batch: dict[str, int] | None = None,
        packed: PackedTokens | None = None,
        **ledger: Any,
    ) -> None:
        self.path = path / "ledger"
        self.packed = packed or make_packed(policy=policy)
        self.ledger = Ledger(self.path, **ledger)
        self.batch = batch or {"global_batch": 5}
        self.epochs = epochs
        self.state: Any = None
        self.cursor = Cursor.begin(
            ResumableLoader(self.packed, microbatch=1, rank=0, num_replicas=1, **self.options).cursor.recipe
        )

    @property
    def options(self) -> dict[str, Any]:
        """For the loaders."""
        return {**self.batch, "epochs": self.epochs}

    def launch(self, num_updates: int | None, num_replicas: int, microbatch: int, *, ahead: int = 1) -> None:
        """Go on from the last save, commit some updates and save, read some more, and die."""
        job = PackedJob(self.packed, num_replicas, microbatch=microbatch, ledger=self.ledger, **self.options)
        with job:
            job.load(self.state, allow={"fresh_start", "global_batch", "batch_unit"})
            job.train(num_updates)
            self.state = job.save()
            self.cursor = job.loaders[0].cursor
            for _ in range(ahead):
                job.microbatch()

    def audit(self, **options: Any) -> AuditReport:
        """What the audit says of the ledger."""
        return audit_ledger(self.path, **{"packed": self.packed, **options})


def assert_proven(run: LedgerRun, **options: Any) -> None:
    """Every row of the run once, and the place in the report that of the cursor; the same from the cursor alone."""
    report = run.audit(**options)
    assert report.verdict == "proven", report.to_text()
    assert (report.replayed.high, report.omitted.high) == (0, 0)
    assert (report.position, report.samples, report.updates) == (
        run.cursor.position,
        run.cursor.position,
        run.cursor.updates,
    )
    assert report.packed == run.cursor.packed
    alone = audit_cursor(run.cursor, packed=run.packed)
    assert (alone.verdict, alone.packed) == ("proven", run.cursor.packed), alone.to_text()


def codes(report: AuditReport) -> list[str]:
    """Codes of all findings, each once."""
    return sorted({finding.code for finding in report.findings})


def chain_of(run: LedgerRun) -> LedgerRun:
    """2 -> 3 -> 1 ranks, each killed with deliveries that are read again."""
    run.launch(3, 2, 2)
    run.launch(2, 3, 1, ahead=3)
    run.launch(2, 1, 4)
    return run


# Honest runs


@pytest.mark.parametrize("batch", [{"global_batch": 5}, {"global_batch_tokens": 45}], ids=str)
@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_honest_runs_are_proven(tmp_path: Path, policy: Policy, batch: dict[str, int]) -> None:
    """A chain of rank sets, killed again and again; then to the end; then extended by epochs, twice."""
    run = chain_of(LedgerRun(tmp_path, policy, batch=batch))
    assert_proven(run)
    for epochs in (4, 5, 7):
        run.epochs = epochs
        run.launch(None, epochs - 2, 2)
        assert_proven(run)
    assert run.cursor.packed
    assert (run.cursor.packed.epoch, run.cursor.packed.window) == (7, 0)


@pytest.mark.parametrize(
    ("ledger", "options"),
    [
        ({"key": "the run's secret"}, {"key": "the run's secret"}),
        ({"ids": "full"}, {}),
        ({"fold_rows": 4}, {}),
        ({"fold_rows": 4, "key": "k"}, {"key": "k", "jobs": 2}),
    ],
    ids=str,
)
def test_every_kind_of_ledger_is_proven(tmp_path: Path, ledger: dict[str, Any], options: dict[str, Any]) -> None:
    """Keyed, with the IDs in full, folded, audited by several processes."""
    assert_proven(chain_of(LedgerRun(tmp_path, Concat(), batch={"global_batch_tokens": 45}, **ledger)), **options)


def test_a_migrated_run_is_proven(tmp_path: Path) -> None:
    """From rows to tokens and back to other rows, by name."""
    run = LedgerRun(tmp_path)
    for batch in ({"global_batch": 5}, {"global_batch_tokens": 45}, {"global_batch": 3}):
        run.batch = batch
        run.launch(3, 2, 2)
        assert_proven(run)
    assert len(run.cursor.migrations) == 2


def test_windows_without_rows_are_proven(tmp_path: Path) -> None:
    """Documents without tokens fill windows that have no row."""
    lengths = [0, 0, 5, 0, 0, 0, 9, 3, 0, 0]
    for number, policy in enumerate(POLICIES):
        packed = make_packed(lengths, policy=policy, window=2, order=Sequential(10))
        run = LedgerRun(tmp_path / str(number), packed=packed, batch={"global_batch": 1})
        run.launch(2, 1, 1)
        run.launch(None, 2, 1)
        assert_proven(run)


@examples(10, quick=5)
@given(
    lengths=st.lists(st.integers(0, 20), min_size=1, max_size=12).filter(any),
    policy=st.sampled_from(POLICIES),
    window=st.integers(1, 6),
    row_length=st.integers(1, 10),
    batch=st.sampled_from([{"global_batch": 3}, {"global_batch_tokens": 17}]),
    launches=st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=3),
)
def test_any_honest_run_is_proven(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    policy: Policy,
    window: int,
    row_length: int,
    batch: dict[str, int],
    launches: list[tuple[int, int, int]],
) -> None:
    """Whatever the documents, the packing and the chain; launches past the end deliver nothing."""
    packed = make_packed(lengths, policy=policy, window=window, sequence_length=row_length)
    run = LedgerRun(tmp_path_factory.mktemp("run"), packed=packed, batch=batch)
    progress = PackedProgress(
        make_oracle(lengths, policy=policy, window=window, sequence_length=row_length),
        run.epochs,
        batch.get("global_batch", 0),
        batch.get("global_batch_tokens", 0),
    )
    for num_updates, num_replicas, microbatch in launches:
        upcoming = progress.upcoming()[:num_updates]
        if not progress.upcoming():
            break
        run.launch(len(upcoming), num_replicas, microbatch)
        for _, stop in upcoming:
            progress.commit(stop)
        progress.expect_cursor(run.cursor)
    assert_proven(run)


# Lies


def edit_number(run: LedgerRun, attempt: int, rank: int, **values: Any) -> None:
    """Give the first delivery of a rank's file other values."""
    edit_rank(run, attempt, rank, change(Delivered, 0, **values))


def test_a_microbatch_recorded_with_other_pieces(tmp_path: Path) -> None:
    """A digest of rows that are not those at the positions."""
    run = chain_of(LedgerRun(tmp_path))
    edit_number(run, 1, 0, digest=12345)
    report = run.audit()
    assert (report.verdict, codes(report)) == ("violated", ["RD204"]), report.to_text()


class Swapped(PackedTokens):
    """Says that its rows are those of `PackedTokens`, and has the first two of each window the other way round."""

    def plan(self, epoch: int, window: int, carry: Carry | None = None) -> PlannedWindow:
        planned = super().plan(epoch, window, carry)
        rows = np.arange(len(planned.rows))
        rows[:2] = rows[:2][::-1]
        return replace(planned, rows=planned.rows.take(rows))


@pytest.mark.parametrize("batch", [{"global_batch": 5}, {"global_batch_tokens": 45}], ids=str)
def test_a_run_that_read_other_rows(tmp_path: Path, batch: dict[str, int]) -> None:
    """A rank whose packing went wrong: every digest is of what was read, and not of what should have been."""
    wrong = Swapped(make_source(LENGTHS), sequence_length=8, window=6)
    run = LedgerRun(tmp_path, packed=wrong, batch=batch)
    run.launch(4, 2, 2)
    report = run.audit(packed=make_packed())
    assert report.verdict == "violated"
    assert "RD204" in codes(report)
    assert audit_cursor(run.cursor, packed=make_packed()).verdict == "violated"
    assert run.audit().verdict == "proven"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("epoch", 1),
        ("window", 1),
        ("row", 2),
        ("carry_document", 1),
        ("carry_offset", 1),
        ("documents", 1),
        ("tokens", 1),
        ("target_tokens", -1),
        ("truncated_tokens", 1),
    ],
)
def test_an_edited_place(tmp_path: Path, name: str, value: int) -> None:
    """Any number of a cursor's place that is another one, in a checkpoint and in a ledger's claim."""
    run = LedgerRun(tmp_path)
    run.launch(3, 2, 2)
    run.launch(3, 2, 2)

    def lie(cursor: Cursor) -> Cursor:
        assert cursor.packed
        place = msgspec.structs.replace(cursor.packed, **{name: getattr(cursor.packed, name) + value})
        return msgspec.structs.replace(cursor, packed=place, tokens=place.tokens)

    report = audit_cursor(lie(run.cursor), packed=run.packed)
    assert (report.verdict, codes(report)) == ("violated", ["RD404"])
    assert f"{name} " in report.to_text()

    def edit(claim: Claim) -> Claim:
        return msgspec.structs.replace(claim, start=lie(claim.start))

    edit_claim(run, 2, edit)
    report = run.audit()
    assert report.verdict == "violated"
    assert set(codes(report)) <= {"RD401", "RD404"}


class Losing:
    """A user's policy that leaves out, or repeats, or misplaces a token; `PackedRows.check` is what it gets past.

    Args:
        fault: Is given the rows' columns to spoil.
    """

    def __init__(self, fault: Callable[[dict[str, Int64Array]], None]) -> None:
        self.fault = fault

    def pack(self, lengths: Int64Array, row_length: int) -> PackedRows:
        rows = BestFit().pack(lengths, row_length)
        columns = {name: getattr(rows, name).copy() for name in ("document", "start", "stop")}
        self.fault(columns)
        return replace(rows, **columns)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "losing", "version": 1}


def lose_last(columns: dict[str, Int64Array]) -> None:
    columns["stop"][np.argmax(columns["stop"])] -= 1


def lose_first(columns: dict[str, Int64Array]) -> None:
    columns["start"][np.argmax(columns["stop"] - columns["start"])] += 1


def trade(columns: dict[str, Int64Array]) -> None:
    sizes = columns["stop"] - columns["start"]
    columns["document"][np.argmin(sizes)] = columns["document"][np.argmax(sizes)]


@pytest.mark.parametrize("fault", [lose_last, lose_first, trade])
def test_a_policy_that_loses_a_token(
    tmp_path: Path, fault: Callable[[dict[str, Int64Array]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user's own policy is held to every token once when it plans; and by the audit, from the documents alone."""
    packed = make_packed([5, 3, 8, 2, 6, 4], policy=Losing(fault), window=6)
    with pytest.raises(UsageError):
        next(packed.rows())
    monkeypatch.setattr(PackedRows, "check", lambda self, lengths: None)
    run = LedgerRun(tmp_path, packed=packed, batch={"global_batch": 2})
    run.launch(2, 1, 2, ahead=0)
    report = run.audit()
    assert report.verdict == "violated"
    assert "RD211" in codes(report)
    assert "epoch 0, window 0: " in report.to_text()
    assert "RD211" in codes(audit_cursor(run.cursor, packed=packed))


# Other documents


def edited_tokens() -> PackedTokens:
    tokens = np.array(make_source(LENGTHS).tokens)  # type: ignore[attr-defined]
    tokens[3] += 1
    return PackedTokens(open_tokens(tokens, lengths=np.array(LENGTHS)), sequence_length=8, window=6)


@pytest.mark.parametrize(
    ("packed", "text"),
    [
        (None, "give packed=PackedTokens"),
        (edited_tokens(), "edited: other tokens in the first 20 documents"),
        (make_packed([3, 5, *LENGTHS[2:]]), "edited: other lengths among the first 20 documents"),
        (make_packed([*LENGTHS, 3]), "appended: 1 documents after the same 20"),
        (make_packed(LENGTHS[:-1]), "shortened: 20 documents then, 19 now"),
        (make_packed(sequence_length=16), "row_length 8 in the run, 16 given"),
        (make_packed(window=9), "window 6 in the run, 9 given"),
        (make_packed(policy=Fill()), "policy_kind 'best-fit' in the run, 'fill' given"),
        (make_packed(order=Sequential(20)), "order_kind 'shuffle' in the run, 'sequential' given"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_rows_are_refused(tmp_path: Path, packed: PackedTokens | None, text: str) -> None:
    """Nothing is audited with rows that are not those of the run; what became of them is said."""
    run = LedgerRun(tmp_path)
    run.launch(2, 2, 2)
    for audit in (run.audit, lambda packed: audit_cursor(run.cursor, packed=packed)):
        with pytest.raises(UsageError, match="Nothing was audited") as caught:
            audit(packed=packed)
        assert text in str(caught.value)


def test_a_run_over_samples_is_given_no_rows(tmp_path: Path) -> None:
    """What the audit would do with them is unclear, so it does nothing."""
    options: dict[str, Any] = {"global_batch": 4, "microbatch": 2, "rank": 0, "num_replicas": 1}
    with ResumableLoader(Numbers(20), ledger=tmp_path / "ledger", **options) as loader:
        next(iter(loader))
    with pytest.raises(UsageError, match="this run read samples"):
        audit_ledger(tmp_path / "ledger", packed=make_packed())
    with pytest.raises(UsageError, match="this run read samples"):
        audit_cursor(loader.cursor, packed=make_packed())


# Forged numbers


@pytest.fixture(scope="module", params=[{"global_batch": 5}, {"global_batch_tokens": 45}], ids=str)
def forged_run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LedgerRun:
    return chain_of(LedgerRun(tmp_path_factory.mktemp("forged"), Concat(), batch=request.param))


FORGED: list[dict[str, int]] = [
    {"offset": 2**60, "samples": 2**60},
    {"offset": 2**40, "samples": 2**40, "applied": 2**38},
    {"offset": 2**40, "samples": 2**40, "applied": 2**38, "tokens": 2**42, "documents": 2**40},
    {"offset": 2**40, "samples": 2**40, "applied": 2**38, "tokens": 2**42, "documents": 2**40, "at_epoch": 2**35},
    {"offset": 2**61 - 1, "samples": 2**61 - 1, "applied": 2**57},
    {"applied": 2**40},
    {"applied": 2**58},
    {"window": 2**60},
    {"row": 2**60},
    {"at_epoch": 2**60},
    {"carry_document": 2**60},
    {"carry_offset": 2**60},
    {"tokens": 2**60},
    {"tokens": 2**60, "documents": 2**60, "at_epoch": 2**60},
]


def forged_cursor(cursor: Cursor, values: dict[str, int]) -> Cursor:
    """A cursor with other numbers in itself and in its place."""
    values = dict(values)
    assert cursor.packed
    own = {name: values.pop(name) for name in ("offset", "samples", "applied") if name in values}
    if "at_epoch" in values:
        values["epoch"] = values.pop("at_epoch")
    place = msgspec.structs.replace(cursor.packed, **values)
    return msgspec.structs.replace(cursor, packed=place, tokens=place.tokens, **own)


@pytest.mark.parametrize("values", FORGED, ids=str)
def test_forged_cursors_end_at_once(forged_run: LedgerRun, values: dict[str, int]) -> None:
    """What no run over these documents reaches is a finding or an error of ours, and is not planned up to."""
    cursor = forged_cursor(forged_run.cursor, values)
    tracemalloc.start()
    try:
        report = audit_cursor(cursor, packed=forged_run.packed)
        assert report.verdict == "violated"
        assert report.to_text()
    except ResumableDataError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 50 << 20


@settings(max_examples=20)
@given(data=st.data())
def test_forged_places_in_claims(forged_run: LedgerRun, data: st.DataObject) -> None:
    """Any few numbers of a start cursor's progress may be anything: a report or an error of ours, and no hang."""
    good = {file: file.read_bytes() for file in sorted(forged_run.path.rglob("*")) if file.is_file()}
    names = ("applied", "skipped", "samples", "tokens", "epoch", "offset", "padding", "dropped", "packed", "coverage")
    places = [place for file in good if file.name == "claim" for place in numbers_in(file)]
    places = [place for place in places if place.keys[:1] == (3,) and place.keys[1] in names]
    assert len(places) > 30
    changes = data.draw(st.dictionaries(st.sampled_from(places), st.sampled_from(EXTREMES), min_size=1, max_size=3))
    tracemalloc.start()
    try:
        forge(changes)
        report = forged_run.audit()
        assert report.to_text()
        assert report.to_json()
    except ResumableDataError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        for file in {place.file for place in changes}:
            file.write_bytes(good[file])
    assert peak < PEAK_BYTES_MAX


class Forgery:
    """A ledger that is forged again and again, from the same good files."""

    def __init__(self, run: LedgerRun) -> None:
        self.run = run
        self.good = {file: file.read_bytes() for file in sorted(run.path.rglob("*")) if file.is_file()}
        places = [place for file in self.good for place in numbers_in(file)]
        # an update of 2^40 tokens is one that an endless run may have
        self.places = [place for place in places if place.keys != (3, "recipe", "global_batch")]

    def audit(self, changes: dict[Place, int]) -> None:
        """Audit with some numbers changed; what comes is looked at in all its forms."""
        try:
            forge(changes)
            report = self.run.audit()
            assert report.to_text()
            assert report.to_json()
        except ResumableDataError:
            pass
        finally:
            for file in {place.file for place in changes}:
                file.write_bytes(self.good[file])


@settings(max_examples=15)
@given(data=st.data())
def test_forged_records(forged_run: LedgerRun, data: st.DataObject) -> None:
    """Any number of any record may be anything: a report or an error of ours, no hang, no memory without a bound."""
    forgery = Forgery(forged_run)
    place, value = data.draw(st.sampled_from(forgery.places)), data.draw(st.sampled_from(EXTREMES))
    tracemalloc.start()
    try:
        forgery.audit({place: value})
        assert tracemalloc.get_traced_memory()[1] < PEAK_BYTES_MAX
    finally:
        tracemalloc.stop()


@pytest.mark.slow
def test_every_number_of_a_ledger_is_forged(forged_run: LedgerRun) -> None:
    """Each number of each record; the extreme values take turns, each number gets every tenth."""
    forgery = Forgery(forged_run)
    assert len(forgery.places) > 200
    for number, place in enumerate(forgery.places):
        for value in EXTREMES[number % 10 :: 10]:
            forgery.audit({place: value})
    assert_proven(forged_run)
