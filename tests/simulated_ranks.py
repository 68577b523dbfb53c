"""All ranks of a job as loaders in one process, stepped together and compared with the oracle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from resumable_data import ResumableLoader, Shuffle
from tests.oracle import OracleCursor, OracleUpdate, Task, coverage_lanes, loss_scale, split_update

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import torch

    from resumable_data import Cursor, Microbatch
    from resumable_data.order import Order


class Numbers:
    """A dataset of n items whose item i is i."""

    def __init__(self, length: int) -> None:
        self._length = length

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> int:
        if not 0 <= index < self._length:
            raise IndexError(index)
        return index


def keep_list(samples: list[Any]) -> list[Any]:
    """A collate_fn that leaves the samples as they are."""
    return samples


def lists_of(order: Order, *, epochs: int) -> list[list[int]]:
    """An order as the oracle takes it: one list of IDs for each epoch."""
    offsets = np.arange(len(order), dtype=np.int64)
    return [order.ids(epoch, offsets).tolist() for epoch in range(epochs)]


def task_of(order: Order, *, global_batch: int, tail: str = "carry", epochs: int | None = None) -> Task:
    """The oracle's view of a run; an endless one is shown 8 epochs."""
    return Task(lists_of(order, epochs=epochs or 8), global_batch, tail, epochs)


class Job:
    """The loaders of all ranks of one launch.

    Args:
        length: Samples of the dataset.
        num_replicas: Ranks.
        **options: For `ResumableLoader`.
    """

    def __init__(self, length: int, num_replicas: int, **options: Any) -> None:
        options = {"collate_fn": keep_list, "order": Shuffle(length), **options}
        self.order: Order = options["order"]
        self.num_replicas = num_replicas
        self.loaders = [
            ResumableLoader(Numbers(length), rank=rank, num_replicas=num_replicas, **options)
            for rank in range(num_replicas)
        ]
        self._iterators: list[Iterator[Microbatch]] | None = None

    def __enter__(self) -> Job:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all ranks."""
        self._iterators = None
        for loader in self.loaders:
            loader.close()

    def load(self, state: dict[str, torch.Tensor] | None, allow: Any = ()) -> None:
        """Load one state on all ranks."""
        self._iterators = None
        for loader in self.loaders:
            loader.load_state_dict(state, allow=allow)

    def restart_iteration(self) -> None:
        """Start at the cursor again."""
        self._iterators = [iter(loader) for loader in self.loaders]

    def microbatch(self) -> list[Microbatch] | None:
        """The next microbatch of every rank; None at the run's end, which all ranks must reach together."""
        if self._iterators is None:
            self.restart_iteration()
        assert self._iterators is not None
        step = [next(iterator, None) for iterator in self._iterators]
        found = [microbatch for microbatch in step if microbatch is not None]
        assert len(found) in (0, len(step)), "ranks end at different microbatches: a collective would hang"
        return found or None

    def update(self) -> list[list[Microbatch]] | None:
        """The next update: its microbatches, each a list over ranks; None at the run's end."""
        microbatches = []
        while step := self.microbatch():
            microbatches.append(step)
            if step[0].is_last:
                return microbatches
        assert not microbatches, "the run ends inside an update"
        return None

    def commit(self, *, applied: bool = True) -> None:
        """Commit on all ranks."""
        for loader in self.loaders:
            loader.commit(applied=applied)

    def agree(self) -> Cursor:
        """Agree among all ranks."""
        return self.loaders[0].check_agreement(self.loaders)

    def save(self) -> dict[str, torch.Tensor]:
        """Agree, and give the state, which must be the same on all ranks."""
        self.agree()
        states = [loader.state_dict() for loader in self.loaders]
        assert len({bytes(state["resumable_data.cursor"].tolist()) for state in states}) == 1
        return states[0]

    def train(self, num_updates: int | None = None) -> list[list[int]]:
        """Run and commit updates, all that are left where None; the IDs of each, in the order of positions."""
        ids: list[list[int]] = []
        while num_updates is None or len(ids) < num_updates:
            update = self.update()
            if update is None:
                assert num_updates is None, "the run ended early"
                break
            ids.append(ids_in_order(update))
            self.commit()
        return ids


def flat(lists: Iterable[list[int]]) -> list[int]:
    """The lists as one."""
    return [item for part in lists for item in part]


def ids_in_order(update: list[list[Microbatch]]) -> list[int]:
    """IDs of an update's samples, ordered by position."""
    pairs: list[tuple[int, int]] = []
    for step in update:
        for rank in step:
            pairs += zip(rank.positions.tolist(), rank.ids.tolist(), strict=True)
    return [sample_id for _, sample_id in sorted(pairs)]


def expect_step(
    step: list[Microbatch],
    *,
    cursor: OracleCursor,
    update: OracleUpdate,
    number: int,
    index: int,
    microbatch: int,
    pad_microbatches: bool = False,
    normalize: str = "samples",
    gradient_reduction: str = "mean",
    reduction_size: int | None = None,
) -> None:
    """Make sure that one microbatch of all ranks is what the oracle says.

    Args:
        step: What the ranks were handed.
        cursor: Knows the target tokens.
        update: The update it is of.
        number: The update's index in the run.
        index: The microbatch's index in the update.
        microbatch: Rows that a rank holds at once.
        pad_microbatches: As for the loader, like the rest.
        normalize: What the loss is a mean over.
        gradient_reduction: What is done to gradients.
        reduction_size: Ranks that gradients are reduced over.
    """
    ranks = len(step)
    split = split_update(update.rows, num_replicas=ranks, microbatch=microbatch, pad_microbatches=pad_microbatches)
    total = len(update.rows)
    if normalize == "tokens":
        assert cursor.target_tokens is not None
        total = max(1, sum(cursor.target_tokens[row.id] for row in update.rows))
    scale = loss_scale(total, num_replicas=ranks, gradient_reduction=gradient_reduction, reduction_size=reduction_size)
    for got, wanted in zip(step, split[index], strict=True):
        assert (got.update, got.index, got.count) == (number, index, len(split))
        assert got.is_last == (index == len(split) - 1)
        assert got.ids.tolist() == wanted.ids
        assert got.positions.tolist() == wanted.positions
        assert got.data == wanted.data
        assert got.weights.tolist() == wanted.weights
        assert got.loss_scale == scale


def expect_cursor(found: Cursor, wanted: OracleCursor) -> None:
    """Make sure that the package's counters are the oracle's."""
    assert {name: getattr(found, name) for name in wanted.numbers()} == wanted.numbers()
    assert (found.updates, found.position) == (wanted.updates, wanted.position)


def expect_full_coverage(found: Cursor, wanted: OracleCursor) -> None:
    """Make sure that the digest is of exactly the committed rows, one span unless a migration skipped samples."""
    left = list(wanted.committed)
    for span in found.coverage:
        assert span.lanes == coverage_lanes([row for row in left if span.start <= row.position < span.stop])
        left = [row for row in left if not span.start <= row.position < span.stop]
    assert not left
    if wanted.committed and not found.migrations:
        assert [(span.start, span.stop) for span in found.coverage] == [(0, wanted.position)]
