"""TorchShuffle: what torch's DistributedSampler gives, before its padding."""

from __future__ import annotations

import pickle
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from torch.utils.data import Dataset, DistributedSampler

from resumable_data.errors import UsageError
from resumable_data.order import TorchShuffle, torch_shuffle
from resumable_data.order.table import TablePermutation


class Range(Dataset[int]):
    """A dataset of which the sampler only asks the length."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n


def torch_order(n: int, num_replicas: int, seed: int, epoch: int) -> list[int]:
    """The IDs that torch's sampler hands out over all ranks, in the order of positions, padding cut off."""
    rows = []
    for rank in range(num_replicas):
        sampler: DistributedSampler[int] = DistributedSampler(Range(n), num_replicas, rank, shuffle=True, seed=seed)
        sampler.set_epoch(epoch)
        rows.append(list(sampler))
    return [ids[step] for step in range(len(rows[0])) for ids in rows][:n]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The seeds of the permutations that torch drew so far."""
    seeds: list[int] = []
    draw = torch_shuffle._torch_permutation

    def counted(length: int, seed: int) -> TablePermutation:
        seeds.append(seed)
        return draw(length, seed)

    monkeypatch.setattr(torch_shuffle, "_torch_permutation", counted)
    return seeds


@pytest.mark.parametrize("n", [1, 2, 5, 64, 1_000, 10_007])
@pytest.mark.parametrize("num_replicas", [1, 3, 8])
def test_the_order_is_that_of_torch(n: int, num_replicas: int) -> None:
    """Over several seeds and epochs, each position holds the ID that torch's sampler gives it."""
    for seed in (0, 5, 2**40):
        order = TorchShuffle(n, seed=seed)
        for epoch in (0, 1, 7):
            ids = order.ids(epoch, np.arange(n, dtype=np.int64))
            assert ids.tolist() == torch_order(n, num_replicas, seed, epoch)


def test_offsets_undo_ids() -> None:
    """The inverse is right in every epoch, also when epochs alternate."""
    order, offsets = TorchShuffle(5_000, seed=2), np.arange(5_000, dtype=np.int64)
    for epoch in (0, 1, 2, 0, 2, 1):
        ids = order.ids(epoch, offsets)
        assert ids.dtype == np.int64
        back = order.offsets(epoch, ids)
        assert back.dtype == np.int64
        assert np.array_equal(back, offsets)


def test_as_in_torch_seed_and_epoch_are_added() -> None:
    """Seed 5 in epoch 1 equals seed 6 in epoch 0, which is torch's order, not ours to mend."""
    offsets = np.arange(100, dtype=np.int64)
    assert np.array_equal(TorchShuffle(100, 5).ids(1, offsets), TorchShuffle(100, 6).ids(0, offsets))


def test_two_epochs_are_kept(drawn: list[int]) -> None:
    """Going back and forth over an epoch's border draws each epoch once; a third takes the place of the older."""
    order, offsets = TorchShuffle(100, seed=10), np.arange(3, dtype=np.int64)
    for epoch in (0, 1, 0, 1, 1, 2, 1, 2):
        order.ids(epoch, offsets)
    assert drawn == [10, 11, 12]
    order.ids(0, offsets)
    assert drawn == [10, 11, 12, 10]


def test_threads_draw_an_epoch_once(drawn: list[int]) -> None:
    """Threads that ask at once share one drawing, which may be gigabytes."""
    order, offsets = TorchShuffle(200_000), np.arange(200_000, dtype=np.int64)
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda _: order.offsets(0, order.ids(0, offsets)), range(16)))
    assert drawn == [0]
    assert all(np.array_equal(answer, offsets) for answer in answers)


def test_identity_and_pickling() -> None:
    """Equal by description; a pickle holds the arguments, not the permutation."""
    order = TorchShuffle(100_000, seed=3)
    order.ids(0, np.arange(3, dtype=np.int64))
    assert order.describe() == {"kind": "torch_shuffle", "version": 1, "length": 100_000, "seed": 3}
    assert len(pickle.dumps(order)) < 500
    assert pickle.loads(pickle.dumps(order)) == order == TorchShuffle(100_000, 3)
    assert repr(order) == "TorchShuffle(100000, seed=3)"
    assert order.seed == 3


@pytest.mark.parametrize("arguments", [(0,), (1.5,), (2**40 + 1,), (10, -1), (10, 2**63), (10, "1")])
def test_wrong_arguments_are_refused(arguments: tuple[int, int]) -> None:
    """What is not a length or a seed is refused."""
    with pytest.raises(UsageError, match="must be"):
        TorchShuffle(*arguments)


def test_torch_is_imported_at_the_first_question() -> None:
    """Making and describing the order does not import torch; asking it does."""
    program = (
        "import sys; import numpy as np; from resumable_data.order import TorchShuffle; order = TorchShuffle(5)\n"
        "order.describe(); assert 'torch' not in sys.modules\n"
        "order.ids(0, np.arange(5)); assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
