"""Reading a checkpoint's files into a state with DCP, without running what is pickled in them."""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint._nested_dict import flatten_state_dict, set_element
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


def read(path: Path, state: dict[str, Any], absent: Collection[str] = ()) -> None:
    """Read into the tensors of a state, and put plain values into its dicts and lists. Collective.

    Args:
        path: The checkpoint.
        state: What is read into, by keys that are text.
        absent: Flat keys that the checkpoint has not; what the state holds under them stays.

    Raises:
        CheckpointError: DCP could not, on some process.
    """
    if not absent:
        together(lambda: _read(path, state))
        return
    present = _without(state, absent)
    places = flatten_state_dict(state)[1]
    together(lambda: _read(path, present))
    for key, value in flatten_state_dict(present)[0].items():
        if not isinstance(value, torch.Tensor):  # which were read in place
            set_element(state, places[key], value)


def _read(path: Path, state: dict[str, Any]) -> None:
    with alone_is_meant() as alone:
        dcp.load(state, checkpoint_id=path, planner=_Planner(), no_dist=alone)


def _without(state: dict[str, Any], keys: Collection[str]) -> dict[str, Any]:
    """A state without some flat keys: DCP must not be asked for what is not there.

    Lists in which something is left out become dicts, whose flat keys are the same.
    """
    above = {key[:end] for key in keys for end, letter in enumerate(key) if letter == "."}

    def prune(value: Any, where: str) -> Any:
        if where not in above or not isinstance(value, (Mapping, list, tuple)):
            return value
        items = value.items() if isinstance(value, Mapping) else enumerate(value)
        named = {str(key): item for key, item in items}
        return {key: prune(item, f"{where}.{key}") for key, item in named.items() if f"{where}.{key}" not in keys}

    return {name: prune(part, name) for name, part in state.items() if name not in keys}


def with_text_keys(value: Any) -> Any:
    """A state with the keys of its dicts as text. DCP makes them text, and would add them to others."""
    if isinstance(value, Mapping):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [*map(with_text_keys, value)] if isinstance(value, list) else value
