"""Sequential: the dataset's own order, in every epoch."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from resumable_data.errors import UsageError
from resumable_data.order import Sequential


def test_ids_are_offsets_and_new() -> None:
    """IDs equal offsets in every epoch, in an array that is the caller's."""
    order, offsets = Sequential(10**12), np.array([10**12 - 1, 0, 5], dtype=np.int64)
    for answer in (order.ids(0, offsets), order.ids(9, offsets), order.offsets(3, offsets)):
        assert np.array_equal(answer, offsets)
        assert not np.shares_memory(answer, offsets)
        assert answer.flags.writeable


def test_identity() -> None:
    """Equal by description, which rebuilds it."""
    assert Sequential(5) == Sequential(5) != Sequential(6)
    assert pickle.loads(pickle.dumps(Sequential(5))) == Sequential(5)
    assert Sequential(5).describe() == {"kind": "sequential", "version": 1, "length": 5}
    assert repr(Sequential(5)) == "Sequential(5)"
    assert len(Sequential(2**62)) == 2**62


def test_wrong_arguments_and_questions_are_refused() -> None:
    """Lengths, offsets and epochs are checked as in every order."""
    wrong: list[Any] = [0, True, 2.0, 2**62 + 1]
    for n in wrong:
        with pytest.raises(UsageError, match="n, the number of samples"):
            Sequential(n)
    with pytest.raises(UsageError, match=r"offsets must be in \[0, 5\); found 5"):
        Sequential(5).ids(0, np.array([5]))
    with pytest.raises(UsageError, match=r"ids must be in \[0, 5\); found -1"):
        Sequential(5).offsets(0, np.array([-1]))
    with pytest.raises(UsageError, match="epoch must be"):
        Sequential(5).ids(-1, np.array([0]))
