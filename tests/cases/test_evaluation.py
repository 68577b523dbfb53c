"""Case 44: evaluation."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, DistributedSampler

from resumable_data import evaluation_loader

VALUES = torch.tensor([float((7 * index) % 23 + index * index) for index in range(21)])


class Values(torch.utils.data.Dataset[torch.Tensor]):
    """21 values."""

    def __len__(self) -> int:
        return 21

    def __getitem__(self, index: int) -> torch.Tensor:
        return VALUES[index]


@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("microbatch", [1, 2, 4, 8])
def test_case_44_mean_of_21_on_4_ranks(microbatch: int, num_workers: int) -> None:
    """N=21, W=4: every sample once, and sum and count over all ranks give the mean over 21."""
    total, ids, steps = torch.zeros(2, dtype=torch.float64), list[int](), list[int]()
    options: dict[str, Any] = {"microbatch": microbatch, "num_workers": num_workers}
    for rank in range(4):
        with evaluation_loader(Values(), rank=rank, num_replicas=4, **options) as loader:
            steps.append(0)
            for item in loader:
                steps[-1] += 1
                total += torch.stack([(item.data * item.weights).sum(), item.weights.sum()])
                ids += item.ids.tolist()
    assert sorted(ids) == list(range(21))
    assert len(set(steps)) == 1
    assert total[1] == 21
    assert total[0] / total[1] == pytest.approx(float(VALUES.double().mean()))


def test_case_44_what_a_distributed_sampler_gives() -> None:
    """The sampler of torch reads 24 samples for the 21, so its mean is another one."""
    total = torch.zeros(2)
    for rank in range(4):
        sampler: Any = DistributedSampler(Values(), num_replicas=4, rank=rank, shuffle=False)
        for values in DataLoader(Values(), batch_size=2, sampler=sampler):
            total += torch.tensor([values.sum(), len(values)])
    assert total[1] == 24
    assert float(total[0] / total[1]) != pytest.approx(float(VALUES.mean()))
