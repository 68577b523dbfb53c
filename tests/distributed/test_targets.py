"""normalize="targets" on real ranks: gradients of one process, peers counted once, mistakes found by everybody."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from resumable_data.errors import DisagreementError, UsageError
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks
from tests.distributed.training import DataParallel, TokenDataset, one_process_gradients, relative_error, row_losses

if TYPE_CHECKING:
    from torch import nn

    from resumable_data.loader import Microbatch, Update

TOLERANCE = 5e-6
MAX_TOKENS = 99
VARIANTS = [
    ("ddp", False, "mean"),
    ("ddp", False, "sum"),
    ("fsdp", True, "mean"),
    ("fsdp", False, "sum"),
]


def count(update: Update) -> Any:
    """Target tokens of this rank's rows, as a tensor: what a user would write."""
    return sum((item.data["mask"][item.weights > 0] > 0).sum() for item in update)


def errors_of_variants(length: int, global_batch: int, options: dict[str, Any]) -> dict[str, Any]:
    """For each variant, the gradient's error in every update of one epoch, and the tokens counted."""
    dataset = TokenDataset(length)
    reference = {"tail": options["tail"]} if "tail" in options else {}
    expected = list(one_process_gradients(dataset, global_batch=global_batch, normalize="targets", **reference))
    errors: dict[str, Any] = {}
    for kind, synced, reduction in VARIANTS:
        parallel = DataParallel(kind, synced=synced, reduction=reduction)
        settings = {"gradient_reduction": reduction, "normalize": "targets", "epochs": 1, **options}
        loader = ResumableLoader(dataset, global_batch=global_batch, **settings)
        found = []
        for update in loader.updates():
            update.set_targets(count(update))
            for item in update:
                parallel.backward(item)
            found.append(parallel.gradients())
            update.commit()
        assert loader.check_agreement().tokens == loader.cursor.tokens
        name = f"{kind} {'synced' if synced else 'unsynced'} {reduction}"
        errors[name] = max(relative_error(a, b) for a, b in zip(found, expected, strict=True)), loader.cursor.tokens
        dist.barrier()
    return errors


@pytest.mark.parametrize(
    ("num_ranks", "length", "global_batch", "options"),
    [
        (2, 8, 4, {"microbatch": 1}),
        (3, 14, 10, {"microbatch": 2, "pad_microbatches": True}),
        (4, 7, 3, {"microbatch": 2}),
    ],
    ids=["case 36", "filled to 2 rows", "ranks without a sample"],
)
def test_gradient_is_the_mean_over_target_tokens(
    num_ranks: int, length: int, global_batch: int, options: dict[str, Any]
) -> None:
    """Samples of 1 and 99 tokens: each update's gradient is one process's token mean, not a mean of means."""
    for errors in run_ranks(errors_of_variants, num_ranks, length, global_batch, options):
        assert len(errors) == len(VARIANTS)
        for name, (error, tokens) in errors.items():
            assert error <= TOLERANCE, name
            assert tokens == (length + 1) // 2 + length // 2 * MAX_TOKENS


def context_parallel(reduction_size: int) -> tuple[float, int]:
    """Each of two cp ranks has half of every row's tokens, and counts those of the whole rows."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "cp"))
    everyone = init_device_mesh("cpu", (4,), mesh_dim_names=("dp_cp",))
    half = slice(None, MAX_TOKENS // 2) if mesh.get_local_rank("cp") == 0 else slice(MAX_TOKENS // 2, None)

    def loss(model: nn.Module, item: Microbatch) -> Any:
        part = {name: item.data[name][:, half] for name in ("features", "targets", "mask")}
        return (row_losses(model, part) * item.weights).sum() * item.loss_scale

    dataset = TokenDataset(7)
    parallel = DataParallel("fsdp", synced=False, mesh=everyone)
    place: dict[str, Any] = {"mesh": mesh, "data_axes": "dp", "reduction_size": reduction_size}
    loader = ResumableLoader(dataset, global_batch=5, microbatch=2, epochs=1, normalize="targets", **place)
    expected = one_process_gradients(dataset, global_batch=5, normalize="targets")
    errors = []
    for update in loader.updates():
        update.set_targets(count(update))
        for item in update:
            parallel.backward(item, loss)
        errors.append(relative_error(parallel.gradients(), next(expected)))
        update.commit()
    return max(errors), loader.check_agreement().tokens


def test_context_parallel_peers_are_counted_once() -> None:
    """On (dp 2, cp 2) tokens are those of the dp ranks, and reduction_size=4 makes up for averaging over cp."""
    for error, tokens in run_ranks(context_parallel, 4, 4):
        assert error <= TOLERANCE
        assert tokens == 4 + 3 * MAX_TOKENS
    for error, _ in run_ranks(context_parallel, 4, 2):
        assert error > 0.1


def mistakes() -> list[tuple[str, str]]:
    """What each process is told where one of them is wrong."""
    rank = dist.get_rank()
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    told = []
    wrong: list[tuple[bool, Any, Any]] = [(rank == 1, -1, 3), (rank == 3, 4, 3)]
    for is_wrong, bad, good in wrong:
        loader = ResumableLoader(
            TokenDataset(8), global_batch=4, microbatch=2, mesh=mesh, data_axes="dp", normalize="targets"
        )
        update = next(loader.updates())
        with pytest.raises((DisagreementError, UsageError)) as caught:
            update.set_targets(bad if is_wrong else good)
        told.append((type(caught.value).__name__, str(caught.value)))
    stream = loader.updates()
    first, second = next(stream), next(stream)
    with pytest.raises(DisagreementError) as disagreed:
        (second if rank == 2 else first).set_targets(3)
    told.append((type(disagreed.value).__name__, str(disagreed.value)))
    first.set_targets(3)
    assert first.microbatches[0].loss_scale == 2 / 6
    return told


def test_a_mistake_of_one_process_is_told_to_all() -> None:
    """No count, another one than its peer's, another update: nobody waits for a timeout, and nothing is counted."""
    results = run_ranks(mistakes, 4, timeout_s=60)
    assert [result[0][0] for result in results] == ["DisagreementError", "UsageError"] + ["DisagreementError"] * 2
    assert all("peers of one data-parallel rank counted different" in result[1][1] for result in results)
    assert all("for other updates on other processes" in result[2][1] for result in results)


def filler_with_peers(root: str) -> str:
    mesh = init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "tp"))
    place: dict[str, Any] = {"mesh": mesh, "data_axes": "dp", "ledger": f"{root}/ledger"}
    loader = ResumableLoader(
        TokenDataset(8), global_batch=4, microbatch=2, on_unreadable="filler", max_unreadable=1, **place
    )
    with pytest.raises(UsageError) as caught:
        next(iter(loader))
    return str(caught.value)


def test_filler_for_unreadable_samples_is_refused_with_peers(tmp_path: Any) -> None:
    """Tensor-parallel peers could compute on different rows where only one of them cannot read a sample."""
    for message in run_ranks(filler_with_peers, 2, str(tmp_path)):
        assert "one process per data-parallel rank, found 2 processes of 1 ranks" in message
