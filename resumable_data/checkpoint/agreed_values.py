"""Whether processes hold the same values under the names that a checkpoint keeps one value of."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import torch
import xxhash
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.tensor import DTensor

from resumable_data.checkpoint.collective import gather_bytes, rank_and_size
from resumable_data.errors import DisagreementError
from resumable_data.loader.agreement import shown_processes

_COMPARED_BYTES = 1 << 20
_SHOWN = 4
_SHOWN_LENGTH = 80
_STAGES = (
    " Stages of a pipeline that hold different keys cannot be saved or loaded together: give each of them all layers, "
    "or train without a pipeline."
)


def check_values_agree(state: dict[str, Any]) -> None:
    """Make sure that what is replicated is the same on all processes. Collective.

    DCP keeps one process's copy of each key, and not always the same process's.

    Args:
        state: What is about to be saved, without what each process has a key of its own for.

    Raises:
        DisagreementError: Processes hold different values; names the keys, the values and the processes.
    """
    if rank_and_size()[1] == 1:
        return
    found = {key: _summary(value) for key, value in flatten_state_dict(state)[0].items()}
    encoded = msgspec.json.encode(found, order="sorted")
    hashes = gather_bytes(xxhash.xxh3_64_digest(encoded))
    if len(set(hashes)) == 1:
        return
    raise _values_differ([json.loads(part) for part in gather_bytes(encoded)])


def _values_differ(everyone: list[dict[str, str]]) -> DisagreementError:
    keys = sorted({key for one in everyone for key in one})
    differ = [key for key in keys if len({one.get(key) for one in everyone}) > 1]
    lines = []
    for key in differ[:_SHOWN]:
        by_value: dict[str, list[int]] = {}
        for process, one in enumerate(everyone):
            by_value.setdefault(one.get(key, "absent"), []).append(process)
        lines += [
            f"  {key} = {value:.{_SHOWN_LENGTH}}  on {shown_processes(where)}" for value, where in by_value.items()
        ]
    more = f"\n  and {len(differ) - _SHOWN} more names" if len(differ) > _SHOWN else ""
    is_absent = any(key not in one for one in everyone for key in differ)
    return DisagreementError(
        f"processes hold different values under {len(differ)} names:\n" + "\n".join(lines) + f"{more}\n"
        "A checkpoint keeps one process's value of each, and not always the same process's. Nothing was saved; make "
        f"the values equal on all processes, or save them under a name of each process.{_STAGES if is_absent else ''}"
    )


def _summary(value: Any) -> str:
    """What must be equal of a value: all of a small one, shape and type of a large or sharded tensor."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (int, float, str, bool, type(None))):
            return repr(value)
        text = repr(value)
        return text if len(text) <= _SHOWN_LENGTH else xxhash.xxh3_64_hexdigest(text.encode())
    kind = f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, DTensor):  # replicas of its parts are compared elsewhere
        return f"sharded {kind}"
    if value.numel() * value.element_size() > _COMPARED_BYTES:
        return kind
    values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{kind} {xxhash.xxh3_64_hexdigest(values)}"
