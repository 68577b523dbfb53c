"""The records of one rank's file as columns of numpy arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from numpy.typing import NDArray

    from resumable_data.ledger.records import Delivered

COLUMNS = ("update", "index", "start", "stride", "count", "padding", "filler", "parts")
_POSITION_MAX = 1 << 62


class Deliveries(msgspec.Struct, frozen=True):
    """Deliveries of one file, one after another, a column per field of `Delivered`.

    Attributes:
        update: (n,) int64, and likewise index, start, stride, count, padding, filler and parts.
        digest: (n,) uint64.
    """

    update: NDArray[np.int64]
    index: NDArray[np.int64]
    start: NDArray[np.int64]
    stride: NDArray[np.int64]
    count: NDArray[np.int64]
    padding: NDArray[np.int64]
    filler: NDArray[np.int64]
    parts: NDArray[np.int64]
    digest: NDArray[np.uint64]

    def __len__(self) -> int:
        return self.update.size

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Deliveries:
        """The records that numpy indexing with `which` gives."""
        return Deliveries(*(getattr(self, name)[which] for name in (*COLUMNS, "digest")))


class Commits(msgspec.Struct, frozen=True):
    """The `Commit` records of one file, in order.

    Attributes:
        update: (n,) int64.
        applied: (n,) bool.
        after: (n,) int64, how many deliveries come before the commit in the file.
    """

    update: NDArray[np.int64]
    applied: NDArray[np.bool_]
    after: NDArray[np.int64]


class Rewinds(msgspec.Struct, frozen=True):
    """The `Rewind` records of one file, in order.

    Attributes:
        update: (n,) int64.
        after: (n,) int64, how many deliveries come before the rewind in the file.
        after_commits: (n,) int64, how many commits come before it.
    """

    update: NDArray[np.int64]
    after: NDArray[np.int64]
    after_commits: NDArray[np.int64]


class Jumps(msgspec.Struct, frozen=True):
    """The `Jump` records of one file, in order.

    Attributes:
        update: (n,) int64.
        position: (n,) int64.
        after: (n,) int64, how many deliveries come before it in the file.
    """

    update: NDArray[np.int64]
    position: NDArray[np.int64]
    after: NDArray[np.int64]


class UnreadableRows(msgspec.Struct, frozen=True):
    """The `Unreadable` records of one file, in order.

    Attributes:
        update: (n,) int64, and likewise index, position and id.
        after: (n,) int64, how many deliveries come before it in the file: the number of the one that it is about.
    """

    update: NDArray[np.int64]
    index: NDArray[np.int64]
    position: NDArray[np.int64]
    id: NDArray[np.int64]
    after: NDArray[np.int64]

    def __len__(self) -> int:
        return self.update.size

    def take(self, which: NDArray[np.int64] | NDArray[np.bool_]) -> UnreadableRows:
        """The records that numpy indexing with `which` gives."""
        columns = (self.update, self.index, self.position, self.id, self.after)
        return UnreadableRows(*(column[which] for column in columns))


def deliveries_of(columns: NDArray[np.int64], digest: NDArray[np.uint64]) -> Deliveries:
    """Deliveries from (8, n) int64, a row for each of `COLUMNS`, and their digests."""
    update, index, start, stride, count, padding, filler, parts = columns
    return Deliveries(update, index, start, stride, count, padding, filler, parts, digest)


def concatenate(blocks: list[Deliveries]) -> Deliveries:
    """Blocks of deliveries as one."""
    columns = [np.empty((len(COLUMNS), 0), np.int64)]
    columns += [np.stack([getattr(block, name) for name in COLUMNS]) for block in blocks]
    digests = [np.empty(0, np.uint64), *(block.digest for block in blocks)]
    return deliveries_of(np.concatenate(columns, axis=1), np.concatenate(digests))


def gather(blocks: Iterable[Deliveries], num_records: int) -> Iterator[Deliveries]:
    """The same deliveries in blocks of at least `num_records`, but for the last one."""
    held: list[Deliveries] = []
    for block in blocks:
        held.append(block)
        if sum(map(len, held)) >= num_records:
            yield held[0] if len(held) == 1 else concatenate(held)
            held = []
    if held:
        yield concatenate(held)


def shape_of(record: Delivered) -> tuple[int, ...]:
    """A record's fields, those of `COLUMNS`."""
    return (
        record.update,
        record.index,
        record.start,
        record.stride,
        record.count,
        record.padding,
        record.filler,
        record.parts,
    )


def write_out(given: NDArray[np.int64], is_again: NDArray[np.bool_], is_next: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The columns of deliveries of which some only say that they are like the one before, see `Again`.

    Args:
        given: (k, 8) int64, what those are that say it, in order.
        is_again: (n,) bool, which deliveries are like the one before.
        is_next: (n,) bool, which of those begin the next update.

    Returns:
        (8, n) int64.

    Raises:
        ValueError: One goes on from nothing, or from what it cannot; says which.
    """
    if not is_again.any():
        return given.T
    if is_again[0]:
        raise ValueError("one that goes on from none")
    number = np.arange(is_again.size)
    group = np.cumsum(~is_again) - 1
    first = np.flatnonzero(~is_again)[group]
    step = _steps(given, np.bincount(group))
    columns: NDArray[np.int64] = given[group].T.copy()
    update, index, start, parts = columns[0], columns[1], columns[2], columns[7]
    updates = np.cumsum(is_next)
    update += updates - updates[first]
    begins = np.maximum.accumulate(np.where(is_again & ~is_next, 0, number))
    index[...] = np.where(is_next, 0, index)[begins] + (number - begins) * parts
    start += (number - first) * step[group]
    return columns


def _steps(given: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions from one microbatch to the next that is like it: (k,) int64; `sizes` of them are to stay in int64."""
    _, _, start, stride, count, padding, filler, _ = given.T
    is_plain = (padding == 0) & (filler == 0) & (count > 0)
    if not is_plain[sizes > 1].all():
        raise ValueError("one that goes on from a padded, filled or empty one")
    fits = stride <= _POSITION_MAX // np.maximum(count, 1)
    step: NDArray[np.int64] = np.where(fits, stride * np.where(fits, count, 0), _POSITION_MAX)
    if not (sizes - 1 <= (_POSITION_MAX - start) // np.maximum(step, 1)).all():
        raise ValueError("positions beyond 2^62")
    return step
