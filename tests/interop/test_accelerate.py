"""Case 39 with Accelerate: prepare() leaves our loaders alone, and what it would deal out twice is refused by name."""

from __future__ import annotations

import contextlib
import functools
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.utils.data

import resumable_data as rd
from tests.distributed.ranks import run_ranks
from tests.interop.jobs import (
    LENGTH,
    MICROBATCH,
    Numbers,
    batches,
    error_of,
    make_sampler,
    over_distributed_sampler,
    over_resumable_sampler,
    pretend_launched,
)

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow


def make_accelerator(**dataloader_options: Any) -> Any:
    from accelerate import Accelerator, DataLoaderConfiguration

    pretend_launched()
    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(**dataloader_options))
    assert accelerator.num_processes == dist.get_world_size()
    return accelerator


def prepare_and_iterate(options: dict[str, Any]) -> list[str]:
    accelerator = make_accelerator(**options)
    made: list[Callable[..., Any]] = [over_distributed_sampler, over_resumable_sampler]
    prepared = [accelerator.prepare(make()) for make in made]
    if options.get("dispatch_batches") and dist.get_rank():
        return []  # this rank would read nothing, and wait for what rank 0 sends
    return [error_of(lambda loader=loader: batches(loader)) for loader in prepared]  # type: ignore[misc]


@pytest.mark.parametrize(
    "options", [{}, {"use_seedable_sampler": True}, {"even_batches": False}, {"dispatch_batches": True}], ids=str
)
def test_a_dataloader_over_our_samplers_is_refused(options: dict[str, Any]) -> None:
    """On two processes half of the samples would never be seen; the error names prepare() and the way out."""
    of_ranks = run_ranks(prepare_and_iterate, 2, options)
    assert of_ranks[0]
    for messages in filter(None, of_ranks):
        for message, sampler in zip(messages, ("DistributedSampler", "ResumableSampler"), strict=True):
            assert f"Accelerate's prepare() was given a DataLoader over a resumable_data.{sampler}" in message
            assert "Prepare the model and the optimizer only" in message


def prepare_with_split_batches() -> list[str]:
    accelerator = make_accelerator(split_batches=True)
    made: list[Callable[..., Any]] = [over_distributed_sampler, over_resumable_sampler]
    return [error_of(lambda make=make: batches(accelerator.prepare(make()))) for make in made]  # type: ignore[misc]


def test_split_batches_is_refused() -> None:
    """A batch that Accelerate would cut in pieces is a rank's own; of a ResumableSampler, Accelerate asks a size."""
    for of_distributed, of_resumable in run_ranks(prepare_with_split_batches, 2):
        assert (
            "Accelerate's prepare() was given a DataLoader over a resumable_data.DistributedSampler" in of_distributed
        )
        assert "you must have a `batch_size` attribute" in of_resumable


def what_prepare_leaves_alone() -> tuple[list[list[int]], ...]:
    accelerator = make_accelerator()
    tracked = rd.track(over_distributed_sampler())
    loader = rd.ResumableLoader(Numbers(), global_batch=2 * MICROBATCH, microbatch=MICROBATCH, epochs=1)
    assert accelerator.prepare(tracked) is tracked
    assert accelerator.prepare(loader) is loader
    seen = []
    for batch in tracked:
        seen.append(batch.tolist())
        tracked.commit()
    for microbatch in loader:
        seen.append(microbatch.ids.tolist())
        loader.commit()
    assert (tracked.cursor.samples, loader.cursor.samples) == (LENGTH, LENGTH)
    half = len(seen) // 2
    return seen[:half], seen[half:], batches(over_distributed_sampler())


def test_our_loaders_pass_through_prepare_as_they_are() -> None:
    """A tracked loader and a ResumableLoader come back untouched, and all samples are seen once."""
    ranks = run_ranks(what_prepare_leaves_alone, 2)
    for kind in (0, 1):
        assert sorted(sample for rank in ranks for batch in rank[kind] for sample in batch) == list(range(LENGTH))
    assert all(tracked == as_torch for tracked, _, as_torch in ranks)


def around_a_tracked_loader() -> list[str]:
    """What reaches through a tracked loader to the DataLoader underneath."""
    from accelerate.data_loader import skip_first_batches

    accelerator = make_accelerator()
    messages = [
        error_of(lambda: rd.track(accelerator.prepare(over_distributed_sampler()))),
        error_of(lambda: batches(accelerator.prepare_data_loader(rd.track(over_distributed_sampler())))),
    ]
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    tracked = rd.track(over_distributed_sampler(), optimizer=optimizer)
    next(iter(skip_first_batches(tracked, 1)))
    return [*messages, error_of(optimizer.step)]


def test_what_reaches_through_a_tracked_loader_is_found() -> None:
    """Whatever Accelerate makes of a DataLoader that is or was tracked, no step of it is ever counted."""
    for prepared, reached_through, skipped in run_ranks(around_a_tracked_loader, 2):
        assert "got accelerate.data_loader.DataLoaderShard" in prepared
        assert "give torch's own DataLoader" in prepared
        assert "Accelerate's prepare() was given a DataLoader" in reached_through
        assert skipped.startswith("CommitError: the optimizer took a step after 0 batches")


def stateful_under_accelerate(num_workers: int) -> list[str]:
    accelerator = make_accelerator(use_stateful_dataloader=True)
    made: list[Callable[..., Any]] = [over_distributed_sampler, over_resumable_sampler]
    return [
        error_of(lambda make=make: batches(accelerator.prepare(make(num_workers=num_workers))))  # type: ignore[misc]
        for make in made
    ]


@pytest.mark.parametrize("num_ranks", [1, 2])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_accelerates_stateful_dataloader_is_refused(num_ranks: int, num_workers: int) -> None:
    """With use_stateful_dataloader no epoch gets to its end, on one process neither, workers or not."""
    for messages in run_ranks(stateful_under_accelerate, num_ranks, num_workers):
        for message in messages:
            assert message.startswith("UsageError: expected torch.utils.data.DataLoader")
            assert "StatefulDataLoader" in message


def on_one_process() -> None:
    accelerator = make_accelerator()
    prepared = accelerator.prepare(over_distributed_sampler())
    plain = over_distributed_sampler()
    assert isinstance(plain.sampler, rd.DistributedSampler)
    for epoch in range(3):
        plain.sampler.set_epoch(epoch)
        assert batches(prepared) == batches(plain)
    sampler, seen = make_sampler(), []
    for batch in accelerator.prepare(torch.utils.data.DataLoader(Numbers(), batch_sampler=sampler)):
        seen += batch.tolist()
        sampler.commit()
        assert sampler.cursor.samples == len(seen)
    assert seen == list(range(LENGTH))


def test_on_one_process_prepare_changes_nothing() -> None:
    """Where there is nothing to deal out, a prepared DataLoader over our samplers is exact, one batch ahead or not."""
    run_ranks(on_one_process, 1)


def steps_of_a_prepared_optimizer(fused: bool) -> tuple[int, int, int]:
    """Applied and skipped steps, and samples, in a loop with Accelerate's optimizer and a loss scaler."""
    from accelerate.optimizer import AcceleratedOptimizer

    make_accelerator()
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.AdamW([parameter], fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    tracked = rd.track(over_distributed_sampler(), optimizer=optimizer, scaler=scaler)
    prepared = AcceleratedOptimizer(optimizer, scaler=scaler)  # as prepare() does with mixed_precision="fp16"
    for number, _ in enumerate(tracked):
        loss = (parameter * (float("inf") if number in (1, 4) else 1.0)).sum()
        scaler.scale(loss).backward()
        prepared.step()
        assert prepared.step_was_skipped == (not fused and number in (1, 4))  # of a fused one Accelerate cannot tell
        prepared.zero_grad()
    cursor = tracked.cursor
    return cursor.applied, cursor.skipped, cursor.samples


@pytest.mark.parametrize("fused", [False, True])
def test_the_steps_of_a_prepared_optimizer_are_counted(fused: bool) -> None:
    """track() with the optimizer and the scaler inside of Accelerate's counts its steps, and those it skipped."""
    (counted,) = run_ranks(steps_of_a_prepared_optimizer, 1, fused)
    assert counted == (LENGTH // MICROBATCH - 2, 2, LENGTH)


def track_a_prepared_optimizer() -> str:
    accelerator = make_accelerator()
    optimizer = accelerator.prepare(torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1))
    return error_of(lambda: rd.track(over_distributed_sampler(), optimizer=optimizer))


def test_a_prepared_optimizer_is_refused() -> None:
    """Accelerate's optimizer has no hooks to see its steps by; the error says which one to give."""
    (message,) = run_ranks(track_a_prepared_optimizer, 1)
    assert message.startswith("UsageError")
    assert "AcceleratedOptimizer" in message
    assert "before" in message


def train_resumable_loader() -> float:
    """The weight after an epoch of the guide's loop, with Accelerate's model, optimizer and backward()."""
    accelerator = make_accelerator()
    model: Any = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerator.prepare(model, optimizer)
    loader = rd.ResumableLoader(Numbers(), global_batch=12, microbatch=MICROBATCH, epochs=1)
    for microbatch in loader:
        context = contextlib.nullcontext if microbatch.is_last else functools.partial(accelerator.no_sync, model)
        with context():
            numbers = microbatch.data.float().unsqueeze(1) / LENGTH
            losses = (model(numbers) - numbers).square().squeeze(1)
            accelerator.backward((losses * microbatch.weights).sum() * microbatch.loss_scale)
        if microbatch.is_last:
            optimizer.step()
            optimizer.zero_grad()
            loader.commit()
    assert loader.cursor.samples == LENGTH
    return float(next(iter(model.parameters())))


def test_resumable_loader_trains_with_accelerate() -> None:
    """The gradient does not depend on the number of ranks, in updates whose microbatches are unequal."""
    (alone,) = run_ranks(train_resumable_loader, 1)
    for weight in run_ranks(train_resumable_loader, 3):
        assert abs(weight - alone) < 1e-6
