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

_COMPARED_BYTES = 1 << 20


def check_values_agree(state: dict[str, Any]) -> None:
    """Make sure that what is replicated is the same on all processes. Collective.

    DCP keeps one process's copy of each key, and not always the same process's.

    Args:
        state: What is about to be saved, without what each process has a key of its own for.

    Raises:
        DisagreementError: Processes hold different values; names the keys.
    """
    if rank_and_size()[1] == 1:
        return
    found = {
        key: _summary(value) for key, value in flatten_state_dict(state)[0].items() if not isinstance(value, DTensor)
    }
    encoded = msgspec.json.encode(found, order="sorted")
    hashes = gather_bytes(xxhash.xxh3_64_digest(encoded))
    if len(set(hashes)) == 1:
        return
    everyone = [json.loads(part) for part in gather_bytes(encoded)]
    keys = sorted({key for one in everyone for key in one})
    differ = [key for key in keys if len({one.get(key) for one in everyone}) > 1]
    shown_keys = ", ".join(
        f"{key} ({' / '.join(sorted({str(one.get(key, 'absent')) for one in everyone}))})" for key in differ[:4]
    )
    more = " ..." if len(differ) > 4 else ""
    raise DisagreementError(
        f"processes hold different values under {len(differ)} names: {shown_keys}{more}. "
        "A checkpoint keeps one process's value of each, and not always the same process's. Nothing was saved; make "
        "the values equal on all processes, or save them under a name of each process."
    )


def _summary(value: Any) -> str:
    """What must be equal of a value: all of a small one, shape and type of a large tensor."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (int, float, str, bool, type(None))):
            return repr(value)
        return xxhash.xxh3_64_hexdigest(repr(value).encode())
    kind = f"{value.dtype} {tuple(value.shape)}"
    if value.numel() * value.element_size() > _COMPARED_BYTES:
        return kind
    values = value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data
    return f"{kind} {xxhash.xxh3_64_hexdigest(values)}"
