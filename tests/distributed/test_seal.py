"""The seal: which rank saved which cursor, seen by an ordinary dcp.load."""

from __future__ import annotations

import io
import logging
import shutil
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from resumable_data.checkpoint import load_checkpoint, save_checkpoint
from resumable_data.checkpoint.collective import alone_is_meant
from resumable_data.cursor import STATE_KEY
from resumable_data.errors import SealError
from resumable_data.loader import ResumableLoader
from resumable_data.sampler.seal import NUM_ROWS, SEAL_KEY, Seal, make_seal, own_rows
from tests.distributed.ranks import run_ranks


def make_loader() -> ResumableLoader:
    return ResumableLoader(range(60), global_batch=6, microbatch=6)


def train(loader: ResumableLoader, num_updates: int) -> None:
    for number, update in enumerate(loader.updates(), 1):
        update.commit()
        if number == num_updates:
            return


def save(path: str, updates: list[int], form: str = "object") -> None:
    """Save after so many updates of each rank."""
    loader = make_loader()
    train(loader, updates[dist.get_rank()])
    state: dict[str, Any] = {"loader": loader if form == "object" else loader.state_dict()}
    if form == "async":
        future = dcp.async_save(state, checkpoint_id=path)
        assert isinstance(future, Future)
        future.result()
    else:
        dcp.save(state, checkpoint_id=path)


def load(path: str) -> int | str:
    """The updates that were loaded, or the error."""
    loader = make_loader()
    try:
        dcp.load({"loader": loader}, checkpoint_id=path)
    except SealError as error:
        assert loader.cursor.updates == 0
        return str(error)
    return loader.cursor.updates


@pytest.mark.parametrize(
    "form", ["object", pytest.param("dict", marks=pytest.mark.slow), pytest.param("async", marks=pytest.mark.slow)]
)
def test_ranks_that_agree_load_on_any_number(tmp_path: Path, form: str) -> None:
    """Saved by 4 in each way, a state loads on 4, 3 and 1."""
    run_ranks(save, 4, str(tmp_path / "a"), [3, 3, 3, 3], form)
    for num_ranks in (4, 3, 1):
        assert run_ranks(load, num_ranks, str(tmp_path / "a")) == [3] * num_ranks


def test_one_rank_that_disagrees_is_seen_on_any_number(tmp_path: Path) -> None:
    """The rank that reads its rows says how many of them are another cursor's."""
    run_ranks(save, 4, str(tmp_path / "a"), [3, 3, 4, 3])
    for num_ranks in (3, 1):
        found = run_ranks(load, num_ranks, str(tmp_path / "a"))
        errors = [text for text in found if isinstance(text, str)]
        assert errors
        assert all("belong to another cursor" in text for text in errors)


def test_files_of_two_saves_are_seen(tmp_path: Path) -> None:
    """Where a crash while overwriting left one rank's older file, the newer metadata leads to rows of both."""
    for number, name in ((3, "older"), (5, "newer")):
        run_ranks(save, 4, str(tmp_path / name), [number] * 4)
    shutil.copy(tmp_path / "older/__2_0.distcp", tmp_path / "newer/__2_0.distcp")
    for num_ranks in (3, 1):
        assert any(isinstance(one, str) for one in run_ranks(load, num_ranks, str(tmp_path / "newer")))


def test_two_saves_of_one_cursor_are_told_apart_by_their_nonces() -> None:
    """The cursor may be the same while model and optimizer are not."""
    loader = make_loader()
    state = loader.state_dict()
    mixed = make_seal(bytes(state[STATE_KEY].tolist()), nonce=7)
    mixed[100:, 1] = 8
    with pytest.raises(SealError, match="files of 2 saves of the same cursor"):
        make_loader().load_state_dict({**state, SEAL_KEY: mixed})


@pytest.mark.parametrize(
    "seal", [torch.zeros(4096, 2, dtype=torch.int32), torch.zeros(4, 2, dtype=torch.int64)], ids=["type", "shape"]
)
def test_what_is_no_seal_is_refused(seal: torch.Tensor) -> None:
    """Another shape or type says that the state was put together by somebody else."""
    with pytest.raises(SealError, match="expected a seal of shape"):
        make_loader().load_state_dict({**make_loader().state_dict(), SEAL_KEY: seal})


def test_an_older_cursor_under_a_newer_seal_is_refused() -> None:
    """The seal is of this cursor and no other."""
    loader = make_loader()
    before = loader.state_dict()
    train(loader, 1)
    with pytest.raises(SealError, match="4096 of 4096 rows"):
        make_loader().load_state_dict({**loader.state_dict(), STATE_KEY: before[STATE_KEY]})


def test_it_is_saved_by_torch_as_a_plain_tensor() -> None:
    """So that weights_only reads it, where the package is not installed too."""
    buffer = io.BytesIO()
    torch.save(make_loader().state_dict(), buffer)
    buffer.seek(0)
    state = torch.load(buffer, weights_only=True)
    assert type(state[SEAL_KEY]) is torch.Tensor
    make_loader().load_state_dict(state)


def rows_of_all() -> tuple[int, int]:
    return own_rows()


def test_every_row_has_one_owner() -> None:
    """Ranks own ranges one after another, all rows together."""
    assert own_rows() == (0, NUM_ROWS)
    ranges = run_ranks(rows_of_all, 3)
    assert [first for first, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]
    assert ranges[-1][1] == NUM_ROWS
    assert isinstance(make_seal(b"x"), Seal)


def test_a_load_by_dcp_alone_says_what_was_not_checked(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """For information: cursor and seal are right, and nobody looked at the rest. load_checkpoint looks."""
    loader = ResumableLoader(torch.arange(8), global_batch=4, microbatch=4)
    with alone_is_meant():
        dcp.save({"loader": loader}, checkpoint_id=tmp_path / "a", no_dist=True)
        with caplog.at_level(logging.INFO, "resumable_data"):
            dcp.load({"loader": loader}, checkpoint_id=tmp_path / "a", no_dist=True)
    (record,) = (one for one in caplog.records if one.name.startswith("resumable_data"))
    assert "Not checked: whether the checkpoint's files are whole" in record.getMessage()
    caplog.clear()
    save_checkpoint(tmp_path / "b", {}, loader=loader)
    with caplog.at_level(logging.INFO, "resumable_data"):
        load_checkpoint(tmp_path / "b", {}, loader=loader)
    assert not [one for one in caplog.records if one.name.startswith("resumable_data")]
