"""IDs of packed rows: a hash of a row's pieces, so that a ledger and a coverage digest tell what was in it.

Each piece adds a hash of its document, start and stop and of its place in the row; the sum is mixed once more. The
mixing is `fmix64` of MurmurHash3 (Appleby, public domain). It finds accidents; it does not withstand somebody who
searches for a collision.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.ledger.row_pieces import Pieces
    from resumable_data.order import Int64Array

ROW_ID_BITS = 61

# Odd 64-bit constants: the fractions of the square roots of 7, 11, 13 and 17, with the lowest bit set.
_DOCUMENT = np.uint64(0xA54FF53A5F1D36F1)
_START = np.uint64(0x510E527FADE682D1)
_STOP = np.uint64(0x9B05688C2B3E6C1F)
_PLACE = np.uint64(0x1F83D9ABFB41BD6B)
_MIX_1 = np.uint64(0xFF51AFD7ED558CCD)
_MIX_2 = np.uint64(0xC4CEB9FE1A85EC53)
_SHIFT = np.uint64(33)
_UNUSED_BITS = np.uint64(64 - ROW_ID_BITS)


def row_ids(rows: Pieces) -> Int64Array:
    """The ID of each row: ``(num_rows,)`` int64 in ``[0, 2**ROW_ID_BITS)``."""
    if rows.edges.size < 2:
        return np.empty(0, np.int64)
    begins = rows.edges[:-1]
    place = np.arange(rows.document.size) - np.repeat(begins, rows.edges[1:] - begins)  # in its row, from 0
    hashes = rows.document.view(np.uint64) * _DOCUMENT
    hashes += rows.start.view(np.uint64) * _START
    hashes += rows.stop.view(np.uint64) * _STOP
    hashes += place.view(np.uint64) * _PLACE
    sums = np.add.reduceat(mix(hashes), begins)
    ids: Int64Array = (mix(sums) >> _UNUSED_BITS).view(np.int64)
    return ids


def mix(hashes: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """`fmix64` of each number, in place."""
    for factor in (_MIX_1, _MIX_2):
        hashes ^= hashes >> _SHIFT
        hashes *= factor
    hashes ^= hashes >> _SHIFT
    return hashes
