"""Sums by which pieces of documents are held against the documents, in any order and with little memory.

A piece adds the hash of (document, stop) and subtracts that of (document, start). How often each token of a document is
held follows from how many pieces start and stop at each of its tokens; so, hashes that meet by chance apart, the sum of
pieces is that of whole documents where every token is held once, and nowhere else. There are two lanes of 64 bits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from resumable_data.ledger.row_ids import mix

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.order import Int64Array

    Lanes = NDArray[np.uint64]

NUM_LANES = 2

# Odd 64-bit constants: the fractions of the square roots of 19, 23, 29 and 31, with the lowest bit set.
_FACTORS = np.array([[0x5BE0CD19137E2179, 0xCBBB9D5DC1059ED9], [0x629A292A367CD507, 0x9159015A3070DD17]], np.uint64)


class Spans(NamedTuple):
    """Tokens ``[start, stop)`` of documents: three ``(m,)`` int64 arrays."""

    document: Int64Array
    start: Int64Array
    stop: Int64Array

    def take(self, which: Int64Array | NDArray[np.bool_]) -> Spans:
        """Those that numpy indexing with `which` gives."""
        return Spans(*(column[which] for column in self))


def concatenate(parts: list[Spans]) -> Spans:
    """The spans of some parts, one after another."""
    nothing = np.empty(0, np.int64)
    return (
        Spans(*(np.concatenate([nothing, *columns]) for columns in zip(*parts, strict=True)))
        if parts
        else Spans(nothing, nothing, nothing)
    )


def sum_spans(spans: Spans, group: Int64Array, num_groups: int) -> Lanes:
    """The sums of spans by their groups: ``(m,)`` int64 in ``[0, num_groups)`` to ``(num_groups, NUM_LANES)``."""
    sums = np.zeros((num_groups, NUM_LANES), np.uint64)
    is_alike = group.size and bool((group == group[0]).all())  # the usual case, many times as fast
    for lane in range(NUM_LANES):
        values = _hashes(spans.document, spans.stop, lane) - _hashes(spans.document, spans.start, lane)
        if is_alike:
            sums[group[0], lane] = values.sum()
        else:
            np.add.at(sums[:, lane], group, values)
    return sums


def _hashes(document: Int64Array, token: Int64Array, lane: int) -> NDArray[np.uint64]:
    hashes = document.astype(np.uint64) * _FACTORS[lane, 0]
    hashes += token.astype(np.uint64) * _FACTORS[lane, 1]
    return mix(hashes)


class Faults(NamedTuple):
    """Where spans do not hold each of the expected tokens once.

    Attributes:
        twice: Tokens that are held again; a token that is held three times is told twice.
        never: Tokens that are not held.
    """

    twice: Spans
    never: Spans


def find_faults(spans: Spans, expected: Spans) -> Faults:
    """Sort spans, and find where they hold tokens of the expected ones twice or never, by the numbers alone.

    Args:
        spans: Of documents that are expected, and inside of what is.
        expected: One for each document, none of them empty, documents ascending.
    """
    number = np.searchsorted(expected.document, spans.document)  # of each span's document among the expected ones
    arrangement = np.lexsort((spans.start, number))
    number, (_, start, stop) = number[arrangement], spans.take(arrangement)
    # A span of nothing before the first token of each document, and one behind its last.
    size = expected.document.size
    number = np.concatenate((number, np.arange(size), np.arange(size)))
    rank = np.repeat([1, 0, 2], [start.size, size, size])
    start = np.concatenate((start, expected.start, expected.stop))
    stop = np.concatenate((stop, expected.start, expected.stop))
    arrangement = np.lexsort((start, rank, number))
    number, start, stop = number[arrangement], start[arrangement], stop[arrangement]
    reached = _running_max(stop, number)[:-1]  # before each span but the first
    is_same = number[1:] == number[:-1]
    document, start, stop = expected.document[number[1:]], start[1:], stop[1:]
    twice = Spans(document, start, np.minimum(stop, reached)).take(is_same & (start < np.minimum(stop, reached)))
    never = Spans(document, reached, start).take(is_same & (reached < start))
    return Faults(twice, never)


def _running_max(values: Int64Array, number: Int64Array) -> Int64Array:
    """The largest value up to each, of those with the same number; numbers ascend."""
    distinct, place = np.unique(values, return_inverse=True)
    base = number * distinct.size
    return distinct[np.maximum.accumulate(place + base) - base]
