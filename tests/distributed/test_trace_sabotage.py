"""A migration is traced and compared: a clean one passes, and each fault is told by what it moved first."""

from __future__ import annotations

from pathlib import Path

import pytest

from resumable_data.validation import TraceComparison, compare_traces
from tests.distributed.ranks import run_ranks
from tests.distributed.traced_training import BEFORE, UPDATES, candidates, control

# The code of each fault, and what it moves first, in the first update.
SABOTAGES = {
    "weights rounded to bfloat16": ("RD911", "loss"),
    "one moment zeroed": ("RD913", "update_norm"),
    "step counter one too high": ("RD907", "optimizer_steps"),
    "scheduler one update ahead": ("RD904", "learning_rates"),
    "weight decay dropped": ("RD913", "update_norm"),
    "cursor one sample late": ("RD902", "samples"),
    "loss weight off by dp size": ("RD911", "loss"),
    "gradient accumulated twice": ("RD912", "gradient_norm"),
}


def compare(folder: Path, name: str, num_repeats: int, updates: int = UPDATES) -> TraceComparison:
    repeats = [folder / f"repeat-{number}.jsonl" for number in range(num_repeats)]
    traces = folder / "control.jsonl", folder / f"{name}.jsonl"
    return compare_traces(*traces, repeats=repeats, min_updates=updates)


def check_clean(report: TraceComparison, num_repeats: int, updates: int = UPDATES) -> None:
    assert (report.verdict, report.exit_code, report.findings) == ("pass", 0, ())
    assert (report.first_update, report.updates, report.repeats) == (BEFORE, updates, num_repeats)
    assert [one.name for one in report.quantities] == ["loss", "gradient_norm", "update_norm"]
    # far from the limit, so that it is not by luck
    assert all(one.largest is not None and one.largest < one.limit / 4 for one in report.quantities)
    assert all(one.noise is not None and one.limit < 1e-5 for one in report.quantities)


def check_sabotage(report: TraceComparison, sabotage: str) -> None:
    code, quantity = SABOTAGES[sabotage]
    assert (report.verdict, report.exit_code) == ("deviates", 1), sabotage
    assert report.first_excess is not None
    assert (report.first_excess.update, report.first_excess.quantity) == (BEFORE, quantity), sabotage
    assert code in {finding.code for finding in report.findings}, sabotage
    if quantity not in ("loss", "samples"):
        assert report.quantities[0].first is not None
        assert report.quantities[0].first < 1e-6, sabotage  # what a comparison of one forward pass would have seen


def check_all(folder: Path, num_repeats: int, updates: int = UPDATES) -> None:
    check_clean(compare(folder, "clean", num_repeats, updates), num_repeats, updates)
    for sabotage in SABOTAGES:
        check_sabotage(compare(folder, sabotage, num_repeats), sabotage)


def test_a_clean_migration_passes_and_each_fault_is_told(tmp_path: Path) -> None:
    """FSDP2 from 4 ranks to 2 stays within rounding; on one process, each of 8 faults is told by what moved first."""
    run_ranks(control, 4, str(tmp_path), 1, "fsdp", 8)
    run_ranks(candidates, 2, str(tmp_path), {"clean": ""}, "fsdp", 8)
    run_ranks(candidates, 1, str(tmp_path), {sabotage: sabotage for sabotage in SABOTAGES}, "plain", 2)
    check_all(tmp_path, 1, 8)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "num_ranks"), [("fsdp", 2), ("fsdp", 3), ("ddp", 3), ("ddp", 2)])
def test_other_migrations(tmp_path: Path, kind: str, num_ranks: int) -> None:
    """To 2 ranks and to 3, of FSDP2 and DDP, a clean migration passes, and each fault is told."""
    run_ranks(control, 4, str(tmp_path), 2, kind)
    run_ranks(candidates, num_ranks, str(tmp_path), {"clean": "", **{name: name for name in SABOTAGES}}, kind)
    check_all(tmp_path, 2)
