"""What a model gives for a few fixed examples: stored with a checkpoint, and held against after a move."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
import xxhash
from torch.distributed.tensor import DTensor
from torch.nn import Module

from resumable_data.checkpoint.probe_file import MAX_PROBE_BYTES, ProbeRecord
from resumable_data.checkpoint.program import reshard
from resumable_data.checkpoint.random_states import kept_random_states
from resumable_data.errors import UsageError


class Probe:
    """A forward pass, for evaluation only, on examples that never change.

    `save_checkpoint(..., probe=probe)` runs it right before it saves, and stores the logits beside the manifest; a
    rehearsal runs the same on other ranks and compares. All processes run it, on the same examples. It leaves
    modules in the mode they were in, random generators where they were, and no gradients.

    Args:
        examples: Tensors, arrays, numbers and texts, alone or in dicts and lists; the same on all processes.
        forward: Takes the examples and returns logits, one floating-point tensor. Where the model gives many, return
            some of them: they are stored as they are, at most 256 MiB.

    Example:
        >>> model = torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.Dropout())
        >>> probe = Probe(torch.ones(1, 2), model)
        >>> record = probe.run([model])
        >>> (record.shape, record.is_random, model.training)
        ((1, 3), False, True)
    """

    def __init__(self, examples: Any, forward: Callable[[Any], torch.Tensor]) -> None:
        self.examples = examples
        self._forward = forward

    def run(self, models: Iterable[Module]) -> ProbeRecord:
        """The logits, of two forward passes that are compared. Collective where the models are.

        Args:
            models: The models that `forward` calls.

        Raises:
            UsageError: The examples hold something else than values, or what comes back are no logits.
        """
        models = list(models)
        examples = digest_of(self.examples)
        with evaluating(models):
            logits, again = (self._once() for _ in range(2))
        kind: Literal["<f4", "<f8"] = "<f8" if logits.dtype == torch.float64 else "<f4"
        values, others = (one.to(torch.float64).cpu().numpy().astype(kind) for one in (logits, again))
        return ProbeRecord(
            examples=examples,
            dtype=_name(logits.dtype),
            computed_in=coarsest_dtype(logits, models),
            shape=tuple(logits.shape),
            kind=kind,
            logits=values.tobytes(),
            is_random=not np.array_equal(values, others, equal_nan=True),
        )

    def _once(self) -> torch.Tensor:
        logits = self._forward(self.examples)
        if not isinstance(logits, torch.Tensor) or not logits.is_floating_point():
            what = str(logits.dtype) if isinstance(logits, torch.Tensor) else type(logits).__name__
            raise UsageError(
                f"a probe's forward() must return logits, one floating-point tensor; got {what}. Nothing was stored."
            )
        if logits.numel() * (8 if logits.dtype == torch.float64 else 4) > MAX_PROBE_BYTES - (1 << 16):
            raise UsageError(
                f"a probe's forward() returned {logits.numel():,} logits, and at most {MAX_PROBE_BYTES:,} bytes are "
                "stored. Give fewer examples, or return some of the logits."
            )
        return logits.full_tensor() if isinstance(logits, DTensor) else logits


@contextmanager
def evaluating(models: Iterable[Module]) -> Iterator[None]:
    """Models in eval mode, without gradients; afterwards modules and random generators are as they were."""
    models = list(models)
    modes = [(module, module.training) for model in models for module in model.modules()]
    with kept_random_states(), torch.no_grad():
        for model in models:
            model.eval()
        try:
            yield
        finally:
            for module, is_training in modes:
                module.training = is_training
            for model in models:
                reshard(model)


def coarsest_dtype(logits: torch.Tensor, models: Iterable[Module]) -> str:
    """The dtype that rounds most, of the logits and of what computed them."""
    dtypes = {one.dtype for model in models for one in model.parameters() if one.is_floating_point()}
    coarsest = max({logits.dtype, *dtypes}, key=lambda dtype: torch.finfo(dtype).eps)
    is_tf32 = logits.device.type == "cuda" and torch.get_float32_matmul_precision() != "highest"
    return "tf32" if coarsest == torch.float32 and is_tf32 else _name(coarsest)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def digest_of(examples: Any) -> str:
    """xxh3_128 of examples: of their structure, dtypes, shapes and bytes.

    Raises:
        UsageError: There is something in them that has no bytes to digest.
    """
    hasher = xxhash.xxh3_128()
    _add(hasher, examples)
    return hasher.hexdigest()


def _add(hasher: Any, value: Any) -> None:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, torch.Tensor):
        flat = value.detach().cpu().contiguous().reshape(-1)
        _put(hasher, f"{_name(value.dtype)} {list(value.shape)}", flat.view(torch.uint8).numpy().tobytes())
    elif isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        _put(hasher, f"{value.dtype} {list(value.shape)}", np.ascontiguousarray(value).tobytes())
    elif isinstance(value, Mapping):
        _put(hasher, f"dict {len(value)}", b"")
        for key in value:
            _put(hasher, f"key {key!r}", b"")
            _add(hasher, value[key])
    elif isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        _put(hasher, f"list {len(value)}", b"")
        for item in value:
            _add(hasher, item)
    elif isinstance(value, (bool, int, float, str, bytes)) or value is None:
        _put(hasher, f"{type(value).__name__} {value!r}", b"")
    else:
        raise UsageError(
            f"a probe's examples must be tensors, arrays, numbers and texts, in dicts and lists; found "
            f"{type(value).__name__}. Whether they are the same after a move could not be known. Nothing was stored."
        )


def _put(hasher: Any, what: str, data: bytes) -> None:
    """What it is and how long, so that no two examples run into each other."""
    head = what.encode()
    hasher.update(len(head).to_bytes(8, "little") + len(data).to_bytes(8, "little") + head)
    hasher.update(data)
