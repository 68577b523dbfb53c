"""The blocks of docs/migrate.md that need other packages do what the page says, killed and resumed on other ranks."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
import torch.utils.data

import resumable_data as rd
from tests.distributed.ranks import run_ranks
from tests.docs.code_blocks import find_blocks
from tests.interop.jobs import pretend_launched

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[2] / "docs/migrate.md"
SEED = 7


def blocks_needing(package: str) -> str:
    """The page's Python blocks that are left out of its program because they need `package`."""
    blocks = find_blocks(PAGE.read_text(encoding="utf-8"))
    mark = f"needs {package}; tests/interop runs it"
    code = ["\n".join(block.lines) for block in blocks if block.not_run == mark]
    assert code
    return "\n".join(code)


ACCELERATE_LENGTH = 48  # batches of one size, else accumulate() weighs samples unequally, on any number of ranks
TRAINER_LENGTH = 50


class Killed(Exception):
    """Ends the script of a rank, wherever it is."""


class Data(torch.utils.data.Dataset[Any]):
    """Sample i is i, by itself or under the name of the model's argument."""

    def __init__(self, length: int, name: str | None = None) -> None:
        self.length = length
        self.name = name

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Any:
        number = torch.tensor(float(index))
        return number if self.name is None else {self.name: number}


class Model(torch.nn.Module):
    """One weight; takes down what it was given, and dies at a given call."""

    def __init__(self, last_call: int | None) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))
        self.seen: list[list[int]] = []
        self.last_call = last_call

    def forward(self, numbers: torch.Tensor) -> dict[str, torch.Tensor]:
        if len(self.seen) == self.last_call:
            raise Killed
        self.seen.append(numbers.int().tolist())
        return {"loss": ((self.weight - numbers / 50) ** 2).mean()}


def run_script(
    package: str, folder: Path, last_call: int | None, names: dict[str, Any], *, mistake: tuple[str, str] = ("", "")
) -> dict[str, Any]:
    """Run the page's script in `folder`, `mistake` made in it, until it ends or is killed; what became of it."""
    pretend_launched(ACCELERATE_USE_CPU="1")
    os.chdir(folder)
    model = Model(last_call)
    scope: dict[str, Any] = {"model": model, **names}
    if names.get("optimizer") is not None:
        scope["optimizer"] = names["optimizer"](model.parameters())
    try:
        exec(compile(blocks_needing(package).replace(*mistake), PAGE.name, "exec"), scope)
        assert last_call is None
    except Killed:
        assert last_call is not None
    cursor = scope["loader"].cursor
    return {"seen": model.seen, "weight": model.weight.item(), "updates": cursor.updates, "samples": cursor.samples}


def with_accelerate(folder: Path, last_call: int | None) -> dict[str, Any]:
    names = {
        "dataset": Data(ACCELERATE_LENGTH),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "loss_of": lambda model, batch: model(batch)["loss"],
        "num_epochs": 2,
    }
    return run_script("accelerate", folder, last_call, names)


def with_transformers(folder: Path, last_call: int | None, mistake: tuple[str, str] = ("", "")) -> dict[str, Any]:
    options: dict[str, Any] = {"max_steps": 7, "save_steps": 3, "use_cpu": True}
    options |= {"optim": "sgd", "learning_rate": 0.1, "lr_scheduler_type": "constant", "remove_unused_columns": False}
    options |= {"report_to": "none", "disable_tqdm": True, "logging_strategy": "no"}
    names = {"dataset": Data(TRAINER_LENGTH, "numbers"), "options": options}
    return run_script("transformers", folder, last_call, names, mistake=mistake)


def rows_of(ranks: list[dict[str, Any]]) -> list[int]:
    """All ranks' samples, one step of all ranks after another."""
    return [sample for step in zip(*(rank["seen"] for rank in ranks), strict=True) for one in step for sample in one]


def ids(order: Any, start: int, stop: int) -> list[int]:
    """The samples at the run's positions from `start` to `stop`, sorted."""
    places = (divmod(position, len(order)) for position in range(start, stop))
    return sorted(int(order.ids(epoch, np.array([offset]))[0]) for epoch, offset in places)


@pytest.mark.parametrize(
    ("run", "global_batch", "order"),
    [
        (with_accelerate, 24, rd.TorchShuffle(ACCELERATE_LENGTH, seed=SEED)),
        (with_transformers, 12, rd.Shuffle(TRAINER_LENGTH, seed=SEED)),
    ],
    ids=["accelerate", "transformers"],
)
def test_killed_on_two_ranks_and_resumed_on_three(
    run: Callable[..., Any], global_batch: int, order: Any, tmp_path: Path
) -> None:
    """From the checkpoint on, three ranks train on what two had not committed, and end with the weight of one."""
    (tmp_path / "killed").mkdir()
    (tmp_path / "whole").mkdir()
    batches_per_update = global_batch // (2 * 2)
    before = run_ranks(run, 2, tmp_path / "killed", 3 * batches_per_update + 1)
    assert [rank["updates"] for rank in before] == [3, 3]
    after = run_ranks(run, 3, tmp_path / "killed", None)
    whole = run_ranks(run, 1, tmp_path / "whole", None)
    committed, total = 3 * global_batch, whole[0]["samples"]
    assert committed % len(order)  # in mid-epoch
    assert sorted(rows_of(before)[:committed]) == ids(order, 0, committed)
    assert sorted(rows_of(after)) == ids(order, committed, total)
    assert sorted(rows_of(whole)) == ids(order, 0, total)
    assert [rank["samples"] for rank in after] == [total] * 3
    assert abs(after[0]["weight"] - whole[0]["weight"]) < 1e-6
    report = rd.audit_ledger(tmp_path / "killed/run/ledger")
    assert (report.verdict, report.samples, len(report.attempts)) == ("proven", total, 2), report.to_text()


def hand_out(state: dict[str, Any] | None, num_batches: int, num_workers: int) -> dict[str, Any]:
    """The state of a StatefulDataLoader that goes on from `state` and hands out so many batches."""
    from torchdata.stateful_dataloader import StatefulDataLoader

    options: dict[str, Any] = {"batch_size": 2, "num_workers": num_workers, "snapshot_every_n_steps": 4}
    options["sampler"] = torch.utils.data.DistributedSampler(Data(40), 1, 0)
    stream = StatefulDataLoader(Data(40), **options)
    if state is not None:
        stream.load_state_dict(state)
    for _ in zip(range(num_batches), stream, strict=False):
        pass
    return dict(stream.state_dict())


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize("num_batches", [1, 4, 7])
def test_what_a_stateful_dataloader_saved_says_where_it_was(num_workers: int, num_batches: int) -> None:
    """The number of batches is read off its state, with workers and without, also of a run that was resumed."""
    scope: dict[str, Any] = {}
    exec(blocks_needing("torchdata"), scope)
    state = hand_out(None, num_batches, num_workers)
    assert scope["batches_handed_out"](state) == num_batches
    state = hand_out(state, 3, num_workers)
    assert scope["batches_handed_out"](state) == num_batches + 3
