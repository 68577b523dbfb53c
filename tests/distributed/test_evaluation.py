"""Evaluation and samples' random numbers on real ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from resumable_data import ResumableLoader, Shuffle, evaluation_loader
from resumable_data.rng import sample_generator
from tests.distributed.ranks import launch_ranks, run_ranks
from tests.simulated_ranks import Numbers, flat


class Squares(Numbers):
    """Item i is i squared."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor(float(index * index), dtype=torch.float64)


def mean_of_squares(length: int, microbatch: int, num_workers: int, axes: tuple[str, ...]) -> list[Any]:
    """Two passes, in each a collective call per microbatch: the mean, this rank's IDs, and the number of rows."""
    options: dict[str, Any] = {}
    if axes:
        mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
        options = {"mesh": mesh, "data_axes": axes}
    with evaluation_loader(Squares(length), microbatch=microbatch, num_workers=num_workers, **options) as loader:
        passes = []
        for _ in range(2):
            total, ids, rows = torch.zeros(2, dtype=torch.float64), [], 0
            for item in loader:
                dist.barrier()  # stands for a sharded model's collective calls: unequal steps would hang
                total += torch.stack([(item.data * item.weights).sum(), item.weights.double().sum()])
                ids += item.ids.tolist()
                rows += len(item.data)
            dist.all_reduce(total)
            passes.append((float(total[0] / total[1]), ids, rows))
    assert passes[0] == passes[1]
    return list(passes[0])


@pytest.mark.parametrize(
    ("length", "num_ranks", "microbatch", "num_workers"), [(21, 4, 2, 0), (21, 4, 8, 2), (3, 4, 2, 0), (21, 3, 4, 2)]
)
def test_mean_over_real_ranks(length: int, num_ranks: int, microbatch: int, num_workers: int) -> None:
    """One all_reduce of sum and count gives every rank the mean over the dataset, and no rank waits for ever."""
    results = run_ranks(mean_of_squares, num_ranks, length, microbatch, num_workers, ())
    assert {mean for mean, _, _ in results} == {sum(i * i for i in range(length)) / length}
    assert sorted(flat(ids for _, ids, _ in results)) == list(range(length))
    assert all(rows for _, _, rows in results)


def test_mean_on_a_mesh() -> None:
    """Tensor-parallel peers read the same samples, and counted twice they leave the mean as it is."""
    results = run_ranks(mean_of_squares, 4, 7, 2, 0, ("dp",))
    assert {mean for mean, _, _ in results} == {13.0}
    assert [ids for _, ids, _ in results] == [[0, 2, 4, 6], [0, 2, 4, 6], [1, 3, 5], [1, 3, 5]]


def read_lengths_that_differ() -> None:
    list(evaluation_loader(Squares(20 + dist.get_rank()), microbatch=2))


def test_ranks_with_different_datasets_are_refused() -> None:
    """A validation set that one rank lists differently is named at the first microbatch; no rank hangs."""
    outcomes = launch_ranks(read_lengths_that_differ, 2)
    assert all("DisagreementError" in outcome.error and "recipe.order.length" in outcome.error for outcome in outcomes)


def evaluate_on_rank_0() -> int:
    if dist.get_rank():
        return 0
    return sum(len(item.ids) for item in evaluation_loader(Squares(9), microbatch=2, rank=0, num_replicas=1))


def test_one_rank_alone() -> None:
    """With rank=0 and num_replicas=1 a rank reads everything and waits for nobody."""
    assert run_ranks(evaluate_on_rank_0, 2) == [9, 0]


class Drawn(Numbers):
    """Items drawn at random, by the sample's own generator and by torch's global one."""

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(sample_generator().random()), float(torch.rand(()))], dtype=torch.float64)


def draw(num_workers: int, seed_of_rank_1: int = 0) -> dict[int, list[float]]:
    """Position -> the item at it, of this rank."""
    torch.manual_seed(dist.get_rank() + 100 * dist.get_world_size())
    seed = seed_of_rank_1 if dist.get_rank() == 1 else 0
    options: dict[str, Any] = {"seed": seed, "seed_samples": True, "num_workers": num_workers, "epochs": 2}
    found: dict[int, list[float]] = {}
    with ResumableLoader(Drawn(11), order=Shuffle(11), global_batch=4, microbatch=2, **options) as loader:
        for item in loader:
            found |= zip(item.positions.tolist(), item.data.tolist(), strict=False)
            if item.is_last:
                loader.commit()
    return found


def test_numbers_of_a_sample_on_real_ranks() -> None:
    """Items drawn at random are the same on 1, 2 and 3 ranks, with workers and without."""
    (alone,) = run_ranks(draw, 1, 0)
    assert sorted(alone) == list(range(22))
    for num_ranks, num_workers in ((2, 2), (3, 0)):
        together: dict[int, list[float]] = {}
        for found in run_ranks(draw, num_ranks, num_workers):
            together |= found
        assert together == alone


def test_ranks_with_different_seeds_are_refused() -> None:
    """A sample's numbers would depend on who reads it: found at the first microbatch."""
    outcomes = launch_ranks(draw, 2, 0, 1)
    assert all("DisagreementError" in outcome.error and "seed" in outcome.error for outcome in outcomes)
