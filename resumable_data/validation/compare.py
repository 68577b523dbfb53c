"""Compares a trace with a control's: exactly where numbers must be equal, else within what the control varies by."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from resumable_data.errors import UsageError
from resumable_data.validation.comparison import TraceComparison, TracedRun, judge
from resumable_data.validation.exact import (
    check_exact,
    check_headers,
    check_repeat,
    check_same_trace,
    first_excess_of,
)
from resumable_data.validation.findings import TraceFinding
from resumable_data.validation.limits import MIN_UPDATES, check_limits, floor_of, hidden_faults
from resumable_data.validation.trace import Trace
from resumable_data.validation.values import compare_values, judge_limits, judge_values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from resumable_data.validation.trace import UpdateRecord

    TraceLike = Trace | str | os.PathLike[str]
    Records = Sequence[UpdateRecord]


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
    findings += check_same_trace(candidate, ours, theirs)
    findings += [*check_headers(control, candidate), *_check_extent(candidate, ours, start, min_updates)]
    findings += check_exact(ours, theirs)
    floor = floor_of((control.header.dtype, candidate.header.dtype))
    quantities = compare_values(ours, theirs, used, limits or {}, floor)
    hidden = hidden_faults({one.name: one.limit for one in quantities}) if ours else ()
    findings += [*judge_values(quantities, ours, theirs), *judge_limits(quantities, hidden)]
    findings.sort(key=lambda finding: finding.precedence)
    return TraceComparison(
        verdict=judge(findings),
        control=traced_run(control, ours),
        candidate=traced_run(candidate, theirs),
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
    min_updates = max(1, min_updates)
    if len(compared) < min_updates:
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


def traced_run(trace: Trace, records: Records) -> TracedRun:
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
