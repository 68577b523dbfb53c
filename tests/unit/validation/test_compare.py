"""The comparison of traces: what must be equal, limits from repeats, and what it must not claim."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.errors import UsageError
from resumable_data.validation.compare import compare_traces
from resumable_data.validation.comparison import TraceComparison
from resumable_data.validation.findings import KINDS
from resumable_data.validation.limits import QUANTITIES
from resumable_data.validation.trace import Trace
from tests.unit.validation.tracing import another_launch, changed, make_trace, scaled

CONTROL = make_trace()
REPEAT = another_launch(another_launch(CONTROL))


def codes(report: TraceComparison) -> list[str]:
    return [finding.code for finding in report.findings]


def compare(candidate: Trace, noise: float = 0.0, **options: Any) -> TraceComparison:
    """With one repeat, whose values are apart by `noise`."""
    repeat = REPEAT
    for quantity in QUANTITIES:
        repeat = scaled(repeat, quantity, 1 + noise)
    return compare_traces(CONTROL, another_launch(candidate), repeats=[repeat], **options)


def test_equal_traces_pass() -> None:
    """A trace passes against itself with a repeat, on other ranks too, and nothing is found."""
    other_ranks = make_trace(num_replicas=2, axes=(("dp", 2),), num_devices=2)
    report = compare(other_ranks)
    assert (report.verdict, report.exit_code, codes(report), report.first_excess) == ("pass", 0, [], None)
    assert (report.first_update, report.updates, report.repeats, report.hidden_faults) == (60, 20, 1, ())
    assert report.control.samples_per_s == pytest.approx(16)
    assert (report.control.samples_per_device_s, report.candidate.samples_per_device_s) == pytest.approx((4, 8))


EXACT = [
    ("RD902", "samples", {"sample_digest": "f" * 32}),
    ("RD904", "learning_rates", {"learning_rates": {"0": math.nextafter(0.1 / 65, 1)}}),
    ("RD904", "learning_rates", {"learning_rates": {"1": 0.1 / 65}}),
    ("RD905", "loss_scale", {"loss_scale": 2.0}),
    ("RD906", "skipped", {"skipped": True}),
    ("RD907", "optimizer_steps", {"optimizer_steps": (64, 65)}),
    ("RD907", "optimizer_steps", {"optimizer_steps": None}),
    ("RD908", "scheduler_step", {"scheduler_step": 65}),
    ("RD909", "counts", {"samples": 7}),
    ("RD909", "counts", {"tokens": None}),
    ("RD903", "loss", {"loss": math.nan}),
    ("RD903", "gradient_norm", {"gradient_norm": math.inf}),
]


@pytest.mark.parametrize(("code", "quantity", "fields"), EXACT)
def test_what_must_be_equal_is_compared_exactly(code: str, quantity: str, fields: dict[str, Any]) -> None:
    """The smallest difference in one update is a violation with its own code, its update and its name."""
    report = compare(changed(CONTROL, 4, **fields), noise=1e-3)
    assert (report.verdict, report.exit_code) == ("deviates", 1)
    assert code in codes(report)
    assert report.first_excess is not None
    assert (report.first_excess.update, report.first_excess.quantity) == (64, quantity)
    (finding,) = (one for one in report.findings if one.code == code)
    assert (finding.severity, finding.count, finding.first_update) == ("violation", 1, 64)


def test_a_skipped_step_may_have_a_gradient_that_is_not_finite() -> None:
    """A step that both skipped for its gradient is no finding; one that only the candidate skipped is."""
    fields = {"skipped": True, "gradient_norm": math.inf, "update_norm": 0.0}
    control = changed(CONTROL, 3, **fields)
    report = compare_traces(control, another_launch(control), repeats=[another_launch(control)])
    assert (report.verdict, codes(report)) == ("pass", [])
    assert "RD906" in codes(compare(changed(CONTROL, 3, **fields)))
    loss_too = changed(control, 3, loss=math.nan)
    assert compare_traces(loss_too, loss_too).verdict == "deviates"


def expected_limit(values: list[list[float]], floor: float) -> float:
    """4 times the largest relative distance of any pair of traces at any update, between the floor and 1 %."""
    noise = 0.0
    for a in values:
        for b in values:
            for x, y in zip(a, b, strict=True):
                noise = max(noise, abs(x - y) / max(abs(x), abs(y)))
    return min(max(4 * noise, floor), 0.01)


factors = st.lists(st.floats(1 - 2e-3, 1 + 2e-3), min_size=20, max_size=20)


@given(st.lists(factors, min_size=1, max_size=3), factors)
def test_limits_are_derived_from_repeats(repeats: list[list[float]], candidate: list[float]) -> None:
    """Verdict, limit, largest deviation and first excess of a loss are those of a comparison number by number."""
    traces = []
    for each in (*repeats, candidate):
        trace = CONTROL
        for at, factor in enumerate(each):
            trace = changed(trace, at, loss=CONTROL.updates[at].loss * factor)
        traces.append(another_launch(trace))
    losses = [[record.loss for record in trace.updates] for trace in (CONTROL, *traces)]
    limit = expected_limit(losses[:-1], 2.0**-17)
    apart = [abs(x - y) / max(abs(x), abs(y)) for x, y in zip(losses[0], losses[-1], strict=True)]
    beyond = [60 + at for at, deviation in enumerate(apart) if deviation > limit]

    report = compare_traces(CONTROL, traces[-1], repeats=traces[:-1])
    found = report.quantities[0]
    assert found.limit == pytest.approx(limit, rel=1e-9)
    assert found.largest == pytest.approx(max(apart), rel=1e-9)
    assert found.first_excess == (beyond[0] if beyond else None)
    assert report.verdict == ("deviates" if beyond else "pass")  # the norms have no noise, and so would show each fault


@pytest.mark.parametrize(
    ("noise", "verdict", "hidden"),
    [
        (0.0, "pass", 0),
        (1e-5, "pass", 0),
        (4.9e-5, "pass", 0),  # twice 4 times that is below what dropping weight decay does to gradient norms, 4e-4
        (5.2e-5, "not distinguishable", 1),
        (1e-4, "not distinguishable", 2),
        (3e-4, "not distinguishable", 4),
        (1.0, "not distinguishable", 5),  # 1 %, the ceiling
    ],
)
def test_noise_that_would_hide_a_fault_is_never_a_pass(noise: float, verdict: str, hidden: int) -> None:
    """Where limits are so wide that a fault of known size stays within half of them, equal traces do not pass."""
    report = compare(CONTROL, noise=noise)
    assert (report.verdict, len(report.hidden_faults)) == (verdict, hidden)
    assert codes(report) == (["RD921"] if hidden else [])
    assert max(one.limit for one in report.quantities) <= 0.01
    assert report.exit_code == (1 if hidden else 0)


def test_a_flat_limit_of_one_percent_does_not_pass() -> None:
    """A zeroed moment, which moves losses by 1e-3, is not passed by limits of 1 %, nor are equal traces."""
    flat = dict.fromkeys(QUANTITIES, 0.01)
    moved = scaled(scaled(CONTROL, "loss", 1.0014, start=1), "gradient_norm", 1.0014, start=1)
    report = compare(moved, limits=flat)
    assert (report.verdict, "a moment of one bias zeroed" in report.hidden_faults) == ("not distinguishable", True)
    assert compare(moved).verdict == "deviates"
    assert compare(CONTROL, limits=flat).verdict == "not distinguishable"


@pytest.mark.parametrize("limits", [{"loss": 0.011}, {"loss": 0.0}, {"loss": math.nan}, {"losses": 1e-3}])
def test_limits_beyond_the_ceiling_are_refused(limits: dict[str, float]) -> None:
    """A limit above 1 %, one that is none, and one of an unknown quantity are errors."""
    with pytest.raises(UsageError, match="Nothing was compared"):
        compare(CONTROL, limits=limits)


def test_given_limits_take_the_place_of_derived_ones() -> None:
    """A declared limit decides, whatever repeats say; the others stay derived."""
    moved = scaled(CONTROL, "loss", 1 + 3e-5)
    assert compare(moved).verdict == "deviates"
    report = compare(moved, limits={"loss": 4e-5})
    assert report.verdict == "pass"
    assert [one.limit_source for one in report.quantities] == ["given", "repeats", "repeats"]
    assert compare(moved, noise=4e-5, limits={"loss": 1e-5}).verdict == "deviates"


@pytest.mark.parametrize(
    ("factor", "dtype", "verdict", "found"),
    [
        (1.0, "float32", "pass", ["RD931"]),
        (1 + 5e-6, "float32", "pass", ["RD931"]),
        (1 + 1e-4, "float32", "not distinguishable", ["RD922", "RD931"]),
        (1 + 2e-2, "float32", "deviates", ["RD911", "RD931"]),
        (1 + 1e-12, "float64", "not distinguishable", ["RD922", "RD931"]),
        (1.0, "bfloat16", "not distinguishable", ["RD921", "RD931"]),
        (1.0, "a dtype of tomorrow", "pass", ["RD931"]),
    ],
)
def test_without_repeats_less_is_said(factor: float, dtype: str, verdict: str, found: list[str]) -> None:
    """Without repeats, agreement within rounding passes with a warning; more is not told from noise below 1 %."""
    control = make_trace(dtype=dtype)
    report = compare_traces(control, another_launch(scaled(control, "loss", factor)))
    assert (report.verdict, codes(report)) == (verdict, found)
    assert all(one.noise is None and one.limit_source == "rounding" for one in report.quantities)
    if verdict == "pass":
        assert "within rounding; how the control varies was not looked at" in report.to_text()


@pytest.mark.parametrize(
    ("repeat", "reason"),
    [
        (make_trace(axes=(("dp", 2),)), "axes"),
        (make_trace(dtype="bfloat16"), "dtype bfloat16"),
        (make_trace(torch_version="3"), "torch 3"),
        (make_trace(60, 79), "does not have all updates"),
        (make_trace(61, 90), "does not have all updates"),
        (make_trace(60, 60), "does not have all updates"),
        (changed(CONTROL, 2, sample_digest="0" * 32), "other samples"),
        (changed(CONTROL, 2, loss=math.nan), "not finite"),
        (CONTROL, "the control's own trace"),
    ],
)
def test_only_a_repeat_of_the_control_gives_limits(repeat: Trace, reason: str) -> None:
    """A trace of other ranks, updates, precision or data gives no limit, and the verdict lacks it."""
    report = compare_traces(CONTROL, another_launch(CONTROL), repeats=[repeat])
    assert (report.verdict, report.repeats) == ("unproven", 0)
    assert codes(report) == ["RD925", "RD931"]
    assert reason in report.findings[0].found
    assert compare_traces(CONTROL, CONTROL, repeats=[repeat, REPEAT]).repeats == 1


def test_where_the_candidate_starts() -> None:
    """A candidate that starts at another update is told first, and the updates that both have are compared."""
    for start in (59, 61):
        report = compare(make_trace(start, 90))
        assert report.verdict == "deviates"
        assert report.first_excess is not None
        assert report.first_excess.quantity == "first update"
        assert report.updates == (20 if start == 59 else 19)
    # a control that was recorded all along
    long = make_trace(0, 200)
    report = compare_traces(long, another_launch(CONTROL), repeats=[another_launch(long)], first_update=60)
    assert (report.verdict, report.first_update, report.updates) == ("pass", 60, 20)
    assert compare_traces(long, CONTROL).verdict == "deviates"
    with pytest.raises(UsageError, match="found updates 0 to 199"):
        compare_traces(long, CONTROL, first_update=200)


def test_too_few_updates_prove_nothing() -> None:
    """Fewer than 20 updates, or than were asked for, are unproven; none at all too; a control of none is refused."""
    short = make_trace(60, 79)
    assert (compare(short).verdict, codes(compare(short))) == ("unproven", ["RD923"])
    assert compare(short, min_updates=19).verdict == "pass"
    empty = compare(make_trace(60, 60), min_updates=0)
    assert (empty.verdict, empty.updates, empty.quantities) == ("unproven", 0, ())
    assert "DEVIATES" not in empty.to_text()
    with pytest.raises(UsageError, match="expected a control with updates"):
        compare_traces(make_trace(60, 60), CONTROL)


def test_a_quantity_that_one_lacks_is_missing_and_one_that_both_lack_is_not() -> None:
    """Update norms in one trace alone are missing evidence."""
    without = CONTROL
    for at in range(20):
        without = changed(without, at, update_norm=None)
    assert (compare(without).verdict, codes(compare(without))) == ("unproven", ["RD924"])
    other = another_launch(without)
    assert compare_traces(without, other, repeats=[other]).verdict == "pass"


def test_a_trace_compared_with_itself_proves_nothing() -> None:
    """The control's own trace, under whatever name, is no candidate."""
    report = compare_traces(CONTROL, make_trace(path="a copy"), repeats=[REPEAT])
    assert (report.verdict, codes(report)) == ("unproven", ["RD926"])


def test_notes_do_not_change_the_verdict() -> None:
    """A torn line, another release, run or dtype are told beside a pass."""
    other = make_trace(dtype="float16", torch_version="3", package_version="9", run_id="00000000000000bb")
    report = compare_traces(
        CONTROL, CONTROL.__class__(path="b", header=other.header, updates=other.updates, is_torn=True)
    )
    assert {"RD932", "RD933", "RD934", "RD935"} <= set(codes(report))
    assert [one.limit for one in report.quantities] == [2.0**-11] * 3


def test_what_moved_first_is_what_is_known_first() -> None:
    """Of what deviates in the first such update, the quantity that is known first is named."""
    moved = scaled(CONTROL, "loss", 1.1, start=6)
    moved = scaled(scaled(moved, "gradient_norm", 1.1, start=5), "update_norm", 1.1, start=5)
    report = compare(moved)
    assert report.first_excess is not None
    assert (report.first_excess.update, report.first_excess.quantity) == (65, "gradient_norm")
    assert [(finding.code, finding.first_update, finding.count) for finding in report.findings] == [
        ("RD911", 66, 14),
        ("RD912", 65, 15),
        ("RD913", 65, 15),
    ]
    assert "moved first  gradient_norm, at update 65" in report.to_text()


@given(st.sampled_from(QUANTITIES), st.integers(0, 19), st.sampled_from([math.nan, math.inf, -math.inf, 0.0, 1e308]))
def test_no_value_is_passed_or_breaks_the_report(quantity: str, at: int, value: float) -> None:
    """Whatever a value became, it is told, in valid JSON and in text."""
    for control, candidate in (
        (CONTROL, changed(CONTROL, at, **{quantity: value})),
        (changed(CONTROL, at, **{quantity: value}), CONTROL),
    ):
        report = compare_traces(control, candidate, repeats=[control])
        assert report.verdict == "deviates"
        found = json.loads(report.to_json())
        assert found["first_excess"]["update"] == 60 + at
        assert found["schema_version"] == 1
        assert report.to_text().startswith("DEVIATES")


def test_every_kind_says_what_to_do() -> None:
    """Codes are of this range, and each has words and a remedy."""
    assert all(code.startswith("RD9") and kind.title and kind.remedy for code, kind in KINDS.items())


def test_names_from_files_cannot_forge_a_report() -> None:
    """A line break in the name of a parameter group is shown escaped."""
    report = compare(changed(CONTROL, 0, learning_rates={"a\nPASS: good": 0.1}))
    assert "\nPASS" not in report.to_text()
    assert "a\\nPASS: good: 0.1" in report.to_text()
