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


@dataclass(repr=False)
class Checkpoint:
    """A saved cursor, what had been trained on, and what the ledger says of it."""

    cursor: Cursor
    trained: Counter[int]
    recorded: Counter[int] = field(default_factory=Counter)

    def __repr__(self) -> str:
        return f"<save of attempt {self.cursor.attempt} at update {self.cursor.updates}>"


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
        ids: Like `key` and `fold_rows`, as for the ledger; may be changed between launches.
        key: See `ids`.
        fold_rows: See `ids`.
        num_peers: Further readers of each rank's samples that write files too.
        delivered: Positions of all samples of all launches, as they were recorded or are about to be.
        unrecorded: How many samples died with a job before they were recorded; not in `delivered`.
        delivered_in: Samples of each attempt, as recorded.
        trained: Positions of all samples in the surviving history.
        recorded: The same as the ledger has them, where `tamper` makes a difference.
        in_flight: Samples delivered and not committed.
    """

    path: Path
    recipe: Recipe
    epochs: int | None = None
    tamper: Callable[[int, dict[str, int]], list[dict[str, int]]] = lambda rank, record: [record]
    ids: str = "digest"
    key: str = ""
    fold_rows: int = 0
    num_peers: int = 0
    delivered: Counter[int] = field(default_factory=Counter)
    unrecorded: list[int] = field(default_factory=list)
    delivered_in: Counter[int] = field(default_factory=Counter)
    trained: Counter[int] = field(default_factory=Counter)
    recorded: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.cursor = Cursor(recipe=self.recipe)
        self.order = order_from_description(self.recipe.order)
        self.kill_at: int | None = None
        self._writers: list[RankWriter] = []
        self._peers: list[list[RankWriter]] = []
        self._folded: list[list[int]] = []
        self._ahead: dict[int, list[int]] = {}
        self._whole: set[int] = set()
        self._covered = 0
        self._starts: dict[int, Cursor] = {}
        self._saved: dict[int, int] = {}
        self._sizes: dict[Path, int] = {}

    @property
    def in_flight(self) -> int:
        """Samples delivered and not committed, as recorded."""
        return sum(map(len, self._ahead.values())) - sum(map(len, self._folded))

    @property
    def is_delivered(self) -> bool:
        """Whether the update at the cursor was delivered whole, so that it may be committed."""
        return self.cursor.updates in self._whole

    def checkpoint(self, *, agree: bool = True, is_complete: bool = False) -> Checkpoint:
        """Save, after the ranks agreed on the digest or not; `is_complete` puts the save into the ledger."""
        position = self.cursor.position
        if agree and position > self._covered:
            rows = np.array(sorted(p for p in self.trained if self._covered <= p < position), np.int64)
            lanes = sum_lanes(rows, ids_at(self.order, rows))
            self.cursor = self.cursor.with_coverage(CoverageSpan(self._covered, position, lanes))
            self._covered = position
        coverage = self.cursor.coverage
        if agree and coverage and coverage[-1].stop == position:
            self._write(lambda writer: writer.agreed(self.cursor.updates, coverage[-1]))
        if is_complete:
            self._write(lambda writer: writer.saved(self.cursor.updates))
            attempt = self.claim.attempt
            self._saved[attempt] = max(self._saved.get(attempt, 0), self.cursor.updates)
        return Checkpoint(self.cursor, Counter(self.trained), Counter(self.recorded))

    def launch(
        self, checkpoint: Checkpoint | None, *, num_replicas: int, microbatch: int, recipe: Recipe | None = None
    ) -> None:
        """Start an attempt from a checkpoint, or from scratch."""
        checkpoint = checkpoint or Checkpoint(Cursor(recipe=self.recipe), Counter())
        recipe = recipe or checkpoint.cursor.recipe
        self.cursor = resume_cursor(checkpoint.cursor, recipe, allow={"global_batch", "tail"})
        self.trained, self.recorded = Counter(checkpoint.trained), Counter(checkpoint.recorded)
        self._covered = self.cursor.position
        if checkpoint.cursor.coverage and checkpoint.cursor.coverage[-1].stop == checkpoint.cursor.position:
            self._covered = checkpoint.cursor.position
        self._ahead, self._whole = {}, set()
        self._microbatch = microbatch
        ledger = Ledger(
            self.path,
            ids=self.ids,
            key=self.key,
            fold_rows=self.fold_rows,
            peers=self.num_peers > 0,
            on_error="raise",
        )
        self.claim = ledger.claim(
            self.cursor, num_replicas=num_replicas, microbatch=microbatch, epochs=self.epochs, run_id=RUN_ID
        )
        self._starts[self.claim.attempt] = self.cursor
        for path in self.path.glob("attempt-*/*.ledger"):
            self._sizes.setdefault(path, path.stat().st_size)
        self._writers = [ledger.open_rank(self.claim, rank=rank) for rank in range(num_replicas)]
        self._peers = [
            [ledger.open_rank(self.claim, rank=rank, peer=peer) for peer in range(1, self.num_peers + 1)]
            for rank in range(num_replicas)
        ]
        self._folded = [[] for _ in range(num_replicas)]

    def deliver(self, *, ahead: int = 0, stop_after: int | None = None) -> bool:
        """Deliver an update, the one at the cursor or later, or its first microbatches; False where there is none."""
        position = self.cursor.position
        for _ in range(ahead):
            before = take_update(self.cursor.recipe, position, self.epochs)
            position = before.next_position if before else position
        update = take_update(self.cursor.recipe, position, self.epochs)
        if update is None:
            return False
        dealt = deal(update, len(self._writers), self._microbatch)
        for index, hands in enumerate(dealt[:stop_after]):
            for rank, row in enumerate(hands):
                place = (self.cursor.updates + ahead, position, index)
                self._record(rank, place, row, is_last=index == len(dealt) - 1)
        if stop_after is None or stop_after >= len(dealt):
            self._whole.add(self.cursor.updates + ahead)
        return True

    def commit(self, *, applied: bool = True, ranks: int | None = None) -> None:
        """Commit the update at the cursor, on all ranks or on the first few before a kill."""
        self._write(lambda writer: writer.commit(self.cursor.updates, applied), ranks=ranks)
        if ranks is not None:
            raise Killed
        update = take_update(self.cursor.recipe, self.cursor.position, self.epochs)
        assert update is not None
        samples = update.rows[: len(update.rows) - update.padding]
        self.trained.update(samples)
        self.recorded.update(self._ahead.pop(self.cursor.updates, ()))
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
        self._write(lambda writer: writer.rewind(self.cursor.updates))
        self._ahead, self._whole = {}, set()

    def kill(self) -> None:
        """End the launch without a word; what was to be folded into a record is lost."""
        for writer in self._all_writers():
            writer._release()
        for lost in self._folded:
            self.unrecorded.append(len(lost))
            self.delivered.subtract(lost)
            self.delivered_in[self.claim.attempt] -= len(lost)
            self._forget(lost)
            lost.clear()

    def close(self) -> None:
        """End the launch in order."""
        self._write(lambda writer: writer.close())

    def expected_notes(self) -> list[tuple[str, int]]:
        """Codes and attempts of what an audit says of a history without a fault: restarts from old saves, and forks."""
        grown = [path for path, size in self._sizes.items() if path.stat().st_size > size]
        notes = [("RD117", int(path.parent.name.removeprefix("attempt-"))) for path in grown]
        child = self.claim.attempt
        while parent := self._starts[child].attempt:
            if self._saved.get(parent, 0) > self._starts[child].updates:
                notes.append(("RD407", parent))
            child = parent
        return sorted(notes)

    def _forget(self, rows: list[int]) -> None:
        for row in rows:
            next(held for held in self._ahead.values() if row in held).remove(row)

    def _all_writers(self, ranks: int | None = None) -> list[RankWriter]:
        return [writer for rank, own in enumerate(self._writers[:ranks]) for writer in (own, *self._peers[rank])]

    def _write(self, write: Callable[[RankWriter], None], ranks: int | None = None) -> None:
        """Let all ranks, or the first few, and their peers write a record that is no delivery."""
        for writer in self._all_writers(ranks):
            write(writer)
        for folded in self._folded[:ranks]:
            folded.clear()

    def _record(self, rank: int, place: tuple[int, int, int], row: Row, *, is_last: bool) -> None:
        """Record a microbatch; `place` is its update, where that starts, and its index."""
        if self.kill_at is not None:
            self.kill_at -= 1
            if self.kill_at < 0:
                raise Killed
        update, position, index = place
        record = {"update": update, "index": index, **asdict(row), "filler": 0 if row.count else 1}
        for one in self.tamper(rank, record):
            samples = [one["start"] + k * one["stride"] for k in range(one["count"] - one["padding"])]
            self.delivered.update(samples)
            self.delivered_in[self.claim.attempt] += len(samples)
            self._ahead.setdefault(update, []).extend(samples)
            self._fold(rank, one, samples, is_last=is_last)
            ids = self.fetch(one, position)
            arguments: dict[str, Any] = {"digest": digest_ids(ids), **one}
            for writer in (self._writers[rank], *self._peers[rank]):
                writer.delivered(**arguments, ids=ids, is_last=is_last)

    def _fold(self, rank: int, one: dict[str, int], samples: list[int], *, is_last: bool) -> None:
        """Keep count of what is in no record yet, because more is to be folded into it."""
        folded = self._folded[rank]
        is_folded = 0 < one["count"] < self.fold_rows and not one["padding"] and not one["filler"]
        if not is_folded or (folded and folded[-1] + one["stride"] != one["start"]):
            folded.clear()
        if is_folded:
            folded += samples
        if is_last or len(folded) >= self.fold_rows:
            folded.clear()

    def fetch(self, record: dict[str, int], start: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """The IDs of the rows of a record of the update that starts at a position, one at a time."""
        length = self.recipe.length
        positions = []
        for k in range(record["count"]):
            position = record["start"] + k * record["stride"]
            if self.cursor.recipe.tail == "pad":
                epoch = start // length
                position = epoch * length + (position - epoch * length) % length
            positions.append(position)
        return ids_at(self.order, np.array(positions, np.int64))
