"""Policies as values: descriptions, refusals, and how full they make rows."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from resumable_data import BestFit, Concat, Fill, NoPacking
from resumable_data.errors import UsageError
from resumable_data.packing import PackedRows, Policy, policy_from_description

POLICIES = [
    BestFit(),
    BestFit(truncate=True),
    Fill(),
    Fill(threshold=1),
    Fill(threshold=1 / 3),
    Concat(),
    NoPacking(),
    NoPacking(truncate=True),
]


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
def test_a_description_rebuilds_the_policy(policy: Policy) -> None:
    """Also after a journey through JSON."""
    rebuilt = policy_from_description(json.loads(json.dumps(policy.describe())))
    assert rebuilt == policy
    assert type(rebuilt) is type(policy)
    assert isinstance(policy, Policy)


@pytest.mark.parametrize(
    ("description", "message"),
    [
        ({"kind": "mine"}, "kind must be one of best-fit, concat, fill, no-packing; found 'mine'"),
        ({}, "found None"),
        ("fill", "must be a mapping; found str"),
        ({"kind": ["fill"]}, "must be one of"),
        ({"kind": "concat"}, "must have version 1; found None"),
        ({"kind": "concat", "version": 2}, "must have version 1; found 2"),
        ({"kind": "concat", "version": True}, "must have version 1; found True"),
        ({"kind": "concat", "version": 1, "window": 4}, "must look like"),
        ({"kind": "best-fit", "version": 1}, "must look like"),
        ({"kind": "best-fit", "version": 1, "truncate": 2}, "must look like"),
        ({"kind": "fill", "version": 1}, "must look like"),
        ({"kind": "fill", "version": 1, "threshold": "2"}, "must look like"),
        ({"kind": "fill", "version": 1, "threshold": "0.50"}, "must look like"),
        ({"kind": "fill", "version": 1, "threshold": None}, "must look like"),
    ],
)
def test_other_descriptions_are_refused(description: Any, message: str) -> None:
    """Each with what was expected and what was found."""
    with pytest.raises(UsageError, match=message):
        policy_from_description(description)


@pytest.mark.parametrize("threshold", [0, -1, 1.01, float("nan"), "0.9", None, True])
def test_a_threshold_is_a_share_of_a_row(threshold: Any) -> None:
    """Anything else is refused by name."""
    with pytest.raises(UsageError, match="threshold must be above 0 and at most 1"):
        Fill(threshold=threshold)


@pytest.mark.parametrize("policy", [BestFit(), Fill(), Concat(), NoPacking()], ids=repr)
@pytest.mark.parametrize(
    ("lengths", "row_length", "message"),
    [
        ([1, 2], 8, "must be an int64 array"),
        (np.array([1, 2], dtype=np.int32), 8, "found int32 of shape"),
        (np.ones((1, 2), dtype=np.int64), 8, "of shape"),
        (np.array([3, -1]), 8, "found -1 at index 1"),
        (np.array([2**62, 2**62]), 8, "must fill at most 268435456 rows"),
        (np.array([1]), 0, "row_length must be an int from 1"),
        (np.array([1]), 2**24 + 1, "row_length must be an int from 1"),
        (np.array([1]), 8.0, "found 8.0"),
        (np.array([1]), True, "found True"),
    ],
)
def test_what_cannot_be_packed_is_refused(policy: Policy, lengths: Any, row_length: Any, message: str) -> None:
    """Each with what was expected and what was found."""
    with pytest.raises(UsageError, match=message):
        policy.pack(lengths, row_length)


@pytest.mark.parametrize(("lengths", "consumed"), [([], 1), ([5], 6), ([5], -1), ([5], 1.0)])
def test_only_tokens_of_the_first_document_can_be_consumed(lengths: list[int], consumed: Any) -> None:
    """Anything else would lose tokens."""
    for place in (Concat().place, Concat().place_full):
        with pytest.raises(UsageError, match="consumed must be an int from 0"):
            place(np.array(lengths, dtype=np.int64), 4, consumed=consumed)


ROW = 1_000
NUM = 4_000
DISTRIBUTIONS = {
    "all 0.6 L": np.full(NUM, 600),
    "uniform .3-.7 L": 300 + np.arange(NUM) * 7919 % 401,
    "L/3 + 1": np.full(NUM, ROW // 3 + 1),
    "mixture .4/.7 L": np.where(np.arange(NUM) % 3 == 0, 700, 400),
    "log-normal": np.exp(np.linspace(2, 9, NUM)).astype(np.int64),
}


@pytest.mark.parametrize("lengths", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_fill_is_above_its_threshold_on_any_lengths(lengths: Any) -> None:
    """99.5 % with the default, also where best fit leaves much of each row empty."""
    assert Fill().pack(lengths, ROW).fill >= 0.995


def test_the_check_above_can_fail() -> None:
    """Best fit alone fills rows of documents of 0.6 L by 60 %."""
    assert BestFit().pack(DISTRIBUTIONS["all 0.6 L"], ROW).fill == pytest.approx(0.6)


def test_many_rows_and_long_rows_take_more_than_sixteen_bits() -> None:
    """More than 65,536 rows, and lengths beyond 65,536, are grouped as well as few."""
    lengths = np.arange(70_000) * 7919 % 140_000 + 1
    packed = BestFit().pack(lengths, 100_000)
    assert len(packed) < 65_536
    packed.check(lengths)
    assert packed.fill > 0.99
    few = BestFit().pack(np.full(200_000, 2), 5)
    assert [few.pieces(row) for row in (0, 99_999)] == [[(0, 0, 2), (1, 0, 2)], [(199_998, 0, 2), (199_999, 0, 2)]]


def test_an_epoch_of_padding_is_counted() -> None:
    """Tokens, padding, pieces and rows, and the tokens of each row."""
    packed = NoPacking().pack(np.array([3, 0, 5]), 4)
    assert isinstance(packed, PackedRows)
    assert (len(packed), packed.num_pieces, packed.num_tokens, packed.num_padding) == (3, 3, 8, 4)
    assert packed.tokens_per_row().tolist() == [3, 4, 1]
    assert packed.fill == pytest.approx(8 / 12)
