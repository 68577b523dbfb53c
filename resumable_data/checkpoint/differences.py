"""What a checkpoint holds against what the program has: in both directions, key by key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from resumable_data.checkpoint.manifest import BytesKey, TensorKey
from resumable_data.checkpoint.migration.changes import DTYPE, MESH, PRECISION, SCHEDULE
from resumable_data.errors import CheckpointError
from resumable_data.ledger.frames import shown

NO_MANIFEST = "no_manifest"
NO_CHECKSUMS = "no_checksums"
STEP_COUNTERS = "step_counters"
ALLOWANCES = frozenset(
    {
        *("only_in_checkpoint", "only_in_program", DTYPE, NO_MANIFEST, NO_CHECKSUMS, STEP_COUNTERS),
        *(MESH, PRECISION, SCHEDULE),
    }
)
"""What `load_checkpoint` may be told to allow, besides what the loader takes."""

_SHOWN = 8
_EFFECTS = {
    "only_in_checkpoint": "it would not be loaded, and nothing in the program would say so",
    "only_in_program": "it would keep the value that the program has now",
    "dtype": "its values would be cast",
    "shape": "it does not fit",
    "kind": "one is a tensor and the other is not",
}


class Difference(msgspec.Struct, frozen=True):
    """One key that differs.

    Attributes:
        kind: ``"only_in_checkpoint"``, ``"only_in_program"``, ``"dtype"``, ``"shape"``, or ``"kind"`` where one is a
            tensor and the other is not.
        key: The flat key.
        saved: What the checkpoint has.
        now: What the program has.
    """

    kind: str
    key: str
    saved: str
    now: str


def describe_program(flat: Mapping[str, Any]) -> dict[str, TensorKey | BytesKey]:
    """What a program has under each flat key, as a manifest lists it."""
    return {
        key: TensorKey(shape=tuple(value.shape), dtype=str(value.dtype).removeprefix("torch."))
        if isinstance(value, torch.Tensor)
        else BytesKey()
        for key, value in flat.items()
    }


def compare_keys(
    saved: Mapping[str, TensorKey | BytesKey], now: Mapping[str, TensorKey | BytesKey]
) -> list[Difference]:
    """All differences, by key."""
    found = []
    for key in sorted(saved.keys() | now.keys()):
        kind = _kind(saved.get(key), now.get(key))
        if kind:
            found.append(Difference(kind, key, _shown(saved.get(key)), _shown(now.get(key))))
    return found


def _kind(saved: TensorKey | BytesKey | None, now: TensorKey | BytesKey | None) -> str:
    if saved is None or now is None:
        return "only_in_program" if saved is None else "only_in_checkpoint"
    if isinstance(saved, TensorKey) and isinstance(now, TensorKey):
        if saved.shape != now.shape:
            return "shape"
        return "dtype" if saved.dtype != now.dtype else ""
    return "" if isinstance(saved, BytesKey) and isinstance(now, BytesKey) else "kind"


def refuse(path: Path, differences: Sequence[Difference], allowed: set[str]) -> None:
    """Make sure that all differences are allowed.

    Raises:
        CheckpointError: Some are not; names them, and how to allow what can be.
    """
    refused = [one for one in differences if one.kind not in allowed]
    if not refused:
        return
    kinds = sorted({one.kind for one in refused})
    lines = [line for kind in kinds for line in _lines([one for one in refused if one.kind == kind])]
    effects = "; ".join(f"{kind}: {_EFFECTS[kind]}" for kind in kinds)
    may = sorted(set(kinds) & ALLOWANCES)
    remedy = f" Where that is meant, allow={set(may)!r} loads the rest, and is recorded." if may == kinds else ""
    raise CheckpointError(
        f"{shown(path)} and this program differ in {len(refused)} keys:\n"
        + "\n".join(lines)
        + f"\n{effects}. Nothing was "
        f"loaded; make the program the one that saved.{remedy}"
    )


def _lines(differences: Sequence[Difference]) -> list[str]:
    """The tensors among differences of one kind first, as many as a person reads."""
    ordered = sorted(differences, key=lambda one: "a plain value" in (one.saved, one.now))
    lines = [f"  {one.key}: {one.saved} in the checkpoint, {one.now} in the program" for one in ordered[:_SHOWN]]
    return [*lines, f"  and {len(ordered) - _SHOWN} more"] if len(ordered) > _SHOWN else lines


def _shown(key: TensorKey | BytesKey | None) -> str:
    if key is None:
        return "nothing"
    return f"{key.dtype} {list(key.shape)}" if isinstance(key, TensorKey) else "a plain value"
