"""Settings of optimizers and schedulers, which a load replaces where the program's code says otherwise."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from resumable_data.checkpoint.differences import Difference
from resumable_data.checkpoint.program import OptimizerPart, StatefulPart

if TYPE_CHECKING:
    from resumable_data.checkpoint.program import Program

MOVING = frozenset(
    {
        *("params", "last_epoch", "T_cur", "T_i", "best", "num_bad_epochs", "cooldown_counter", "_step_count"),
        *("_last_lr", "_get_lr_called_within_step", "_is_initial"),
    }
)
"""What changes while a program trains, so that a difference means nothing."""


def settings_of(program: Program, state: Mapping[str, Any]) -> dict[str, Any]:
    """The settings in a program's state, by flat key: copies, in plain values.

    A learning rate is one where no scheduler moves it; else what the scheduler starts from is.
    """
    found: dict[str, Any] = {}
    for name, part in program.parts.items():
        if isinstance(part, OptimizerPart):
            for at, group in enumerate(state.get(name, {}).get("param_groups", [])):
                is_moved = "initial_lr" in group
                found |= {
                    key: value
                    for key, value in _settings(group, f"{name}.param_groups.{at}")
                    if not is_moved or key != f"{name}.param_groups.{at}.lr"
                }
        elif isinstance(part, StatefulPart) and isinstance(part.part, LRScheduler):
            found |= dict(_settings(state.get(name, {}), name))
    return found


def compare_settings(saved: Mapping[str, Any], now: Mapping[str, Any]) -> list[Difference]:
    """Those that differ, of those that both have."""
    return [
        Difference("overridden", key, repr(saved[key]), repr(now[key]))
        for key in sorted(saved.keys() & now.keys())
        if saved[key] != now[key]
    ]


def _settings(value: Any, where: str) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            if key not in MOVING:
                yield from _settings(item, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for at, item in enumerate(value):
            yield from _settings(item, f"{where}.{at}")
    else:
        yield where, value.tolist() if isinstance(value, torch.Tensor) else value
