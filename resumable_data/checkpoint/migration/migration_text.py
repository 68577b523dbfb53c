"""The migration manifest as a person reads it."""

from __future__ import annotations

from textwrap import wrap
from typing import TYPE_CHECKING

from resumable_data.ledger.frames import shown
from resumable_data.plan.remarks import span_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from resumable_data.checkpoint.migration.declaration import Declaration
    from resumable_data.checkpoint.migration.effects import RandomEffect, Side
    from resumable_data.checkpoint.migration.migration_file import DeclaredChange, MigrationManifest

_WIDTH = 96
_UNKNOWN = "not known"
_RANDOM = {
    "none": "the checkpoint holds no states of global generators: whatever draws from them goes on as it is seeded",
    "unknown": "whether the checkpoint holds states of global generators is not known",
    "restored": "the global generators of {saved} processes go on where they were, torch's, numpy's and random's",
    "refused": 'states of {saved} processes, {needed} needed: a load refuses them; RandomStates(on_change="reseed") '
    "seeds anew, and records it",
    "seeded anew": "states of {saved} processes, {needed} needed: all are seeded anew by seed, update and data-"
    "parallel rank",
}


def format_migration(migration: MigrationManifest) -> str:
    """Both sides, what must survive, what changes and why, the batch, schedules, the epoch, random numbers."""
    sections = [
        [_headline(migration)],
        _table(migration),
        ["must survive", *_survives(migration.declaration)],
        ["changes", *(line for change in migration.changes for line in _change(change))],
        ["the batch", *_batch("source", migration.source), *_batch("destination", migration.destination)],
        ["what counts", *_counts(migration)],
        ["random numbers", *_random(migration.effects.random)],
    ]
    if not migration.changes:
        sections[3] = ["changes", "  none"]
    if migration.unknown:
        sections.append([f"not told by the checkpoint, and so not compared: {', '.join(migration.unknown)}"])
    return "\n\n".join("\n".join(map(shown, lines)) for lines in sections)


def _headline(migration: MigrationManifest) -> str:
    place = "a checkpoint without a cursor" if migration.update is None else f"update {migration.update:,}"
    run = f" of run {migration.run_id}" if migration.run_id else ""
    needed = ", ".join(change.field for change in migration.needed)
    if not needed:
        return f"{place}{run}: nothing changes that must be declared; risk: {migration.risk or 'none'}"
    return f"{place}{run}: to be declared: {needed}; risk: {', '.join(reversed(migration.risks))}"


def _table(migration: MigrationManifest) -> list[str]:
    rows: list[tuple[str, Callable[[Side], str]]] = [
        ("processes", lambda side: f"{side.world_size:,}" if side.world_size else _UNKNOWN),
        ("mesh", _mesh),
        ("data-parallel ranks", lambda side: f"{side.dp_size:,}" if side.dp_size else _UNKNOWN),
        ("global batch", lambda side: f"{side.batch.global_batch:,} {side.batch.unit}" if side.batch else _UNKNOWN),
        ("microbatch, at most", lambda side: f"{side.batch.microbatch:,}" if side.batch else _UNKNOWN),
        ("accumulation steps", _steps),
        ("left in the epoch", lambda side: _updates(side.updates_left_in_epoch)),
        ("schedule counts", lambda side: side.schedule_unit or _UNKNOWN),
    ]
    sides = migration.source, migration.destination
    names = sorted({name for side in sides for name in side.precision})
    rows += [(name, _precision(name)) for name in names]
    cells = [("", "source", "destination"), *((f"  {name}", *map(show, sides)) for name, show in rows)]
    widths = [max(len(row[column]) for row in cells) + 3 for column in (0, 1)]
    return ["".join((row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2])).rstrip() for row in cells]


def _precision(name: str) -> Callable[[Side], str]:
    return lambda side: side.precision.get(name, "as parameters")


def _mesh(side: Side) -> str:
    return " x ".join(f"{name} {size}" for name, size in side.mesh.axes) or _UNKNOWN


def _steps(side: Side) -> str:
    if side.batch is None:
        return _UNKNOWN
    return "differ by update" if side.batch.accumulation_steps is None else f"{side.batch.accumulation_steps:,}"


def _updates(count: int | None) -> str:
    return _UNKNOWN if count is None else f"{count:,} updates"


def _survives(declaration: Declaration) -> Iterator[str]:
    of = declaration.continuity
    bounds = f", at most {of.replayed:,} samples replayed and {of.omitted:,} omitted" if of.kind == "bounded" else ""
    yield f"  data       {of.kind}{bounds}"
    what = declaration.invariant
    yield f"  invariant  {'position in the schedule' if what == 'schedule' else f'{what} of an update'}"
    for name, limit in declaration.tolerances.items():
        yield f"  tolerance  {name} {limit:g}"


def _change(change: DeclaredChange) -> Iterator[str]:
    yield f"  {change.field}: {change.saved} to {change.now} ({change.risk})"
    yield from _wrapped(change.effect)
    yield from _wrapped(f"why: {change.why or 'not said'}")


def _batch(name: str, side: Side) -> Iterator[str]:
    """The batch equation with its uneven shares, and what would divide."""
    if side.batch is None or side.layout is None or side.alternatives is None:
        of = side.batch
        yield f"  {name}: " + (
            _UNKNOWN
            if of is None
            else f"{of.global_batch:,} tokens over {of.dp_size:,} ranks of at most {of.microbatch:,} rows at once"
        )
        return
    at, even = side.layout, side.alternatives
    product = at.microbatch * at.num_replicas * at.accumulation_steps
    sign = "=" if product == at.num_rows else "<"
    yield (
        f"  {name}: {at.num_rows:,} {sign} microbatch {at.microbatch:,} x {at.num_replicas:,} ranks x "
        f"{at.accumulation_steps:,} steps"
    )
    stretches = ", ".join(f"{one.count:,} of {one.size:,}" for one in at.stretches)
    yield f"    shares: {span_text(at.min_rows, at.max_rows)} rows of a rank; steps over all ranks: {stretches}"
    batches, ranks = (", ".join(f"{one:,}" for one in many) for many in (even.global_batches, even.num_replicas_equal))
    yield f"    even: a global batch of {batches or 'none'} on these ranks, or this one on {ranks or 'no'} ranks"


def _counts(migration: MigrationManifest) -> Iterator[str]:
    at = migration.effects
    if at.updates is None:
        yield f"  {_UNKNOWN}: the checkpoint has no cursor"
        return
    again = (
        ""
        if at.same_samples_updates in (None, at.updates)
        else (f"; its samples are those of {at.same_samples_updates:,} updates at the destination")
    )
    yield f"  a schedule by updates stands at {at.updates:,}, before and after{again}"
    tokens = f"one by tokens at {at.tokens:,}" if at.tokens or not at.samples else "tokens are not counted"
    yield f"  a schedule by samples stands at {at.samples:,}, before and after; {tokens}"
    if at.interval_saved is None:
        yield f"  an interval of {at.interval_updates:,} updates becomes one in another unit"
    else:
        unit = migration.source.batch.unit if migration.source.batch else "samples"
        kept = "" if at.interval_saved == at.interval_now else f"; {at.interval_kept:,} updates keep it"
        yield (
            f"  an interval of {at.interval_updates:,} updates is {at.interval_saved:,} {unit} before, "
            f"{at.interval_now:,} after{kept}"
        )
    left = _UNKNOWN if at.samples_left_in_epoch is None else f"{at.samples_left_in_epoch:,} samples"
    yield f"  left in the epoch: {left}" + (f", {at.omitted:,} of them skipped at once" if at.omitted else "")


def _random(random: RandomEffect) -> Iterator[str]:
    text = _RANDOM[random.outcome].format(saved=f"{random.saved:,}", needed=f"{random.needed:,}")
    yield from _wrapped(text, indent=2)
    yield "  generators of a sample, by its ID, do not depend on ranks: they draw the same"


def _wrapped(text: str, indent: int = 4) -> list[str]:
    return wrap(text, _WIDTH, initial_indent=" " * indent, subsequent_indent=" " * indent)
