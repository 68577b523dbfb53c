"""Coverage digests of cursors, recomputed from the order alone."""

from __future__ import annotations

import itertools
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from resumable_data.audit.findings import finding
from resumable_data.cursor import NO_ROWS, Lanes, add_lanes, sum_lanes
from resumable_data.order import ids_at

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from resumable_data.audit.updates import Stretch
    from resumable_data.cursor import CoverageSpan, Cursor
    from resumable_data.findings import Finding
    from resumable_data.order import Order

CHUNK_POSITIONS = 1 << 20


def expected_lanes(order: Order, stretches: Sequence[Stretch], start: int, stop: int) -> Lanes:
    """The digest of all samples at positions [start, stop), those left out that the run dropped.

    Args:
        order: The order of the run.
        stretches: The history's, oldest first.
        start: First position.
        stop: The position after the last.
    """
    lanes = NO_ROWS
    for stretch, positions in _chunks(stretches, start, stop):
        if stretch.drops:
            positions = positions[stretch.is_sample(positions)]
        lanes = add_lanes(lanes, sum_lanes(positions, ids_at(order, positions)))
    return lanes


def check_spans(order: Order, stretches: Sequence[Stretch], spans: Sequence[tuple[str, CoverageSpan]]) -> list[Finding]:
    """Hold coverage digests of one history against the order; each position is computed once.

    Args:
        order: The order of the run.
        stretches: The history's, oldest first, from the beginning of the run to the last cursor at least.
        spans: Where each comes from, and the span, with 0 <= start <= stop.
    """
    return [
        finding(
            "RD403",
            f"{where}, positions [{span.start}, {span.stop})",
            expected=shown_lanes(lanes),
            found=shown_lanes(span.lanes),
        )
        for (where, span), lanes in zip(spans, expected_of(order, stretches, [span for _, span in spans]), strict=True)
        if lanes != span.lanes
    ]


def expected_of(order: Order, stretches: Sequence[Stretch], spans: Sequence[CoverageSpan]) -> list[Lanes]:
    """The digest that each span should have; each position is computed once. Arguments as of `check_spans`."""
    edges = sorted({edge for span in spans for edge in (span.start, span.stop)})
    needed = [any(span.start <= low and high <= span.stop for span in spans) for low, high in _pairs(edges)]
    parts = {
        low: expected_lanes(order, stretches, low, high)
        for (low, high), is_needed in zip(_pairs(edges), needed, strict=True)
        if is_needed
    }
    return [
        reduce(add_lanes, (part for low, part in parts.items() if span.start <= low < span.stop), NO_ROWS)
        for span in spans
    ]


def uncovered(cursor: Cursor, stretches: Sequence[Stretch]) -> list[tuple[int, int]]:
    """The ranges of committed samples' positions, from a take-over on, of which the cursor has no digest."""
    gaps = []
    reached = stretches[0].position  # 0, or where the run was taken over
    for span in sorted(cursor.coverage, key=lambda span: span.start):
        if span.start > reached:
            gaps.append((reached, span.start))
        reached = max(reached, span.stop)
    if reached < cursor.position:
        gaps.append((reached, cursor.position))
    return [gap for gap in gaps if _has_samples(stretches, *gap)]


def _has_samples(stretches: Sequence[Stretch], start: int, stop: int) -> bool:
    return any(stretch.is_sample(positions).any() for stretch, positions in _chunks(stretches, start, stop))


def _chunks(stretches: Sequence[Stretch], start: int, stop: int) -> Iterator[tuple[Stretch, NDArray[np.int64]]]:
    """Positions [start, stop) in chunks, each with the stretch that it belongs to."""
    edges = [*(stretch.position for stretch in stretches[1:]), stop]
    for stretch, edge in zip(stretches, edges, strict=True):
        edge = max(min(edge, stop), start)
        for low in range(start, edge, CHUNK_POSITIONS):
            yield stretch, np.arange(low, min(low + CHUNK_POSITIONS, edge), dtype=np.int64)
        start = edge


def _pairs(edges: list[int]) -> list[tuple[int, int]]:
    return list(itertools.pairwise(edges)) if edges else []


def shown_lanes(lanes: Lanes) -> str:
    """A digest for people."""
    return f"{lanes[0]:016x} {lanes[1]:016x}"
