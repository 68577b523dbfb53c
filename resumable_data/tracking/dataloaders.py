"""From a DataLoader over one of our samplers to a loader that counts what the training loop is handed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import torch.utils.data

from resumable_data.errors import UsageError
from resumable_data.ledger import Ledger
from resumable_data.plan import require_count
from resumable_data.sampler import ResumableSampler
from resumable_data.tracking.distributed_sampler import DistributedSampler
from resumable_data.tracking.tracked_epochs import TrackedEpochs
from resumable_data.tracking.tracked_run import TrackedRun

if TYPE_CHECKING:
    from torch.optim import Optimizer

    from resumable_data.tracking.tracked_loader import TrackedLoader


def track(
    dataloader: torch.utils.data.DataLoader[Any],
    *,
    optimizer: Optimizer | None = None,
    accumulation_steps: int | None = None,
    scaler: Any = None,
    fingerprint: str | None = None,
    ledger: Ledger | str | os.PathLike[str] | None = None,
) -> TrackedLoader:
    """Count what a training loop is handed by `dataloader`, so that it can be resumed exactly on any number of ranks.

    The loop stays as it is. Each step of the optimizer commits the batches that the loop was handed since the last
    one; ``state_dict()`` of what this returns goes into the checkpoint.

    Args:
        dataloader: torch's own DataLoader over a `resumable_data.DistributedSampler`, with a ``batch_size``; or over a
            `resumable_data.ResumableSampler` as its ``batch_sampler``.
        optimizer: The optimizer whose steps commit; without one, call ``commit()`` after each step.
        accumulation_steps: Batches that the loop accumulates for one step, 1 when None; a `ResumableSampler` says it
            itself.
        scaler: The loop's GradScaler, where it has one: a step that it skips consumes its batches, and is counted
            apart.
        fingerprint: What identifies the dataset's contents; a resume under another one is refused. A `ResumableSampler`
            has its own.
        ledger: A `Ledger`, or the path of one, to record what the loop is handed.

    Raises:
        UsageError: `dataloader` is something that cannot be counted exactly; says what to use.

    >>> dataset = torch.utils.data.TensorDataset(torch.arange(10.0))
    >>> sampler = DistributedSampler(dataset, num_replicas=1, rank=0)
    >>> loader = track(torch.utils.data.DataLoader(dataset, batch_size=4, sampler=sampler))
    >>> for batch in loader:
    ...     loader.commit()
    >>> loader.cursor.samples, loader.cursor.epoch, loader.cursor.applied
    (10, 1, 3)
    """
    _check_dataloader(dataloader)
    book = Ledger(ledger) if isinstance(ledger, (str, os.PathLike)) else ledger
    if isinstance(dataloader.batch_sampler, ResumableSampler):
        sampler = dataloader.batch_sampler
        if accumulation_steps is not None or fingerprint is not None:
            raise UsageError(
                "accumulation_steps and fingerprint belong to the ResumableSampler under this DataLoader: its "
                "global_batch and microbatch decide the one, its own fingerprint= is the other. Leave them out here."
            )
        _check_length(dataloader, sampler.schedule.length)
        return TrackedRun(dataloader, sampler, optimizer=optimizer, scaler=scaler, ledger=book)
    return TrackedEpochs(
        dataloader,
        _check_sampler(dataloader),
        optimizer=optimizer,
        accumulation_steps=require_count("accumulation_steps", 1 if accumulation_steps is None else accumulation_steps),
        scaler=scaler,
        fingerprint=fingerprint,
        ledger=book,
    )


def _check_dataloader(dataloader: Any) -> None:
    """Refuse what is not a DataLoader that gives its sampler's batches in order, and nothing else."""
    if type(dataloader) is not torch.utils.data.DataLoader:
        raise UsageError(
            f"track() counts the batches of torch.utils.data.DataLoader, got {_kind(dataloader)}. A loader that "
            "restores its own place, or shards again, would be counted wrongly: give torch's own DataLoader over a "
            "resumable_data.DistributedSampler."
        )
    if not getattr(dataloader, "in_order", True):
        raise UsageError("track() needs a DataLoader with in_order=True: batches out of order cannot be counted")


def _check_sampler(dataloader: torch.utils.data.DataLoader[Any]) -> DistributedSampler:
    sampler: Any = dataloader.sampler
    if not isinstance(sampler, DistributedSampler):
        raise UsageError(
            f"track() needs a DataLoader over a resumable_data.DistributedSampler, or with a "
            f"resumable_data.ResumableSampler as batch_sampler; got one over {_kind(sampler)}, whose order cannot be "
            "entered in the middle. Replace torch.utils.data.DistributedSampler by resumable_data.DistributedSampler: "
            "the indices are the same."
        )
    if type(dataloader.batch_sampler) is not torch.utils.data.BatchSampler or dataloader.batch_size is None:
        raise UsageError(
            "track() needs a DataLoader with batch_size=, or with a resumable_data.ResumableSampler as batch_sampler; "
            "got one with batch_size=None or another batch_sampler"
        )
    _check_length(dataloader, len(sampler.order))
    return sampler


def _check_length(dataloader: torch.utils.data.DataLoader[Any], length: int) -> None:
    dataset: Any = dataloader.dataset
    if len(dataset) != length:
        raise UsageError(
            f"the sampler has {length} samples and the DataLoader's dataset {len(dataset)}; some would never be read, "
            "or do not exist. Make the sampler with the same dataset."
        )


def _kind(value: object) -> str:
    return f"{type(value).__module__}.{type(value).__qualname__}"
