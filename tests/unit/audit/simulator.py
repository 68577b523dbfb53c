"""A training run reduced to its ledger, with every number kept in plain Python.

It knows nothing of `resumable_data.plan`: an update's rows are a list, dealt out like cards, stretch by stretch.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from resumable_data.cursor import CoverageSpan, Cursor, Recipe, resume_cursor, sum_lanes
from resumable_data.ledger import Ledger, digest_ids
from resumable_data.order import ids_at, order_from_description

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from resumable_data.ledger import RankWriter

RUN_ID = "00000000000000aa"


class Update(NamedTuple):
    """One update: virtual positions, how many of the last ones are padding, and the cursor's next place."""

    rows: list[int]
    padding: int
    next_position: int
    dropped: int


@dataclass(frozen=True)
class Row:
    """What a rank delivers in one microbatch."""

    start: int
    stride: int
    count: int
    padding: int


class Killed(Exception):
    """The job died."""


@dataclass
class Checkpoint:
    """A saved cursor, and what had been trained on."""

    cursor: Cursor
    trained: Counter[int]


def take_update(recipe: Recipe, position: int, epochs: int | None) -> Update | None:
    """The update at a position, by counting rows one after another."""
    length, batch, tail = recipe.length, recipe.global_batch, recipe.tail
    if epochs is not None and position >= epochs * length:
        return None
    end = (position // length + 1) * length
    if tail == "carry":
        end = epochs * length if epochs is not None else position + batch
    stop = min(position + batch, end)
    rows, padding, dropped = list(range(position, stop)), 0, 0
    if tail == "pad":
        padding = batch - len(rows)
        rows = list(range(position, position + batch))
    if tail == "drop" and (-stop) % length < batch:
        dropped = (-stop) % length
    return Update(rows, padding, stop + dropped, dropped)


def deal(update: Update, num_replicas: int, microbatch: int) -> list[list[Row]]:
    """Microbatch by microbatch, rank by rank, who gets which rows."""
    busiest = -(-len(update.rows) // num_replicas)
    steps = -(-busiest // microbatch)
    sizes = [busiest // steps + (i < busiest % steps) for i in range(steps)]
    samples = set(update.rows[: len(update.rows) - update.padding])
    dealt, left = [], list(update.rows)
    for size in sizes:
        stretch, left = left[: size * num_replicas], left[size * num_replicas :]
        hands = [stretch[rank::num_replicas] for rank in range(num_replicas)]
        dealt.append(
            [
                Row(
                    hand[0] if hand else update.rows[0],
                    hand[1] - hand[0] if len(hand) > 1 else num_replicas,
                    len(hand),
                    sum(row not in samples for row in hand),
                )
                for hand in hands
            ]
        )
    assert not left
    return dealt


@dataclass
class Run:
    """A run with a ledger: launch, train, checkpoint, kill, launch again.

    Attributes:
        path: The ledger.
        recipe: The first launch's recipe.
        epochs: Epochs of the run.
        tamper: Called with each delivery's arguments before it is recorded; returns those to record, perhaps none
            or several.
    """

    path: Path
    recipe: Recipe
    epochs: int | None = None
    tamper: Callable[[int, dict[str, int]], list[dict[str, int]]] = lambda rank, record: [record]
    ids: str = "digest"
    delivered: Counter[int] = field(default_factory=Counter)
    trained: Counter[int] = field(default_factory=Counter)
    in_flight: int = 0

    def __post_init__(self) -> None:
        self.cursor = Cursor(recipe=self.recipe)
        self.order = order_from_description(self.recipe.order)
        self.kill_at: int | None = None
        self._writers: list[RankWriter] = []
        self._covered = 0

    def checkpoint(self, *, agree: bool = True) -> Checkpoint:
        """Save, after the ranks agreed on the digest or not."""
        position = self.cursor.position
        if agree and position > self._covered:
            rows = np.array(sorted(p for p in self.trained if self._covered <= p < position), np.int64)
            lanes = sum_lanes(rows, ids_at(self.order, rows))
            self.cursor = self.cursor.with_coverage(CoverageSpan(self._covered, position, lanes))
            self._covered = position
        return Checkpoint(self.cursor, Counter(self.trained))

    def launch(
        self, checkpoint: Checkpoint | None, *, num_replicas: int, microbatch: int, recipe: Recipe | None = None
    ) -> None:
        """Start an attempt from a checkpoint, or from scratch."""
        checkpoint = checkpoint or Checkpoint(Cursor(recipe=self.recipe), Counter())
        recipe = recipe or checkpoint.cursor.recipe
        self.cursor = resume_cursor(checkpoint.cursor, recipe, allow={"global_batch", "tail"})
        self.trained = Counter(checkpoint.trained)
        self._covered = self.cursor.position
        if checkpoint.cursor.coverage and checkpoint.cursor.coverage[-1].stop == checkpoint.cursor.position:
            self._covered = checkpoint.cursor.position
        self.in_flight = 0
        self._microbatch = microbatch
        ledger = Ledger(self.path, ids=self.ids, on_error="raise")
        self.claim = ledger.claim(
            self.cursor, num_replicas=num_replicas, microbatch=microbatch, epochs=self.epochs, run_id=RUN_ID
        )
        self._writers = [ledger.open_rank(self.claim, rank=rank) for rank in range(num_replicas)]

    def deliver(self, *, stop_after: int | None = None) -> bool:
        """Deliver the update at the cursor, or its first microbatches; False where the run is over."""
        update = take_update(self.cursor.recipe, self.cursor.position, self.epochs)
        if update is None:
            return False
        for index, hands in enumerate(deal(update, len(self._writers), self._microbatch)[:stop_after]):
            for rank, row in enumerate(hands):
                self._record(rank, index, row)
        return True

    def commit(self, *, applied: bool = True, ranks: int | None = None) -> None:
        """Commit the update at the cursor, on all ranks or on the first few before a kill."""
        for writer in self._writers[:ranks]:
            writer.commit(self.cursor.updates, applied)
        if ranks is not None:
            raise Killed
        update = take_update(self.cursor.recipe, self.cursor.position, self.epochs)
        assert update is not None
        samples = update.rows[: len(update.rows) - update.padding]
        self.trained.update(samples)
        self.in_flight = 0
        length = self.recipe.length
        self.cursor = msgspec.structs.replace(
            self.cursor,
            run_id=RUN_ID,
            attempt=self.claim.attempt,
            applied=self.cursor.applied + applied,
            skipped=self.cursor.skipped + (not applied),
            samples=self.cursor.samples + len(samples),
            epoch=update.next_position // length,
            offset=update.next_position % length,
            padding=self.cursor.padding + update.padding,
            dropped=self.cursor.dropped + update.dropped,
        )

    def train(self, num_updates: int) -> None:
        """Deliver and commit some updates, or fewer where the run is over."""
        for _ in range(num_updates):
            if not self.deliver():
                return
            self.commit()

    def rewind(self) -> None:
        """Begin the iteration again at the cursor."""
        for writer in self._writers:
            writer.rewind(self.cursor.updates)
        self.in_flight = 0

    def kill(self) -> None:
        """End the launch without a word."""
        for writer in self._writers:
            writer._release()

    def close(self) -> None:
        """End the launch in order."""
        for writer in self._writers:
            writer.close()

    def _record(self, rank: int, index: int, row: Row) -> None:
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                raise Killed
        virtual = [row.start + k * row.stride for k in range(row.count)]
        num_samples = row.count - row.padding
        self.delivered.update(virtual[:num_samples])
        self.in_flight += num_samples
        record = {
            "update": self.cursor.updates,
            "index": index,
            **asdict(row),
            "filler": 0 if row.count else 1,
        }
        for one in self.tamper(rank, record):
            ids = self.fetch(one)
            arguments: dict[str, Any] = {"digest": digest_ids(ids), **one}
            self._writers[rank].delivered(**arguments, ids=ids)

    def fetch(self, record: dict[str, int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The IDs of a record's rows, one at a time."""
        length = self.recipe.length
        positions = []
        for k in range(record["count"]):
            position = record["start"] + k * record["stride"]
            if self.cursor.recipe.tail == "pad":
                epoch = self.cursor.position // length
                position = epoch * length + (position - epoch * length) % length
            positions.append(position)
        return ids_at(self.order, np.array(positions, np.int64))
