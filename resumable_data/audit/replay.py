"""From a cursor back to its history: the stretches of updates between declared changes of the recipe."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from resumable_data.audit.findings import finding
from resumable_data.audit.packed import check_place, may_have_led_to
from resumable_data.audit.updates import Stretch
from resumable_data.cursor import Recipe, RecipeChange, compare_recipes
from resumable_data.findings import NOTE
from resumable_data.ledger.frames import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

    from resumable_data.audit.packed import PackedRows
    from resumable_data.cursor import Cursor, Migration, TakeOver
    from resumable_data.findings import Finding

UNKNOWN_EPOCHS = -1
_REACHABLE = 1 << 61
_ENDS_MAX = 1 << 16
_COUNTED = ("epoch", "offset", "samples", "padding", "dropped")


class Replay:
    """Counts on from a cursor, in closed form, through migrations.

    Args:
        recipe: The recipe in effect.
        start: The cursor, or the take-over, to count on from; None begins a run.
        epochs: Epochs of the whole run, None without an end; `UNKNOWN_EPOCHS` where it may have been any number,
            and been extended.
        rows: Of a run over packed rows, these.

    Attributes:
        stretches: One per recipe, oldest first.
        counted: What a cursor would hold now, of the fields epoch, offset, samples, padding and dropped.
        update: Index of the next update.
    """

    def __init__(
        self,
        recipe: Recipe,
        start: Cursor | TakeOver | None = None,
        *,
        epochs: int | None = UNKNOWN_EPOCHS,
        rows: PackedRows | None = None,
    ) -> None:
        self.counted = {name: getattr(start, name) if start else 0 for name in _COUNTED}
        self.update = start.updates if start else 0
        self.stretches: list[Stretch] = []
        self._epochs = epochs
        self._rows = rows
        self._begin(recipe)

    @property
    def recipe(self) -> Recipe:
        """The recipe in effect."""
        return self.stretches[-1].recipe

    def advance(self, stop_update: int, *, position: int) -> None:
        """Count the updates before `stop_update`; `position` is where they are said to have led."""
        stretch, counted = self.stretches[-1], self.counted
        length, batch = stretch.recipe.length, stretch.recipe.global_batch
        num_updates = stop_update - self.update
        if num_updates == 0:
            return
        epoch, offset, _ = stretch.place_after(num_updates)
        if self._epochs == UNKNOWN_EPOCHS and self._may_have_led_to(position, num_updates):
            epoch, offset = divmod(position, length)
        passed = epoch * length + offset - (counted["epoch"] * length + counted["offset"])
        num_samples = num_updates * batch if stretch.recipe.tail == "drop" else passed
        counted["epoch"], counted["offset"] = epoch, offset
        counted["samples"] += num_samples
        counted["dropped"] += passed - num_samples
        counted["padding"] += num_updates * batch - num_samples if stretch.recipe.tail == "pad" else 0
        self.update = stop_update

    def migrate(self, recipe: Recipe) -> None:
        """Go on under another recipe."""
        self._begin(recipe)
        place = self.stretches[-1].schedule.settle(self.counted["epoch"], self.counted["offset"])
        self.counted["epoch"], self.counted["offset"] = place.epoch, place.offset
        self.counted["dropped"] += place.dropped

    def differences(self, cursor: Cursor) -> str:
        """Fields in which a cursor differs from what was counted, with both values; empty where it does not."""
        return ", ".join(
            f"{name} {getattr(cursor, name)} in place of {value}"
            for name, value in self.counted.items()
            if getattr(cursor, name) != value
        )

    def _begin(self, recipe: Recipe) -> None:
        epochs = None if self._epochs == UNKNOWN_EPOCHS else self._epochs
        place = (self.counted["epoch"], self.counted["offset"])
        self.stretches.append(Stretch(recipe, *place, self.update, epochs, rows=self._rows))

    def _may_have_led_to(self, position: int, num_updates: int) -> bool:
        """Whether so many updates may have led to `position` where runs that ended there cut updates short.

        With ``"carry"`` a run's last update is short, and the run may have been extended afterwards.
        """
        stretch = self.stretches[-1]
        if self._rows is not None:
            return may_have_led_to(self._rows, stretch.recipe, stretch.position, position, num_updates)
        length, batch, start = stretch.recipe.length, stretch.recipe.global_batch, stretch.position
        num_ends = position // length - start // length
        if stretch.recipe.tail != "carry" or num_ends < 1:
            return False
        # The latest ends of epochs up to the position. One of them was the last end of a run, and whole updates
        # lead from there to the position; up to it, each end of an epoch may have cut one update short.
        ends = (position // length - np.arange(min(num_ends, _ENDS_MAX), dtype=np.int64)) * length
        earlier = num_ends - np.arange(ends.size)
        rest = num_updates - (position - ends) // batch
        fewest = -(-(ends - start) // batch)
        is_whole_from_end = (position - ends) % batch == 0
        return bool((is_whole_from_end & (fewest <= rest) & (rest < fewest + earlier)).any())


def is_reachable(cursor: Cursor) -> bool:
    """Whether its numbers are small enough to count with in int64; any real run's are."""
    counters = (cursor.updates, cursor.batches, cursor.position, cursor.samples, cursor.padding, cursor.dropped)
    batches = [cursor.recipe.global_batch] + [
        value
        for migration in cursor.migrations
        for change in migration.changes
        for value in (change.saved, change.now)
        if change.field == "global_batch"
    ]
    positions = [migration.position for migration in cursor.migrations]
    if not all(isinstance(batch, int) and 1 <= batch <= _REACHABLE for batch in batches):
        return False
    return (
        max(*counters, *positions, cursor.recipe.length) <= _REACHABLE
        and min([0, *positions]) >= 0
        and cursor.updates * max(int(batch) for batch in batches if batch) <= _REACHABLE
    )


def replay_cursor(cursor: Cursor, rows: PackedRows | None = None) -> tuple[Replay, list[Finding]]:
    """Count from the beginning of the run, or from its take-over, to a cursor, and hold the result against it.

    Of a run over packed rows, given these.
    """
    recipe = cursor.recipe
    for migration in reversed(cursor.migrations):
        recipe = _changed(recipe, migration.changes, backwards=True)
    replay = Replay(recipe, cursor.taken_over or None, rows=rows)
    findings = _replay_migrations(replay, cursor, cursor.migrations)
    if not findings and replay.differences(cursor):
        findings = [
            finding("RD404", "cursor", expected=_counted_from_updates(cursor), found=replay.differences(cursor))
        ]
    return replay, findings or check_place(rows, cursor, "cursor")


def count_cursor(cursor: Cursor, rows: PackedRows | None = None) -> tuple[list[Stretch], list[Finding]]:
    """The run's updates up to a cursor, and what is wrong with its numbers; no updates where it does not tell."""
    if not cursor.has_counted_batches:
        replay, findings = replay_cursor(cursor, rows)
        return replay.stretches, findings
    # Batches tell what they took, but not how many ranks there were: where nothing was dropped, that is everything.
    start, everything = cursor.taken_over or None, msgspec.structs.replace(cursor.recipe, tail="carry")
    dropped = cursor.dropped - (start.dropped if start else 0)
    if not dropped:
        return [Stretch(everything, start.epoch if start else 0, start.offset if start else 0, 0)], []
    found = f"{dropped} of them dropped at ends of epochs, where depends on the ranks of each launch"
    return [], [finding("RD406", "cursor", expected=f"all {cursor.position} positions delivered", found=found)]


def check_successor(
    before: Cursor, after: Cursor, *, epochs: int | None, where: str, rows: PackedRows | None = None
) -> list[Finding]:
    """Hold a cursor against an earlier one of the same history, of a run of so many epochs."""
    if after.updates < before.updates:
        expected = f"at least the {before.updates} updates of the attempt that it goes on from"
        return [finding("RD401", where, expected=expected, found=f"{after.updates} updates")]
    if after.taken_over != before.taken_over:
        return [finding("RD401", where, expected="the take-over of the attempt it goes on from", found="another one")]
    if after.migrations[: len(before.migrations)] != before.migrations:
        return [
            finding("RD401", where, expected="the migrations of the attempt it goes on from", found="other migrations")
        ]
    if before.recipe.counts_batches:
        return _check_batch_successor(before, after, where)
    replay = Replay(before.recipe, before, epochs=epochs, rows=rows)
    findings = _replay_migrations(replay, after, after.migrations[len(before.migrations) :])
    if not findings and replay.differences(after):
        findings = [finding("RD401", where, expected=_counted_from_updates(after), found=replay.differences(after))]
    findings = findings or check_place(rows, after, where)
    return [msgspec.structs.replace(one, where=where) for one in findings]


def _check_batch_successor(before: Cursor, after: Cursor, where: str) -> list[Finding]:
    """What can be said without the ledger's files of a cursor that goes on from one that counts batches."""
    if after.batches < before.batches:
        expected = f"at least the {before.batches} batches of the attempt that it goes on from"
        return [finding("RD401", where, expected=expected, found=f"{after.batches} batches")]
    recipe = before.recipe
    for migration in after.migrations[len(before.migrations) :]:
        undone = _unlike(recipe, migration.changes)
        if undone:
            expected = f"changes of the recipe that held before update {migration.update}"
            return [finding("RD402", where, expected=expected, found=undone)]
        recipe = _changed(recipe, migration.changes)
    return [msgspec.structs.replace(one, where=where) for one in _undeclared(recipe, after.recipe)]


def check_take_over(cursor: Cursor, where: str, *, is_accepted: bool) -> list[Finding]:
    """Say that the part of the run before it was taken over is not proven; a note where that `is_accepted`."""
    before = cursor.taken_over
    if not before:
        return []
    position = before.epoch * cursor.recipe.length + before.offset
    expected = f"a record of positions [0, {position}), {before.updates} updates"
    found = f"the run was taken over at position {position} from another loader, source {shown(before.source)!r}"
    one = finding("RD112", where, expected=expected, found=found)
    return [msgspec.structs.replace(one, severity=NOTE) if is_accepted else one]


def _counted_from_updates(cursor: Cursor) -> str:
    return f"the place and counts that its {cursor.updates} updates lead to"


def _replay_migrations(replay: Replay, cursor: Cursor, migrations: Sequence[Migration]) -> list[Finding]:
    """Count on to the cursor's updates, through migrations."""
    for migration in migrations:
        if not replay.update <= migration.update <= cursor.updates:
            expected = f"a migration before update {replay.update} to {cursor.updates}"
            return [finding("RD404", "cursor", expected=expected, found=f"one before update {migration.update}")]
        undone = _unlike(replay.recipe, migration.changes)
        if undone:
            expected = f"changes of the recipe that held before update {migration.update}"
            return [finding("RD402", "cursor", expected=expected, found=undone)]
        replay.advance(migration.update, position=migration.position)
        replay.migrate(_changed(replay.recipe, migration.changes))
    replay.advance(cursor.updates, position=cursor.position)
    return _undeclared(replay.recipe, cursor.recipe)


def _undeclared(declared: Recipe, found: Recipe) -> list[Finding]:
    changes = compare_recipes(declared, found)
    if not changes:
        return []
    fields = ", ".join(f"{change.field} {change.saved!r} to {change.now!r}" for change in changes)
    return [finding("RD402", "cursor", expected="a declared migration for each change", found=fields)]


def _unlike(recipe: Recipe, changes: Sequence[RecipeChange]) -> str:
    """Which of the values that changes say they replace are not those of the recipe; empty where all are."""
    held = recipe.fields()
    wrong = [one for one in changes if one.field in held and held[one.field] != one.saved]
    return ", ".join(f"{one.field} {one.saved!r} to {one.now!r}, where it was {held[one.field]!r}" for one in wrong)


def _changed(recipe: Recipe, changes: Sequence[RecipeChange], *, backwards: bool = False) -> Recipe:
    """The recipe with changes made, or unmade. Changes of unknown fields are left out, and found later."""
    values: dict[str, Any] = {
        change.field: change.saved if backwards else change.now
        for change in changes
        if change.field in ("global_batch", "tail", "normalize", "fingerprint", "batch_unit")
    }
    if "batch_unit" in values:
        values["batch_unit"] = values["batch_unit"] or msgspec.UNSET
    return msgspec.structs.replace(recipe, **values)
