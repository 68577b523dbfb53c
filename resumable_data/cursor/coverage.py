"""The coverage digest: what was delivered in committed updates, in two 64-bit sums.

Each committed sample adds a keyed hash of (position, sample ID) to both lanes, modulo 2^64. A sum does not
care who delivered what, nor in which order, so ranks add up their own rows without communication, and anyone
can recompute the expected value from the order alone.

The hash multiplies position and ID by odd constants, adds them, and finishes with the mixer of MurmurHash3
(`fmix64`, Appleby, public domain). The lanes use different constants. It finds accidents; it does not withstand
somebody who searches for a collision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

Lanes = tuple[int, int]

NO_ROWS: Lanes = (0, 0)

MAX_SPANS = 8
"""Spans that a cursor keeps: one, and one more for each restart from a state saved without an agreement."""

_MASK = (1 << 64) - 1
_BLOCK = 16_384
# Odd 64-bit constants: the fractions of the golden ratio, sqrt(2), sqrt(3), sqrt(5), with the lowest bit set.
_POSITION_KEYS = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0x6A09E667F3BCC909))
_ID_KEYS = (np.uint64(0xBB67AE8584CAA73B), np.uint64(0x3C6EF372FE94F82B))
_SALTS = (np.uint64(0x243F6A8885A308D3), np.uint64(0x13198A2E03707344))
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)


class CoverageSpan(msgspec.Struct, frozen=True, array_like=True):
    """The digest of the samples committed at positions [start, stop)."""

    start: int
    stop: int
    lanes: Lanes


def row_hashes(positions: NDArray[np.int64], ids: NDArray[np.int64]) -> NDArray[np.uint64]:
    """The hashes that rows add to the two lanes.

    Args:
        positions: (k,) int64, places in the global sequence.
        ids: (k,) int64, the samples there.

    Returns:
        (2, k) uint64.
    """
    hashes = np.empty((2, positions.size), np.uint64)
    for start in range(0, positions.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        unsigned_positions = positions[block].view(np.uint64)
        unsigned_ids = ids[block].view(np.uint64)
        scratch = np.empty_like(unsigned_ids)
        for lane in (0, 1):
            _hash_lane(lane, unsigned_positions, unsigned_ids, out=hashes[lane, block], scratch=scratch)
    return hashes


def _hash_lane(
    lane: int,
    positions: NDArray[np.uint64],
    ids: NDArray[np.uint64],
    *,
    out: NDArray[np.uint64],
    scratch: NDArray[np.uint64],
) -> None:
    np.multiply(positions, _POSITION_KEYS[lane], out=out)
    np.multiply(ids, _ID_KEYS[lane], out=scratch)
    np.add(out, scratch, out=out)
    np.add(out, _SALTS[lane], out=out)
    for factor in (_MIX_1, _MIX_2):
        np.right_shift(out, _SHIFT, out=scratch)
        np.bitwise_xor(out, scratch, out=out)
        np.multiply(out, factor, out=out)
    np.right_shift(out, _SHIFT, out=scratch)
    np.bitwise_xor(out, scratch, out=out)


def sum_lanes(positions: NDArray[np.int64], ids: NDArray[np.int64]) -> Lanes:
    """The digest of these rows: positions (k,) int64, ids (k,) int64."""
    first, second = row_hashes(positions, ids).sum(axis=1, dtype=np.uint64).tolist()
    return int(first), int(second)


def add_lanes(a: Lanes, b: Lanes) -> Lanes:
    """The digest of the rows of both parts."""
    return (a[0] + b[0]) & _MASK, (a[1] + b[1]) & _MASK


def add_span(spans: tuple[CoverageSpan, ...], span: CoverageSpan) -> tuple[CoverageSpan, ...]:
    """`spans` and one more, joined where they meet; the oldest are forgotten beyond `MAX_SPANS`."""
    if span.start == span.stop:
        return spans
    if spans and spans[-1].stop == span.start:
        last = spans[-1]
        return (*spans[:-1], CoverageSpan(last.start, span.stop, add_lanes(last.lanes, span.lanes)))
    return (*spans, span)[-MAX_SPANS:]
