"""The torch DataLoader underneath: which of its options are the user's, and how its workers are seeded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.utils.data
import xxhash

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from resumable_data.loader.fetch import Fetched, RequestQueue

DATALOADER_OPTIONS = frozenset(
    {
        "generator",
        "multiprocessing_context",
        "persistent_workers",
        "pin_memory_device",
        "prefetch_factor",
        "timeout",
        "worker_init_fn",
    }
)

# given by the loader itself
_OWN_OPTIONS = frozenset({"num_workers", "pin_memory"})


def make_dataloader(
    dataset: torch.utils.data.Dataset[Fetched], requests: RequestQueue, **options: Any
) -> torch.utils.data.DataLoader[Fetched]:
    """A DataLoader that fetches `requests`, one whole microbatch each, in their order.

    Raises:
        UsageError: An option that the loader decides, or that DataLoader does not have.
    """
    unknown = set(options) - DATALOADER_OPTIONS - _OWN_OPTIONS
    if unknown:
        raise UsageError(
            f"unknown options {sorted(unknown)}. The loader decides which samples make a batch: order, global_batch, "
            "microbatch and tail replace batch_size, shuffle, sampler, batch_sampler and drop_last. Of the "
            f"DataLoader's other options it takes {sorted(DATALOADER_OPTIONS)}."
        )
    return torch.utils.data.DataLoader(dataset, batch_size=None, sampler=requests, collate_fn=_as_it_is, **options)


def fetch_all(dataloader: torch.utils.data.DataLoader[Fetched], requests: RequestQueue) -> Iterator[Fetched]:
    """What `dataloader` gives for its `requests`, one after another.

    With no workers and no pinning the DataLoader would only call the dataset, at 10 microseconds a call: it is left
    out then.
    """
    if dataloader.num_workers == 0 and not dataloader.pin_memory:
        return map(dataloader.dataset.__getitem__, requests)
    return iter(dataloader)


def _as_it_is(fetched: Any) -> Any:
    """Collating is done where samples are read."""
    return fetched


class WorkerSeeds:
    """The generator that a DataLoader draws its workers' seeds from, so that it leaves the global one alone.

    Args:
        seed: The loader's seed.
    """

    def __init__(self, seed: int) -> None:
        self.generator = torch.Generator()
        self._seed = seed

    def restart(self, rank: int, position: int) -> None:
        """Make the next seeds a function of seed, data-parallel rank and position."""
        self.generator.manual_seed(xxhash.xxh3_64_intdigest(repr((self._seed, rank, position)).encode()) >> 1)
