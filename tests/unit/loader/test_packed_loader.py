"""A loader over packed rows: its cursor, what it refuses, how it goes on, and what going on costs."""

from __future__ import annotations

import multiprocessing
import pickle
from multiprocessing.reduction import ForkingPickler
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data._utils.pin_memory import pin_memory

from resumable_data import (
    BestFit,
    Concat,
    Cursor,
    DistributedSampler,
    Fill,
    NoPacking,
    PackedTokens,
    ResumableLoader,
    ResumableSampler,
    Sequential,
    Shuffle,
    open_tokens,
    track,
)
from resumable_data.cursor import STATE_NUM_BYTES, decode_cursor, encode_cursor
from resumable_data.errors import (
    CorruptStateError,
    RecipeMismatchError,
    ResumableDataError,
    SampleReadError,
    UsageError,
)
from resumable_data.loader.packed import PackedFetchDataset, PackedRequest
from resumable_data.packing import PackedRun
from resumable_data.packing.checked_rows import CheckedRows
from resumable_data.packing.run import _planner
from tests.packed_jobs import LENGTHS, POLICIES, PackedJob, PackedProgress, make_oracle, make_packed, make_source
from tests.simulated_ranks import Numbers

if TYPE_CHECKING:
    from collections.abc import Callable

    from resumable_data import Microbatch
    from resumable_data.order import Int64Array
    from resumable_data.packing import Policy
    from resumable_data.sources import TokenArray


def make_loader(packed: PackedTokens | None = None, **options: Any) -> ResumableLoader:
    options = {"global_batch": 4, "microbatch": 2, "epochs": 2, "rank": 0, "num_replicas": 1, **options}
    if "global_batch_tokens" in options:
        del options["global_batch"]
    return ResumableLoader(make_packed() if packed is None else packed, **options)


def train(loader: ResumableLoader, num_updates: int | None = None) -> list[int]:
    """Commit updates, all that are left where None; the positions read."""
    positions: list[int] = []
    for microbatch in loader:
        positions += microbatch.positions.tolist()
        if microbatch.is_last:
            loader.commit()
            num_updates = None if num_updates is None else num_updates - 1
            if num_updates == 0:
                break
    return positions


@pytest.fixture(scope="module")
def state() -> dict[str, torch.Tensor]:
    """Of a run over `make_packed()`, three updates of four rows in."""
    with make_loader() as loader:
        train(loader, 3)
        return loader.state_dict()


# The cursor


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_the_cursor_comes_back_from_bytes_and_json(policy: Policy) -> None:
    """At every commit: 4096 bytes, equal after decoding, all counts in the JSON as exact integers."""
    loader = make_loader(make_packed(policy=policy), global_batch_tokens=30)
    for microbatch in loader:
        if microbatch.is_last:
            loader.commit()
            cursor = loader.cursor
            data = encode_cursor(cursor)
            assert len(data) == STATE_NUM_BYTES == loader.state_dict()["resumable_data.cursor"].numel()
            assert decode_cursor(data) == cursor == Cursor.from_json(cursor.to_json())
            assert cursor.packed
            assert msgspec.json.decode(cursor.to_json())["packed"] == msgspec.structs.asdict(cursor.packed)
    assert loader.cursor.tokens + loader.cursor.packed.truncated_tokens == 2 * sum(LENGTHS)  # type: ignore[union-attr]


def test_counts_beyond_float_and_32_bits_are_exact() -> None:
    """A run goes on counting from 2^53 + 1 tokens, in the state and in JSON."""
    packed, large = make_packed(), 2**53 + 1
    loader = make_loader(packed)
    train(loader, 1)
    cursor = loader.cursor
    assert cursor.packed
    place = msgspec.structs.replace(
        cursor.packed, tokens=large, target_tokens=large, documents=large, truncated_tokens=large
    )
    again = make_loader(packed)
    again.load_state_dict(msgspec.structs.replace(cursor, tokens=large, packed=place))
    train(again, 1)
    train(loader, 1)
    assert loader.cursor.packed
    for name in ("tokens", "target_tokens", "documents"):
        expected = large + getattr(loader.cursor.packed, name) - getattr(cursor.packed, name)
        assert getattr(Cursor.from_json(again.cursor.to_json()).packed, name) == expected
        assert getattr(decode_cursor(encode_cursor(again.cursor)).packed, name) == expected


@pytest.mark.parametrize("name", ["epoch", "window", "row", "carry_document", "carry_offset", "tokens", "documents"])
@pytest.mark.parametrize("policy", [BestFit(), Concat()], ids=repr)
@pytest.mark.parametrize("value", [2**60, 2**63, 2**70, -1])
def test_a_place_that_cannot_be_is_an_error_or_read_from(policy: Policy, name: str, value: int) -> None:
    """Whatever a cursor says of its place: one of our errors, or rows, at once."""
    packed = make_packed(policy=policy)
    loader = make_loader(packed)
    train(loader, 2)
    cursor = loader.cursor
    assert cursor.packed
    counts = {"tokens": value} if name == "tokens" else {}
    forged = msgspec.structs.replace(cursor, packed=msgspec.structs.replace(cursor.packed, **{name: value}), **counts)
    again = make_loader(packed)
    try:
        again.load_state_dict(forged)
        train(again, 1)
    except ResumableDataError:
        assert again.cursor.updates in (0, 2)
    else:
        assert name in ("epoch", "tokens", "documents")


@pytest.mark.parametrize(
    ("packed", "texts"),
    [
        (make_packed(sequence_length=16), ["order.row_length  8      16"]),
        (make_packed(window=7), ["order.window  6      7"]),
        (make_packed(seed=5, order=Shuffle(20)), ["order.seed  0      5"]),
        (make_packed(policy=Concat()), ["order.policy_kind", "'best-fit'", "'concat'"]),
        (make_packed(policy=BestFit(truncate=True)), ["order.policy_truncate  0      1"]),
        (make_packed(order=Shuffle(20, seed=9)), ["order.order_seed  0      9"]),
        (make_packed(order=Sequential(20)), ["order.order_kind", "'shuffle'", "'sequential'"]),
        (make_packed([*LENGTHS, 3]), ["order.order_length  20", "21", "appended: 1 documents after the same 20"]),
        (make_packed(LENGTHS[:-1]), ["order.order_length  20", "19", "shortened: 20 documents then, 19 now"]),
        (make_packed([3, 5, *LENGTHS[2:]]), ["fingerprint", "edited: other lengths", "of as many tokens together"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_another_recipe_is_refused(packed: PackedTokens, texts: list[str], state: dict[str, torch.Tensor]) -> None:
    """What would change the rows is named with both values, and nothing is loaded."""
    loader = make_loader(packed)
    with pytest.raises(RecipeMismatchError, match="Nothing was loaded") as caught:
        loader.load_state_dict(state)
    for text in texts:
        assert text in str(caught.value)
    assert loader.cursor.position == 0
    if "fingerprint" not in texts:
        with pytest.raises(RecipeMismatchError):
            loader.load_state_dict(state, allow={"global_batch", "batch_unit", "normalize", "fingerprint"})


def test_an_edit_of_equal_size_is_refused(state: dict[str, torch.Tensor]) -> None:
    """One token that is another one, all lengths alike: refused as edited; allowed by name, and recorded."""
    tokens = np.array(make_source(LENGTHS).tokens)  # type: ignore[attr-defined]
    tokens[3] += 1
    edited = PackedTokens(open_tokens(tokens, lengths=np.array(LENGTHS)), sequence_length=8, window=6)
    loader = make_loader(edited)
    with pytest.raises(RecipeMismatchError, match="edited: other tokens in the first 20 documents"):
        loader.load_state_dict(state)
    loader.load_state_dict(state, allow={"fingerprint"})
    assert [change.field for migration in loader.cursor.migrations for change in migration.changes] == ["fingerprint"]
    assert train(loader, 1) == [12, 13, 14, 15]


def test_samples_and_packed_rows_are_different_runs(state: dict[str, torch.Tensor]) -> None:
    """Neither takes up the other's cursor, whatever is allowed."""
    allow = {"global_batch", "batch_unit", "tail", "normalize", "fingerprint"}
    samples = ResumableLoader(Numbers(20), global_batch=4, microbatch=2, rank=0, num_replicas=1)
    with pytest.raises(RecipeMismatchError, match=r"order\.kind"):
        samples.load_state_dict(state, allow=allow)
    with pytest.raises(RecipeMismatchError, match=r"order\.kind"):
        make_loader().load_state_dict(samples.state_dict(), allow=allow)


def test_a_cursor_without_its_place_is_damaged(state: dict[str, torch.Tensor]) -> None:
    """A place exactly where the recipe is of packed rows, and the same tokens in both."""
    cursor = decode_cursor(bytes(state["resumable_data.cursor"].tolist()))
    assert cursor.packed
    more = msgspec.structs.replace(cursor.packed, target_tokens=cursor.tokens + 1)
    samples = ResumableLoader(Numbers(20), global_batch=4, microbatch=2, rank=0, num_replicas=1).cursor
    for forged in (
        msgspec.structs.replace(cursor, packed=msgspec.UNSET),
        msgspec.structs.replace(cursor, tokens=cursor.tokens + 1),
        msgspec.structs.replace(cursor, packed=more),
        msgspec.structs.replace(samples, packed=cursor.packed),
    ):
        with pytest.raises(CorruptStateError, match="packed rows"):
            Cursor.from_json(forged.to_json())


# Arguments


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tail": "short"}, 'tail must be "carry" for packed rows'),
        ({"tail": "drop"}, 'tail must be "carry" for packed rows'),
        ({"tail": "pad"}, 'tail must be "carry" for packed rows'),
        ({"order": Shuffle(20)}, "order= is for a dataset of samples"),
        ({"num_target_tokens": [1] * 20}, "num_target_tokens= is for a dataset of samples"),
        ({"seed_samples": True}, "seed_samples= is for a dataset of samples"),
        ({"on_unreadable": "filler", "max_unreadable": 3, "ledger": "x"}, "on_unreadable= is for a dataset of samples"),
        ({"global_batch": None}, "either global_batch=, the rows of an update, or global_batch_tokens="),
        ({"global_batch_tokens": None}, "either global_batch=, the rows of an update, or global_batch_tokens="),
        ({"global_batch_tokens": 0}, "global_batch_tokens must be an integer of at least 1, got 0"),
        ({"global_batch_tokens": 2.5}, "at least 1, got 2.5"),
        ({"normalize": "rows"}, "normalize must be one of"),
        ({"epochs": 0}, "epochs must be an integer of at least 1, got 0"),
        ({"epochs": 1.5}, "epochs must be an integer of at least 1, got 1.5"),
    ],
    ids=str,
)
def test_arguments_that_are_refused(options: dict[str, Any], text: str) -> None:
    """What is for samples, or cannot be, is refused by name when the loader is made."""
    with pytest.raises(UsageError, match=text):
        make_loader(**options)


def test_rows_and_tokens_at_once_are_refused() -> None:
    """An update is cut by one of the two; a dataset of samples knows only one."""
    with pytest.raises(UsageError, match="either"):
        ResumableLoader(make_packed(), global_batch=4, global_batch_tokens=30, microbatch=2, rank=0, num_replicas=1)
    batches: list[dict[str, Any]] = [{"global_batch_tokens": 30}, {"global_batch": 4, "global_batch_tokens": 30}, {}]
    for options in batches:
        with pytest.raises(UsageError, match="global_batch_tokens= is for PackedTokens"):
            ResumableLoader(Numbers(20), microbatch=2, rank=0, num_replicas=1, **options)


def test_targets_that_are_masked_in_the_loop_are_counted() -> None:
    """Where collate_fn hides labels, the scale comes from what is left; tokens stay those of documents."""

    def hide(data: dict[str, Any]) -> dict[str, Any]:
        data["labels"][:, ::2] = -100
        return data

    loader = make_loader(normalize="targets", collate_fn=hide)
    update = next(loader.updates())
    count = sum(int((microbatch.data["labels"] != -100).sum()) for microbatch in update)
    update.set_targets(count)
    assert update.microbatches[0].loss_scale == 1 / count
    update.commit()
    rows = [piece for microbatch in update for row in microbatch.pieces for piece in row]
    assert loader.cursor.tokens == sum(stop - start for _, start, stop in rows)


@pytest.mark.parametrize(
    "give",
    [
        lambda packed: ResumableSampler(packed, global_batch=4, microbatch=2, rank=0, num_replicas=1),
        lambda packed: DistributedSampler(packed, num_replicas=2, rank=0),
        track,
        lambda packed: Cursor.from_consumed_samples(packed, consumed_samples=4, global_batch=4),
    ],
    ids=["ResumableSampler", "DistributedSampler", "track", "from_consumed_samples"],
)
def test_what_takes_samples_refuses_packed_rows(give: Callable[[Any], object]) -> None:
    """Packed rows are read by `ResumableLoader` alone; all others say that they are given a `PackedTokens`."""
    with pytest.raises(UsageError, match="PackedTokens"):
        give(make_packed())


def test_pieces_are_those_of_packed_rows() -> None:
    """A loader of samples has none, and says so."""
    samples = ResumableLoader(Numbers(20), global_batch=4, microbatch=2, rank=0, num_replicas=1)
    with pytest.raises(UsageError, match="pieces are those of packed rows"):
        _ = next(iter(samples)).pieces


def test_an_endless_run() -> None:
    """No number of updates, no length, and rows of epoch after epoch."""
    loader = make_loader(epochs=None, global_batch=50, microbatch=50)
    assert loader.num_updates is None
    with pytest.raises(TypeError, match="never ends"):
        len(loader)
    assert train(loader, 6) == list(range(300))
    assert loader.cursor.packed
    assert loader.cursor.packed.epoch > 10


def test_documents_without_tokens_are_an_error() -> None:
    """An endless run over nothing but empty documents would wait for ever; a finite one would be empty."""
    with pytest.raises(UsageError, match="windows of them without a row"):
        next(iter(make_loader(PackedTokens(Hollow(), sequence_length=8, window=1), epochs=None)))


# Data


def test_collate_fn_is_given_the_tensors_of_a_microbatch() -> None:
    """Whatever it returns is the microbatch's data; padding holds the pad token."""
    packed = make_packed(policy=NoPacking(), pad_token=7)

    def keep(data: dict[str, torch.Tensor]) -> torch.Tensor:
        dtypes = {name: data[name].dtype for name in ("tokens", "labels", "position_ids", "cu_seqlens")}
        assert list(dtypes.values()) == [torch.int64, torch.int64, torch.int32, torch.int32]
        assert isinstance(data["max_seqlen"], int)
        return data["tokens"]

    for microbatch in make_loader(packed, collate_fn=keep):
        for row, pieces in zip(microbatch.data.tolist(), microbatch.pieces, strict=True):
            used = sum(stop - start for _, start, stop in pieces)
            assert row[used:] == [7] * (8 - used)
            assert 7 not in row[:used]


def test_labelled_tokens_of_all_ranks_are_what_the_loss_is_a_mean_over() -> None:
    """Over every update, labels that are not -100 times the loss scale are the number of ranks; filler has none."""
    with PackedJob(make_packed(), 3, global_batch_tokens=70, microbatch=3, epochs=2, pad_microbatches=True) as job:
        num_filler = 0
        while update := job.update():
            labelled = 0
            for step in update:
                for rank in step:
                    num_real = len(rank.positions)
                    num_filler += len(rank.weights) - num_real
                    assert (rank.data["labels"][num_real:] == -100).all()
                    assert rank.data["tokens"].shape == (3, 8)
                    labelled += int((rank.data["labels"] != -100).sum())
            assert update[0][0].loss_scale == 3 / labelled
            job.commit()
        assert num_filler > 0


class Hollow:
    """Three documents that are said to have tokens, and have none."""

    num_tokens, dtype = 3, np.dtype(np.int64)

    def __len__(self) -> int:
        return 3

    def lengths(self, documents: Int64Array) -> Int64Array:
        return np.zeros_like(documents)

    def read(self, document: int, start: int, stop: int) -> TokenArray:
        raise AssertionError(document, start, stop)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "hollow"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return "hollow"


class Model(nn.Module):
    """Predicts the next token from this one and its position in the document."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(3)
        self.tokens, self.positions, self.head = nn.Embedding(64, 8), nn.Embedding(16, 8), nn.Linear(8, 64)

    def forward(self, data: dict[str, torch.Tensor]) -> torch.Tensor:
        """The loss summed over labels."""
        hidden = self.tokens(data["tokens"] % 64) + self.positions(data["position_ids"].long())
        labels = torch.where(data["labels"] == -100, -100, data["labels"] % 64)
        loss: torch.Tensor = nn.functional.cross_entropy(
            self.head(hidden).flatten(0, 1), labels.flatten(), ignore_index=-100, reduction="sum"
        )
        return loss


def gradients(num_replicas: int, microbatch: int, **options: Any) -> list[torch.Tensor]:
    """The gradient of each update, averaged over ranks as DDP does it."""
    model, found = Model().double(), []
    with PackedJob(make_packed(policy=Fill()), num_replicas, microbatch=microbatch, epochs=2, **options) as job:
        while update := job.update():
            model.zero_grad()
            for step in update:
                for rank in step:
                    (model(rank.data) * rank.loss_scale / num_replicas).backward()
            found.append(torch.cat([parameter.grad.flatten() for parameter in model.parameters()]))  # type: ignore[union-attr]
            job.commit()
    return found


@pytest.mark.parametrize("batch", [{"global_batch": 5}, {"global_batch_tokens": 45}], ids=str)
def test_gradients_equal_those_of_one_process(batch: dict[str, int]) -> None:
    """The mean over all labels of the update, whoever reads which rows, with filler rows too."""
    expected = gradients(1, 100, **batch)
    for found in (gradients(3, 1, **batch), gradients(4, 2, pad_microbatches=True, **batch)):
        assert len(found) == len(expected) > 5
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


# Going on


@pytest.mark.parametrize(
    ("before", "now", "allow"),
    [
        ({"global_batch": 4}, {"global_batch": 6}, ("global_batch",)),
        ({"global_batch": 4}, {"global_batch_tokens": 50}, ("global_batch", "batch_unit")),
        ({"global_batch_tokens": 50}, {"global_batch": 4}, ("global_batch", "batch_unit")),
        ({"global_batch_tokens": 50}, {"global_batch_tokens": 20}, ("global_batch",)),
    ],
    ids=str,
)
def test_the_global_batch_may_be_migrated(before: dict[str, int], now: dict[str, int], allow: set[str]) -> None:
    """Where it is allowed by name: rows go on where they were, cut the new way, and the change is recorded."""
    packing = make_oracle()
    progress = PackedProgress(packing, 2, before.get("global_batch", 0), before.get("global_batch_tokens", 0))
    with PackedJob(make_packed(), 2, microbatch=2, epochs=2, **before) as job:
        for _, stop in progress.upcoming()[:3]:
            assert job.update()
            job.commit()
            progress.commit(stop)
        state = job.save()
    progress.num_rows, progress.num_tokens = now.get("global_batch", 0), now.get("global_batch_tokens", 0)
    with PackedJob(make_packed(), 3, microbatch=2, epochs=2, **now) as job:
        for missing in allow:
            with pytest.raises(RecipeMismatchError, match=missing):
                job.load(state, allow=set(allow) - {missing})
        job.load(state, allow=allow)
        progress.expect_cursor(job.loaders[0].cursor)
        assert {change.field for change in job.loaders[0].cursor.migrations[0].changes} == set(allow)
        assert job.loaders[0].num_updates == progress.updates + len(progress.upcoming())
        for _, stop in progress.upcoming():
            assert job.update()
            job.commit()
            progress.commit(stop)
            progress.expect_cursor(job.loaders[2].cursor)
        assert job.update() is None
    progress.expect_tokens(2)


def test_a_run_that_is_over() -> None:
    """No more microbatches, a length of 0, and no update to commit; also with fewer epochs than were read."""
    loader = make_loader()
    num_updates = loader.num_updates
    train(loader)
    assert (list(loader), len(loader), loader.num_updates, loader.cursor.updates) == ([], 0, num_updates, num_updates)
    shorter = make_loader(epochs=1)
    shorter.load_state_dict(loader.state_dict())
    assert (list(shorter), len(shorter), shorter.num_updates) == ([], 0, num_updates)


@pytest.mark.parametrize(("policy", "num_workers"), [(BestFit(), 0), (Concat(), 0), (Concat(), 1)], ids=str)
def test_remap(policy: Policy, num_workers: int) -> None:
    """From 2 ranks to 3 and back to 1 in the same loaders: the oracle's rows, none lost or repeated."""
    progress = PackedProgress(make_oracle(policy=policy), 2, num_tokens=40)
    options = {"global_batch_tokens": 40, "microbatch": 2, "epochs": 2, "num_workers": num_workers}
    with PackedJob(make_packed(policy=policy), 2, **options) as job:
        for num_replicas in (3, 1, 2):
            for _, stop in progress.upcoming()[:2]:
                update = job.update()
                assert update
                positions = sorted(place for step in update for rank in step for place in rank.positions.tolist())
                assert positions == list(range(progress.position, stop))
                job.commit()
                progress.commit(stop)
            job.microbatch()  # read ahead, and read again after
            job.agree()
            del job.loaders[num_replicas:]
            while len(job.loaders) < num_replicas:
                job.loaders.append(make_loader(make_packed(policy=policy), **options))
                job.loaders[-1].load_state_dict(job.loaders[0].state_dict())
            for rank, loader in enumerate(job.loaders):
                loader.remap(rank=rank, num_replicas=num_replicas, rollback=True)
            job.num_replicas = num_replicas
            job.restart_iteration()
        assert sum(map(len, job.train())) == len(progress.rows) - progress.position
        for _, stop in progress.upcoming():
            progress.commit(stop)
        progress.expect_cursor(job.loaders[0].cursor)


class CountingSource:
    """Documents that count how often their lengths are asked for, and of which one may be unreadable.

    Args:
        lengths: Tokens of each.
        broken: The one that raises when it is read.
    """

    def __init__(self, lengths: list[int], broken: int = -1) -> None:
        self._source = make_source(lengths)
        self.broken = broken
        self.asked: list[int] = []
        self.num_tokens, self.dtype = self._source.num_tokens, self._source.dtype

    def __len__(self) -> int:
        return len(self._source)

    def lengths(self, documents: Int64Array) -> Int64Array:
        self.asked.append(documents.size)
        return self._source.lengths(documents)

    def read(self, document: int, start: int, stop: int) -> TokenArray:
        if document == self.broken:
            raise OSError("the disk is gone")
        return self._source.read(document, start, stop)

    def describe(self) -> dict[str, int | str]:
        return {"kind": "counting"}

    def fingerprint(self, full: bool = False, documents: int | None = None) -> str:
        return self._source.fingerprint(full, documents)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_document_that_cannot_be_read(num_workers: int) -> None:
    """The error says what the source raised; the cursor stays, and the run goes on from it once it is mended."""
    source = CountingSource(LENGTHS, broken=11)
    loader = make_loader(PackedTokens(source, sequence_length=8, window=6), num_workers=num_workers)
    with pytest.raises(SampleReadError, match="OSError: the disk is gone") as caught:
        train(loader)
    assert "The cursor did not move" in str(caught.value)
    assert "raise OSError" in caught.value.__notes__[0]
    before = loader.cursor.position
    rows = make_oracle().run(2)
    assert any(document == 11 for row in rows[before : before + 4] for document, _, _ in row.pieces)
    mended = make_loader(num_workers=num_workers)
    mended.load_state_dict(loader.state_dict())
    assert train(mended) == list(range(before, len(rows)))
    loader.close()
    mended.close()


@pytest.mark.parametrize("policy", [BestFit(), Concat(), NoPacking(truncate=True)], ids=repr)
@pytest.mark.parametrize("batch", [{"global_batch": 2}, {"global_batch_tokens": 9}], ids=str)
def test_going_on_plans_two_windows_wherever(
    policy: Policy, batch: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From a load to the first rows, whatever the position: at most two windows are planned here, and one ahead."""
    source = CountingSource(LENGTHS * 8)
    packed = PackedTokens(source, sequence_length=8, window=40, policy=policy)
    planned: list[tuple[int, int]] = []
    plan = PackedTokens.plan

    def counted(self: PackedTokens, epoch: int, window: int, *carry: Any) -> Any:
        planned.append((epoch, window))
        return plan(self, epoch, window, *carry)

    states = []
    loader = make_loader(packed, epochs=None, **batch)
    for microbatch in loader:
        if microbatch.is_last:
            loader.commit()
            if loader.cursor.updates % 9 == 0:
                states.append(loader.state_dict())
            if loader.cursor.packed and loader.cursor.packed.epoch == 2:
                break
    assert len(states) >= 10
    monkeypatch.setattr(PackedTokens, "plan", counted)
    for state in states:
        again = make_loader(packed, epochs=None, **batch)
        _planner().submit(int).result()  # what was asked for before is done
        planned.clear()
        source.asked.clear()
        again.load_state_dict(state)
        next(iter(again))
        _planner().submit(int).result()
        place = again.cursor.packed
        assert place
        assert len(set(planned)) <= 3
        assert min(planned) == (place.epoch, place.window)
        # lengths of a window, and of the pieces in it; with Concat also of documents carried into it
        assert len(source.asked) <= 12
        assert max(source.asked) < len(source)
        assert len(state["resumable_data.cursor"]) == STATE_NUM_BYTES


def read_in_child(run: PackedRun, loader: ResumableLoader, pipe: Any) -> None:
    ids = run.ids(0, np.arange(10, 60)).tolist()
    pipe.send((ids, train(loader, 3)))


def test_a_forked_child_goes_on_with_a_run_of_its_parent() -> None:
    """The parent's planning thread is not in the child: it plans what was ahead itself, and does not wait for it."""
    packed = make_packed(LENGTHS * 10)
    run, loader = PackedRun(packed), make_loader(packed, epochs=None)
    run.ids(0, np.arange(10))
    train(loader, 2)
    context = multiprocessing.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=read_in_child, args=(run, loader, theirs))
    child.start()
    try:
        assert ours.poll(30), "the child hangs"
        ids, positions = ours.recv()
    finally:
        child.kill()
        child.join()
    assert ids == run.ids(0, np.arange(10, 60)).tolist()
    assert positions == list(range(8, 20)) == train(loader, 3)


def keep_pieces(microbatch: Microbatch) -> list[list[tuple[int, int, int]]]:
    return microbatch.to("cpu").pieces


def test_pieces_stay_with_a_microbatch_that_is_moved() -> None:
    """`to` keeps them, filler rows left out."""
    loader = make_loader(global_batch=3, microbatch=2, pad_microbatches=True)
    rows = make_oracle().run(1)
    found = [pieces for _, microbatch in zip(range(4), loader, strict=False) for pieces in keep_pieces(microbatch)]
    assert found == [row.pieces for row in rows[:6]]


def test_workers_send_tokens_as_they_are_stored() -> None:
    """What a worker sends of a microbatch is the tokens in their stored type, and no shared memory of a tensor."""
    source = open_tokens(np.arange(100_000, dtype=np.uint16) % 50_000, lengths=[100_000])
    rows = BestFit().pack(source.lengths(np.arange(1)), 2048)
    fetcher = PackedFetchDataset(source, pad_token=0, transform=None)
    item = fetcher[PackedRequest(CheckedRows.of(source, rows), 0)]
    sent = ForkingPickler.dumps(item)
    assert 2 * len(rows) * 2048 < len(sent) < 2 * len(rows) * 2048 + 4096
    received = pickle.loads(sent)[0].data()
    assert all(np.array_equal(received[name], tensor) for name, tensor in item[0].data().items())
    assert received["tokens"].dtype == torch.int64


def test_pinning_makes_the_tensors_that_are_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A DataLoader's pinning thread gets the tensors of the data, each pinned, filler rows without labels."""
    pinned: list[int] = []

    def pin(tensor: torch.Tensor, device: object = None) -> torch.Tensor:
        pinned.append(tensor.data_ptr())
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    source = make_source([3, 5, 4])
    rows = BestFit().pack(source.lengths(np.arange(3)), 8)
    stored, digest = PackedFetchDataset(source, pad_token=7, transform=None)[
        PackedRequest(CheckedRows.of(source, rows), 1)
    ]
    data, same = pin_memory((stored, digest))
    assert same == digest
    assert len(pinned) == len(set(pinned)) == 4
    assert all(np.array_equal(data[name], tensor) for name, tensor in stored.data().items())
    assert (data["labels"][-1] == -100).all()
    assert (data["labels"][0] != -100).any()
