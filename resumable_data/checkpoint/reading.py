"""Reading a checkpoint's files into a state with DCP, without running what is pickled in them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import set_element
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.planner import ReadItem

from resumable_data.checkpoint.collective import alone_is_meant, together


class _Planner(DefaultLoadPlanner):
    """Reads plain values without running what is pickled in them."""

    def load_bytes(self, read_item: ReadItem, value: io.BytesIO) -> None:
        data = torch.load(value, weights_only=True)
        if self.flatten_state_dict:
            set_element(self.original_state_dict, self.mappings[read_item.dest_index.fqn], data)
        else:
            self.state_dict[read_item.dest_index.fqn] = data


def read(path: Path, state: dict[str, Any]) -> None:
    """Read into the tensors of a state, and put plain values into its dicts. Collective.

    Raises:
        CheckpointError: DCP could not, on some process.
    """
    together(lambda: _read(path, state))


def _read(path: Path, state: dict[str, Any]) -> None:
    with alone_is_meant() as alone:
        dcp.load(state, checkpoint_id=path, planner=_Planner(), no_dist=alone)


def without(state: dict[str, Any], keys: set[str]) -> dict[str, Any]:
    """A state without some flat keys: DCP must not be asked for what is not there."""
    if not keys:
        return state

    def prune(value: Any, where: tuple[str, ...]) -> Any:
        if not isinstance(value, Mapping):
            return value
        kept = {key: item for key, item in value.items() if ".".join((*where, str(key))) not in keys}
        return {key: prune(item, (*where, str(key))) for key, item in kept.items()}

    pruned: dict[str, Any] = prune(state, ())
    return pruned


def filled(state: Any, like: Any) -> Any:
    """A state with what `without` left out of it: the program's own."""
    if not isinstance(state, Mapping) or not isinstance(like, Mapping):
        return state
    rest = {key: value for key, value in like.items() if key not in state}
    return {key: filled(value, like.get(key)) for key, value in state.items()} | rest
