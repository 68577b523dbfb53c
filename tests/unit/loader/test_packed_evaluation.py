"""Evaluation over packed rows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from resumable_data import PackedTokens, evaluation_loader, open_tokens
from resumable_data.errors import UsageError
from resumable_data.order import Int64Array

LENGTHS = np.array([5, 0, 9, 3, 14, 1, 6, 2, 2, 8])


def make_packed(lengths: np.ndarray[tuple[int], np.dtype[np.int64]] = LENGTHS) -> PackedTokens:
    return PackedTokens(open_tokens(np.arange(1, 101)[: lengths.sum()], lengths=lengths), sequence_length=8, window=4)


@pytest.mark.parametrize("num_replicas", [1, 2, 3, 7])
def test_every_token_and_target_is_evaluated_once(num_replicas: int) -> None:
    """On any number of ranks, with as many microbatches on each, twice over; filler rows have no labels."""
    for _ in range(2):
        pieces, labels, steps = [], [], set()
        for rank in range(num_replicas):
            with evaluation_loader(make_packed(), microbatch=2, rank=rank, num_replicas=num_replicas) as loader:
                given = list(loader)
            steps.add(len(given))
            pieces += [piece for microbatch in given for row in microbatch.pieces for piece in row]
            labels += [one for microbatch in given for one in microbatch.data["labels"].flatten().tolist() if one >= 0]
        tokens = sorted((document, token) for document, start, stop in pieces for token in range(start, stop))
        assert tokens == [(document, token) for document, length in enumerate(LENGTHS) for token in range(length)]
        assert len(labels) == len(set(labels)) == sum(stop - start - 1 for _, start, stop in pieces)
        assert len(steps) == 1


def test_a_mean_over_targets_does_not_depend_on_ranks() -> None:
    """Sums over ranks of weighted values and of targets give the mean over all targets."""
    means = []
    for num_replicas in (1, 3):
        total = torch.zeros(2, dtype=torch.float64)
        for rank in range(num_replicas):
            for microbatch in evaluation_loader(make_packed(), microbatch=2, rank=rank, num_replicas=num_replicas):
                targets = microbatch.data["labels"]
                held = targets != -100
                total += torch.stack([targets[held].sum(), held.sum()])
        means.append(float(total[0] / total[1]))
    assert means[0] == means[1]


class Blank:
    """Three documents without tokens."""

    dtype, num_tokens = np.dtype(np.int64), 0

    def __len__(self) -> int:
        return 3

    def lengths(self, documents: Int64Array) -> Int64Array:
        return np.zeros_like(documents)

    def read(self, document: int, start: int, stop: int) -> Int64Array:
        raise AssertionError

    def describe(self) -> dict[str, int | str]:
        return {"kind": "blank"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return "blank"


def test_documents_without_tokens_are_refused() -> None:
    """There is nothing to evaluate, and the loader says so when it is made."""
    with pytest.raises(UsageError, match="3 documents have no tokens"):
        evaluation_loader(PackedTokens(Blank(), sequence_length=8), microbatch=1, rank=0, num_replicas=1)
