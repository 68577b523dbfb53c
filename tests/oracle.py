"""What the package must do, in plain Python, one sample at a time.

Written from the words of the design, not from the code: nothing here is imported from the package, nothing is computed
in closed form, and no speed is sought. Rows are dealt to ranks like cards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from fractions import Fraction
from math import isqrt
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

MASK = (1 << 64) - 1


@dataclass(frozen=True)
class Row:
    """One row of an update: a sample at its position, or padding that repeats a sample."""

    position: int
    id: int
    is_padding: bool = False


@dataclass(frozen=True)
class RankMicrobatch:
    """What one rank runs in one microbatch."""

    rows: tuple[Row, ...]
    filler_id: int | None
    num_filler: int

    @property
    def ids(self) -> list[int]:
        """IDs of the samples, padding and filler left out."""
        return [row.id for row in self.rows if not row.is_padding]

    @property
    def positions(self) -> list[int]:
        """Positions of the samples, padding and filler left out."""
        return [row.position for row in self.rows if not row.is_padding]

    @property
    def data(self) -> list[int]:
        """IDs of all that the model sees: samples, then padding, then filler."""
        filler = [] if self.filler_id is None else [self.filler_id] * self.num_filler
        return [row.id for row in self.rows] + filler

    @property
    def weights(self) -> list[int]:
        """1 for each row, 0 for each filler row."""
        return [1] * len(self.rows) + [0] * self.num_filler


@dataclass(frozen=True)
class OracleUpdate:
    """One optimizer update, and the place where the next one starts."""

    rows: tuple[Row, ...]
    next_epoch: int
    next_offset: int
    dropped: int

    @property
    def samples(self) -> list[Row]:
        """The rows that are no padding."""
        return [row for row in self.rows if not row.is_padding]

    @property
    def num_padding(self) -> int:
        """The rows that are padding."""
        return len(self.rows) - len(self.samples)


@dataclass(frozen=True)
class Task:
    """A run: a dataset in an order, cut into updates.

    `order[epoch][offset]` is an ID; epochs beyond the list begin again with its first.
    """

    order: list[list[int]]
    global_batch: int
    tail: str = "carry"
    epochs: int | None = None

    @property
    def length(self) -> int:
        """N."""
        return len(self.order[0])

    def id_at(self, epoch: int, offset: int) -> int:
        """The ID at a place."""
        return self.order[epoch % len(self.order)][offset]

    def settle(self, epoch: int, offset: int) -> tuple[int, int, int]:
        """(epoch, offset, dropped) of the place where an update can start, from a place at most N into an epoch."""
        dropped = 0
        if self.tail == "drop" and self.length - offset < self.global_batch:
            while offset < self.length:
                dropped += 1
                offset += 1
        if offset == self.length:
            return epoch + 1, 0, dropped
        return epoch, offset, dropped

    def updates(self, epoch: int = 0, offset: int = 0) -> Iterator[OracleUpdate]:
        """All updates from a place where one starts, taken sample by sample."""
        while self.epochs is None or epoch < self.epochs:
            update = self._next_update(epoch, offset)
            yield update
            epoch, offset = update.next_epoch, update.next_offset

    def _next_update(self, epoch: int, offset: int) -> OracleUpdate:
        rows: list[Row] = []
        while len(rows) < self.global_batch:
            if offset == self.length:
                is_end_of_run = self.epochs is not None and epoch + 1 == self.epochs
                if self.tail != "carry" or is_end_of_run:
                    break
                epoch, offset = epoch + 1, 0
            rows.append(Row(epoch * self.length + offset, self.id_at(epoch, offset)))
            offset += 1
        assert self.tail != "drop" or len(rows) == self.global_batch
        repeat = 0
        while self.tail == "pad" and len(rows) < self.global_batch:
            where = repeat % self.length
            rows.append(Row(epoch * self.length + where, self.id_at(epoch, where), is_padding=True))
            repeat += 1
        return OracleUpdate(tuple(rows), *self.settle(epoch, offset))


def accumulation_parts(num_rows: int, num_replicas: int, microbatch: int) -> list[int]:
    """Rows of the busiest rank in each microbatch: its rows dealt to as few microbatches as hold them."""
    hands = [0] * num_replicas
    for card in range(num_rows):
        hands[card % num_replicas] += 1
    busiest = max(hands)
    steps = 1
    while steps * microbatch < busiest:
        steps += 1
    parts = [0] * steps
    for card in range(busiest):
        parts[card % steps] += 1
    return parts


def split_update(
    rows: tuple[Row, ...], *, num_replicas: int, microbatch: int, phase: int = 0, pad_microbatches: bool = False
) -> list[list[RankMicrobatch]]:
    """The microbatches of an update, each a list of what every rank runs."""
    waiting = list(rows[phase:])
    split = []
    for part in accumulation_parts(len(waiting), num_replicas, microbatch):
        stretch, waiting = waiting[: part * num_replicas], waiting[part * num_replicas :]
        hands: list[list[Row]] = [[] for _ in range(num_replicas)]
        for place, row in enumerate(stretch):
            hands[place % num_replicas].append(row)
        together = []
        for hand in hands:
            wanted = microbatch if pad_microbatches else 1
            num_filler = wanted - len(hand) if len(hand) < wanted else 0
            together.append(RankMicrobatch(tuple(hand), stretch[0].id if num_filler else None, num_filler))
        split.append(together)
    assert not waiting
    return split


def end_of_microbatch(rows: tuple[Row, ...], *, num_replicas: int, microbatch: int, index: int, phase: int = 0) -> int:
    """Rows of an update that all ranks together have read when microbatch `index` is over."""
    split = split_update(rows, num_replicas=num_replicas, microbatch=microbatch, phase=phase)
    return phase + sum(len(hand.rows) for together in split[: index + 1] for hand in together)


def loss_scale(total: int, *, num_replicas: int, gradient_reduction: str, reduction_size: int | None = None) -> float:
    """The factor with which the reduced sum of losses becomes the sum divided by `total`."""
    if gradient_reduction == "sum":
        return float(Fraction(1, total))
    return float(Fraction(num_replicas if reduction_size is None else reduction_size, total))


@dataclass
class OracleCursor:
    """Committed progress, kept by hand."""

    task: Task
    target_tokens: list[int] | None = None
    applied: int = 0
    skipped: int = 0
    samples: int = 0
    tokens: int = 0
    epoch: int = 0
    offset: int = 0
    padding: int = 0
    dropped: int = 0
    committed: list[Row] = field(default_factory=list)

    @property
    def updates(self) -> int:
        """Updates committed."""
        return self.applied + self.skipped

    @property
    def position(self) -> int:
        """Place of the next sample in the run."""
        return self.epoch * self.task.length + self.offset

    def numbers(self) -> dict[str, int]:
        """What the package's cursor must say."""
        names = ("applied", "skipped", "samples", "tokens", "epoch", "offset", "padding", "dropped")
        return {name: getattr(self, name) for name in names}

    def upcoming(self) -> Iterator[OracleUpdate]:
        """The updates that are left."""
        return self.task.updates(self.epoch, self.offset)

    def commit(self, update: OracleUpdate, *, applied: bool = True) -> None:
        """Count one update, which must be the next."""
        if applied:
            self.applied += 1
        else:
            self.skipped += 1
        self.committed += update.samples
        self.samples += len(update.samples)
        self.padding += update.num_padding
        self.dropped += update.dropped
        self.epoch, self.offset = update.next_epoch, update.next_offset
        if self.target_tokens is not None:
            self.tokens += sum(self.target_tokens[row.id] for row in update.samples)


# The coverage digest. Odd constants are the first 64 bits after the point of irrational numbers, lowest bit set.


def _fraction_bits(number: int) -> int:
    """The first 64 bits after the point of the square root of `number`."""
    return isqrt(number << 128) & MASK


_GOLDEN = ((isqrt(5 << 128) + (1 << 64)) // 2) & MASK
_POSITION_KEYS = (_GOLDEN | 1, _fraction_bits(2) | 1)
_ID_KEYS = (_fraction_bits(3) | 1, _fraction_bits(5) | 1)
# the first 128 bits after the point of pi
_SALTS = (0x243F6A8885A308D3, 0x13198A2E03707344)


def _fmix64(value: int) -> int:
    """The finishing mixer of MurmurHash3."""
    value ^= value >> 33
    value = value * 0xFF51AFD7ED558CCD & MASK
    value ^= value >> 33
    value = value * 0xC4CEB9FE1A85EC53 & MASK
    return value ^ value >> 33


def coverage_lanes(rows: list[Row]) -> tuple[int, int]:
    """Both lanes of the digest of these rows, each counted as often as it is in the list."""
    lanes = [0, 0]
    for row in rows:
        for lane in (0, 1):
            mixed = row.position * _POSITION_KEYS[lane] + row.id * _ID_KEYS[lane] + _SALTS[lane]
            lanes[lane] = (lanes[lane] + _fmix64(mixed & MASK)) & MASK
    return lanes[0], lanes[1]


def plain_order(ids: Callable[[int, int], int], *, length: int, epochs: int) -> list[list[int]]:
    """A function of (epoch, offset) as the lists that `Task` takes."""
    return [[ids(epoch, offset) for offset in range(length)] for epoch in range(epochs)]
