"""The power of the audit: every kind of lie, told to a correct ledger, leads to exactly its own findings.

One table of what can be wrong, with code, attempt, ranks and updates of all that has to be found. Counts of samples are
the matter of `test_lies.py`. That nothing is found in a ledger without a lie, `test_clean_histories.py` shows.
"""

from __future__ import annotations

import copy
import os
import shutil
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
import pytest

from resumable_data.audit import KINDS, audit_ledger
from resumable_data.cursor import CoverageSpan, Cursor, Migration, RecipeChange
from resumable_data.errors import LedgerCorruptError, LedgerError, UsageError
from resumable_data.ledger import Commit, Delivered, Rewind
from resumable_data.ledger.frames import RANK_KIND, FrameReader, make_head, open_regular
from resumable_data.ledger.layout import attempt_name, rank_name
from resumable_data.ledger.records import (
    Again,
    Agreed,
    Saved,
    Unreadable,
    encode_record,
    header_decoder,
)
from resumable_data.order import Sequential, Shuffle, ids_at
from tests.unit.audit.simulator import Run
from tests.unit.audit.test_clean_histories import make_recipe
from tests.unit.audit.test_lies import at, change, edit_claim, edit_rank, edit_start, forge_measures, write_frames

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from resumable_data.audit import AuditReport
    from resumable_data.ledger.records import RankRecord
    from tests.unit.audit.test_lies import Edit, Tamper

    Tell = Callable[[Path], object]

SECRET = "the run's secret"
PEER: dict[str, Any] = {"num_peers": 1, "peer": 1}
FOLDED: dict[str, Any] = {"fold_rows": 64}
ALL = (0, 1, 2)


class Lie(NamedTuple):
    """One lie, and what it leads to.

    Attributes:
        name: For people.
        tell: Makes a ledger in a directory, with the lie in it.
        verdict: What the audit has to say.
        found: All of its findings, see `shown`, sorted.
        options: For `audit_ledger`.
    """

    name: str
    tell: Tell
    verdict: str
    found: str
    options: Mapping[str, Any] = MappingProxyType({})


def shown(report: AuditReport) -> str:
    """Code, attempt, ranks and updates of all findings: ``"RD201 a1 r0-2 u3; RD501"``."""
    found = []
    for one in report.findings:
        first, last = one.first_update, one.last_update
        parts = [
            one.code,
            "" if one.attempt is None else f"a{one.attempt}",
            f"r{one.ranks}" if one.ranks else "",
            "" if first is None else f"u{first}" if first == last else f"u{first}-{last}",
        ]
        found.append(" ".join(part for part in parts if part))
    return "; ".join(sorted(found))


def honest_run(path: Path, *, tamper: Tamper | None = None, **options: Any) -> Run:
    """Updates of 12 rows, 23 samples: 3 ranks from update 0 to 3, 2 ranks from update 4 to 8; agreed and saved at 4.

    On 3 ranks there are two microbatches of 2 rows in each update, on 2 ranks three. In flight when attempt 1 was
    killed: the first microbatch of update 4.
    """
    run = Run(path / "ledger", make_recipe(23, 12, "carry"), **options)
    if tamper:
        run.tamper = tamper
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(4)
    run.deliver(stop_after=1)
    saved = run.checkpoint(is_complete=True)
    run.kill()
    run.launch(saved, num_replicas=2, microbatch=2)
    run.train(5)
    run.checkpoint()
    run.close()
    return run


def tampered(rank: int, update: int, index: int, alter: Callable[[dict[str, int]], list[dict[str, int]]]) -> Tell:
    """One microbatch is recorded as something else; see `at`."""
    return lambda path: honest_run(path, tamper=at(rank, update, index, alter))


def edited(
    attempt: int, ranks: tuple[int, ...], edit: Edit, *, peer: int = 0, raw: bool = False, **options: Any
) -> Tell:
    """Records of some ranks are changed; `raw` leaves it to records to go on from others."""

    def tell(path: Path) -> None:
        run = honest_run(path, **options)
        for rank in ranks:
            edit_rank(run, attempt, rank, edit, peer=peer, in_full=not raw)

    return tell


def started(number: int, /, **changes: Any) -> Tell:
    """A start cursor holds something else."""
    return lambda path: edit_start(honest_run(path), number, **changes)


def claimed(number: int, /, **changes: Any) -> Tell:
    """A claim says something else."""
    return lambda path: edit_claim(honest_run(path), number, lambda claim: msgspec.structs.replace(claim, **changes))


def headed(number: int, of_rank: int, of_peer: int = 0, /, **changes: Any) -> Tell:
    """The head of a rank's file names something else."""

    def tell(path: Path) -> None:
        run = honest_run(path, num_peers=of_peer)
        edit_head(file_of(run, number, of_rank, of_peer), **changes)
        forge_measures(run.path)

    return tell


def edit_head(file: Path, **changes: Any) -> None:
    with open_regular(file) as opened:
        frames = FrameReader(opened, file, kind=RANK_KIND, payload_bytes_max=4096)
        header = header_decoder.decode(frames.first() or b"")
        rest = [one for _, payloads in frames.blocks() for one in payloads]
    write_frames(file, RANK_KIND, [encode_record(msgspec.structs.replace(header, **changes)), *rest])


def file_of(run: Run, attempt: int, rank: int, peer: int = 0) -> Path:
    return run.path / attempt_name(attempt) / rank_name(rank, peer)


def swap_files(path: Path) -> None:
    run = honest_run(path)
    first, second, spare = file_of(run, 1, 0), file_of(run, 1, 1), path / "spare"
    first.rename(spare), second.rename(first), spare.rename(second)
    forge_measures(run.path)


def swap_records(path: Path) -> None:
    """The records of two ranks change places, each under the head of the other."""
    run = honest_run(path)
    held: dict[int, list[RankRecord]] = {}
    for rank in (0, 1):
        edit_rank(run, 1, rank, lambda records, rank=rank: held.setdefault(rank, records))  # type: ignore[misc]
    for rank in (0, 1):
        edit_rank(run, 1, rank, lambda records, rank=rank: held[1 - rank])  # type: ignore[misc]


def splice_in_another_seed(path: Path) -> None:
    """The end of a rank's file is that of a run with another seed, under right checksums."""
    run = honest_run(path)
    other = Run(path / "other", make_recipe(23, 12, "carry", seed=4))
    other.launch(None, num_replicas=3, microbatch=2)
    other.train(4)
    other.kill()
    held: list[RankRecord] = []

    def keep(records: list[RankRecord]) -> list[RankRecord]:
        held.extend(records)
        return records

    edit_rank(other, 1, 1, keep)
    edit_rank(run, 1, 1, lambda records: [*records[:6], *held[6:12], *records[12:]])


def splice_in_a_whole_file(path: Path) -> None:
    run = honest_run(path)
    other = honest_run(path / "other")
    shutil.copy(file_of(other, 2, 1), file_of(run, 1, 1))
    forge_measures(run.path)


def splice_in_a_whole_attempt(path: Path) -> None:
    run = honest_run(path)
    other = Run(path / "other", make_recipe(23, 12, "carry", seed=4))
    for _ in range(2):
        other.launch(None, num_replicas=2, microbatch=2)
        other.train(2)
        other.close()
    shutil.rmtree(run.path / attempt_name(2))
    shutil.copytree(other.path / attempt_name(2), run.path / attempt_name(2))
    edit_claim(run, 2, lambda claim: msgspec.structs.replace(claim, run_id="another", older=()))


def of_another_dataset(order: Any) -> Tell:
    """What was fetched in the first launch came from another order than the recipe says."""

    def tell(path: Path) -> None:
        run = Run(path / "ledger", make_recipe(23, 12, "carry"))
        run.order = order
        run.launch(None, num_replicas=3, microbatch=2)
        run.train(4)
        run.close()

    return tell


def fork(path: Path) -> None:
    """The first job wakes up after the second was launched, and trains on."""
    run = Run(path / "ledger", make_recipe(23, 12, "carry"))
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(2)
    saved, older = run.checkpoint(), copy.copy(run)
    run.launch(saved, num_replicas=1, microbatch=2)
    run.train(1)
    older.train(3)
    run.train(1)
    older.close()
    run.close()


def rewrite_after_the_claim(path: Path) -> None:
    """A record of the discarded end of a file is exchanged for another of the same length."""
    run = honest_run(path)
    measured = [file.read_bytes() for file in sorted(run.path.glob("*/claim"))]
    edit_rank(run, 1, 1, lambda records: records, in_full=False)
    edit_rank(run, 1, 1, change(Again, -1, digest=(1 << 64) - 1), in_full=False)
    for file, data in zip(sorted(run.path.glob("*/claim")), measured, strict=True):
        file.write_bytes(data)


def cut(attempt: int, rank: int, num_bytes: int) -> Tell:
    def tell(path: Path) -> None:
        file = file_of(honest_run(path), attempt, rank)
        file.write_bytes(file.read_bytes()[:-num_bytes])

    return tell


def damage(path: Path) -> None:
    """One bit in the middle of a file."""
    file = file_of(honest_run(path), 1, 1)
    data = bytearray(file.read_bytes())
    data[-40] ^= 1
    file.write_bytes(data)


def remove(name: str, **options: Any) -> Tell:
    def tell(path: Path) -> None:
        target = honest_run(path, **options).path / name
        shutil.rmtree(target) if target.is_dir() else target.unlink()

    return tell


def add(name: str) -> Tell:
    return lambda path: (honest_run(path).path / name).write_text("x")


def mid_run_with(**changes: Any) -> Tell:
    """A ledger that was begun when half of the run was over, by a cursor without a digest."""

    def tell(path: Path) -> None:
        first = honest_run(path / "before")
        run, saved = Run(path / "ledger", first.recipe), first.checkpoint()
        saved.cursor = msgspec.structs.replace(saved.cursor, coverage=(), attempt=0, **changes)
        run.launch(saved, num_replicas=2, microbatch=2)
        run.train(2)
        run.close()

    return tell


def own_order(path: Path) -> None:
    run = honest_run(path)
    recipe = msgspec.structs.replace(run.recipe, order={"kind": "mine", "version": 1, "length": 23})
    for attempt in (1, 2):
        edit_start(run, attempt, recipe=recipe)


def copied(rank: int, peer: int) -> Tell:
    """The file of rank 0 of attempt 1 is there once more, as another's."""

    def tell(path: Path) -> None:
        run = honest_run(path)
        file = file_of(run, 1, rank, peer)
        shutil.copy(file_of(run, 1, 0), file)
        edit_head(file, rank=rank, peer=peer)

    return tell


def taken_over(path: Path) -> None:
    order = Shuffle(23, seed=3)
    run = Run(path / "ledger", make_recipe(23, 12, "carry"))
    saved = run.checkpoint()
    saved.cursor = Cursor.from_consumed_samples(order, consumed_samples=24, global_batch=12)
    run.launch(saved, num_replicas=2, microbatch=2)
    run.train(2)
    run.close()


def restart_from_an_older_checkpoint(path: Path) -> None:
    run = Run(path / "ledger", make_recipe(23, 12, "carry"))
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(1)
    old = run.checkpoint(is_complete=True)
    run.train(1)
    run.checkpoint(is_complete=True)
    run.kill()
    run.launch(old, num_replicas=2, microbatch=2)
    run.train(1)
    run.close()


def unreadable(position: int) -> Tell:
    """Rank 0 of attempt 2 declares a row of its first microbatch, positions 48 and 50, unreadable."""

    def tell(path: Path) -> None:
        sample = int(ids_at(Shuffle(23, seed=3), np.array([position]))[0])
        record = Unreadable(4, 0, position, sample)
        edit_rank(honest_run(path), 2, 0, lambda records: [record, *records])

    return tell


def filler_as_real(path: Path) -> None:
    run = Run(path / "ledger", make_recipe(23, 1, "carry"))
    run.tamper = at(1, 2, 0, lambda record: [{**record, "count": 1, "filler": 0}])
    run.launch(None, num_replicas=2, microbatch=2)
    run.train(4)
    run.close()


def shifted(rows: int) -> Callable[[dict[str, int]], list[dict[str, int]]]:
    return lambda record: [{**record, "start": record["start"] + rows}]


def without(*updates: int) -> Edit:
    """Neither deliveries nor commits of these updates."""
    return lambda records: [one for one in records if getattr(one, "update", -1) not in updates]


def exchanged(first: int, second: int) -> Edit:
    def edit(records: list[RankRecord]) -> list[RankRecord]:
        records = list(records)
        records[first], records[second] = records[second], records[first]
        return records

    return edit


def keyed(path: Path) -> None:
    honest_run(path, key=SECRET)


MISNAMED = "RD105 a1 r1 u0-3; RD110 a1"
V, U, P = "violated", "unproven", "proven"

LIES = [
    # What was delivered.
    Lie("missing", tampered(1, 2, 0, lambda record: []), V, "RD201 a1 r1 u2"),
    Lie("missing on all ranks", edited(1, ALL, change(Delivered, 2)), V, "RD201 a1 r0-2 u1"),
    Lie("missing, and declared", tampered(1, 2, 0, lambda r: []), P, "RD201 a1 r1 u2", {"max_omitted": 2}),
    Lie("duplicate", tampered(1, 6, 1, lambda record: [record] * 2), V, "RD202 a2 r1 u6"),
    Lie(
        "duplicate of an older update",
        edited(1, (0,), lambda r: [*r[:6], r[0], *r[6:]]),
        V,
        "RD202 a1 r0 u0; RD205 a1 r0 u0",
    ),
    Lie("wrong rank", tampered(1, 2, 0, shifted(1)), V, "RD201 a1 r1 u2; RD203 a1 r1 u2"),
    Lie("wrong order of microbatches", edited(1, (0,), exchanged(0, 1)), V, "RD205 a1 r0 u0"),
    Lie("wrong order of delivery and commit", edited(1, (2,), exchanged(4, 5)), V, "RD205 a1 r2 u1"),
    Lie("wrong order of rows", edited(1, (0,), change(Delivered, 0, digest=7)), V, "RD204 a1 r0 u0"),
    Lie("other seed", of_another_dataset(Shuffle(23, seed=4)), V, "RD204 a1 r0-2 u0-3"),
    Lie("other order", of_another_dataset(Sequential(23)), V, "RD204 a1 r0-2 u0-3"),
    Lie("other length", of_another_dataset(Shuffle(24, seed=3)), V, "RD204 a1 r0-2 u0-3"),
    Lie("gap of an update", edited(1, ALL, without(2)), V, "RD106 a1 r0-2 u2-3; RD301 a1 r0-2 u3"),
    Lie("gap of an update, renumbered", edited(2, (0, 1), lambda r: r[:4] + r[8:]), V, "RD301 a2 r0-1 u6"),
    Lie("filler as real", filler_as_real, V, "RD201 a1 r1 u2; RD203 a1 r1 u2"),
    Lie("filler without room", tampered(1, 2, 0, lambda r: [{**r, "filler": 1}]), V, "RD206 a1 r1 u2"),
    Lie(
        "no row at all",
        edited(1, (1,), change(Delivered, 0, count=0)),
        V,
        "RD201 a1 r1 u0; RD203 a1 r1 u0; RD206 a1 r1 u0",
    ),
    Lie(
        "padding where there is none",
        edited(1, (1,), change(Delivered, 0, padding=1)),
        V,
        "RD201 a1 r1 u0; RD203 a1 r1 u0",
    ),
    Lie(
        "numbers beyond any run",
        edited(1, (0,), change(Delivered, 0, count=1 << 40)),
        V,
        "RD201 a1 r0 u0; RD207 a1 r0 u0",
    ),
    Lie(
        "update before the attempt",
        edited(2, (1,), lambda r: [msgspec.structs.replace(r[0], update=3), *r]),
        V,
        "RD207 a2 r1 u3",
    ),
    Lie("unreadable row of another microbatch", unreadable(52), V, "RD208 a2 r0 u4"),
    Lie("unreadable row of another rank", unreadable(49), V, "RD208 a2 r0 u4"),
    Lie("more unreadable than allowed", unreadable(48), V, "RD209; RD502", {"max_unreadable": 0}),
    # What was said in short.
    Lie(
        "again of the wrong update",
        edited(1, (0,), change(Again, 1, is_next=False), raw=True),
        V,
        "RD201 a1 r0 u1-3; RD203 a1 r0 u0-3; RD205 a1 r0 u0-3",
    ),
    Lie("again with another digest", edited(2, (1,), change(Again, 3, digest=7), raw=True), V, "RD204 a2 r1 u5"),
    Lie(
        "again left out",
        edited(2, (1,), change(Again, 3), raw=True),
        V,
        "RD201 a2 r1 u5-8; RD203 a2 r1 u6-8; RD204 a2 r1 u5-8",
    ),
    Lie(
        "again twice",
        edited(2, (1,), lambda r: [*r[:2], r[1], *r[2:]], raw=True),
        V,
        "RD201 a2 r1 u5-8; RD203 a2 r1 u4-8; RD204 a2 r1 u4-8",
    ),
    Lie(
        "folded with too many parts",
        edited(1, (0,), change(Delivered, 1, parts=3), **FOLDED),
        V,
        "RD201 a1 r0 u1; RD203 a1 r0 u1",
    ),
    Lie(
        "folded with too few parts",
        edited(1, (0,), change(Delivered, 1, parts=1), **FOLDED),
        V,
        "RD201 a1 r0 u1; RD207 a1 r0 u1",
    ),
    Lie("folded with another digest", edited(1, (0,), change(Delivered, 1, digest=7), **FOLDED), V, "RD204 a1 r0 u1"),
    Lie(
        "folded with another count",
        edited(1, (0,), change(Delivered, 1, count=3), **FOLDED),
        V,
        "RD201 a1 r0 u1; RD203 a1 r0 u1; RD204 a1 r0 u1",
    ),
    Lie(
        "folded, and its half once more",
        edited(1, (0,), lambda r: [msgspec.structs.replace(r[0], parts=1, count=2), *r], **FOLDED),
        V,
        "RD201 a1 r0 u0; RD202 a1 r0 u0; RD204 a1 r0 u0",
    ),
    Lie(
        "more parts than any update",
        edited(1, (0,), change(Delivered, 1, parts=1 << 40), **FOLDED),
        V,
        "RD201 a1 r0 u1; RD207 a1 r0 u1",
    ),
    # What was committed.
    Lie("altered commit", edited(2, (1,), change(Commit, 1, applied=False)), V, "RD302 a2 r1 u5"),
    Lie("commit altered on all ranks", edited(1, ALL, change(Commit, 1, applied=False)), V, "RD401 a1"),
    Lie("commit left out", edited(1, (0,), change(Commit, 1)), V, "RD106 a1 r0 u1-3; RD301 a1 r0 u2"),
    Lie("commit twice", edited(1, (0,), lambda r: [*r[:3], r[2], *r[3:]]), V, "RD106 a1 r0 u1-3; RD301 a1 r0 u0"),
    Lie(
        "commit of another update", edited(1, (0,), change(Commit, 1, update=9)), V, "RD106 a1 r0 u1-3; RD301 a1 r0 u9"
    ),
    Lie("rewind behind a commit", edited(2, (0,), lambda r: [*r[:8], Rewind(4), *r[8:]]), V, "RD303 a2 r0 u4"),
    Lie("rewind on one rank", edited(2, (0,), lambda r: [*r[:6], Rewind(5), *r[6:]]), V, "RD201 a2 r0 u5"),
    Lie("updates after the end", claimed(2, epochs=4), V, "RD203 a2 r0-1 u7-8; RD207 a2 r0-1 u9; RD304 a2"),
    # What cursors say.
    Lie(
        "gap between two attempts",
        started(2, applied=5, samples=60, epoch=2, offset=14),
        V,
        "RD106 a1 r0-2 u4; RD207 a2 r0-1 u4; RD301 a2 r0-1 u4",
    ),
    Lie(
        "start at another place",
        started(2, samples=47, offset=1, coverage=()),
        V,
        "RD201 a2 r0-1 u4-8; RD203 a2 r0-1 u4-8; RD207 a2 r0-1 u9; RD401 a2",
    ),
    Lie(
        "other corpus, by length",
        started(2, recipe=make_recipe(24, 12, "carry"), epoch=2, offset=0),
        V,
        "RD204 a1 r0-2 u0-3; RD204 a2 r0-1 u4-8; RD402 a2",
    ),
    Lie(
        "other corpus, by fingerprint",
        started(2, recipe=msgspec.structs.replace(make_recipe(23, 12, "carry"), fingerprint="b")),
        V,
        "RD402 a2",
    ),
    Lie(
        "other seed in the recipe",
        started(2, recipe=make_recipe(23, 12, "carry", seed=4)),
        V,
        "RD204 a1 r0-2 u0-3; RD204 a2 r0-1 u4-8; RD402 a2",
    ),
    Lie(
        "other global batch",
        started(2, recipe=make_recipe(23, 6, "carry")),
        V,
        "RD201 a2 r0-1 u4-8; RD203 a2 r0-1 u4-8; RD207 a2 r0-1 u9; RD402 a2",
    ),
    Lie(
        "migration that nobody declared",
        started(2, migrations=(Migration(4, 48, (RecipeChange("global_batch", 6, 12),)),)),
        V,
        "RD402 a2",
    ),
    Lie("start cursor of another run", started(2, run_id="another"), V, "RD401 a2"),
    Lie("start cursor of a later attempt", started(2, attempt=2), V, "RD109 a2; RD401 a2"),
    Lie("skipped for applied", started(2, applied=3, skipped=1), V, "RD401 a1"),
    Lie("digest of the start cursor", started(2, coverage=(CoverageSpan(0, 48, (1, 2)),)), V, "RD403"),
    Lie("agreed digest", edited(1, ALL, change(Agreed, 0, lane_0=1)), V, "RD403"),
    Lie("agreed digest on one rank", edited(2, (1,), change(Agreed, 0, lane_1=1)), V, "RD403"),
    Lie("agreed on other positions", edited(2, (0,), change(Agreed, 0, start=3)), V, "RD403"),
    Lie("counts of the first cursor", mid_run_with(padding=3), V, "RD109 a1; RD404 a1"),
    Lie("the beginning is missing", mid_run_with(), U, "RD109 a1"),
    Lie("the beginning was declared", taken_over, U, "RD112"),
    Lie("the beginning was declared, and is accepted", taken_over, P, "RD112", {"since_take_over": True}),
    Lie("an order of one's own", own_order, U, "RD108"),
    # Whose files they are.
    Lie("swapped files", swap_files, V, "RD105 a1 r0-1 u0-3; RD110 a1; RD110 a1"),
    Lie("swapped records", swap_records, V, "RD201 a1 r0-1 u0-3; RD203 a1 r0-1 u0-3"),
    Lie("file of another attempt", splice_in_a_whole_file, V, MISNAMED),
    Lie("records of another run", splice_in_another_seed, V, "RD204 a1 r1 u2-3"),
    Lie("attempt of another run", splice_in_a_whole_attempt, V, "RD110 a2; RD110 a2; RD111 a1"),
    Lie("head of another run", headed(1, 1, run_id="another"), V, MISNAMED),
    Lie("head of another attempt", headed(1, 1, attempt=2), V, MISNAMED),
    Lie("head of another rank", headed(1, 1, rank=0), V, MISNAMED),
    Lie("head of a peer", headed(1, 1, peer=1), V, MISNAMED),
    Lie("head of another rank set", headed(1, 1, num_replicas=2), V, MISNAMED),
    Lie("head of keyed digests", headed(1, 1, key_check=5), U, "RD113 a1"),
    Lie(
        "peer of a rank that the attempt does not have",
        copied(3, 1),
        V,
        "RD110 a1",
    ),
    Lie("rank that the attempt does not have", copied(3, 0), V, "RD110 a1"),
    Lie("dropped rank", remove("attempt-000001/rank-00001.ledger"), U, "RD105 a1 r1 u0-3"),
    Lie("dropped rank of the newest attempt", remove("attempt-000002/rank-00000.ledger"), U, "RD105 a2 r0 u4-8"),
    Lie("file cut at a frame", edited(1, (2,), lambda r: r[:5]), U, "RD106 a1 r2 u1-3"),
    Lie("file cut in its tail", cut(1, 1, 3), P, "RD107 a1; RD115 a1"),
    Lie("file cut in its head", cut(1, 1, 100_000), U, "RD105 a1 r1 u0-3; RD115 a1"),
    Lie("damaged file, read all the same", damage, U, "RD114 a1", {"salvage": True}),
    Lie("dropped claim", remove("attempt-000001/claim"), U, "RD102 a1; RD104 a2"),
    Lie("dropped attempt", remove("attempt-000001"), U, "RD103; RD104 a2"),
    Lie("foreign file", add("attempt-000001/notes"), P, "RD101"),
    # Two jobs at once.
    Lie("fork", fork, P, "RD117 a1; RD117 a1"),
    Lie("fork, rewritten", rewrite_after_the_claim, V, "RD116 a1"),
    Lie("restart from an older checkpoint", restart_from_an_older_checkpoint, P, "RD407 a1"),
    Lie("saved at a later update", edited(1, ALL, change(Saved, 0, update=9)), P, "RD407 a1"),
    # Peers and keys.
    Lie("peer with other IDs", edited(1, (1,), change(Delivered, 1, digest=7), **PEER), V, "RD210 a1"),
    Lie("peer with other rows", edited(2, (0,), change(Delivered, 1, start=0), **PEER), V, "RD210 a2"),
    Lie(
        "peer with other commits",
        edited(1, ALL, change(Commit, 2, applied=False), **PEER),
        V,
        "RD210 a1; " * 2 + "RD210 a1",
    ),
    Lie("peer with padding", edited(1, (0,), change(Delivered, 1, padding=1), **PEER), V, "RD210 a1"),
    Lie("dropped peer", remove("attempt-000001/rank-00001-peer-00001.ledger", num_peers=1), U, "RD105 a1"),
    Lie("head of another peer", headed(1, 1, 1, peer=2), V, "RD110 a1"),
    Lie("keyed, without the key", keyed, U, "RD113 a1; RD113 a2"),
    # What was declared.
    Lie("more discarded than allowed", lambda path: honest_run(path), V, "RD501", {"max_discarded": 5}),
]

# These cannot be said of a ledger whose updates are counted one by one.
ELSEWHERE = {
    "RD118": "test_inside.py",
    "RD211": "test_packed_audit.py",
    **dict.fromkeys(("RD212", "RD213", "RD214", "RD215", "RD216"), "test_recorded_pieces.py"),
    "RD306": "test_inside.py",
    "RD305": "test_lies_of_batches.py",
    "RD405": "test_cursor_audit.py",
    "RD406": "test_tracked_run.py",
    **dict.fromkeys(("RD408", "RD409", "RD410", "RD411"), "test_checkpoint_audit.py"),
}


@pytest.mark.parametrize("lie", LIES, ids=lambda lie: lie.name)
def test_each_lie_leads_to_its_findings_and_no_others(tmp_path: Path, lie: Lie) -> None:
    """Codes, attempt, ranks and updates are those of the lie."""
    lie.tell(tmp_path)
    report = audit_ledger(tmp_path / "ledger", **lie.options)
    assert (report.verdict, shown(report)) == (lie.verdict, lie.found), report.to_text()


def test_every_code_is_required_by_a_lie() -> None:
    """A finding that no lie leads to is one that nobody has seen."""
    told = {found.split()[0] for lie in LIES for found in lie.found.split("; ")}
    assert told | set(ELSEWHERE) == set(KINDS)
    assert not told & set(ELSEWHERE)


@pytest.mark.parametrize("options", [{}, {"ids": "full"}, {"key": SECRET}, FOLDED, {"num_peers": 1}], ids=str)
def test_the_ledger_that_is_lied_about_is_clean(tmp_path: Path, options: dict[str, Any]) -> None:
    """Without a lie there is no finding, whatever the ledger was told to keep."""
    run = honest_run(tmp_path, **options)
    report = audit_ledger(run.path, key=SECRET)
    assert (report.verdict, report.findings) == ("proven", ())
    assert (report.updates, report.samples, report.discarded.low) == (9, 108, 6)


def replaced(name: str, put: Callable[[Path], object]) -> Tell:
    """Something else in the place of a file."""

    def tell(path: Path) -> None:
        file = honest_run(path).path / name
        file.unlink()
        put(file)

    return tell


def rename_attempt(path: Path) -> None:
    run = honest_run(path)
    (run.path / attempt_name(2)).rename(run.path / attempt_name(3))


def swap_attempts(path: Path) -> None:
    run = honest_run(path)
    first, second, spare = run.path / attempt_name(1), run.path / attempt_name(2), path / "spare"
    first.rename(spare), second.rename(first), spare.rename(second)


def append_a_record(path: Path) -> None:
    edit_rank(honest_run(path), 2, 1, lambda records: [*records, Commit(9, True)])


RANK = "attempt-000001/rank-00001.ledger"
REFUSED: list[tuple[str, Tell, type[Exception], str]] = [
    ("another key", keyed, UsageError, "the key is not the one that .*rank-00000.ledger was written with"),
    ("renamed attempt", rename_attempt, LedgerCorruptError, "the claim of attempt 3, found that of attempt 2"),
    ("swapped attempts", swap_attempts, LedgerCorruptError, "the claim of attempt 1, found that of attempt 2"),
    ("head of IDs that are not there", headed(1, 1, ids="full"), LedgerCorruptError, "bytes of IDs with the record's"),
    ("head of odd IDs", headed(1, 1, id_bytes=3, ids="full"), LedgerCorruptError, "found 'full', 3 bytes"),
    ("head of another kind of IDs", headed(1, 1, ids="some"), LedgerCorruptError, "found 'some', 1 byte"),
    ("record after the end", append_a_record, LedgerCorruptError, "nothing after the record of the file's end"),
    (
        "again from nothing",
        edited(1, (1,), lambda r: r[1:], raw=True),
        LedgerCorruptError,
        "one that goes on from none",
    ),
    (
        "claim for a rank's file",
        replaced(RANK, lambda p: shutil.copy(p.with_name("claim"), p)),
        LedgerCorruptError,
        "byte 12",
    ),
    (
        "another file for a rank's",
        replaced(RANK, lambda p: p.write_bytes(b"PK" + bytes(90))),
        LedgerCorruptError,
        "byte 0",
    ),
    (
        "later format",
        replaced(RANK, lambda p: p.write_bytes(make_head(RANK_KIND, 3))),
        LedgerCorruptError,
        "version 3",
    ),
    ("link", replaced(RANK, lambda p: p.symlink_to("rank-00000.ledger")), LedgerCorruptError, "a symbolic link"),
    ("pipe", replaced(RANK, os.mkfifo), LedgerCorruptError, "something else"),
    ("directory", replaced(RANK, lambda p: p.mkdir()), LedgerCorruptError, "a directory"),
    ("empty claim", replaced("attempt-000002/claim", lambda p: p.touch()), LedgerCorruptError, "a whole claim"),
    ("start that no run reaches", started(2, applied=1 << 62), LedgerCorruptError, "no run reaches"),
    (
        "start with too many updates",
        started(2, applied=1 << 28, samples=12 << 28, epoch=(12 << 28) // 23, offset=(12 << 28) % 23),
        LedgerError,
        "at most 4194304 updates, of which its files can tell",
    ),
    ("no attempt at all", lambda path: (path / "ledger").mkdir(), LedgerError, "found no attempt in it"),
    ("no ledger at all", lambda path: None, LedgerError, "found none that can be read"),
]


@pytest.mark.parametrize(("tell", "error", "says"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_cannot_be_read_as_a_ledger_is_refused(
    tmp_path: Path, tell: Tell, error: type[Exception], says: str
) -> None:
    """Lies about the form of files are errors that say which file; nothing is audited then."""
    tell(tmp_path)
    with pytest.raises(error, match=says):
        audit_ledger(tmp_path / "ledger", key="not the key")
