"""Cases 32-35, as far as packing alone shows them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest

from resumable_data import BestFit, Concat, Fill, NoPacking, Sequential, Shuffle
from resumable_data.packing import Carry, Policy, WindowPlan
from tests import packing_oracle as oracle
from tests.packing_oracle import rows_of

POLICIES: list[Policy] = [BestFit(), Fill(), Concat(), NoPacking()]


def lengths_of(*lengths: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(lengths, dtype=np.int64)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("window", [1, 2, 3])
def test_case_32_every_token_once_over_a_restart(policy: Policy, window: int) -> None:
    """L = 8, documents 5, 5, 5; planned anew after each window from nothing but the carry."""
    tokens: Counter[tuple[int, int]] = Counter()
    carry = Carry(0, 0)
    for number in range(-(-3 // window)):
        plan = WindowPlan(Sequential(3), lengths_of(5, 5, 5).take, policy, row_length=8, window=window)
        planned = plan.plan(0, number, Carry(*carry))
        carry = planned.carry
        for row in rows_of(planned.rows):
            tokens.update((document, token) for document, start, stop in row for token in range(start, stop))
    assert tokens == Counter((document, token) for document in range(3) for token in range(5))


def test_case_32_a_document_of_four_in_rows_of_three() -> None:
    """Fragments of 3 and 1, or one counted omission where truncation is asked for."""
    lengths = lengths_of(4)
    for policy in POLICIES:
        packed = policy.pack(lengths, 3)
        assert rows_of(packed) == [[(0, 0, 3)], [(0, 3, 4)]]
        assert (packed.num_truncated_documents, packed.num_truncated_tokens) == (0, 0)
    truncating: Policy
    for truncating in (BestFit(truncate=True), NoPacking(truncate=True)):
        packed = truncating.pack(lengths, 3)
        assert rows_of(packed) == [[(0, 0, 3)]]
        assert (packed.num_truncated_documents, packed.num_truncated_tokens) == (1, 1)


@pytest.mark.parametrize("policy", POLICIES, ids=repr)
@pytest.mark.parametrize("window", [7, 160])
def test_case_33_no_token_is_lost(policy: Policy, window: int) -> None:
    """160 documents of 37 tokens in rows of 64: 5,920 of 5,920 tokens."""
    plan = WindowPlan(Shuffle(160), np.full(160, 37).take, policy, row_length=64, window=window)
    pieces = []
    for number in range(plan.num_windows):
        for row in rows_of(plan.plan(1, number, plan.carry_into(1, number)).rows):
            pieces += row
    tokens = [(document, token) for document, start, stop in pieces for token in range(start, stop)]
    assert len(tokens) == len(set(tokens)) == 5_920


DIGEST = """
import numpy as np, xxhash
from resumable_data import BestFit, Fill, Shuffle
from resumable_data.packing import WindowPlan
lengths = np.arange(30_000) * 7919 % 5 * 41 + 30
for policy in (BestFit(), Fill()):
    for row_length in (200, 100_000):
        rows = WindowPlan(Shuffle(30_000), lengths.take, policy, row_length=row_length).plan(0, 0).rows
        print(xxhash.xxh3_64_hexdigest(b"".join(a.tobytes() for a in (rows.document, rows.start, rows.edges))))
"""


def packing_digests(disabled: str) -> str:
    environment = os.environ | {"NPY_DISABLE_CPU_FEATURES": disabled}
    command = [sys.executable, "-c", DIGEST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True, env=environment)
    return done.stdout


def test_case_34_the_same_packing_on_any_processor() -> None:
    """With all of numpy's instructions and with none but the baseline; lengths of five values are all ties."""
    features: dict[str, bool] = np._core._multiarray_umath.__cpu_features__  # type: ignore[attr-defined]
    optional: list[str] = np._core._multiarray_umath.__cpu_dispatch__  # type: ignore[attr-defined]
    assert packing_digests("") == packing_digests(" ".join(name for name in optional if features[name]))


def test_case_34_no_sort_leaves_ties_to_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sort of indices asks for a stable one, and equal documents are placed in the order given."""
    argsort = np.argsort

    def watched(values: Any, *, kind: Any = None) -> Any:
        assert kind == "stable"
        return argsort(values, kind=kind)

    monkeypatch.setattr(np, "argsort", watched)
    lengths = np.full(1_000, 21, dtype=np.int64)
    policy: Policy
    for policy in (BestFit(), Fill(threshold=0.1)):
        assert rows_of(policy.pack(lengths, 64)) == oracle.best_fit(lengths.tolist(), 64)
    with pytest.raises(AssertionError):
        np.argsort(lengths)


@pytest.mark.parametrize("policy", [*POLICIES, BestFit(truncate=True), NoPacking(truncate=True)], ids=repr)
@pytest.mark.parametrize(
    ("lengths", "num_rows"),
    [
        ([], [0, 0, 0]),
        ([0], [0, 0, 0]),
        ([0, 0, 0], [0, 0, 0]),
        ([7], [1, 1, 1]),
        ([0, 7, 0], [1, 1, 1]),
        ([1_003], [11, 11, 11]),
        ([100] * 9, [9, 9, 9]),
        ([60] * 10, [10, 6, 6]),
        ([101, 99], [2, 2, 2]),
    ],
)
def test_case_35_edges(policy: Policy, lengths: list[int], num_rows: list[int]) -> None:
    """None, empty ones, one, one longer than 10 L, all equal to L, all 0.6 L; rows of best fit, fill, concat."""
    packed = policy.pack(np.array(lengths, dtype=np.int64), 100)
    packed.check(np.array(lengths, dtype=np.int64))
    if getattr(policy, "truncate", False):
        assert packed.num_truncated_tokens == sum(max(0, length - 100) for length in lengths)
        assert len(packed) == (sum(length > 0 for length in lengths) if lengths != [101, 99] else 2)
    elif isinstance(policy, NoPacking):
        assert len(packed) == sum(-(-length // 100) for length in lengths)
    else:
        assert len(packed) == num_rows[[BestFit, Fill, Concat].index(type(policy))]
    assert 0 <= packed.fill <= 1
