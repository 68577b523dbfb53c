"""A cursor proves its own coverage, with no other file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pytest

from resumable_data.audit import audit_cursor
from resumable_data.cursor import CoverageSpan, Cursor, Migration, Recipe, RecipeChange, resume_cursor, sum_lanes
from resumable_data.errors import CorruptStateError
from resumable_data.order import Shuffle, ids_at
from resumable_data.plan import TAILS
from tests.unit.audit.simulator import Run
from tests.unit.audit.test_clean_histories import make_recipe

if TYPE_CHECKING:
    from pathlib import Path


def trained_cursor(path: Path, tail: str = "carry", num_updates: int = 5) -> Cursor:
    run = Run(path / "ledger", make_recipe(23, 10, tail))
    run.launch(None, num_replicas=3, microbatch=2)
    run.train(num_updates)
    run.close()
    return run.checkpoint().cursor


def codes(cursor: Cursor) -> tuple[str, list[str]]:
    report = audit_cursor(cursor)
    return report.verdict, [finding.code for finding in report.findings]


@pytest.mark.parametrize("tail", TAILS)
def test_whole_digest_is_proven(tmp_path: Path, tail: str) -> None:
    """Positions that drop skips, and padding rows, are not in the digest."""
    cursor = trained_cursor(tmp_path, tail)
    report = audit_cursor(cursor)
    assert (report.verdict, report.findings, report.exit_code) == ("proven", (), 0)
    assert (report.replayed.high, report.omitted.high, report.samples) == (0, 0, cursor.samples)


def test_a_new_cursor_is_proven() -> None:
    """Nothing was committed, so nothing is missing."""
    assert codes(Cursor(recipe=make_recipe(23, 10, "carry"))) == ("proven", [])


def test_digest_of_other_samples_is_violated(tmp_path: Path) -> None:
    """One sample in another one's place changes the digest."""
    cursor = trained_cursor(tmp_path)
    positions = np.arange(50, dtype=np.int64)
    ids = ids_at(Shuffle(23, seed=3), positions)
    ids[7], ids[8] = ids[8], ids[7]
    span = CoverageSpan(0, 50, sum_lanes(positions, ids))
    assert codes(msgspec.structs.replace(cursor, coverage=(span,))) == ("violated", ["RD403"])


def test_gap_is_unproven(tmp_path: Path) -> None:
    """Without a digest of all committed positions the cursor proves nothing, and says what to call."""
    cursor = trained_cursor(tmp_path)
    short = make_span(cursor, 0, 40), make_span(cursor, 45, 50)
    report = audit_cursor(msgspec.structs.replace(cursor, coverage=short))
    assert (report.verdict, report.exit_code) == ("unproven", 1)
    assert [finding.where for finding in report.findings] == ["cursor, positions [40, 45)"]
    assert "check_agreement" in report.findings[0].remedy
    assert report.omitted.high is None
    assert codes(msgspec.structs.replace(cursor, coverage=())) == ("unproven", ["RD405"])


def make_span(cursor: Cursor, start: int, stop: int) -> CoverageSpan:
    positions = np.arange(start, stop, dtype=np.int64)
    return CoverageSpan(start, stop, sum_lanes(positions, ids_at(Shuffle(23, seed=3), positions)))


def test_several_spans_are_proven(tmp_path: Path) -> None:
    """Digests of parts prove the whole where they leave no gap."""
    cursor = trained_cursor(tmp_path)
    spans = make_span(cursor, 0, 20), make_span(cursor, 20, 50)
    assert codes(msgspec.structs.replace(cursor, coverage=spans)) == ("proven", [])


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"applied": 6}, "RD404"),
        ({"padding": 1}, "RD404"),
        ({"samples": 49, "dropped": 1}, "RD404"),
        ({"recipe": make_recipe(23, 9, "carry")}, "RD404"),
        ({"recipe": make_recipe(23, 10, "short")}, "RD404"),
        ({"recipe": make_recipe(23, 10, "carry", seed=4)}, "RD403"),
    ],
)
def test_numbers_that_contradict_each_other(tmp_path: Path, changes: dict[str, object], code: str) -> None:
    """Counts, place and recipe of a cursor have to fit each other."""
    assert codes(msgspec.structs.replace(trained_cursor(tmp_path), **changes)) == ("violated", [code])


def test_through_migrations(tmp_path: Path) -> None:
    """Declared changes of batch and tail, with what they drop, are followed."""
    run = Run(tmp_path / "ledger", make_recipe(23, 4, "carry"))
    saved = None
    for batch, tail in ((4, "carry"), (10, "drop"), (7, "pad"), (5, "short")):
        run.launch(saved, num_replicas=2, microbatch=2, recipe=make_recipe(23, batch, tail))
        run.train(5)
        saved = run.checkpoint()
        run.close()
    cursor = saved.cursor if saved else None
    assert cursor is not None
    assert len(cursor.migrations) == 3
    assert cursor.dropped > 0
    assert cursor.padding > 0
    assert codes(cursor) == ("proven", [])
    assert codes(msgspec.structs.replace(cursor, padding=cursor.padding + 1)) == ("violated", ["RD404"])


def test_migration_that_drops_the_rest_of_the_epoch(tmp_path: Path) -> None:
    """A larger batch under drop skips the rest of the epoch at once, and its positions need no digest."""
    cursor = trained_cursor(tmp_path, "carry", 1)
    migrated = resume_cursor(cursor, make_recipe(23, 20, "drop"), allow={"global_batch", "tail"})
    assert (migrated.epoch, migrated.offset, migrated.dropped) == (1, 0, 13)
    assert codes(migrated) == ("proven", [])


def test_undeclared_migration(tmp_path: Path) -> None:
    """A migration that does not lead to the cursor's recipe, or lies in its future, is found."""
    cursor = trained_cursor(tmp_path)
    change = RecipeChange("tail", "short", "pad")
    assert codes(msgspec.structs.replace(cursor, migrations=(Migration(2, 20, (change,)),)))[0] == "violated"
    change = RecipeChange("tail", "short", "carry")
    assert codes(msgspec.structs.replace(cursor, migrations=(Migration(9, 20, (change,)),))) == ("violated", ["RD404"])


def test_order_of_ones_own_is_unproven() -> None:
    """An order that cannot be rebuilt from its description."""
    recipe = Recipe(order={"kind": "mine", "version": 1, "length": 23}, global_batch=10)
    cursor = Cursor(recipe=recipe, applied=1, samples=10, offset=10, coverage=(CoverageSpan(0, 10, (1, 2)),))
    assert codes(cursor) == ("unproven", ["RD108"])


def test_unreachable_numbers_are_an_error() -> None:
    """Numbers that no run reaches are not computed with."""
    cursor = Cursor(recipe=make_recipe(23, 10, "carry"), applied=1 << 62)
    with pytest.raises(CorruptStateError, match="no run reaches"):
        audit_cursor(cursor)


def test_large_numbers_are_exact() -> None:
    """Counts past 2^53 are followed exactly."""
    recipe = make_recipe(1 << 60, 1 << 20, "carry")
    updates = (1 << 34) + 3
    cursor = Cursor(recipe=recipe, applied=updates, samples=updates << 20, offset=updates << 20)
    assert codes(cursor) == ("unproven", ["RD405"])
    assert codes(msgspec.structs.replace(cursor, applied=updates + 1)) == ("violated", ["RD404"])
