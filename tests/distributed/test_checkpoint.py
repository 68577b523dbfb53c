"""The cursor inside a real DCP checkpoint: saved on some ranks, loaded on others."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh

from resumable_data.errors import RecipeMismatchError
from resumable_data.loader import ResumableLoader
from resumable_data.order import Shuffle
from tests.distributed.ranks import run_ranks
from tests.distributed.training import DataParallel, TokenDataset

if TYPE_CHECKING:
    from pathlib import Path

LENGTH, GLOBAL_BATCH, EPOCHS = 67, 10, 2

# per update, the (position, ID) pairs that one rank was handed
Rows = dict[int, list[tuple[int, int]]]


def make_loader(**changes: Any) -> ResumableLoader:
    arguments: dict[str, Any] = {"global_batch": GLOBAL_BATCH, "microbatch": 2, "epochs": EPOCHS, "seed": 3}
    return ResumableLoader(TokenDataset(LENGTH, max_tokens=1), **{**arguments, **changes})


def train(loader: ResumableLoader, num_updates: int | None = None) -> Rows:
    """Commit some updates, all that are left by default, and say what was read."""
    rows: Rows = {}
    for item in loader:
        assert item.data["id"][: len(item.ids)].tolist() == item.ids.tolist()
        pairs = zip(item.positions.tolist(), item.ids.tolist(), strict=True)
        rows.setdefault(item.update, []).extend(pairs)
        if item.is_last:
            loader.commit()
            if len(rows) == num_updates:
                break
    return rows


def shards() -> Any:
    return DataParallel("fsdp", synced=True).model


def save(path: str, num_updates: int, as_object: bool, **changes: Any) -> Rows:
    """Train and save beside a sharded model, the loader itself or its state dict."""
    loader, model = make_loader(**changes), shards()
    rows = train(loader, num_updates)
    loader.check_agreement()
    state = {"model": get_model_state_dict(model), "loader": loader if as_object else loader.state_dict()}
    dcp.save(state, checkpoint_id=path)
    return rows


def resume(path: str, as_object: bool, num_updates: int | None = None, save_to: str = "", **changes: Any) -> Rows:
    """Load on these ranks, train on, and save again where asked to."""
    loader, model = make_loader(**changes), shards()
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    state: dict[str, Any] = {"model": get_model_state_dict(model)}
    state["loader"] = loader if as_object else loader.state_dict()
    dcp.load(state, checkpoint_id=path)
    if not as_object:
        loader.load_state_dict(state["loader"])
    set_model_state_dict(model, state["model"])
    whole = model[0].weight.full_tensor()
    assert torch.count_nonzero(whole) == whole.numel()
    rows = train(loader, num_updates)
    loader.check_agreement()
    if save_to:
        dcp.save({"model": get_model_state_dict(model), "loader": loader}, checkpoint_id=save_to)
    return rows


def merged(*launches: list[Rows]) -> Rows:
    """What all ranks of all launches read, by update; no update in two launches."""
    whole: Rows = {}
    for ranks in launches:
        assert not whole.keys() & chain.from_iterable(ranks)
        for rows in ranks:
            for update, pairs in rows.items():
                whole.setdefault(update, []).extend(pairs)
    return whole


def expected_rows(global_batches: list[int]) -> Rows:
    """The run by arithmetic: update k takes the next positions, the last one what is left."""
    order, total = Shuffle(LENGTH, seed=3), LENGTH * EPOCHS
    rows: Rows = {}
    start = 0
    for update, size in enumerate(global_batches):
        positions = range(start, min(start + size, total))
        ids = [int(order.ids(p // LENGTH, torch.tensor([p % LENGTH]).numpy())[0]) for p in positions]
        rows[update] = list(zip(positions, ids, strict=True))
        start += size
    assert start >= total
    return rows


def check_exact(found: Rows, global_batches: list[int]) -> None:
    assert {update: sorted(pairs) for update, pairs in found.items()} == expected_rows(global_batches)


@pytest.fixture(scope="module")
def saved_on_4(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Rows]]:
    path = tmp_path_factory.mktemp("saved") / "checkpoint"
    return path, run_ranks(save, 4, str(path), 5, True)


@pytest.mark.parametrize("num_ranks", [1, 2, 3, 6, 8])
def test_saved_on_4_ranks_loads_on_any_number(saved_on_4: tuple[Path, list[Rows]], num_ranks: int) -> None:
    """After dcp.save on 4 ranks, any number of ranks goes on with the next sample, and the run is exact."""
    path, before = saved_on_4
    after = run_ranks(resume, num_ranks, str(path), num_ranks % 2 == 0)
    check_exact(merged(before, after), [GLOBAL_BATCH] * 14)


def test_checkpoint_has_two_keys_of_fixed_size(saved_on_4: tuple[Path, list[Rows]]) -> None:
    """Ranks save one replicated tensor of 4096 bytes, and a seal of which each writes its rows."""
    metadata = dcp.FileSystemReader(str(saved_on_4[0])).read_metadata()
    tensors = {key: value for key, value in metadata.state_dict_metadata.items() if key.startswith("loader")}
    cursor, seal = (tensors.pop(f"loader.resumable_data.{name}") for name in ("cursor", "seal"))
    assert not tensors
    assert isinstance(cursor, dcp.metadata.TensorStorageMetadata)
    assert isinstance(seal, dcp.metadata.TensorStorageMetadata)
    assert (list(cursor.size), len(cursor.chunks)) == ([4096], 1)
    assert (list(seal.size), len(seal.chunks)) == ([4096, 2], 4)


def test_chain_of_restarts_in_one_epoch(tmp_path: Path) -> None:
    """4 -> 2 -> 3 ranks within one epoch, each from a DCP checkpoint of the one before, is exact."""
    first = run_ranks(save, 4, str(tmp_path / "a"), 2, False)
    second = run_ranks(resume, 2, str(tmp_path / "a"), True, 3, str(tmp_path / "b"))
    third = run_ranks(resume, 3, str(tmp_path / "b"), False)
    check_exact(merged(first, second, third), [GLOBAL_BATCH] * 14)


def migrate(path: str) -> Rows:
    """Refused when not allowed, and without effect; then allowed by name."""
    loader = make_loader(global_batch=16)
    state = {"loader": loader.state_dict()}
    dcp.load(state, checkpoint_id=path)
    with pytest.raises(RecipeMismatchError, match="global_batch"):
        loader.load_state_dict(state["loader"])
    assert loader.cursor.position == 0
    with pytest.raises(RecipeMismatchError, match="global_batch"):
        dcp.load({"loader": loader}, checkpoint_id=path)
    state = {"loader": loader.state_dict()}
    dcp.load(state, checkpoint_id=path)
    loader.load_state_dict(state["loader"], allow={"global_batch"})
    (migration,) = loader.cursor.migrations
    assert (migration.update, migration.position) == (5, 50)
    return train(loader)


def test_another_global_batch_through_dcp(saved_on_4: tuple[Path, list[Rows]]) -> None:
    """A checkpoint of another global batch is refused on all ranks, and goes on at its position once allowed."""
    path, before = saved_on_4
    after = run_ranks(migrate, 3, str(path))
    check_exact(merged(before, after), [10] * 5 + [16] * 6)


def save_on_rank_0_alone(path: str) -> Rows:
    loader = make_loader()
    rows = train(loader, 4)
    if dist.get_rank() == 0:
        torch.save({"loader": loader.state_dict()}, path)
    dist.barrier()
    return rows


def load_on_all(path: str) -> Rows:
    loader = make_loader()
    loader.load_state_dict(torch.load(path, weights_only=True)["loader"])
    return train(loader)


def test_torch_save_on_rank_0_alone(tmp_path: Path) -> None:
    """state_dict() on rank 0 alone does not hang, and its file resumes all ranks, unpickled with weights_only."""
    before = run_ranks(save_on_rank_0_alone, 3, str(tmp_path / "state.pt"), timeout_s=60)
    after = run_ranks(load_on_all, 2, str(tmp_path / "state.pt"))
    check_exact(merged(before, after), [GLOBAL_BATCH] * 14)


Meshed = tuple[int, Rows]


def on_mesh(path: str, shape: tuple[int, ...], axes: tuple[str, ...], num_updates: int | None) -> Meshed:
    """Train on a mesh, from the checkpoint where there is one; save where it is not the end."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=axes)
    loader = make_loader(mesh=mesh, data_axes="dp")
    if num_updates is None:
        dcp.load({"loader": loader}, checkpoint_id=path)
    rows = train(loader, num_updates)
    loader.check_agreement()
    if num_updates is not None:
        dcp.save({"loader": loader}, checkpoint_id=path)
    return mesh.get_local_rank("dp"), rows


@pytest.mark.parametrize(("shape", "axes"), [((4, 2), ("dp", "tp")), ((2, 4), ("tp", "dp"))], ids=str)
def test_tensor_parallel_peers_become_data_ranks(tmp_path: Path, shape: tuple[int, int], axes: tuple[str, str]) -> None:
    """(dp 4, tp 2), either axis first, then (dp 8): peers read the same, each sample counts once, the run is exact."""
    before = run_ranks(on_mesh, 8, str(tmp_path / "c"), shape, axes, 4)
    of_rank: dict[int, Rows] = {}
    for rank, rows in before:
        assert of_rank.setdefault(rank, rows) == rows
    assert sorted(of_rank) == [0, 1, 2, 3]
    after = run_ranks(on_mesh, 8, str(tmp_path / "c"), (8,), ("dp",), None)
    check_exact(merged(list(of_rank.values()), [rows for _, rows in after]), [GLOBAL_BATCH] * 14)


def coverage_of_run(path: str, load: bool) -> list[Any]:
    loader = make_loader(num_workers=1 if load else 0)
    if load:
        dcp.load({"loader": loader}, checkpoint_id=path)
    train(loader)
    loader.check_agreement()
    loader.close()
    return [list(span.lanes) for span in loader.cursor.coverage]


def test_coverage_digest_is_that_of_an_uninterrupted_run(saved_on_4: tuple[Path, list[Rows]]) -> None:
    """Runs on different ranks, one of them interrupted, end with the same digest of what was read."""
    resumed = run_ranks(coverage_of_run, 3, str(saved_on_4[0]), True)
    straight = run_ranks(coverage_of_run, 2, str(saved_on_4[0]), False)
    assert len(straight[0]) == 1
    assert all(spans == straight[0] for spans in [*resumed, *straight])
