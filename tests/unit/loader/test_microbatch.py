"""What the training loop is handed."""

from __future__ import annotations

from collections import namedtuple
from typing import Any

import pytest
import torch

from resumable_data import Microbatch, ResumableLoader, Sequential

Pair = namedtuple("Pair", ["x", "y"])


class Tensors:
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.tensor([index, 10 * index])


def first(**options: Any) -> Microbatch:
    settings = {"global_batch": 3, "microbatch": 4, "rank": 0, "num_replicas": 1, **options}
    return next(iter(ResumableLoader(Tensors(), order=Sequential(6), **settings)))


def test_samples_are_collated_as_by_torch() -> None:
    """Without a collate_fn a batch is what torch's DataLoader makes."""
    microbatch = first()
    assert torch.equal(microbatch.data, torch.tensor([[0, 0], [1, 10], [2, 20]]))
    assert (microbatch.update, microbatch.index, microbatch.count, microbatch.is_last) == (0, 0, 1, True)
    assert repr(microbatch) == "Microbatch(update=0, index=0, count=1, ids=[0, 1, 2])"


def test_filler_is_in_data_and_weights_and_nowhere_else() -> None:
    """Filler rows repeat the stretch's first sample, come last, weigh nothing and have no ID."""
    padded = first(pad_microbatches=True)
    assert padded.data[:, 0].tolist() == [0, 1, 2, 0]
    assert padded.weights.tolist() == [1, 1, 1, 0]
    assert padded.weights.dtype == torch.float32
    assert padded.ids.tolist() == padded.positions.tolist() == [0, 1, 2]
    idle = first(rank=3, num_replicas=4)
    assert (idle.data[:, 0].tolist(), idle.weights.tolist(), idle.ids.tolist()) == ([0], [0], [])
    assert idle.positions.tolist() == []


def test_padding_weighs_as_a_sample_and_has_no_id() -> None:
    """Rows of tail="pad" are trained on with weight one, and are not among the IDs."""
    microbatch = first(global_batch=8, microbatch=8, tail="pad")
    assert microbatch.data[:, 0].tolist() == [0, 1, 2, 3, 4, 5, 0, 1]
    assert microbatch.weights.tolist() == [1] * 8
    assert microbatch.ids.tolist() == list(range(6))
    assert microbatch.loss_scale == 1 / 8


@pytest.mark.parametrize(
    ("collate_fn", "look"),
    [
        (torch.stack, lambda data: data),
        (lambda samples: {"x": torch.stack(samples), "name": "a"}, lambda data: data["x"]),
        (lambda samples: [torch.stack(samples), 5], lambda data: data[0]),
        (lambda samples: ("a", (torch.stack(samples),)), lambda data: data[1][0]),
        (lambda samples: Pair(1, {"x": torch.stack(samples)}), lambda data: data.y["x"]),
    ],
)
def test_to_moves_every_tensor(collate_fn: Any, look: Any) -> None:
    """to() moves data and weights, keeps the containers and all else, and leaves the original where it was."""
    microbatch = first(collate_fn=collate_fn)
    for device in ("meta", torch.device("meta")):
        moved = microbatch.to(device, non_blocking=True)
        assert type(moved.data) is type(microbatch.data)
        assert look(moved.data).device.type == moved.weights.device.type == "meta"
    assert look(microbatch.data).device.type == microbatch.weights.device.type == "cpu"
    assert (moved.loss_scale, moved.ids.tolist()) == (microbatch.loss_scale, microbatch.ids.tolist())
