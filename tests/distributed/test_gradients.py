"""Accumulated gradients of DDP and FSDP2 equal those of one process, however unevenly samples fall on ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks
from tests.distributed.training import DataParallel, TokenDataset, one_process_gradients, relative_error

TOLERANCE = 5e-6

# DDP reduces what is accumulated, so with a plain sum it must not do so more than once per update.
VARIANTS = [
    ("ddp", True, "mean"),
    ("ddp", False, "mean"),
    ("ddp", False, "sum"),
    ("fsdp", True, "mean"),
    ("fsdp", False, "mean"),
    ("fsdp", True, "sum"),
    ("fsdp", False, "sum"),
]


def errors_of_variants(
    length: int, global_batch: int, microbatch: int, variants: list[tuple[str, bool, str]], options: dict[str, Any]
) -> dict[str, list[float]]:
    """For each variant, the gradient's error in every update of one epoch."""
    max_tokens = 99 if options.get("normalize") == "tokens" else 3
    dataset = TokenDataset(length, max_tokens=max_tokens)
    known: dict[str, Any] = {}
    if options.get("normalize") == "tokens":
        known["num_target_tokens"] = dataset.num_tokens.numpy()
    reference = {name: options[name] for name in ("tail", "normalize") if name in options}
    expected = list(one_process_gradients(dataset, global_batch=global_batch, **reference))
    errors: dict[str, list[float]] = {}
    for kind, synced, reduction in variants:
        parallel = DataParallel(kind, synced=synced, reduction=reduction)
        loader = ResumableLoader(
            dataset,
            global_batch=global_batch,
            microbatch=microbatch,
            epochs=1,
            gradient_reduction=reduction,
            **known,
            **options,
        )
        found = []
        for item in loader:
            parallel.backward(item)
            if item.is_last:
                found.append(parallel.gradients())
                loader.commit()
        name = f"{kind} {'synced' if synced else 'unsynced'} {reduction}"
        errors[name] = [relative_error(a, b) for a, b in zip(found, expected, strict=True)]
        dist.barrier()
    return errors


def check(num_ranks: int, *args: Any) -> None:
    for errors in run_ranks(errors_of_variants, num_ranks, *args):
        assert errors
        bad = {name: values for name, values in errors.items() if not max(values) <= TOLERANCE}
        assert not bad, bad


@pytest.mark.parametrize(
    ("num_ranks", "length", "global_batch", "microbatch", "options"),
    [
        (3, 14, 10, 1, {}),
        (4, 4, 3, 2, {}),
        (3, 14, 10, 2, {"pad_microbatches": True, "num_workers": 0}),
        (3, 14, 10, 3, {"normalize": "tokens"}),
        (2, 6, 4, 1, {"normalize": "tokens", "pad_microbatches": True}),
        (3, 14, 10, 2, {"tail": "pad"}),
    ],
    ids=["10 on 3", "3 on 4", "padded to 2 rows", "tokens", "tokens of 4 on 2", "tail filled up"],
)
def test_gradient_equals_one_process(
    num_ranks: int, length: int, global_batch: int, microbatch: int, options: dict[str, Any]
) -> None:
    """With loss_scale, each way of accumulating gives the gradient of the whole global batch, a short one too."""
    check(num_ranks, length, global_batch, microbatch, VARIANTS, options)


def test_gradient_of_256_on_10_ranks() -> None:
    """13 microbatches, of which the last leaves 4 ranks with filler, give the gradient of 256 samples."""
    check(10, 256, 256, 2, [("ddp", False, "mean"), ("fsdp", False, "sum")], {})


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"pad_microbatches": True}, {"normalize": "tokens"}], ids=str)
def test_gradient_of_256_on_10_ranks_in_all_ways(options: dict[str, Any]) -> None:
    """The same for every way of accumulating, and a short update after it."""
    check(10, 300, 256, 2, VARIANTS, options)


def wrong_scale_error(factor: float) -> float:
    """The error with a loss scale that is wrong by `factor`."""
    dataset = TokenDataset(10, max_tokens=3)
    expected = next(one_process_gradients(dataset, global_batch=10))
    parallel = DataParallel("ddp", synced=False)
    loader = ResumableLoader(dataset, global_batch=10, microbatch=2, epochs=1)
    for item in loader:
        item.loss_scale *= factor
        parallel.backward(item)
    return relative_error(parallel.gradients(), expected)


def test_a_wrong_scale_is_seen() -> None:
    """The comparison finds a loss scale that is wrong by a hundred-thousandth."""
    assert max(run_ranks(wrong_scale_error, 2, 1.0)) <= TOLERANCE
    assert min(run_ranks(wrong_scale_error, 2, 1.00001)) > TOLERANCE
