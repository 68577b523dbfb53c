"""Process groups that go on inside an update: what they agree on, and with whom."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

from resumable_data import Cursor, audit_cursor, audit_ledger
from resumable_data.errors import DisagreementError
from resumable_data.ledger import Ledger
from resumable_data.loader import ResumableLoader
from tests.distributed.ranks import run_ranks

if TYPE_CHECKING:
    from pathlib import Path

LENGTH = 32


def make_loader(path: Path, **options: Any) -> ResumableLoader:
    data = torch.utils.data.TensorDataset(torch.arange(LENGTH))
    ledger = Ledger(path, peers=True, fold_rows=4)
    return ResumableLoader(data, global_batch=10, microbatch=1, epochs=1, ledger=ledger, **options)


def parted(path: Path) -> tuple[list[int], list[int], bytes]:
    """The first part on 2 ranks with 2 peers each, the rest on 4 ranks; what this process read of each."""
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    loader = make_loader(path, mesh=mesh, data_axes="dp")
    first = []
    for microbatch in loader:
        first += microbatch.positions.tolist()
        if loader.phase == 4:
            break
    phase, state = loader.gather_phase(), loader.state_dict()
    with make_loader(path) as loader:
        loader.load_state_dict(state)
        loader.start_inside(phase)
        rest = []
        for microbatch in loader:
            rest += microbatch.positions.tolist()
            if microbatch.is_last:
                loader.commit()
        return first, rest, loader.check_agreement().to_json()


def test_a_part_of_ranks_with_peers_goes_on_on_all_of_them(tmp_path: Path) -> None:
    """Peers are counted once, each row is read once, and digest and audit prove it."""
    results = run_ranks(parted, 4, tmp_path / "ledger", timeout_s=60)
    assert [first for first, _, _ in results] == [[0, 2], [0, 2], [1, 3], [1, 3]]
    assert sorted(row for _, rest, _ in results for row in rest) == list(range(4, LENGTH))
    (cursor,) = {cursor for _, _, cursor in results}
    assert audit_cursor(Cursor.from_json(cursor)).verdict == "proven"
    report = audit_ledger(tmp_path / "ledger")
    assert (report.verdict, report.discarded.low, report.samples) == ("proven", 0, LENGTH)


def apart(path: Path) -> str:
    """What is said where one process is a microbatch ahead."""
    iterator = iter(loader := make_loader(path))
    for _ in range(1 + (dist.get_rank() == 1)):
        next(iterator)
    with pytest.raises(DisagreementError) as caught:
        loader.gather_phase()
    return str(caught.value)


def test_all_processes_are_told_who_is_ahead(tmp_path: Path) -> None:
    """Counts and processes are named on every rank, so that none waits for the others."""
    for message in run_ranks(apart, 3, tmp_path / "ledger", timeout_s=60):
        assert "3  on process 0, 2" in message
        assert "6  on process 1" in message
