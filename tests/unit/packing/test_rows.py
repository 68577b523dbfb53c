"""The value that packing gives, and the check that policies of one's own must pass."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from resumable_data import BestFit
from resumable_data.errors import UsageError
from resumable_data.packing import PackedRows

LENGTHS = np.array([5, 3, 11, 0, 2])
ROWS = BestFit().pack(LENGTHS, 8)  # [(2, 0, 8)], [(0, 0, 5), (1, 0, 3)], [(2, 8, 11), (4, 0, 2)]


def test_rows_are_taken_in_any_order() -> None:
    """Whole, repeats and none at all included."""
    for which in ([2, 0], [1, 1, 1], []):
        taken = ROWS.take(np.array(which, dtype=np.int64))
        assert [taken.pieces(row) for row in range(len(taken))] == [ROWS.pieces(row) for row in which]
        assert taken.row_length == 8


@pytest.mark.parametrize("row", [-1, 3])
def test_there_is_no_such_row(row: int) -> None:
    """A row is counted from 0; none is found from the end."""
    with pytest.raises(UsageError, match=r"row must be in \[0, 3\)"):
        ROWS.pieces(row)


def test_good_rows_pass_the_check() -> None:
    """Truncated ones too, where they are counted."""
    ROWS.check(LENGTHS)
    BestFit(truncate=True).pack(LENGTHS, 8).check(LENGTHS)


def changed(column: str, index: int, value: int) -> PackedRows:
    array = getattr(ROWS, column).copy()
    array[index] = value
    changes: dict[str, Any] = {column: array}
    return replace(ROWS, **changes)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (replace(ROWS, document=ROWS.document.astype(np.int32)), "int64 arrays"),
        (replace(ROWS, start=ROWS.start[1:]), "int64 arrays"),
        (replace(ROWS, edges=ROWS.edges[:-1]), "edges from 0 to 5; found"),
        (replace(ROWS, edges=ROWS.edges[:0]), "edges from 0 to 5; found"),
        (changed("edges", 1, 0), "at least one piece in each row"),
        (changed("edges", 1, 2), "at most 8 tokens in a row; found 13"),
        (changed("document", 0, 5), r"documents in \[0, 5\)"),
        (changed("document", 0, -1), r"documents in \[0, 5\)"),
        (changed("document", 0, 3), "follow each other|inside their documents"),
        (changed("stop", 1, 0), "at least one token in each piece"),
        (changed("stop", 4, 1), "0 truncated tokens in 0 documents; found 1 in 1"),
        (changed("stop", 4, 3), "inside their documents"),
        (changed("start", 1, 1), "follow each other"),
        (changed("start", 3, 7), "follow each other"),
        (replace(ROWS, num_truncated_tokens=1), "1 truncated tokens in 0 documents; found 0 in 0"),
    ],
)
def test_rows_that_lose_or_repeat_a_token_are_refused(rows: PackedRows, message: str) -> None:
    """Each property of the contract is looked at."""
    with pytest.raises(UsageError, match=message):
        rows.check(LENGTHS)


def test_missing_and_consumed_tokens_are_told_apart() -> None:
    """A first document that earlier rows hold a part of is complete without it."""
    rows = replace(BestFit().pack(np.array([3]), 8), start=np.array([2]), stop=np.array([5]))
    rows.check(np.array([5]), consumed=2)
    with pytest.raises(UsageError, match="follow each other"):
        rows.check(np.array([5]))
