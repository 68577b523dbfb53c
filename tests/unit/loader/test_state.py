"""What state_dict() gives and load_state_dict() takes; the ledger beside it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
import torch

from resumable_data import Ledger, ResumableLoader, Sequential, Shuffle, audit_ledger
from resumable_data.cursor import STATE_KEY, STATE_NUM_BYTES, decode_cursor, encode_cursor
from resumable_data.errors import (
    CorruptStateError,
    MissingStateError,
    OtherRunError,
    RecipeMismatchError,
    UsageError,
)
from resumable_data.sampler.seal import SEAL_KEY
from tests.simulated_ranks import Job, Numbers, keep_list

if TYPE_CHECKING:
    from pathlib import Path


def make(length: int = 20, **options: Any) -> ResumableLoader:
    settings: dict[str, Any] = {"global_batch": 4, "microbatch": 2, "rank": 0, "num_replicas": 1, "epochs": 2}
    settings |= {"collate_fn": keep_list, "order": Sequential(length), **options}
    return ResumableLoader(Numbers(length), **settings)


def trained(num_updates: int, **options: Any) -> ResumableLoader:
    loader = make(**options)
    stream = loader.updates()
    for _ in range(num_updates):
        next(stream).commit()
    return loader


def test_the_state_is_two_tensors_of_fixed_size() -> None:
    """Cursor and seal, whose sizes no progress, world size or dataset changes, new each time, with no side effect."""
    loaders = [
        make(),
        trained(7),
        make(10**6, order=Shuffle(10**6)),
        Job(20, 5, global_batch=4, microbatch=2).loaders[3],
    ]
    for loader in loaders:
        state, again = loader.state_dict(), loader.state_dict()
        assert list(state) == [STATE_KEY, SEAL_KEY]
        assert (state[STATE_KEY].dtype, tuple(state[STATE_KEY].shape)) == (torch.uint8, (STATE_NUM_BYTES,))
        assert (state[SEAL_KEY].dtype, tuple(state[SEAL_KEY].shape)) == (torch.int64, (4096, 2))
        for key, tensor in state.items():
            assert torch.equal(tensor, again[key])
            tensor.zero_()
            assert torch.equal(loader.state_dict()[key], again[key])


def test_the_state_is_the_committed_cursor_in_the_middle_of_an_update() -> None:
    """What was delivered and not committed is not in the state, and saving disturbs nobody."""
    loader = trained(1)
    stream = iter(loader)
    next(stream)
    assert decode_cursor(bytes(loader.state_dict()[STATE_KEY].tolist())).position == 4
    assert next(stream).data == [6, 7]


def test_the_state_survives_torch_save() -> None:
    """A state written by torch.save and read with weights_only is loaded."""
    buffer = io.BytesIO()
    torch.save(trained(3).state_dict(), buffer)
    buffer.seek(0)
    loader = make()
    loader.load_state_dict(torch.load(buffer, weights_only=True))
    assert next(iter(loader)).data == [12, 13]


@pytest.mark.parametrize(
    ("state", "error", "says"),
    [
        ({}, MissingStateError, r"found an empty one.*start again at position 0 and repeat.*fresh_start"),
        (None, MissingStateError, "found an empty one"),
        ({"model": 1}, MissingStateError, r"expected the key 'resumable_data.cursor' in the state, found \['model'\]"),
        ([1], UsageError, "expected the dict that state_dict.. returned, found list"),
        ({STATE_KEY: [1, 2]}, CorruptStateError, "to be a uint8 tensor of one dimension"),
        ({STATE_KEY: torch.zeros(STATE_NUM_BYTES)}, CorruptStateError, "to be a uint8 tensor of one dimension"),
        ({STATE_KEY: torch.zeros(64, 64, dtype=torch.uint8)}, CorruptStateError, "of one dimension"),
        ({STATE_KEY: torch.zeros(10, dtype=torch.uint8)}, CorruptStateError, "expected 4096 bytes, found 10"),
        ({STATE_KEY: torch.zeros(STATE_NUM_BYTES, dtype=torch.uint8)}, CorruptStateError, "starts with b'RDCURSOR'"),
    ],
)
def test_what_is_no_state_is_refused_and_nothing_changes(state: Any, error: type[Exception], says: str) -> None:
    """An empty, foreign or damaged state is refused, each with its own message, and training could go on."""
    loader = trained(2)
    stream = loader.updates()
    next(stream)
    before = loader.cursor
    with pytest.raises(error, match=says):
        loader.load_state_dict(state)
    assert loader.cursor == before
    assert next(stream).index == 3


def test_a_fresh_start_must_be_asked_for_by_name() -> None:
    """With the allowance an empty state is position 0; a state that is there is still loaded."""
    for allow in ("fresh_start", {"fresh_start"}, ["fresh_start"]):
        loader = trained(2)
        loader.load_state_dict(None, allow=allow)
        assert loader.cursor.position == 0
        loader.load_state_dict(trained(3, order=Sequential(20)).state_dict(), allow=allow)
        assert loader.cursor.position == 12
    for allow in ("fresh", {"fresh_start", "bogus"}):
        with pytest.raises(UsageError, match=r"allow= takes"):
            make().load_state_dict(None, allow=allow)


def test_a_state_of_another_run_is_refused() -> None:
    """Once a loader has committed, a checkpoint of another run would mix two histories."""
    loader, other = trained(1), trained(2)
    assert loader.cursor.run_id != other.cursor.run_id
    with pytest.raises(OtherRunError, match=rf"belongs to run {other.cursor.run_id}.*{loader.cursor.run_id}"):
        loader.load_state_dict(other.state_dict())
    assert loader.cursor.position == 4


def test_a_batch_drawn_does_not_bind_a_loader_to_a_run() -> None:
    """A loader that committed nothing loads any checkpoint of its recipe, before and after its first batch."""
    for num_drawn in (0, 1, 3):
        loader = make()
        for _ in zip(range(num_drawn), loader, strict=False):
            pass
        loader.load_state_dict(trained(2).state_dict())
        assert next(iter(loader)).data == [8, 9]


def test_a_ledger_binds_a_loader_to_its_run(tmp_path: Path) -> None:
    """A checkpoint of another run is refused where the ledger has a run, though this loader committed nothing."""
    trained(1, ledger=tmp_path / "ledger").close()
    loader = make(ledger=str(tmp_path / "ledger"))
    with pytest.raises(OtherRunError, match="this loader or its ledger belongs to run"):
        loader.load_state_dict(trained(2).state_dict())


def test_a_rollback_in_the_same_loader() -> None:
    """An earlier checkpoint of the same run is loaded; its updates come again."""
    loader = trained(1)
    state = loader.state_dict()
    stream = loader.updates()
    next(stream).commit()
    loader.load_state_dict(state)
    assert next(iter(loader)).data == [4, 5]
    assert loader.cursor.coverage[0].stop == 4


def test_a_declared_change_is_recorded_and_survives() -> None:
    """A migration is in the cursor, goes through the state, and the digest stays one span."""
    loader = make(global_batch=6)
    with pytest.raises(RecipeMismatchError, match="global_batch"):
        loader.load_state_dict(trained(2).state_dict())
    assert loader.cursor.position == 0
    loader.load_state_dict(trained(2).state_dict(), allow="global_batch")
    update = next(loader.updates())
    assert [microbatch.data for microbatch in update] == [[8, 9], [10, 11], [12, 13]]
    update.commit()
    saved = decode_cursor(bytes(loader.state_dict()[STATE_KEY].tolist()))
    assert (saved.migrations[0].position, saved.migrations[0].changes[0].field) == (8, "global_batch")
    assert [(span.start, span.stop) for span in saved.coverage] == [(0, 14)]


def test_a_state_saved_without_an_agreement_leaves_a_gap_that_says_so() -> None:
    """On several ranks the digest is as of the last agreement; what was not agreed on is in no span."""
    job = Job(40, 2, global_batch=4, microbatch=2)
    job.train(1)
    job.agree()
    job.train(2)
    state = job.loaders[1].state_dict()
    later = Job(40, 2, global_batch=4, microbatch=2)
    later.load(state)
    later.train(1)
    assert [(span.start, span.stop) for span in later.agree().coverage] == [(0, 4), (12, 16)]


def test_a_ledger_given_as_a_path_is_written(tmp_path: Path) -> None:
    """Deliveries and commits of all ranks are recorded, so that the audit proves the run."""
    for ledger in (str(tmp_path / "a"), tmp_path / "b", Ledger(tmp_path / "c", ids="full")):
        with Job(20, 3, global_batch=4, microbatch=1, epochs=1, ledger=ledger) as job:
            job.train()
            assert {loader.cursor.attempt for loader in job.loaders} == {1}
        report = audit_ledger(ledger.path if isinstance(ledger, Ledger) else ledger)
        assert (report.verdict, report.samples) == ("proven", 20)


def test_trouble_with_the_ledger_does_not_stop_training(tmp_path: Path) -> None:
    """Where the ledger cannot be written, training goes on without it, unless an error was asked for."""
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "attempt-000001").write_text("in the way")
    loader = trained(2, ledger=tmp_path / "ledger")
    assert loader.cursor.position == 8
    assert loader.cursor.attempt == 0
    with pytest.raises(Exception, match="attempt-000001"):
        trained(1, ledger=Ledger(tmp_path / "ledger", on_error="raise"))


def test_a_state_of_another_recipe_that_was_edited_is_still_compared() -> None:
    """A re-sealed cursor with one field changed is refused by its recipe."""
    cursor = trained(2).cursor
    edited = msgspec.structs.replace(cursor, recipe=msgspec.structs.replace(cursor.recipe, global_batch=8))
    state = {STATE_KEY: torch.frombuffer(bytearray(encode_cursor(edited)), dtype=torch.uint8)}
    with pytest.raises(RecipeMismatchError, match=r"global_batch\s+8\s+4"):
        make().load_state_dict(state)


def test_a_change_declared_before_the_first_update_is_the_same_run(tmp_path: Path) -> None:
    """A migration at position 0 goes on in the run's ledger; another recipe that nobody declared is refused there."""
    first = make(ledger=tmp_path)
    state = first.state_dict()
    next(iter(first))
    migrated = make(global_batch=5, ledger=tmp_path)
    migrated.load_state_dict(state, allow={"global_batch"})
    next(migrated.updates()).commit()
    report = audit_ledger(tmp_path)
    assert (report.verdict, report.samples, report.discarded.low) == ("proven", 5, 2)
    with pytest.raises(OtherRunError, match="starts at position 0 with another recipe than the run in the ledger"):
        next(iter(make(global_batch=6, ledger=tmp_path)))
