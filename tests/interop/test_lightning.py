"""Case 39 with Lightning: its automatic sampler leaves ours alone, or refuses by itself."""

from __future__ import annotations

from typing import Any

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
    error_of,
    over_distributed_sampler,
    over_resumable_sampler,
    pretend_launched,
)

pytestmark = pytest.mark.slow

NUM_EPOCHS = 2


def fit(loader: Any, *, commits: bool = False, **options: Any) -> list[list[int]]:
    """What a Lightning module was handed by `loader` on this rank, batch by batch."""
    import pytorch_lightning

    class Module(pytorch_lightning.LightningModule):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(1, 1)
            self.seen: list[list[int]] = []

        def training_step(self, batch: Any, _: int) -> Any:
            numbers = batch.data if isinstance(loader, rd.ResumableLoader) else batch
            self.seen.append(numbers.tolist())
            return self.linear(numbers.float().unsqueeze(1)).mean()

        def on_train_batch_end(self, *_: object) -> None:
            if commits:
                loader.commit()

        def configure_optimizers(self) -> torch.optim.Optimizer:
            return torch.optim.SGD(self.parameters(), lr=0.01)

    pretend_launched()
    arguments = {"max_epochs": NUM_EPOCHS, "devices": dist.get_world_size(), "strategy": "ddp", "accelerator": "cpu"}
    quiet = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    module = Module()
    pytorch_lightning.Trainer(**{**arguments, **quiet, **options}).fit(module, loader)
    return module.seen


def fit_our_sampler_and_torchs() -> tuple[list[list[int]], list[list[int]]]:
    sampler: Any = torch.utils.data.DistributedSampler(Numbers())
    torchs = torch.utils.data.DataLoader(Numbers(), batch_size=MICROBATCH, sampler=sampler)
    return fit(over_distributed_sampler()), fit(torchs)


def test_the_automatic_sampler_leaves_ours_alone() -> None:
    """A DataLoader over our DistributedSampler gives what one over torch's gives, in each epoch."""
    for ours, torchs in run_ranks(fit_our_sampler_and_torchs, 2):
        assert ours == torchs
        assert len(ours) == NUM_EPOCHS * LENGTH // (2 * MICROBATCH)


def fit_resumable_sampler() -> str:
    return error_of(lambda: fit(over_resumable_sampler()))


def test_a_batch_sampler_of_ours_is_refused_by_lightning() -> None:
    """Lightning says that it cannot put its sampler into a ResumableSampler, and how to turn that off."""
    for message in run_ranks(fit_resumable_sampler, 2):
        assert "can't inject a (distributed) sampler into your batch sampler" in message
        assert "Trainer(use_distributed_sampler=False)" in message


def fit_our_loaders() -> tuple[list[list[int]], list[list[int]]]:
    tracked = rd.track(over_distributed_sampler())
    of_tracked = fit(tracked, commits=True)
    assert (tracked.cursor.epoch, tracked.cursor.samples) == (NUM_EPOCHS, NUM_EPOCHS * LENGTH)
    loader = rd.ResumableLoader(Numbers(), global_batch=2 * MICROBATCH, microbatch=MICROBATCH, epochs=1)
    of_loader = fit(loader, commits=True, max_epochs=1)
    assert loader.cursor.samples == LENGTH
    return of_tracked, of_loader


def test_our_loaders_are_not_wrapped() -> None:
    """A tracked loader and a ResumableLoader are iterated as they are, and every sample is seen once an epoch."""
    ranks = run_ranks(fit_our_loaders, 2)
    for kind, num_epochs in ((0, NUM_EPOCHS), (1, 1)):
        seen = sorted(sample for rank in ranks for batch in rank[kind] for sample in batch)
        assert seen == sorted(list(range(LENGTH)) * num_epochs)
