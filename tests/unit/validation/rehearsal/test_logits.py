"""Logits against those that were stored."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.checkpoint.probe_file import ProbeRecord
from resumable_data.validation.rehearsal.logits import TOLERANCES, check_logits, deviation_of, tolerance_of


def record(values: Any, dtype: str = "float32", **changes: Any) -> ProbeRecord:
    array = np.asarray(values, "<f8")
    made = ProbeRecord(
        examples="a", dtype=dtype, computed_in=dtype, shape=array.shape, kind="<f8", logits=array.tobytes()
    )
    return msgspec.structs.replace(made, **changes)


@given(st.lists(st.tuples(st.floats(-9, 9), st.floats(-9, 9)), min_size=1), st.sampled_from(sorted(TOLERANCES)))
def test_logits_pass_within_the_tolerance_of_their_dtype(pairs: list[tuple[float, float]], dtype: str) -> None:
    """Relative to the largest logit that was stored."""
    before, after = [a for a, _ in pairs], [b for _, b in pairs]
    largest = max(abs(one) for one in before) or 1.0
    expected = max(abs(a - b) for a, b in pairs) / largest
    saved, now = record(before, dtype), record(after, dtype)
    assert deviation_of(saved, now) == pytest.approx(expected)
    check = check_logits(saved, now, deviation_of(saved, now))
    assert (check.status == "passed") == (deviation_of(saved, now) <= TOLERANCES[dtype])


def test_the_tolerance_is_that_of_the_coarsest_dtype() -> None:
    """Of a model that was saved in float32 and computes in bfloat16, it is that of bfloat16."""
    assert tolerance_of("float32", "bfloat16") == TOLERANCES["bfloat16"]
    assert tolerance_of("of tomorrow") == TOLERANCES["float32"]
    ordered = [TOLERANCES[name] for name in ("float64", "float32", "float16", "bfloat16")]
    assert ordered == sorted(ordered)


@pytest.mark.parametrize(
    ("saved", "now", "code"),
    [
        (record([1.0]), record([1.0], examples="b"), "RD976"),
        (record([1.0]), record([float("nan")]), "RD978"),
        (record([1.0], is_random=True), record([1.0]), "RD975"),
        (record([1.0]), record([1.1]), "RD977"),
        (record([1.0]), record([1.0, 1.0]), "RD977"),
    ],
)
def test_each_difference_has_a_finding_of_its_own(saved: ProbeRecord, now: ProbeRecord, code: str) -> None:
    """Examples that changed are not logits that differ."""
    check = check_logits(saved, now, deviation_of(saved, now))
    assert (check.status, [one.code for one in check.findings]) == ("failed", [code])


def test_another_process_may_be_the_one_that_differs() -> None:
    """The deviation is the largest of any process."""
    assert check_logits(record([1.0]), record([1.0]), 0.1).status == "failed"


def test_without_logits_nothing_is_said() -> None:
    """Neither that they agree nor that they do not."""
    for saved, now in ((None, record([1.0])), (record([1.0]), None)):
        assert check_logits(saved, now, 0.0).status == "not run"
