"""Every sample once, on any number of ranks: for validation, where no position has to be kept."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from resumable_data.errors import UsageError
from resumable_data.loader.dataloader import DATALOADER_OPTIONS
from resumable_data.loader.loader import ResumableLoader
from resumable_data.loader.options import check_dataset
from resumable_data.order import Sequential
from resumable_data.packing import PackedTokens

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.loader.microbatch import Microbatch


class EvaluationLoader:
    """What `evaluation_loader` makes: iterate it as often as wanted, ``len()`` is the number of microbatches."""

    def __init__(self, loader: ResumableLoader) -> None:
        # One update holds all samples. It is never committed, so every iteration starts at the first sample again.
        self._loader = loader

    def __iter__(self) -> Iterator[Microbatch]:
        """This rank's microbatches of one pass. Iterators made before become invalid.

        Raises:
            StaleIteratorError: From an older iterator, at its next use.
            DisagreementError: At the first microbatch of the first pass, where ranks do not read the same dataset.
            SampleReadError: The dataset could not give a sample.
        """
        return iter(self._loader)

    def __len__(self) -> int:
        """Microbatches of one pass, the same on all ranks."""
        return len(self._loader)

    def close(self) -> None:
        """Stop the workers."""
        self._loader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def evaluation_loader(
    dataset: Any,
    /,
    *,
    microbatch: int,
    mesh: DeviceMesh | None = None,
    data_axes: str | Sequence[str] | None = None,
    rank: int | None = None,
    num_replicas: int | None = None,
    pad_microbatches: bool = False,
    seed: int = 0,
    seed_samples: bool = False,
    num_workers: int = 0,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    pin_memory: bool = False,
    **options: Any,
) -> EvaluationLoader:
    """A loader that gives every sample of `dataset` once in each pass, in the dataset's order, on any number of ranks.

    All ranks get the same number of microbatches. Where that takes filler rows, they are the last ones of a microbatch
    and have weight 0 in ``microbatch.weights``; ``microbatch.ids`` leaves them out. So a mean over the dataset is the
    sum of weighted values over the sum of weights, both summed over all ranks; a mean of the ranks' means is not.

    There is no cursor, no commit and no ledger. The first microbatch of the first pass is collective: ranks make sure
    that they read the same dataset.

    Args:
        dataset: Map-style; ``__getitems__`` is used where it exists. Or a `PackedTokens`, whose rows of the first epoch
            are then read, and all planned when the loader is made; filler rows have no labels.
        microbatch: The largest number of samples a rank holds at once.
        mesh: The job's device mesh. Rank and size come from the arguments, else the mesh, else the process group.
        data_axes: Names of the mesh's data-parallel axes; a one-dimensional mesh needs none.
        rank: Data-parallel rank, together with `num_replicas`.
        num_replicas: Number of data-parallel ranks; 1 reads everything in this process and asks nobody.
        pad_microbatches: Bring every microbatch to exactly `microbatch` rows with filler of weight zero.
        seed: Of the samples' random numbers, which are the same in every pass.
        seed_samples: As for `ResumableLoader`.
        num_workers: As for torch's DataLoader, like `collate_fn`, `pin_memory` and the options below.
        collate_fn: Makes a batch of a list of samples.
        pin_memory: Whether batches are copied to pinned memory.
        **options: `prefetch_factor`, `persistent_workers`, `timeout`, `worker_init_fn`, `multiprocessing_context`,
            `pin_memory_device`, `generator`.

    Raises:
        UsageError: An argument is outside what is accepted.
        TopologyError: Rank and size are not known.

    >>> loader = evaluation_loader(range(5), microbatch=2, rank=1, num_replicas=2)
    >>> [(microbatch.ids.tolist(), microbatch.weights.tolist()) for microbatch in loader]
    [([1, 3], [1.0, 1.0]), ([], [0.0])]
    """
    unknown = sorted(set(options) - DATALOADER_OPTIONS)
    if unknown:
        raise UsageError(
            f"unknown options {unknown}. An evaluation reads every sample once, in the dataset's order, and keeps no "
            f"cursor and no ledger. Of the DataLoader's options it takes {sorted(DATALOADER_OPTIONS)}."
        )
    if isinstance(dataset, PackedTokens):
        num_rows = _count_rows(dataset)
        content: dict[str, Any] = {"global_batch": num_rows, "fingerprint": f"{num_rows} rows"}
    else:
        length = check_dataset(dataset)
        content = {"global_batch": length, "order": Sequential(length)}
    loader = ResumableLoader(
        dataset,
        microbatch=microbatch,
        epochs=1,
        mesh=mesh,
        data_axes=data_axes,
        rank=rank,
        num_replicas=num_replicas,
        pad_microbatches=pad_microbatches,
        seed=seed,
        seed_samples=seed_samples,
        num_workers=num_workers,
        collate_fn=collate_fn,
        pin_memory=pin_memory,
        **content,
        **options,
    )
    return EvaluationLoader(loader)


def _count_rows(packed: PackedTokens) -> int:
    """Rows of the first epoch.

    Raises:
        UsageError: There is none.
    """
    num_rows = packed.count_rows()
    if not num_rows:
        raise UsageError(f"the {len(packed.source)} documents have no tokens; there is nothing to evaluate")
    return num_rows
