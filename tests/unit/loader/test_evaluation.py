"""Evaluation: every sample once in each pass, on any number of ranks."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

import pytest
import torch

from resumable_data import evaluation_loader
from resumable_data.errors import SampleReadError, StaleIteratorError, UsageError
from tests.simulated_ranks import Numbers, keep_list

if TYPE_CHECKING:
    from resumable_data.loader import EvaluationLoader

SHAPES = [(n, w, b) for n in (1, 2, 7, 21, 64) for w in (1, 2, 3, 4, 9) for b in (1, 2, 5, 64)]


def ranks_of(dataset: Any, num_replicas: int, **options: Any) -> list[EvaluationLoader]:
    settings: dict[str, Any] = {"microbatch": 2, "collate_fn": keep_list, **options}
    return [
        evaluation_loader(dataset, rank=rank, num_replicas=num_replicas, **settings) for rank in range(num_replicas)
    ]


@pytest.mark.parametrize("pad_microbatches", [False, True])
@pytest.mark.parametrize(("length", "num_replicas", "microbatch"), SHAPES)
def test_every_sample_once(length: int, num_replicas: int, microbatch: int, pad_microbatches: bool) -> None:
    """All ranks take the same number of steps, of rows that fit; weight 1 falls on each sample once, in both passes."""
    ranks = ranks_of(Numbers(length), num_replicas, microbatch=microbatch, pad_microbatches=pad_microbatches)
    steps = ceil(ceil(length / num_replicas) / microbatch)
    for _ in range(2):
        seen: list[int] = []
        for rank in ranks:
            items = list(rank)
            assert len(items) == len(rank) == steps
            for item in items:
                weights = item.weights.tolist()
                assert 1 <= len(item.data) == len(weights) <= microbatch
                assert len(item.data) == microbatch or not pad_microbatches
                assert weights == [1.0] * len(item.ids) + [0.0] * (len(weights) - len(item.ids))
                assert item.data[: len(item.ids)] == item.ids.tolist()
                seen += item.ids.tolist()
        assert sorted(seen) == list(range(length))


@pytest.mark.parametrize("options", [{}, {"persistent_workers": True}])
def test_passes_with_workers(options: dict[str, Any]) -> None:
    """Two workers give the samples in the dataset's order, pass after pass."""
    with evaluation_loader(Numbers(21), microbatch=4, num_workers=2, collate_fn=keep_list, **options) as loader:
        for _ in range(3):
            assert [item for microbatch in loader for item in microbatch.data] == list(range(21))
        next(iter(loader))  # a pass that is broken off
        assert [item for microbatch in loader for item in microbatch.data] == list(range(21))


def test_hundreds_of_microbatches_need_no_commit() -> None:
    """A pass is longer than what may be delivered in training without a commit, and there are many."""
    loader = evaluation_loader(Numbers(300), microbatch=1)
    for _ in range(3):
        assert sum(len(microbatch.ids) for microbatch in loader) == 300
    for _ in range(100):
        next(iter(loader))


def test_microbatches_move_and_know_their_place() -> None:
    """They are what training is handed: index, count, is_last, `to`; and scaled sums add up to the mean."""
    ranks = ranks_of(Numbers(21), 4, collate_fn=torch.tensor)
    total = 0.0
    for rank in ranks:
        items = list(rank)
        assert [(item.index, item.count, item.is_last) for item in items] == [
            (0, 3, False),
            (1, 3, False),
            (2, 3, True),
        ]
        for item in items:
            moved = item.to("meta")
            assert moved.data.is_meta
            assert moved.weights.is_meta
            total += float((item.data * item.weights).sum()) * item.loss_scale / 4
    assert total == pytest.approx(10)


def test_an_older_iterator_is_refused() -> None:
    """Two passes at once would share workers: the first one says that it ended."""
    loader = evaluation_loader(Numbers(6), microbatch=2)
    first = iter(loader)
    next(first)
    list(loader)
    with pytest.raises(StaleIteratorError):
        next(first)


def test_after_close_there_is_nothing() -> None:
    """A closed loader gives nothing, and says so."""
    with evaluation_loader(Numbers(6), microbatch=2) as loader:
        pass
    with pytest.raises(UsageError, match="closed"):
        iter(loader)


def test_a_sample_that_cannot_be_read_is_named() -> None:
    """As in training."""

    class Broken(Numbers):
        def __getitem__(self, index: int) -> int:
            raise OSError("bad sector")

    with pytest.raises(SampleReadError, match="sample 0"):
        next(iter(evaluation_loader(Broken(4), microbatch=2)))


@pytest.mark.parametrize("name", ["ledger", "order", "epochs", "shuffle", "drop_last", "batch_size", "global_batch"])
def test_what_an_evaluation_does_not_have_is_refused(name: str) -> None:
    """Nothing of training, and nothing that would leave samples out."""
    options: dict[str, Any] = {name: None}
    with pytest.raises(UsageError, match=name):
        evaluation_loader(Numbers(4), microbatch=2, **options)


@pytest.mark.parametrize("dataset", [Numbers(0), iter([]), torch.utils.data.ChainDataset([])])
def test_datasets_without_samples_or_indices_are_refused(dataset: Any) -> None:
    """As in training."""
    with pytest.raises(UsageError):
        evaluation_loader(dataset, microbatch=2)


def test_there_is_no_state() -> None:
    """Nothing that a checkpoint or a training loop could take for a position."""
    loader = evaluation_loader(Numbers(4), microbatch=2)
    assert not [name for name in ("state_dict", "load_state_dict", "commit", "cursor") if hasattr(loader, name)]
