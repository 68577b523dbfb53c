"""Rows have the same hash where their contents are the same, in whatever company."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import numpy as np
import pytest
import torch

from resumable_data.shadowing.row_hashes import NotHashable, hash_rows


def hashes(batch: Any) -> list[int]:
    found: list[int] = np.frombuffer(hash_rows(batch), "<u8").tolist()
    return found


Pair = namedtuple("Pair", ["x", "y"])
IMAGES, LABELS = torch.arange(24.0).reshape(4, 2, 3), torch.arange(4)


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: IMAGES[rows],
        lambda rows: IMAGES[rows].bfloat16(),
        lambda rows: IMAGES[rows].numpy(),
        lambda rows: [IMAGES[rows], LABELS[rows]],
        lambda rows: {"x": IMAGES[rows], "more": {"y": LABELS[rows]}, "names": [f"n{row}" for row in rows]},
        lambda rows: {"x": IMAGES[rows], "step": rows[0], "scale": torch.tensor(rows[0]), "none": None},
        lambda rows: Pair(IMAGES[rows], LABELS[rows].bool()),
        lambda rows: (IMAGES[rows].requires_grad_(), np.array(["a", "b", "c", "d"])[rows]),
        lambda rows: (IMAGES[rows].transpose(1, 2), IMAGES[rows].to(torch.complex64).conj()),
        lambda rows: (np.array([{"a": 1}, {"a": 2}, None, "x"], object)[rows], LABELS[rows]),
        lambda rows: torch.zeros(4, 0)[rows],
        lambda rows: list(rows),
        lambda rows: [f"text {row}" for row in rows],
        lambda rows: [{"x": IMAGES[row], "boxes": [1] * row} for row in rows],
        lambda rows: [(torch.zeros(row + 1), {"id": np.int64(row)}) for row in rows],
        lambda rows: (tuple(torch.zeros(row + 1) for row in rows), tuple({"boxes": [row]} for row in rows)),
    ],
)
def test_a_row_does_not_depend_on_its_batch(make: Any) -> None:
    """Rows of one batch are, in another batch or order, the same; and they differ where contents do."""
    first, second = hashes(make([0, 1, 2, 3])), hashes(make([3, 1]))
    assert second == [first[3], first[1]]
    is_empty = isinstance(make([0]), torch.Tensor) and not make([0]).numel()
    assert len(set(first)) == (1 if is_empty else 4)


def test_equal_contents_have_equal_hashes() -> None:
    """A tensor, an array, and the same tensor on a non-contiguous view have the same rows."""
    assert hashes(IMAGES) == hashes(IMAGES.numpy()) == hashes(IMAGES.clone().permute(2, 0, 1).permute(1, 2, 0))
    assert hashes([{"b": 1, "a": {2, 3}}]) == hashes([{"a": {3, 2}, "b": 1}])
    assert hashes([]) == []


@pytest.mark.parametrize(
    "batch",
    [
        None,
        7,
        "text",
        object(),
        [object()],
        [2**70],
        {"x": torch.zeros(2), "y": torch.zeros(3)},
        (torch.zeros(2), torch.zeros(3)),
        ([1, 2], [object()]),
        {"x": 1},
        torch.zeros(()),
    ],
)
def test_what_has_no_rows(batch: Any) -> None:
    """What cannot be told apart into rows is refused."""
    with pytest.raises(NotHashable):
        hash_rows(batch)


def test_deep_and_sparse() -> None:
    """Structures without end and tensors without rows in memory are refused."""
    deep: list[Any] = []
    deep.append(deep)
    with pytest.raises(NotHashable):
        hash_rows((deep, deep))
    with pytest.raises(NotHashable):
        hash_rows(torch.eye(3).to_sparse())
