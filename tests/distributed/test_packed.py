"""Packed rows on real ranks: chains of launches beside the oracle, DDP's gradients, and meshes with peers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

from resumable_data import Concat, Fill, ResumableLoader, audit_ledger
from tests.distributed.ranks import run_ranks
from tests.oracle import Row, split_update
from tests.packed_jobs import PackedProgress, make_oracle, make_packed, place_of
from tests.packed_run_oracle import row_id

if TYPE_CHECKING:
    from pathlib import Path

EPOCHS = 2
BATCHES: list[dict[str, int]] = [{"global_batch": 7}, {"global_batch_tokens": 60}]


class Launch(NamedTuple):
    """One launch of a chain; None for all the updates that are left."""

    num_ranks: int
    microbatch: int
    num_updates: int | None
    num_workers: int = 0


# positions, IDs, pieces and loss scale of one microbatch
Seen = tuple[list[int], list[int], list[list[tuple[int, int, int]]], float]


def run_launch(root: str, launch: Launch, load: bool) -> list[tuple[list[Seen], dict[str, int]]]:
    return [run_batch(f"{root}/{number}", batch, launch, load) for number, batch in enumerate(BATCHES)]


def run_batch(path: str, batch: dict[str, Any], launch: Launch, load: bool) -> tuple[list[Seen], dict[str, int]]:
    """Go on with one run, commit some updates and save it."""
    loader = ResumableLoader(
        make_packed(policy=Concat()),
        microbatch=launch.microbatch,
        epochs=EPOCHS,
        num_workers=launch.num_workers,
        ledger=f"{path}-ledger",
        **batch,
    )
    if load:
        dcp.load({"loader": loader}, checkpoint_id=path)
    seen: list[Seen] = []
    stop = None if launch.num_updates is None else loader.cursor.updates + launch.num_updates
    for item in loader:
        seen.append((item.positions.tolist(), item.ids.tolist(), item.pieces, item.loss_scale))
        if item.is_last:
            loader.commit()
            if loader.cursor.updates == stop:
                break
    loader.check_agreement()
    dcp.save({"loader": loader}, checkpoint_id=path)
    loader.close()
    return seen, place_of(loader.cursor)


def test_chain_of_ranks_equals_the_oracle(tmp_path: Path) -> None:
    """2 -> 3 ranks with checkpoints and a ledger: each reads what the oracle deals it; both runs are proven."""
    oracles = [
        PackedProgress(
            make_oracle(policy=Concat()), EPOCHS, batch.get("global_batch", 0), batch.get("global_batch_tokens", 0)
        )
        for batch in BATCHES
    ]
    for number, launch in enumerate([Launch(2, 2, 3), Launch(3, 1, None, num_workers=1)]):
        told = run_ranks(run_launch, launch.num_ranks, str(tmp_path), launch, number > 0)
        for index, progress in enumerate(oracles):
            check_launch(progress, launch, [ranks[index] for ranks in told])
    for index, progress in enumerate(oracles):
        progress.expect_tokens(EPOCHS)
        report = audit_ledger(tmp_path / f"{index}-ledger", packed=make_packed(policy=Concat()))
        assert (report.verdict, report.position) == ("proven", progress.position), report.to_text()


def check_launch(progress: PackedProgress, launch: Launch, told: list[tuple[list[Seen], dict[str, int]]]) -> None:
    rows = progress.rows
    expected: list[list[Seen]] = [[] for _ in told]
    for start, stop in progress.upcoming()[: launch.num_updates]:
        update = tuple(Row(position, row_id(rows[position].pieces)) for position in range(start, stop))
        scale = launch.num_ranks / sum(row.num_targets for row in rows[start:stop])
        for together in split_update(update, num_replicas=launch.num_ranks, microbatch=launch.microbatch):
            for rank, one in enumerate(together):
                pieces = [rows[position].pieces for position in one.positions]
                expected[rank].append((one.positions, one.ids, pieces, scale))
        progress.commit(stop)
    place = progress.packing.place_after(rows[: progress.position])
    for rank, (seen, found) in enumerate(told):
        assert seen == expected[rank], rank
        assert found == place, rank


class Model(nn.Module):
    """The next token from this one."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.embedding, self.head = nn.Embedding(32, 6), nn.Linear(6, 32)

    def forward(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss summed over labels."""
        labels = torch.where(data["labels"] == -100, -100, data["labels"] % 32)
        hidden = self.head(self.embedding(data["tokens"] % 32))
        loss: torch.Tensor = nn.functional.cross_entropy(
            hidden.flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        return loss


def gradients(is_parallel: bool) -> list[list[float]]:
    """The gradients of four updates, as DDP reduces them or as one process has them."""
    model: nn.Module = Model().double()
    model = DistributedDataParallel(model) if is_parallel else model
    place: dict[str, Any] = {} if is_parallel else {"rank": 0, "num_replicas": 1}
    loader = ResumableLoader(make_packed(policy=Fill()), global_batch_tokens=50, microbatch=1, epochs=1, **place)
    found: list[list[float]] = []
    for microbatch in loader:
        (model(microbatch.data) * microbatch.loss_scale).backward()
        if microbatch.is_last:
            found.append(torch.cat([one.grad.flatten() for one in model.parameters() if one.grad is not None]).tolist())
            model.zero_grad(set_to_none=False)
            loader.commit()
            if len(found) == 3:
                break
    return found


def test_gradients_of_ddp_equal_those_of_one_process() -> None:
    """Three ranks, one row at a time, updates by tokens whose rows no number of ranks divides."""
    expected = torch.tensor(gradients(is_parallel=False))
    for found in run_ranks(gradients, 3, True):
        torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-5, atol=1e-8)


def mesh_scales() -> list[tuple[int, list[int], float, int]]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader = ResumableLoader(make_packed(), global_batch=5, microbatch=2, epochs=1, mesh=mesh, data_axes="dp")
    return [
        (dist.get_rank(), item.positions.tolist(), item.loss_scale, int((item.data["labels"] != -100).sum()))
        for item in loader
        if item.update == 0
    ]


def test_case_36_denominators_count_data_parallel_ranks_only() -> None:
    """Mesh (dp 2, tp 2): peers read the same rows, and the loss scale has 2 ranks in it, not 4."""
    told = run_ranks(mesh_scales, 4)
    assert [[one[1:] for one in ranks] for ranks in told[0::2]] == [[one[1:] for one in ranks] for ranks in told[1::2]]
    labels = sum(count for ranks in told[0::2] for _, _, _, count in ranks)
    assert {scale for ranks in told for _, _, scale, _ in ranks} == {2 / labels}
    assert sorted(place for ranks in told[0::2] for _, places, _, _ in ranks for place in places) == [0, 1, 2, 3, 4]
