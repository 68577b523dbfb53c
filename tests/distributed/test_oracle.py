"""The oracle, one sample at a time in plain Python, beside real ranks that hand a run on through real checkpoints."""

from __future__ import annotations

from itertools import product
from typing import TYPE_CHECKING, NamedTuple

import pytest
import torch
import torch.distributed.checkpoint as dcp

from resumable_data import ResumableLoader, Sequential, Shuffle, TorchShuffle
from tests.distributed.ranks import run_ranks
from tests.oracle import OracleCursor, Task, coverage_lanes, plain_order, split_update

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable_data.order import Order

ORDERS: dict[str, Callable[[int], Order]] = {"sequential": Sequential, "shuffle": Shuffle, "torch": TorchShuffle}
EPOCHS = 3


class Recipe(NamedTuple):
    """A run, but for its ranks, microbatch and workers."""

    kind: str
    length: int
    global_batch: int
    tail: str

    @property
    def order(self) -> Order:
        return ORDERS[self.kind](self.length)


class Launch(NamedTuple):
    """One launch of a chain; None for all the updates that are left."""

    num_ranks: int
    microbatch: int
    num_updates: int | None
    num_workers: int = 0


# (positions, IDs, all IDs that the model sees, weights, loss scale) of one microbatch of one rank
Seen = tuple[list[int], list[int], list[int], list[int], float]
# microbatches, then the cursor's numbers and lanes
Told = tuple[list[Seen], dict[str, int], list[list[int]], bool]

NUMBERS = ("applied", "skipped", "samples", "tokens", "epoch", "offset", "padding", "dropped")


def run_launch(root: str, recipes: list[Recipe], launch: Launch, load: bool) -> list[Told]:
    return [run_recipe(f"{root}/{number}", recipe, launch, load) for number, recipe in enumerate(recipes)]


def run_recipe(path: str, recipe: Recipe, launch: Launch, load: bool) -> Told:
    """Go on with one run, commit some updates, every third as skipped, and save it."""
    loader = ResumableLoader(
        torch.utils.data.TensorDataset(torch.arange(recipe.length)),
        order=recipe.order,
        global_batch=recipe.global_batch,
        microbatch=launch.microbatch,
        tail=recipe.tail,
        epochs=EPOCHS,
        num_workers=launch.num_workers,
    )
    if load:
        dcp.load({"loader": loader}, checkpoint_id=path)
    microbatches_left = len(loader)
    seen: list[Seen] = []
    stop = None if launch.num_updates is None else loader.cursor.updates + launch.num_updates
    for item in loader:
        weights = item.weights.int().tolist()
        seen.append((item.positions.tolist(), item.ids.tolist(), item.data[0].tolist(), weights, item.loss_scale))
        if item.is_last:
            loader.commit(applied=item.update % 3 != 2)
            if loader.cursor.updates == stop:
                break
    cursor = loader.check_agreement()
    dcp.save({"loader": loader}, checkpoint_id=path)
    loader.close()
    numbers = {name: getattr(cursor, name) for name in NUMBERS}
    has_all = stop is not None or len(seen) == microbatches_left
    return seen, numbers, [list(span.lanes) for span in cursor.coverage], has_all


def check_chain(root: Path, recipes: list[Recipe], chain: list[Launch]) -> None:
    oracles = []
    for recipe in recipes:
        order = recipe.order
        lists = plain_order(
            lambda epoch, offset, order=order: int(order.ids(epoch, torch.tensor([offset]).numpy())[0]),  # type: ignore[misc]
            length=recipe.length,
            epochs=EPOCHS,
        )
        oracles.append(OracleCursor(Task(lists, recipe.global_batch, recipe.tail, EPOCHS)))
    for number, launch in enumerate(chain):
        told = run_ranks(run_launch, launch.num_ranks, str(root), recipes, launch, number > 0)
        for index, (recipe, oracle) in enumerate(zip(recipes, oracles, strict=True)):
            check_launch(recipe, oracle, launch, [ranks[index] for ranks in told])


def check_launch(recipe: Recipe, oracle: OracleCursor, launch: Launch, told: list[Told]) -> None:
    """What all ranks of one launch were handed is what the oracle deals them."""
    expected: list[list[Seen]] = [[] for _ in told]
    for update in list(oracle.upcoming())[: launch.num_updates]:
        scale = launch.num_ranks / len(update.rows)
        for together in split_update(update.rows, num_replicas=launch.num_ranks, microbatch=launch.microbatch):
            for rank, one in enumerate(together):
                expected[rank].append((one.positions, one.ids, one.data, one.weights, scale))
        oracle.commit(update, applied=oracle.updates % 3 != 2)
    lanes = [list(coverage_lanes(oracle.committed))] if oracle.committed else []
    for rank, (seen, numbers, coverage, has_all) in enumerate(told):
        where = f"rank {rank} of {launch}, {recipe}"
        assert seen == expected[rank], where
        assert (numbers, coverage, has_all) == (oracle.numbers(), lanes, True), where


SMALL = [
    Recipe("shuffle", 64, 8, "carry"),
    Recipe("shuffle", 23, 8, "carry"),
    Recipe("torch", 23, 8, "short"),
    Recipe("shuffle", 23, 8, "drop"),
    Recipe("sequential", 23, 8, "pad"),
    Recipe("shuffle", 5, 12, "carry"),
    Recipe("shuffle", 5, 12, "pad"),
    Recipe("shuffle", 1, 1, "short"),
    Recipe("sequential", 3, 2, "short"),
]


def test_chain_of_ranks_equals_the_oracle(tmp_path: Path) -> None:
    """4 -> 2 -> 3 -> 5 ranks, other microbatches and workers, every tail: each rank reads what the oracle deals it."""
    chain = [Launch(4, 2, 3), Launch(2, 3, 1, num_workers=1), Launch(3, 1, 2), Launch(5, 2, None)]
    check_chain(tmp_path, SMALL, chain)


@pytest.mark.slow
@pytest.mark.parametrize("chain", [(1, 8, 3), (7, 2, 6), (2, 4, 2), (3, 1, 5)], ids=str)
def test_more_chains_equal_the_oracle(tmp_path: Path, chain: tuple[int, int, int]) -> None:
    """The same over a grid of lengths, global batches, tails and microbatches."""
    grid = product(["shuffle"], [1, 7, 10, 31], [1, 3, 10], ["carry", "short", "drop", "pad"])
    recipes = [Recipe(*one) for one in grid if one[3] != "drop" or one[2] <= one[1]]
    first, second, third = chain
    check_chain(tmp_path, recipes, [Launch(first, 2, 1), Launch(second, 1, 2), Launch(third, 4, None)])
