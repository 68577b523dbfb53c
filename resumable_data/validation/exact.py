"""What must be equal in two traces, update by update, and what their first lines must agree on."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

from resumable_data.validation.comparison import Excess
from resumable_data.validation.findings import TraceFinding
from resumable_data.validation.limits import QUANTITIES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from resumable_data.validation.trace import Trace, UpdateRecord


class _Check(NamedTuple):
    """A thing that must be equal.

    Attributes:
        quantity: What it is called.
        code: Of the finding where it is not.
        read: Gives it.
    """

    quantity: str
    code: str
    read: Callable[[UpdateRecord], object]


# In the order in which an update's numbers are known, which says what moved first.
_CHECKS = (
    _Check("samples", "RD902", lambda record: record.sample_digest),
    _Check("counts", "RD909", lambda record: (record.samples, record.tokens)),
    _Check("learning_rates", "RD904", lambda record: record.learning_rates),
    _Check("scheduler_step", "RD908", lambda record: record.scheduler_step),
    _Check("loss_scale", "RD905", lambda record: record.loss_scale),
    _Check("skipped", "RD906", lambda record: record.skipped),
    _Check("optimizer_steps", "RD907", lambda record: record.optimizer_steps),
)
_ORDER = {
    **{check.code: (at, check.quantity) for at, check in enumerate(_CHECKS[:5])},
    **{code: (10 + at, name) for at, (code, name) in enumerate(zip(("RD911", "RD912"), QUANTITIES, strict=False))},
    "RD903": (20, "finite"),
    "RD906": (30, "skipped"),
    "RD907": (31, "optimizer_steps"),
    "RD913": (32, "update_norm"),
}


def check_exact(ours: Sequence[UpdateRecord], theirs: Sequence[UpdateRecord]) -> list[TraceFinding]:
    """What differs between records of the same updates, and must not; and what is not finite."""
    found = []
    for check in _CHECKS:
        differ = [(a, b) for a, b in zip(ours, theirs, strict=True) if check.read(a) != check.read(b)]
        if differ:
            first, other = differ[0]
            found.append(
                TraceFinding.about(
                    check.code,
                    f"{check.quantity} of update {first.update}",
                    expected=_shown(check.read(first)),
                    found=_shown(check.read(other)),
                    count=len(differ),
                    first_update=first.update,
                )
            )
    for who, records in (("control", ours), ("candidate", theirs)):
        found += _check_finite(who, records)
    return found


def _check_finite(who: str, records: Sequence[UpdateRecord]) -> list[TraceFinding]:
    """Values that are not finite, but for the gradient of a step that the scaler skipped for that reason."""
    bad = [(record, name) for record in records for name in QUANTITIES if not _is_sound(record, name)]
    if not bad:
        return []
    record, name = bad[0]
    return [
        TraceFinding.about(
            "RD903",
            f"{name} of update {record.update} of the {who}",
            expected="a finite number",
            found=str(getattr(record, name)),
            count=len({record.update for record, _ in bad}),
            first_update=record.update,
        )
    ]


def _is_sound(record: UpdateRecord, name: str) -> bool:
    value = getattr(record, name)
    return value is None or math.isfinite(value) or (record.skipped and name == "gradient_norm")


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {one!r}" for name, one in value.items())
    return str(value)


def check_headers(control: Trace, candidate: Trace) -> list[TraceFinding]:
    """What the first lines say that a reader should know."""
    found = [
        TraceFinding.about("RD932", trace.path, expected="a whole last line", found="a part of one")
        for trace in (control, candidate)
        if trace.is_torn
    ]
    a, b = control.header, candidate.header
    pairs = (
        ("RD933", "dtype", a.dtype, b.dtype),
        ("RD934", "torch", a.torch_version, b.torch_version),
        ("RD934", "resumable_data", a.package_version, b.package_version),
        ("RD935", "run", a.run_id, b.run_id),
    )
    return found + [
        TraceFinding.about(code, where, expected=ours, found=theirs)
        for code, where, ours, theirs in pairs
        if ours != theirs
    ]


def check_same_trace(
    candidate: Trace, ours: Sequence[UpdateRecord], theirs: Sequence[UpdateRecord]
) -> list[TraceFinding]:
    """A trace that is compared with itself says nothing."""
    if not _is_same_trace(ours, theirs):
        return []
    found = "the control's own, or a copy of it"
    return [TraceFinding.about("RD926", candidate.path, expected="a trace of another launch", found=found)]


def _is_same_trace(ours: Sequence[UpdateRecord], theirs: Sequence[UpdateRecord]) -> bool:
    """Whether records are of one launch: no two take the same times to the nanosecond."""
    return bool(ours) and ours[0].throughput is not None and list(ours) == list(theirs)


def check_repeat(
    control: Trace, window: Sequence[UpdateRecord], repeat: Trace, records: Sequence[UpdateRecord]
) -> str | None:
    """Why a trace is no repeat of the compared updates of the control; None where it is one."""
    a, b = control.header, repeat.header
    for what, ours, theirs in (
        ("axes", a.axes, b.axes),
        ("dtype", a.dtype, b.dtype),
        ("torch", a.torch_version, b.torch_version),
    ):
        if ours != theirs:
            return f"{what} {theirs}, and the control's {ours}"
    if [record.update for record in records] != [record.update for record in window]:
        return "it does not have all updates that are compared"
    if _is_same_trace(window, records):
        return "it is the control's own trace, or a copy of it"
    different = check_exact(window, records)
    return f"{different[0].title}: {different[0].where}" if different else None


def first_excess_of(findings: Iterable[TraceFinding]) -> Excess | None:
    """The first update with a violation or an excess, and which quantity is known first in it."""
    placed = [(finding.first_update, *_place(finding)) for finding in findings if finding.first_update is not None]
    if not placed:
        return None
    update, _, quantity = min(placed)
    return Excess(update, quantity)


def _place(finding: TraceFinding) -> tuple[int, str]:
    if finding.code == "RD901":
        return -1, "first update"
    if finding.code in ("RD903", "RD922"):
        name = finding.where.split(" ")[0]
        return {"loss": 10, "gradient_norm": 11, "update_norm": 32}[name], name
    return _ORDER[finding.code]
