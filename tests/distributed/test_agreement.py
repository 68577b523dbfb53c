"""Ranks that do not agree are all told so, with the processes and the fields named."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from resumable_data.errors import DisagreementError
from resumable_data.loader import ResumableLoader
from resumable_data.order import Shuffle
from tests.distributed.ranks import run_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

LENGTH = 32


def make_loader(**changes: Any) -> ResumableLoader:
    arguments: dict[str, Any] = {"global_batch": 6, "microbatch": 2, "epochs": 1}
    return ResumableLoader(torch.utils.data.TensorDataset(torch.arange(LENGTH)), **{**arguments, **changes})


def disagreement(function: Callable[[], object]) -> str:
    with pytest.raises(DisagreementError) as caught:
        function()
    return str(caught.value)


def train(loader: ResumableLoader, num_updates: int) -> None:
    for item in loader:
        if item.is_last:
            loader.commit()
            num_updates -= 1
            if not num_updates:
                return


def first_delivery(changes: dict[int, dict[str, Any]]) -> str:
    """What the first delivery says where some ranks make their loader otherwise."""
    loader = make_loader(**changes.get(dist.get_rank(), {}))
    return disagreement(lambda: next(iter(loader)))


@pytest.mark.parametrize(
    ("change", "parts"),
    [
        ({"seed": 5}, ["recipe.order.seed = 0  on process 0, 2", "recipe.order.seed = 5  on process 1"]),
        ({"global_batch": 8}, ["recipe.global_batch = 6  on process 0, 2", "recipe.global_batch = 8  on process 1"]),
        ({"tail": "drop"}, ["recipe.tail = 'drop'  on process 1"]),
        ({"fingerprint": "x"}, ["recipe.fingerprint = 'x'  on process 1"]),
        ({"microbatch": 1}, ["microbatch", "on process 0, 2", "on process 1"]),
        ({"epochs": 2}, ["epochs", "on process 0, 2", "on process 1"]),
        ({"pad_microbatches": True}, ["pad_microbatches", "on process 1"]),
        ({"gradient_reduction": "sum"}, ["gradient_reduction", "on process 1"]),
        ({"rank": 1, "num_replicas": 4}, ["3  on process 0, 2", "4  on process 1"]),
        ({"rank": 2, "num_replicas": 3}, ["none has rank 1"]),
    ],
    ids=lambda value: " ".join(f"{k}={v}" for k, v in value.items()) if isinstance(value, dict) else "",
)
def test_another_setting_on_one_rank_is_found_at_the_first_delivery(change: dict[str, Any], parts: list[str]) -> None:
    """A rank with another recipe, setting or place is named on all ranks before anything is read."""
    for message in run_ranks(first_delivery, 3, {1: change}, timeout_s=60):
        for part in parts:
            assert part in message


def another_cursor() -> list[str]:
    """Rank 2 alone goes on from an older state."""
    loader = make_loader()
    old = loader.state_dict()
    train(loader, 3)
    if dist.get_rank() == 2:
        loader.load_state_dict(old)
    return [disagreement(loader.check_agreement), disagreement(loader.check_agreement)]


def test_another_cursor_on_one_rank_is_found_before_a_save() -> None:
    """A rank with another cursor is named with its fields on all ranks, each time it is asked."""
    for messages in run_ranks(another_cursor, 4):
        assert messages[0] == messages[1]
        assert "applied = 3  on process 0, 1, 3" in messages[0]
        assert "applied = 0  on process 2" in messages[0]
        assert "offset = 18  on process 0, 1, 3" in messages[0]


def one_commit_less() -> str:
    """The last rank forgets its commit once."""
    loader = make_loader()
    for item in loader:
        if item.is_last and (item.update == 0 or dist.get_rank() < 2):
            loader.commit()
        if item.is_last and item.update == 1:
            break
    return disagreement(loader.check_agreement)


def test_a_commit_missed_on_one_rank_is_found() -> None:
    """A rank that committed one update less is named."""
    for message in run_ranks(one_commit_less, 3):
        assert "applied = 2  on process 0, 1" in message
        assert "applied = 1  on process 2" in message


class ShiftedShuffle(Shuffle):
    """An order whose description leaves out what its IDs depend on."""

    def __init__(self, shift: int) -> None:
        super().__init__(LENGTH)
        self.shift = shift

    def ids(self, epoch: int, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
        return (super().ids(epoch, offsets) + self.shift) % LENGTH

    def offsets(self, epoch: int, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        return super().offsets(epoch, (ids - self.shift) % LENGTH)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "tests/shifted", "version": 1, "length": LENGTH}


def other_samples_on_a_peer() -> str:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader = make_loader(order=ShiftedShuffle(1 if dist.get_rank() == 3 else 2), mesh=mesh, data_axes="dp")
    train(loader, 2)
    return disagreement(loader.check_agreement)


def test_a_tensor_parallel_peer_that_read_other_samples_is_found() -> None:
    """Peers of one data rank that were handed different samples are an error on all ranks, before a save."""
    for message in run_ranks(other_samples_on_a_peer, 4):
        assert "process 3 and another process of data-parallel rank 1" in message


def wrong_axis() -> str:
    """A tp axis is taken for data on half of the ranks."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader = make_loader(mesh=mesh, data_axes="dp" if dist.get_rank() < 2 else ("dp", "tp"))
    return disagreement(lambda: next(iter(loader)))


def test_other_data_axes_on_some_ranks_are_found() -> None:
    """Ranks that count other axes as data are named before anything is read."""
    for message in run_ranks(wrong_axis, 4):
        assert "2  on process 0, 1" in message
        assert "4  on process 2, 3" in message


def agree_and_go_on() -> tuple[bytes, bytes]:
    """Agreement at any time, twice in a row, and before the first delivery."""
    loader = make_loader()
    loader.check_agreement()
    train(loader, 2)
    loader.check_agreement()
    loader.check_agreement()
    first = loader.cursor.to_json()
    train(loader, 4)
    return first, loader.check_agreement().to_json()


def test_agreement_gives_all_ranks_the_same_cursor() -> None:
    """After an agreement every rank's cursor, digest included, is the same byte for byte."""
    results = run_ranks(agree_and_go_on, 3)
    assert len(set(results)) == 1


def simulated_in_a_job() -> list[int]:
    """A loader for one rank alone, made on rank 0 of a job, asks nobody."""
    if dist.get_rank():
        return []
    alone = make_loader(rank=0, num_replicas=1)
    return [i for item in alone for i in item.ids.tolist()]


def test_a_loader_for_one_rank_in_a_larger_job_asks_nobody() -> None:
    """rank=0, num_replicas=1 reads everything by itself, whatever the process group."""
    assert sorted(run_ranks(simulated_in_a_job, 2, timeout_s=60)[0]) == list(range(LENGTH))
