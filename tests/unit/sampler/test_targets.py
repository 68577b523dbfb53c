"""Loss weights over samples and over target tokens."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from resumable_data import Sequential
from resumable_data.errors import UsageError
from resumable_data.plan import Schedule
from resumable_data.sampler import LossWeight, RankLayout, RankRows, TargetTokens

IDS = np.array([3, 0, 3], dtype=np.int64)


@pytest.mark.parametrize(
    "source",
    [
        [5, 6, 7, 8],
        np.array([5, 6, 7, 8], np.uint16),
        torch.tensor([5, 6, 7, 8], dtype=torch.int32),
        lambda ids: ids + 5,
        lambda ids: (ids + 5).tolist(),
    ],
)
def test_counts_from_arrays_and_functions(source: Any) -> None:
    """Whatever gives the counts, they come out as int64, one per ID."""
    counts = TargetTokens(source, length=4).count(IDS)
    assert counts.dtype == np.int64
    assert counts.tolist() == [8, 5, 8]


@pytest.mark.parametrize("source", [[1, 2, 3], [[1, 2], [3, 4]], [1.0, 2.0, 3.0, 4.0], [True, False, True, True], 7])
def test_arrays_of_another_shape_or_type_are_refused(source: Any) -> None:
    """An array must hold one integer per sample."""
    with pytest.raises(UsageError, match=r"one integer per sample, shape \(4,\); got shape"):
        TargetTokens(source, length=4)


@pytest.mark.parametrize(
    ("source", "says"),
    [
        (lambda ids: ids[:-1], r"one integer per ID, shape \(3,\); got shape \(2,\)"),
        (lambda ids: 7, r"got shape \(\)"),
        (lambda ids: ids / 2, "of float64"),
        (lambda ids: -ids, "gave -3 for sample 3; expected >= 0"),
        ([1, 1, 1, -4], "gave -4 for sample 3"),
    ],
)
def test_bad_counts_are_refused_where_they_are_used(source: Any, says: str) -> None:
    """A function of another shape or type, and a negative count, are refused, the sample named."""
    with pytest.raises(UsageError, match=says):
        TargetTokens(source, length=4).count(IDS)


def scales(targets: Any, *, normalize: str, global_batch: int, tail: str = "carry") -> list[tuple[float, int]]:
    rows = RankRows(
        Sequential(6),
        schedule=Schedule(length=6, global_batch=global_batch, tail=tail, epochs=1),
        layout=RankLayout(rank=0, num_replicas=1, microbatch=global_batch),
        weight=LossWeight(normalize=normalize, factor=2.0, targets=TargetTokens(targets, length=6)),
    )
    return [(found.loss_scale, found.tokens) for found in rows.from_place(update=0, epoch=0, offset=0)]


def test_tokens_are_those_of_the_whole_update() -> None:
    """Each update is scaled by its own tokens; one without any does not divide by zero."""
    assert scales([1, 3, 0, 0, 5, 5], normalize="tokens", global_batch=2) == [(0.5, 4), (2.0, 0), (0.2, 10)]
    assert scales([1, 3, 0, 0, 5, 5], normalize="samples", global_batch=2) == [(1.0, 4), (1.0, 0), (1.0, 10)]


def test_padding_rows_weigh_like_others() -> None:
    """The tokens of padding rows count in the mean, as their losses do, and not in the progress."""
    assert scales([1, 3, 0, 2, 5, 5], normalize="tokens", global_batch=4, tail="pad") == [(2 / 6, 6), (2 / 14, 10)]


def test_large_updates_are_counted_in_chunks() -> None:
    """An update of more rows than are counted at once has all its tokens."""
    rows = RankRows(
        Sequential(200_000),
        schedule=Schedule(length=200_000, global_batch=150_000, epochs=1),
        layout=RankLayout(rank=0, num_replicas=1, microbatch=150_000),
        weight=LossWeight(normalize="tokens", factor=1.0, targets=TargetTokens(lambda ids: ids % 3, length=200_000)),
    )
    found = [row.tokens for row in rows.from_place(update=0, epoch=0, offset=0)]
    assert found == [150_000, sum(i % 3 for i in range(150_000, 200_000))]


def test_unknown_normalizations_are_refused() -> None:
    """A misspelt normalisation and one without its counts are refused."""
    with pytest.raises(UsageError, match=r"normalize must be one of \('samples', 'tokens', 'targets'\), got 'token'"):
        LossWeight(normalize="token", factor=1.0)
    with pytest.raises(UsageError, match=r'normalize="tokens" needs num_target_tokens='):
        LossWeight(normalize="tokens", factor=1.0)
