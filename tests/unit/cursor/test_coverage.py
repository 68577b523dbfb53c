"""The coverage digest."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.cursor import CoverageSpan, add_lanes, row_hashes, sum_lanes
from resumable_data.cursor.coverage import MAX_SPANS, add_span
from tests.oracle import Row, coverage_lanes

NUMBERS = st.integers(0, 2**63 - 1)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=20))
def test_the_digest_is_the_documented_sum(pairs: list[tuple[int, int]]) -> None:
    """Both lanes are what plain integers give for the documented constants, for all positions and IDs."""
    positions, ids = (np.array([pair[i] for pair in pairs], np.int64) for i in (0, 1))
    expected = coverage_lanes([Row(position, sample_id) for position, sample_id in pairs])
    assert sum_lanes(positions, ids) == expected
    hashes = row_hashes(positions, ids)
    assert hashes.shape == (2, len(pairs))
    for column, (position, sample_id) in enumerate(pairs):
        assert tuple(hashes[:, column].tolist()) == coverage_lanes([Row(position, sample_id)])


def test_blocks_do_not_show() -> None:
    """Many rows hash as the same rows one at a time."""
    positions = np.arange(40_000, dtype=np.int64)
    ids = positions[::-1].copy()
    parts = [sum_lanes(positions[i : i + 7_777], ids[i : i + 7_777]) for i in range(0, 40_000, 7_777)]
    total = (0, 0)
    for part in parts:
        total = add_lanes(total, part)
    assert total == sum_lanes(positions, ids)


def test_exchanged_repeated_and_lost_samples_change_both_lanes() -> None:
    """Exchanging two samples, reading one twice and leaving one out each change the digest."""
    positions = np.arange(100, dtype=np.int64)
    right = sum_lanes(positions, positions)
    exchanged = positions.copy()
    exchanged[[3, 4]] = [4, 3]
    repeated = positions.copy()
    repeated[50] = 49
    for ids in (exchanged, repeated):
        wrong = sum_lanes(positions, ids)
        assert wrong[0] != right[0]
        assert wrong[1] != right[1]
    assert sum_lanes(positions[1:], positions[1:]) != right


def test_spans_join_where_they_meet_and_the_oldest_are_forgotten() -> None:
    """Spans that meet become one with the sum of their digests; of many that do not meet the newest are kept."""
    spans = add_span((), CoverageSpan(0, 4, (2**64 - 1, 1)))
    assert add_span(spans, CoverageSpan(4, 4, (0, 0))) == spans
    assert add_span(spans, CoverageSpan(4, 9, (2, 2))) == (CoverageSpan(0, 9, (1, 3)),)
    for start in range(10, 10 * (MAX_SPANS + 2), 10):
        spans = add_span(spans, CoverageSpan(start, start + 1, (start, start)))
    assert len(spans) == MAX_SPANS
    assert spans[-1].start == 10 * (MAX_SPANS + 1)
