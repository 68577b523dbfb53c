"""Buffers that checkpoints do not hold, compared by what run manifests say of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from resumable_data.checkpoint.run_manifest import ModelInfo, TensorInfo

Told = dict[str, dict[str, tuple[str, str]]]
"""By code and key: what was expected, and what was found."""


def compare_transient(saved: ModelInfo, now: ModelInfo) -> dict[str, tuple[str, str, str]]:
    """By the name of a buffer that differs, or cannot be compared: the finding's code, what it was, and what it is.

    One that only one of the two has, or that has another dtype or shape, is not compared: caches that grow with what
    was run look so, and are right.
    """
    found = {}
    before, after = _transient(saved), _transient(now)
    for name in sorted(before.keys() | after.keys()):
        one, other = before.get(name), after.get(name)
        if one != other:
            found[name] = ("RD960", _shown(one), _shown(other))
            continue
        then, here = saved.buffer_digests.get(name), now.buffer_digests.get(name)
        if then is None or here is None:
            found[name] = ("RD960", _digest(then), _digest(here))
        elif then != here:
            found[name] = ("RD959", _digest(then), _digest(here))
    return found


def _transient(model: ModelInfo) -> dict[str, TensorInfo]:
    return {name: info for name, info in model.buffers.items() if not info.is_kept}


def _shown(info: TensorInfo | None) -> str:
    return "none" if info is None else f"{info.dtype} {list(info.shape)}"


def _digest(digest: str | None) -> str:
    return "no digest" if digest is None else f"digest {digest}"
