"""Whether a resume is one: the state that a program holds, and whether training means the same after a move.

A name is looked up in its module at its first use: comparing traces does not import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.checkpoint.probe import Probe
    from resumable_data.checkpoint.run_manifest import RunManifest as Manifest
    from resumable_data.validation.compare import compare_traces
    from resumable_data.validation.comparison import TraceComparison
    from resumable_data.validation.judging import judge_move
    from resumable_data.validation.recorder import TraceRecorder
    from resumable_data.validation.rehearsal.function import rehearse
    from resumable_data.validation.rehearsal.job import Context, Job, OptimizerStep
    from resumable_data.validation.state import check_state, check_unchanged
    from resumable_data.validation.state_report import StateReport
    from resumable_data.validation.trace import Trace, TraceHeader, UpdateRecord
    from resumable_data.validation.verdict import Verdict
    from resumable_data.validation.watch_report import WatchReport
    from resumable_data.validation.watching import Watch, watch

__all__ = [
    "Context",
    "Job",
    "Manifest",
    "OptimizerStep",
    "Probe",
    "StateReport",
    "Trace",
    "TraceComparison",
    "TraceHeader",
    "TraceRecorder",
    "UpdateRecord",
    "Verdict",
    "Watch",
    "WatchReport",
    "check_state",
    "check_unchanged",
    "compare_traces",
    "judge_move",
    "rehearse",
    "watch",
]

_HOMES = {
    "Context": "rehearsal.job",
    "Job": "rehearsal.job",
    "OptimizerStep": "rehearsal.job",
    "StateReport": "state_report",
    "Trace": "trace",
    "TraceComparison": "comparison",
    "TraceHeader": "trace",
    "TraceRecorder": "recorder",
    "UpdateRecord": "trace",
    "Verdict": "verdict",
    "Watch": "watching",
    "WatchReport": "watch_report",
    "check_state": "state",
    "check_unchanged": "state",
    "compare_traces": "compare",
    "judge_move": "judging",
    "rehearse": "rehearsal.function",
    "watch": "watching",
}

if not TYPE_CHECKING:  # a type checker that saw this function would take any misspelt name for an object

    def __getattr__(name: str) -> object:
        if name == "Manifest":
            from resumable_data.checkpoint.run_manifest import RunManifest

            return RunManifest
        if name == "Probe":
            from resumable_data.checkpoint.probe import Probe

            return Probe
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
        globals()[name] = value
        return value
