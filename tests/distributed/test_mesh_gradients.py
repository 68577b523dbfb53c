"""Tensor- and context-parallel peers: they read the same samples, and gradients stay those of one process."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks
from tests.distributed.training import (
    DataParallel,
    TokenDataset,
    make_model,
    one_process_gradients,
    relative_error,
    row_losses,
)

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.distributed.device_mesh import DeviceMesh

    from resumable_data.loader import Microbatch

TOLERANCE = 5e-6
MAX_TOKENS = 99
LENGTH, GLOBAL_BATCH, MICROBATCH = 7, 5, 2

Result = tuple[list[float], list[list[int]]]


def accumulate(
    loader: ResumableLoader, dataset: TokenDataset, parallel: DataParallel, loss: object, normalize: str
) -> Result:
    """Errors of the gradient in each update, and the IDs of each microbatch."""
    expected = one_process_gradients(dataset, global_batch=GLOBAL_BATCH, normalize=normalize)
    errors, ids = [], []
    for item in loader:
        ids.append(item.ids.tolist())
        parallel.backward(item, loss)
        if item.is_last:
            errors.append(relative_error(parallel.gradients(), next(expected)))
            loader.commit()
    loader.check_agreement()
    return errors, ids


def make_loader(
    dataset: TokenDataset,
    mesh: DeviceMesh,
    axes: str | tuple[str, ...],
    normalize: str,
    reduction_size: int | None = None,
) -> ResumableLoader:
    return ResumableLoader(
        dataset,
        global_batch=GLOBAL_BATCH,
        microbatch=MICROBATCH,
        mesh=mesh,
        data_axes=axes,
        epochs=1,
        normalize=normalize,
        num_target_tokens=dataset.num_tokens.numpy(),
        reduction_size=reduction_size,
    )


def scaled(losses: torch.Tensor, item: Microbatch) -> torch.Tensor:
    return (losses * item.weights).sum() * item.loss_scale


def plain_loss(model: nn.Module, item: Microbatch) -> torch.Tensor:
    return scaled(row_losses(model, item.data), item)


def tensor_parallel(axes: tuple[str, str], normalize: str, synced: bool) -> Result:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
    dataset = TokenDataset(LENGTH)
    model = make_model()
    parallelize_module(model, mesh["tp"], {"3": ColwiseParallel(), "5": RowwiseParallel()})
    parallel = DataParallel("fsdp", synced=synced, mesh=mesh["dp"], model=model)
    return accumulate(make_loader(dataset, mesh, "dp", normalize), dataset, parallel, plain_loss, normalize)


def hybrid_sharded(normalize: str, synced: bool) -> Result:
    axes = ("dp_replicate", "dp_shard")
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=axes)
    dataset = TokenDataset(LENGTH)
    parallel = DataParallel("fsdp", synced=synced, mesh=mesh)
    return accumulate(make_loader(dataset, mesh, axes, normalize), dataset, parallel, plain_loss, normalize)


def context_parallel(normalize: str, synced: bool, reduction_size: int) -> Result:
    """Each of two cp ranks has half of every row's tokens, and gradients are averaged over dp and cp together."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    everyone = init_device_mesh("cpu", (4,), mesh_dim_names=("dp_cp",))
    half = slice(None, MAX_TOKENS // 2) if mesh.get_local_rank("cp") == 0 else slice(MAX_TOKENS // 2, None)

    def loss(model: nn.Module, item: Microbatch) -> torch.Tensor:
        part = {name: item.data[name][:, half] for name in ("features", "targets", "mask")}
        return scaled(row_losses(model, part), item)

    dataset = TokenDataset(LENGTH)
    parallel = DataParallel("fsdp", synced=synced, mesh=everyone)
    loader = make_loader(dataset, mesh, "dp", normalize, reduction_size)
    return accumulate(loader, dataset, parallel, loss, normalize)


def check(results: list[Result], peers: list[tuple[int, int]]) -> None:
    for errors, _ in results:
        assert len(errors) == 2
        assert max(errors) <= TOLERANCE
    for first, second in peers:
        assert results[first][1] == results[second][1]
    firsts = {first for first, _ in peers}
    read = sorted(i for first in firsts for ids in results[first][1] for i in ids)
    assert read == list(range(LENGTH))


def test_tensor_parallel_peers_read_the_same_and_do_not_count_as_data() -> None:
    """On a (dp 2, tp 2) mesh, either axis first, denominators count dp only, over tokens as over samples."""
    check(run_ranks(tensor_parallel, 4, ("dp", "tp"), "tokens", True), [(0, 1), (2, 3)])
    check(run_ranks(tensor_parallel, 4, ("tp", "dp"), "samples", False), [(0, 2), (1, 3)])


@pytest.mark.parametrize("synced", [True, False])
def test_replicated_and_sharded_axes_are_both_data(synced: bool) -> None:
    """On a (dp_replicate 2, dp_shard 2) mesh each rank reads its own samples and the mean is over all."""
    check(run_ranks(hybrid_sharded, 4, "tokens", synced), [(rank, rank) for rank in range(4)])


def test_context_parallel_ranks_in_the_fsdp_mesh_count_in_the_reduction() -> None:
    """With cp inside the FSDP mesh of (dp 2, cp 2), reduction_size=4 gives the gradient of one process."""
    check(run_ranks(context_parallel, 4, "tokens", False, 4), [(0, 1), (2, 3)])
    check(run_ranks(context_parallel, 4, "samples", True, 4), [(0, 1), (2, 3)])


def test_a_reduction_size_without_cp_is_seen() -> None:
    """The comparison finds that gradients are halved where reduction_size counts dp only."""
    for errors, _ in run_ranks(context_parallel, 4, "tokens", False, 2):
        assert min(errors) > 0.1


def mean_of_an_ignored_row() -> float:
    """Microbatches of filler alone add nothing, and no NaN, where the loss is a sum."""
    import torch

    dataset = TokenDataset(1)
    loader = ResumableLoader(dataset, global_batch=1, microbatch=1, epochs=1)
    (item,) = loader
    model = make_model()
    logits = model(item.data["features"])
    ignored = torch.full(logits.shape[:-1], -100)
    if not item.ids.size:
        loss = torch.nn.functional.cross_entropy(
            logits.expand(-1, -1, 3).flatten(0, 1), ignored.flatten(), ignore_index=-100, reduction="sum"
        )
        (loss * item.loss_scale).backward()
        grads = [float(p.grad.abs().max()) for p in model.parameters() if p.grad is not None]
        return max(grads)
    assert dist.get_rank() == 0
    return 0.0


def test_an_all_ignored_filler_row_adds_zero() -> None:
    """A summed cross-entropy over an ignored filler row gives a gradient of 0, not NaN."""
    assert run_ranks(mean_of_an_ignored_row, 3) == [0.0, 0.0, 0.0]
