"""Cases 32, 33, 35 and 36 on packed rows as loaders hand them out; `test_packing.py` has them for packing alone."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from resumable_data import BestFit, NoPacking, PackedTokens, Sequential
from tests.packed_jobs import POLICIES, PackedJob, make_packed
from tests.packed_run_oracle import token_of
from tests.packing_oracle import rows_of

if TYPE_CHECKING:
    import torch

    from resumable_data.packing import Policy

State = Any


def read_tokens(
    packed: PackedTokens, state: State, *, num_replicas: int = 1, num_updates: int | None = None, **options: Any
) -> tuple[Counter[int], State, Any]:
    """The tokens of committed updates, from the tensors; the state after them and the cursor."""
    tokens: Counter[int] = Counter()
    options = {"global_batch": 1, "microbatch": 2, "epochs": 1, **options}
    with PackedJob(packed, num_replicas, **options) as job:
        job.load(state, allow={"fresh_start"})
        count = 0
        while count != num_updates and (update := job.update()):
            count += 1
            for step in update:
                for rank in step:
                    real = rank.data["tokens"][: len(rank.positions)]
                    tokens.update(real[real > 0].tolist())
            job.commit()
        job.microbatch()  # read and lost with the job
        return tokens, job.save(), job.loaders[0].cursor


def all_tokens(lengths: list[int]) -> Counter[int]:
    return Counter(token_of(document, index) for document, length in enumerate(lengths) for index in range(length))


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("window", [1, 2, 3])
def test_case_32_saved_after_the_first_row(policy: Policy, window: int) -> None:
    """L = 8, documents 5, 5, 5; saved after row 1 and gone on with in another process: every token once."""
    packed = make_packed([5, 5, 5], policy=policy, window=window, order=Sequential(3))
    before, state, _ = read_tokens(packed, None, num_updates=1)
    again = make_packed([5, 5, 5], policy=policy, window=window, order=Sequential(3))
    after, _, cursor = read_tokens(again, state)
    assert before
    assert after
    assert before + after == all_tokens([5, 5, 5])
    assert (cursor.tokens, cursor.packed.documents) == (15, 3)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_case_32_a_document_of_four_in_rows_of_three(policy: Policy) -> None:
    """Read as 3 and 1 tokens, or as 3 and one that the cursor counts as left out."""
    found, _, cursor = read_tokens(make_packed([4], policy=policy, sequence_length=3), None)
    if getattr(policy, "truncate", False):
        assert found == Counter(token_of(0, index) for index in range(3))
        assert (cursor.tokens, cursor.packed.truncated_tokens, cursor.packed.documents) == (3, 1, 1)
    else:
        assert found == all_tokens([4])
        assert (cursor.tokens, cursor.packed.truncated_tokens, cursor.packed.documents) == (4, 0, 1)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("batch", [{"global_batch": 8}, {"global_batch_tokens": 500}], ids=str)
def test_case_33_from_4_ranks_to_2(policy: Policy, batch: dict[str, int]) -> None:
    """160 documents of 37 tokens, L = 64, four ranks and then two in mid-epoch: 5,920 of 5,920 tokens."""
    packed = make_packed([37] * 160, policy=policy, sequence_length=64, window=50)
    options: dict[str, Any] = {"global_batch": None, **batch}
    before, state, cursor = read_tokens(packed, None, num_replicas=4, num_updates=4, **options)
    assert 0 < cursor.tokens == sum(before.values()) < 5_920
    after, _, cursor = read_tokens(packed, state, num_replicas=2, **options)
    assert before + after == all_tokens([37] * 160)
    assert cursor.tokens == sum((before + after).values()) == 5_920


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize(
    "lengths", [[0, 7, 0], [83], [8] * 9, [5] * 10, [0, 0, 1], [9, 7], [8, 0, 16]], ids=lambda lengths: str(lengths)
)
def test_case_35_edges(policy: Policy, lengths: list[int]) -> None:
    """Empty documents, one longer than 10 L, one in all, all equal to L, all 0.6 L: read whole, or counted."""
    packed = make_packed(lengths, policy=policy, window=4)
    kept = [min(length, 8) for length in lengths] if getattr(policy, "truncate", False) else lengths
    found, _, cursor = read_tokens(packed, None, global_batch=3)
    assert found == all_tokens(kept)
    assert cursor.tokens == sum(kept)
    assert cursor.packed.truncated_tokens == sum(lengths) - sum(kept)
    assert cursor.packed.documents == sum(length > 0 for length in lengths)
    assert (cursor.packed.epoch, cursor.packed.window, cursor.packed.row) == (1, 0, 0)


def label_losses(data: dict[str, torch.Tensor]) -> torch.Tensor:
    """A loss for each label: 1 where the document has one label, else 0."""
    return ((data["labels"] != -100).sum(dim=1) == 1).float().sum()


@pytest.mark.parametrize("batch", [{"global_batch": 8}, {"global_batch_tokens": 8 * 51}], ids=str)
def test_case_36_token_mean_over_the_update(batch: dict[str, int]) -> None:
    """1 and 99 labels a row, two microbatches on each of two ranks: the mean over labels, not a mean of means."""
    packed = make_packed([2, 100] * 8, policy=NoPacking(), sequence_length=100, order=Sequential(16), window=16)
    rows = rows_of(packed.plan(0, 0).rows)
    with PackedJob(packed, 2, microbatch=2, epochs=1, **batch) as job:
        update = job.update()
        assert update is not None
        positions = sorted(position for step in update for rank in step for position in rank.positions.tolist())
        num_short = sum(rows[position][0][2] == 2 for position in positions)
        labels = num_short + 99 * (len(positions) - num_short)
        assert 0 < num_short < len(positions)
        loss = sum(float(label_losses(rank.data)) * rank.loss_scale for step in update for rank in step) / 2
        np.testing.assert_allclose(loss, num_short / labels)
        assert all(rank.loss_scale == 2 / labels for step in update for rank in step)


def test_case_36_of_a_row_that_is_split() -> None:
    """Two pieces of one document in different rows are two sequences: its border has no label in either."""
    packed = make_packed([12], policy=BestFit(), sequence_length=8)
    with PackedJob(packed, 1, microbatch=2, global_batch=2, epochs=1) as job:
        (step,) = job.update() or []
        assert int((step[0].data["labels"] != -100).sum()) == 10
        assert step[0].loss_scale == 1 / 10
