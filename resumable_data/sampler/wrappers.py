"""What other packages put around our samplers: what would deal out, or save, the wrong samples is refused by name."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Generic, NoReturn, TypeVar

from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

T = TypeVar("T")


class GuardedIterator(Iterator[T], Generic[T]):
    """A sampler's iterator that refuses to be dealt out again, and to be saved.

    Only a torchdata StatefulDataLoader asks an iterator for its state. It would save the sampler as it was when a
    worker was asked for a batch, not as it is when the batch was trained on.

    Args:
        items: What is iterated.
        sampler: The sampler.
    """

    def __init__(self, items: Iterator[T], sampler: object) -> None:
        self._items = items
        self._sampler = sampler

    def __next__(self) -> T:
        refuse_accelerate(self._sampler)  # at each, since Accelerate may draw some before it lets itself be seen
        return next(self._items)

    def state_dict(self) -> NoReturn:
        """Refused.

        Raises:
            UsageError: Always.
        """
        raise _stateful(self._sampler)

    def load_state_dict(self, state: Mapping[str, Any]) -> NoReturn:
        """Refused, like `state_dict`.

        Raises:
            UsageError: Always.
        """
        raise _stateful(self._sampler)


def refuse_accelerate(sampler: object) -> None:
    """Make sure that Accelerate does not deal out what `sampler` deals out, nor saves where it is.

    Accelerate lists the DataLoaders that it prepared and that are being iterated; there the sampler is looked up.

    Raises:
        UsageError: It does.
    """
    accelerate: Any = sys.modules.get("accelerate.state")
    if accelerate is None:
        return
    for dataloader in accelerate.GradientState().dataloader_references:
        if dataloader is not None and _holds(dataloader, sampler):
            if getattr(dataloader, "use_stateful_dataloader", False):
                raise _stateful(sampler)
            num_processes = accelerate.PartialState().num_processes
            if num_processes > 1:
                raise _dealt_out_twice(sampler, num_processes)


def _holds(node: object, sampler: object) -> bool:
    """Whether `sampler` is `node`, or among the samplers inside of it."""
    if node is sampler:
        return True
    inner = (getattr(node, name, None) for name in ("sampler", "batch_sampler"))
    return any(one is not None and _holds(one, sampler) for one in inner)


def _stateful(sampler: object) -> UsageError:
    return UsageError(
        f"expected torch.utils.data.DataLoader around a resumable_data.{type(sampler).__name__}, found torchdata's "
        "StatefulDataLoader. Its state tells which batches workers were asked for, not which were trained on, and is "
        "for one number of ranks and workers: a restart from it would repeat or leave out samples. Use torch's own "
        "DataLoader, and save state_dict() of a ResumableSampler, or of resumable_data.track(DataLoader(...))."
    )


def _dealt_out_twice(sampler: object, num_processes: int) -> UsageError:
    return UsageError(
        f"Accelerate's prepare() was given a DataLoader over a resumable_data.{type(sampler).__name__}. The sampler "
        f"deals out the samples to the ranks, and Accelerate would deal out each rank's batches to {num_processes} "
        f"processes once more: only one batch of {num_processes} would ever be seen. Prepare the model and the "
        "optimizer only, iterate the DataLoader as it is, and move batches to accelerator.device."
    )
