"""Logits of fixed examples now against those that were stored, within what rounding of their dtype may do."""

from __future__ import annotations

import numpy as np

from resumable_data.checkpoint.probe_file import ProbeRecord
from resumable_data.findings import PlainFinding
from resumable_data.validation.checks import FAILED, NOT_RUN, PASSED, Check
from resumable_data.validation.verdict_findings import finding

TOLERANCES = {
    "float64": 2.0**-46,
    "float32": 2.0**-17,
    "tf32": 2.0**-8,
    "float16": 2.0**-8,
    "bfloat16": 2.0**-5,
}
"""How far logits may be apart, relative to the largest of them, by the dtype that rounds most. float64 and float32: 64
steps of the last bit, as of a trace. Narrower dtypes: 8 steps; each layer's result is rounded to 8 or 11 bits, another
order of summation moves some of them by a step, and layers add up. A fault of one layer moves them by far more."""


def tolerance_of(*dtypes: str) -> float:
    """The tolerance of the dtype that rounds most; that of float32 for one that is not known."""
    return max(TOLERANCES.get(dtype, TOLERANCES["float32"]) for dtype in dtypes)


def deviation_of(saved: ProbeRecord, now: ProbeRecord) -> float:
    """The largest difference relative to the largest logit that was stored; infinite where they cannot be compared."""
    if saved.shape != now.shape:
        return float("inf")
    before, after = saved.values, now.values
    if not np.isfinite(after).all() or not np.isfinite(before).all():
        return float("inf")
    largest = np.abs(before).max(initial=0.0)
    apart = np.abs(before - after).max(initial=0.0)
    return float(apart) / float(largest) if largest else float(apart)


def check_logits(saved: ProbeRecord | None, now: ProbeRecord | None, deviation: float) -> Check:
    """Whether logits are those that were stored.

    Args:
        saved: What was stored with the checkpoint.
        now: What the first process has; None without a probe.
        deviation: The largest one of any process.
    """
    if saved is None or now is None:
        what = "with the checkpoint" if saved is None else "by the job"
        return Check.of("logits", NOT_RUN, f"no probe was given {what}")
    limit = tolerance_of(saved.computed_in, now.computed_in)
    findings: list[PlainFinding] = []
    if saved.examples != now.examples:
        findings.append(finding("RD976", "examples", expected=f"xxh3 {saved.examples}", found=now.examples))
    elif not np.isfinite(now.values).all():
        findings.append(finding("RD978", "logits", expected="finite values", found="infinite ones or NaN"))
    elif saved.is_random:
        findings.append(finding("RD975", "stored logits", expected="the same twice", found="others"))
    elif not deviation <= limit:
        shapes = "" if saved.shape == now.shape else f", shape {list(now.shape)} where it was {list(saved.shape)}"
        found = f"{deviation:.1e} of the largest logit{shapes}"
        findings.append(finding("RD977", "logits", expected=f"at most {limit:.1e} of it, {now.dtype}", found=found))
    summary = f"apart by {deviation:.1e} of the largest, {limit:.1e} allowed in {now.computed_in}"
    return Check.of("logits", FAILED if findings else PASSED, summary, findings)
