"""Compares a trace with a control's: exactly where numbers must be equal, else within what the control varies by."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.validation.comparison import Compared, TraceComparison, TracedRun, judge
from resumable_data.validation.exact import check_exact, check_headers, check_repeat, first_excess_of
from resumable_data.validation.findings import TraceFinding
from resumable_data.validation.limits import (
    CEILING,
    MIN_UPDATES,
    QUANTITIES,
    ROUNDING,
    Limit,
    check_limits,
    deviations,
    floor_of,
    hidden_faults,
    limit_of,
    noise_of,
)
from resumable_data.validation.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from resumable_data.validation.trace import UpdateRecord

    TraceLike = Trace | str | os.PathLike[str]
    Records = Sequence[UpdateRecord]

_CODES = dict(zip(QUANTITIES, ("RD911", "RD912", "RD913"), strict=True))


def compare_traces(
    control: TraceLike,
    candidate: TraceLike,
    *,
    repeats: Sequence[TraceLike] = (),
    limits: Mapping[str, float] | None = None,
    first_update: int | None = None,
    min_updates: int = MIN_UPDATES,
) -> TraceComparison:
    """Whether the candidate does what the control did.

    Compared are the updates that both have. Samples, learning rates, loss scale, skipped steps and step counters must
    be equal, all values finite, and loss, gradient norm and update norm within limits, see
    `resumable_data.validation.limits`.

    Args:
        control: The trace, or its file, of the run on the ranks that are known to be right.
        candidate: The one that is judged.
        repeats: Further traces of the control: the same updates, from the same checkpoint, on the same ranks.
        limits: Relative deviations allowed, declared before: of ``"loss"``, ``"gradient_norm"``, ``"update_norm"``, at
            most 1 %. Those that are not given are derived from the repeats.
        first_update: Where the candidate is meant to start; where the control does when None.
        min_updates: How many updates must be compared.

    Raises:
        TraceError: A file cannot be read, or is damaged.
        UsageError: A limit is none, or the control does not have the first update.
    """
    check_limits(limits or {})
    control, candidate = _read(control), _read(candidate)
    start = _start(control, first_update)
    ours, theirs = _window(control, candidate, start)
    used, findings = _use_repeats(control, ours, [_read(one) for one in repeats])
    findings += [*check_headers(control, candidate), *_check_extent(candidate, ours, start, min_updates)]
    findings += check_exact(ours, theirs)
    compared = _compare_values(control, candidate, ours, theirs, used, limits or {})
    findings += _judge_values(compared, ours, theirs)
    quantities = tuple(one for one, _ in compared.values())
    hidden = hidden_faults({name: limit for name, (_, limit) in compared.items()}) if ours else ()
    if hidden and ours:
        findings.append(_hidden(quantities, hidden))
    findings.sort(key=lambda finding: finding.precedence)
    return TraceComparison(
        verdict=judge(findings),
        control=_traced(control, ours),
        candidate=_traced(candidate, theirs),
        repeats=len(used),
        first_update=start,
        updates=len(ours),
        quantities=quantities,
        hidden_faults=hidden,
        first_excess=first_excess_of(findings),
        findings=tuple(findings),
    )


def _read(trace: TraceLike) -> Trace:
    return trace if isinstance(trace, Trace) else Trace.read(trace)


def _start(control: Trace, first_update: int | None) -> int:
    if not control.updates:
        raise UsageError(
            f"{control.path}: expected a control with updates, found none. There is nothing to compare with."
        )
    first, last = control.updates[0].update, control.updates[-1].update
    if first_update is None:
        return first
    if not first <= first_update <= last:
        raise UsageError(
            f"{control.path}: expected a control that has update {first_update}, found updates {first} to {last}. "
            "Nothing was compared; give the update that the candidate is meant to start at."
        )
    return first_update


def _cut(trace: Trace, start: int, stop: int) -> Records:
    """The updates [start, stop) of a trace, as far as it has them."""
    if not trace.updates:
        return ()
    first = trace.updates[0].update
    return trace.updates[max(0, start - first) : max(0, stop - first)]


def _window(control: Trace, candidate: Trace, start: int) -> tuple[Records, Records]:
    """What both have of the updates from `start` on."""
    if not candidate.updates:
        return (), ()
    first = max(start, candidate.updates[0].update)
    stop = min(trace.updates[-1].update + 1 for trace in (control, candidate))
    return _cut(control, first, stop), _cut(candidate, first, stop)


def _check_extent(candidate: Trace, compared: Records, start: int, min_updates: int) -> list[TraceFinding]:
    found = []
    if candidate.updates and candidate.updates[0].update != start:
        first = candidate.updates[0].update
        found.append(
            TraceFinding.about("RD901", "first update", expected=str(start), found=str(first), first_update=first)
        )
    if len(compared) < max(1, min_updates):
        found.append(
            TraceFinding.about("RD923", candidate.path, expected=f"{min_updates} updates", found=str(len(compared)))
        )
    return found


def _use_repeats(control: Trace, window: Records, repeats: Sequence[Trace]) -> tuple[list[Records], list[TraceFinding]]:
    """The compared updates of those repeats that are some, and what is wrong with the others."""
    used, findings = [], []
    for repeat in repeats:
        stop = window[-1].update + 1 if window else 0
        records = _cut(repeat, window[0].update if window else 0, stop)
        reason = check_repeat(control, window, repeat, records)
        if reason is None:
            used.append(records)
        else:
            findings.append(TraceFinding.about("RD925", repeat.path, expected="a repeat of the control", found=reason))
    return used, findings


def values_of(records: Records, quantity: str) -> NDArray[np.float64] | None:
    """A quantity of each update: (n,) float64; None where one of them does not have it."""
    values = [getattr(record, quantity) for record in records]
    return None if None in values else np.array(values, np.float64)


def _compare_values(
    control: Trace,
    candidate: Trace,
    ours: Records,
    theirs: Records,
    repeats: Sequence[Records],
    given: Mapping[str, float],
) -> dict[str, tuple[Compared, Limit]]:
    """Each quantity that both have."""
    floor = floor_of((control.header.dtype, candidate.header.dtype))
    found: dict[str, tuple[Compared, Limit]] = {}
    for name in QUANTITIES if ours else ():
        a, b = values_of(ours, name), values_of(theirs, name)
        if a is None or b is None:
            continue
        repeated = [values for one in repeats if (values := values_of(one, name)) is not None]
        limit = limit_of(given.get(name), noise_of([a, *repeated]) if repeated else None, floor)
        apart = deviations(a, b)
        at = int(apart.argmax())
        beyond = np.flatnonzero(apart > limit.value)
        compared = Compared(
            name=name,
            largest=float(apart[at]) if np.isfinite(apart[at]) else None,
            at_update=ours[at].update,
            first=float(apart[0]) if np.isfinite(apart[0]) else None,
            limit=limit.value,
            limit_source=limit.source,
            noise=limit.noise,
            first_excess=ours[int(beyond[0])].update if beyond.size else None,
        )
        found[name] = (compared, limit)
    return found


def _judge_values(compared: Mapping[str, tuple[Compared, Limit]], ours: Records, theirs: Records) -> list[TraceFinding]:
    """What loss and norms say."""
    found = [
        TraceFinding.about("RD924", name, expected="a value at each update", found="none in one of the traces")
        for name in QUANTITIES
        if ours and name not in compared and any(getattr(r, name) is not None for r in (ours[0], theirs[0]))
    ]
    if any(limit.source == ROUNDING for _, limit in compared.values()):
        found.append(TraceFinding.about("RD931", "repeats", expected="2 or more", found="none"))
    for name, (one, limit) in compared.items():
        if one.first_excess is None:
            continue
        is_unknown = limit.source == ROUNDING and one.largest is not None and one.largest <= CEILING
        at = one.first_excess - ours[0].update
        a, b = getattr(ours[at], name), getattr(theirs[at], name)
        apart = float(deviations(np.array([a]), np.array([b]))[0])
        found.append(
            TraceFinding.about(
                "RD922" if is_unknown else _CODES[name],
                f"{name} of update {one.first_excess}",
                expected=f"{a:.9g}, within {limit.value:.2g}",
                found=f"{b:.9g}, {apart:.2g} away",
                count=_count_beyond(ours, theirs, name, limit.value),
                first_update=one.first_excess,
            )
        )
    return found


def _count_beyond(ours: Records, theirs: Records, name: str, limit: float) -> int:
    a, b = values_of(ours, name), values_of(theirs, name)
    assert a is not None
    assert b is not None
    return int((deviations(a, b) > limit).sum())


def _hidden(quantities: Sequence[Compared], hidden: tuple[str, ...]) -> TraceFinding:
    limits = ", ".join(f"{one.name} {one.limit:.2g}" for one in quantities)
    return TraceFinding.about(
        "RD921",
        "limits",
        expected="limits below half of what a fault does",
        found=f"{limits}; would hide: {hidden[0]}" + (f", and {len(hidden) - 1} more" if len(hidden) > 1 else ""),
    )


def _traced(trace: Trace, records: Records) -> TracedRun:
    """A run, with its speed without the first update, which starts workers and compiles."""
    timed = [record for record in records[1:] if record.throughput is not None]
    seconds = sum(record.throughput.seconds for record in timed if record.throughput)
    speed = sum(record.samples for record in timed) / seconds if seconds else None
    header = trace.header
    return TracedRun(
        path=trace.path,
        run_id=header.run_id,
        num_replicas=header.num_replicas,
        axes=header.axes,
        dtype=header.dtype,
        samples_per_s=speed,
        samples_per_device_s=None if speed is None else speed / header.num_devices,
    )
