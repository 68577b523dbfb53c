"""What the plan's report says about layouts, the place in the run and the move."""

from __future__ import annotations

from itertools import groupby, product
from typing import Any

import msgspec
import numpy as np
import pytest

from resumable_data.errors import UsageError
from resumable_data.findings import SEVERITIES
from resumable_data.plan import BatchPlan, Schedule
from resumable_data.plan.layout import Layout, Repeat, boundaries_around, lay_out
from resumable_data.plan.remarks import KINDS
from resumable_data.plan.report import PlanReport, PlanRequest, RankSet, make_report


def layout_of(plan: BatchPlan, *, pad_microbatches: bool = False) -> Layout:
    return lay_out(plan, pad_microbatches=pad_microbatches, loss_scale=None)


def report_of(
    *,
    samples: int = 1000,
    global_batch: int = 256,
    now: tuple[int, int] = (8, 2),
    to: tuple[int, int] | None = (10, 2),
    tail: str = "carry",
    epochs: int | None = None,
    **request: Any,
) -> PlanReport:
    schedule = Schedule(length=samples, global_batch=global_batch, tail=tail, epochs=epochs)
    ranks = [RankSet(num_replicas=pair[0], microbatch=pair[1]) if pair else None for pair in (now, to)]
    assert ranks[0]
    return make_report(PlanRequest(schedule=schedule, now=ranks[0], to=ranks[1], **request))


def repeats(sizes: list[int]) -> tuple[Repeat, ...]:
    return tuple(Repeat(count=len(list(group)), size=size) for size, group in groupby(sizes))


@pytest.mark.parametrize(
    ("global_batch", "ranks", "microbatch", "stretches", "max_rows"),
    [
        (256, 10, 2, [20] * 12 + [16], 26),
        (10, 3, 1, [3, 3, 3, 1], 4),
        (12, 5, 1, [5, 5, 2], 3),
        (512, 10, 8, [80] * 3 + [70] * 3 + [62], 52),
    ],
)
def test_worked_examples(global_batch: int, ranks: int, microbatch: int, stretches: list[int], max_rows: int) -> None:
    """The layouts that the documentation works out by hand come out."""
    layout = layout_of(BatchPlan(global_batch=global_batch, microbatch=microbatch, num_replicas=ranks))
    assert layout.stretches == repeats(stretches)
    assert (layout.accumulation_steps, layout.max_rows) == (len(stretches), max_rows)


GRID = [
    (batch, microbatch, ranks, phase)
    for batch, microbatch, ranks in product([1, 2, 7, 12, 30, 64], [1, 2, 3, 8], [1, 2, 3, 5, 8, 16])
    for phase in {0, batch // 3, batch - 1}
]


def test_closed_form_equals_counting() -> None:
    """Every number of a layout is what counting the rows of all ranks gives."""
    for batch, microbatch, ranks, phase in GRID:
        plan = BatchPlan(global_batch=batch, microbatch=microbatch, num_replicas=ranks, phase=phase)
        # sizes: (ranks, accumulation_steps)
        sizes = np.array(
            [[plan.microbatch_rows(r, i).size for i in range(plan.accumulation_steps)] for r in range(ranks)]
        )
        layout = layout_of(plan)
        assert layout.stretches == repeats(sizes.sum(axis=0).tolist())
        assert layout.microbatches == repeats(sizes[0].tolist())
        assert (layout.num_rows, layout.max_rows, layout.min_rows) == (
            batch - phase,
            sizes.sum(axis=1).max(),
            sizes.sum(axis=1).min(),
        )
        assert (layout.largest_microbatch, layout.smallest_microbatch) == (sizes.max(), sizes.min())
        assert layout.num_idle == layout.num_filler == (sizes == 0).sum()
        assert layout.num_empty == (sizes.sum(axis=1) == 0).sum()
        assert layout.is_even == (sizes == sizes[0]).all()
        padded = layout_of(plan, pad_microbatches=True)
        assert padded.num_filler == (microbatch - sizes).sum()
        assert padded.idle_percent == pytest.approx(100 * (1 - sizes.sum() / (sizes.size * microbatch)))
        assert layout.idle_percent == pytest.approx(100 * (1 - sizes.sum() / (ranks * sizes[0].sum())))


def test_boundaries_are_the_ends_of_stretches() -> None:
    """The boundaries around a row are the nearest ends of stretches."""
    for batch, microbatch, ranks, _ in GRID:
        plan = BatchPlan(global_batch=batch, microbatch=microbatch, num_replicas=ranks)
        ends = [0, *plan.stretches[:, 1].tolist()]
        for row in range(batch):
            expected = max(end for end in ends if end <= row), min(end for end in ends if end > row)
            assert boundaries_around(plan, row) == expected


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
@pytest.mark.parametrize("epochs", [1, 3, None])
@pytest.mark.parametrize("offset", [0, 12, 36, 91])
def test_updates_left_are_those_that_the_schedule_makes(tail: str, epochs: int | None, offset: int) -> None:
    """Updates left, and the last update's size, are what walking through the run gives."""
    report = report_of(samples=100, global_batch=12, tail=tail, epochs=epochs, offset=offset)
    schedule = report.request.schedule
    spans = []
    place = schedule.settle(0, offset)
    first_epoch = place.epoch
    while place.epoch < (epochs or 3) and (span := schedule.update_at(place.epoch, place.offset)):
        spans.append(span)
        place = schedule.after(span)
    in_epoch = [span for span in spans if span.start // 100 == first_epoch]
    assert report.updates_left_in_epoch == len(in_epoch)
    assert report.updates_left == (len(spans) if epochs else None)
    last = [layouts for layouts in report.updates if layouts.kind == "last"]
    expected = spans[-1:] if tail == "carry" and epochs else in_epoch[-1:] if tail in ("short", "pad") else []
    expected = [span for span in expected if span.num_samples != 12]
    assert [(at.num_rows, at.padding) for at in last] == [(span.num_rows, span.padding) for span in expected]


def test_samples_that_drop_skips_are_told() -> None:
    """With tail="drop" the report says how many samples the end of the epoch skips."""
    assert report_of(samples=100, global_batch=12, tail="drop").dropped_per_epoch == 4
    assert report_of(samples=100, global_batch=12, tail="short").dropped_per_epoch == 0


def test_move_between_updates_is_exact() -> None:
    """Between updates any rank set may follow any other: nothing is replayed, omitted or discarded."""
    report = report_of()
    assert (report.verdict, report.exit_code) == ("exact", 0)
    assert (report.move.replayed, report.move.omitted, report.move.discarded) == (0, 0, 0)


def test_move_at_a_microbatch_boundary_is_exact() -> None:
    """Inside an update a move is exact where a microbatch of today's layout ends; the rest is laid out anew."""
    report = report_of(phase=48)
    assert (report.verdict, report.move.boundary, report.move.discarded) == ("exact", "microbatch", 48)
    unfinished = report.updates[-1]
    assert (unfinished.kind, unfinished.phase) == ("unfinished", 48)
    assert unfinished.to
    assert unfinished.to.stretches == repeats([20] * 10 + [8])
    assert unfinished.to.loss_scale == 10 / 256


def test_move_elsewhere_is_a_violation() -> None:
    """Where no microbatch ends, the report says what going on there would omit or replay, and the way out."""
    report = report_of(phase=47)
    assert (report.verdict, report.exit_code) == ("inexact", 1)
    assert (report.move.boundary_below, report.move.boundary_above) == (32, 48)
    assert (report.move.omitted, report.move.replayed) == (15, 1)
    assert report.findings[0].code == "RD605"
    assert [layouts.kind for layouts in report.updates] == ["full"]


def test_phase_outside_the_update_is_refused() -> None:
    """A phase is a number of rows of the next update, which may be a short one."""
    with pytest.raises(UsageError, match=r"phase must be in \[0, 256\)"):
        report_of(phase=256)
    with pytest.raises(UsageError, match=r"phase must be in \[0, 100\)"):
        report_of(samples=100, epochs=1, phase=101)
    with pytest.raises(UsageError, match="the run is over"):
        report_of(epochs=1, epoch=1, phase=3)


def test_run_that_is_over_has_nothing_left() -> None:
    """At the end of the run the report says so, and no update is left."""
    report = report_of(epochs=2, epoch=2)
    assert (report.updates_left, report.updates_left_in_epoch) == (0, 0)
    assert "RD606" in codes(report)
    assert "RD606 warning: the run is over" in report.to_text()


def codes(report: PlanReport) -> set[str]:
    return {finding.code for finding in report.findings}


def test_findings_name_what_is_uneven() -> None:
    """Each kind of unevenness has its code: unequal shares, idle ranks, filler, ranks without a row."""
    assert codes(report_of(to=(16, 2))) == set()
    assert codes(report_of()) == {"RD601"}
    assert codes(report_of(global_batch=12, to=(5, 1))) == {"RD601", "RD602", "RD603"}
    assert codes(report_of(global_batch=8, to=(16, 2))) == {"RD602", "RD603", "RD604"}
    assert codes(report_of(to=(8, 3), pad_microbatches=True)) == {"RD603"}
    assert codes(report_of(to=None, now=(10, 2))) == {"RD601"}


def test_findings_are_sorted_worst_first() -> None:
    """Violations stand before warnings, warnings before notes, and each code has its declared severity."""
    report = report_of(global_batch=12, to=(5, 1), now=(4, 1), phase=3)
    severities = [SEVERITIES.index(finding.severity) for finding in report.findings]
    assert severities == sorted(severities)
    assert severities[0] == 0
    assert all(finding.severity == KINDS[finding.code].severity for finding in report.findings)


def test_same_rank_set_changes_nothing() -> None:
    """A move to the same ranks and microbatch has no changes; neither has a report on one rank set."""
    assert report_of(to=(8, 2)).changes == ()
    assert report_of(to=None).changes == ()


def test_changes_give_both_values() -> None:
    """Random numbers, sums, batch statistics and work change with the rank set, each told with both values."""
    changes = {change.what: (change.now, change.to) for change in report_of().changes}
    assert changes == {
        "random streams": ("8", "10"),
        "random numbers": ("32", "25 to 26"),
        "sums": ("16 x 8", "13 x 10"),
        "batch statistics": ("2 rows", "1 to 2 rows"),
        "work": ("0.0 %", "1.5 %"),
    }


def test_loss_scale_follows_the_reduction() -> None:
    """A mean over ranks is undone by their number, a sum is not; token weights depend on the update."""
    for reduction, scale in (("mean", 10 / 256), ("sum", 1 / 256)):
        to = report_of(gradient_reduction=reduction).updates[0].to
        assert to
        assert to.loss_scale == scale
    by_tokens = report_of(normalize="tokens")
    assert by_tokens.updates[0].now.loss_scale is None
    assert "8 / target tokens   10 / target tokens" in by_tokens.to_text()
    with pytest.raises(UsageError, match="gradient_reduction"):
        report_of(gradient_reduction="median")


def test_json_holds_the_whole_report() -> None:
    """The JSON has the schema's version, the verdict, both layouts, alternatives, changes and findings."""
    data = msgspec.json.decode(report_of(epochs=3).to_json())
    assert data["schema_version"] == 1
    assert data["verdict"] == "exact"
    assert [layouts["kind"] for layouts in data["updates"]] == ["full", "last"]
    assert data["updates"][0]["to"]["stretches"] == [{"count": 12, "size": 20}, {"count": 1, "size": 16}]
    assert data["alternatives"]["global_batches"] == [240, 260]
    assert data["findings"][0].keys() == {"code", "severity", "title", "where", "expected", "found", "remedy"}
    assert data["changes"][0].keys() == {"what", "now", "to", "effect"}
    assert data["move"]["replayed"] == data["move"]["omitted"] == 0
    assert data["request"]["schedule"] == {
        "length": 1000,
        "global_batch": 256,
        "tail": "carry",
        "epochs": 3,
        "num_replicas": 1,
    }


@pytest.mark.parametrize("tail", ["carry", "short", "drop", "pad"])
@pytest.mark.parametrize("phase", [0, 48, 47])
def test_text_is_no_wider_than_a_terminal(tail: str, phase: int) -> None:
    """Ordinary reports fit 100 columns and one screen."""
    lines = report_of(tail=tail, epochs=2, phase=phase).to_text().splitlines()
    assert max(map(len, lines)) <= 100
    assert len(lines) <= 55
    assert all(line == line.rstrip() for line in lines)
