"""Were two runs trained on the same data?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from resumable_data.lookup.export import tables

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from resumable_data.lookup.walk import Walk

SCHEMA_VERSION = 1
_COUNTED_MAX = 1 << 32


class LedgerDiff(msgspec.Struct, frozen=True, kw_only=True):
    """What two runs' surviving histories have in common.

    Attributes:
        is_same: Whether both committed the same samples at the same positions, each as often.
        num_a: Samples that the first one committed, padding left out.
        num_b: Samples that the second one committed.
        num_common_positions: Positions, from each run's beginning on, at which both have the same sample.
        first_difference: The first position at which they do not; None where one only goes on further, or neither.
        sample_a: The first run's sample there, None for none.
        sample_b: The second run's.
        only_in_a: Samples that the first run has more often, wherever; each surplus counts.
        only_in_b: Samples that the second run has more often.
    """

    is_same: bool
    num_a: int
    num_b: int
    num_common_positions: int
    first_difference: int | None
    sample_a: int | None
    sample_b: int | None
    only_in_a: int
    only_in_b: int
    schema_version: int = SCHEMA_VERSION


def diff_ledgers(a: Walk, b: Walk) -> LedgerDiff:
    """Compare what two runs committed, whatever their ranks, launches and orders; 16 bytes a sample of memory."""
    positions_a, ids_a = _committed(a)
    positions_b, ids_b = _committed(b)
    size = min(positions_a.size, positions_b.size)
    differs = (positions_a[:size] != positions_b[:size]) | (ids_a[:size] != ids_b[:size])
    first = int(np.argmax(differs)) if differs.any() else size
    surplus = _surplus(ids_a, ids_b)
    position = sample_a = sample_b = None
    if first < size:
        position = int(min(positions_a[first], positions_b[first]))
        sample_a = int(ids_a[first]) if positions_a[first] == position else None
        sample_b = int(ids_b[first]) if positions_b[first] == position else None
    return LedgerDiff(
        is_same=first == positions_a.size == positions_b.size,
        num_a=positions_a.size,
        num_b=positions_b.size,
        num_common_positions=first,
        first_difference=position,
        sample_a=sample_a,
        sample_b=sample_b,
        only_in_a=int(surplus[surplus > 0].sum()),
        only_in_b=int(-surplus[surplus < 0].sum()),
    )


def _surplus(ids_a: NDArray[np.int64], ids_b: NDArray[np.int64]) -> NDArray[np.int64]:
    """How often more each sample is in the first than in the second."""
    largest = max(int(ids_a.max(initial=0)), int(ids_b.max(initial=0)))
    if largest > _COUNTED_MAX:  # hashes of packed rows: numbered anew
        numbers = np.unique(np.concatenate((ids_a, ids_b)), return_inverse=True)[1]
        ids_a, ids_b = numbers[: ids_a.size], numbers[ids_a.size :]
        largest = int(numbers.max(initial=0))
    return np.bincount(ids_a, minlength=largest + 1) - np.bincount(ids_b, minlength=largest + 1)


def _committed(walk: Walk) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions in ascending order and the samples there, padding left out."""
    parts = [table[~table["is_padding"]] for table in tables(walk, everything=False)]
    position = np.concatenate([np.empty(0, np.int64), *(part["position"] for part in parts)])
    ids = np.concatenate([np.empty(0, np.int64), *(part["id"] for part in parts)])
    arrangement = np.argsort(position, kind="stable")
    return position[arrangement], ids[arrangement]
