"""Traces made by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from resumable_data.validation.trace import Throughput, Trace, TraceHeader, UpdateRecord
from resumable_data.validation.trace_writer import TraceWriter

if TYPE_CHECKING:
    from pathlib import Path


def make_header(**fields: Any) -> TraceHeader:
    plain: dict[str, Any] = {
        "run_id": "00000000000000aa",
        "num_replicas": 4,
        "axes": (("dp", 4),),
        "data_axes": ("dp",),
        "num_devices": 4,
        "global_batch": 8,
        "dtype": "float32",
    }
    return TraceHeader(**plain | fields)


def make_record(update: int, **fields: Any) -> UpdateRecord:
    plain: dict[str, Any] = {
        "update": update,
        "loss": 2.0 / (1 + update),
        "gradient_norm": 1.0 + 0.1 * (update % 3),
        "update_norm": 0.01,
        "learning_rates": {"0": 0.1 / (1 + update)},
        "optimizer_steps": (update + 1, update + 1),
        "scheduler_step": update,
        "samples": 8,
        "tokens": 64,
        "sample_digest": f"{update:032x}",
        "throughput": Throughput(
            seconds=0.5, samples_per_s=16.0, tokens_per_s=128.0, samples_per_device_s=4.0, tokens_per_device_s=32.0
        ),
    }
    return UpdateRecord(**plain | fields)


def make_trace(start: int = 60, stop: int = 80, *, path: str = "trace", **header: Any) -> Trace:
    return Trace(path=path, header=make_header(**header), updates=tuple(map(make_record, range(start, stop))))


def another_launch(trace: Trace) -> Trace:
    """The same updates, in other times."""
    updates = []
    for record in trace.updates:
        assert record.throughput is not None
        seconds = record.throughput.seconds * (1 + 1e-9)
        updates.append(
            msgspec.structs.replace(record, throughput=msgspec.structs.replace(record.throughput, seconds=seconds))
        )
    return msgspec.structs.replace(trace, updates=tuple(updates))


def scaled(trace: Trace, quantity: str, factor: float, *, start: int = 0) -> Trace:
    """The trace with a quantity of its updates from the start-th on multiplied."""
    updates = [
        record if at < start else msgspec.structs.replace(record, **{quantity: getattr(record, quantity) * factor})
        for at, record in enumerate(trace.updates)
    ]
    return msgspec.structs.replace(trace, updates=tuple(updates))


def changed(trace: Trace, at: int, **fields: Any) -> Trace:
    """The trace with fields of its at-th update replaced."""
    updates = list(trace.updates)
    updates[at] = msgspec.structs.replace(updates[at], **fields)
    return msgspec.structs.replace(trace, updates=tuple(updates))


def write(path: Path, trace: Trace) -> Path:
    with TraceWriter(path, trace.header) as writer:
        for record in trace.updates:
            writer.append(record)
    return path
