"""What a move means for the batch, for what counts steps, for what is left of the epoch, and for random numbers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

import msgspec

from resumable_data.checkpoint.migration.records import Value
from resumable_data.checkpoint.run_manifest import BatchInfo, RunManifest, ScheduleUnit
from resumable_data.ledger.records import Mesh
from resumable_data.plan import Alternatives, BatchPlan, Schedule
from resumable_data.plan.layout import Layout, lay_out

if TYPE_CHECKING:
    from resumable_data.cursor import Cursor

Count = Annotated[int, msgspec.Meta(ge=0)]
RandomOutcome = Literal["none", "unknown", "restored", "refused", "seeded anew"]


class Side(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One end of a move; what is not known is null, or empty.

    Attributes:
        world_size: All processes; 0 where not known.
        mesh: All axes, and those that are data-parallel.
        dp_size: Data-parallel ranks; 0 where not known.
        batch: The batch equation.
        layout: How an update falls on the ranks, shares of unequal size among them. Its loss scale is left out: it
            depends on how gradients are reduced.
        alternatives: The nearest global batches, and the nearest numbers of ranks, for which nothing is uneven.
        recipe: The recipe, field by field.
        precision: As in the run manifest.
        schedulers: Their classes, by name.
        schedule_unit: What the schedule's steps count.
        updates_left_in_epoch: Updates that start in the epoch at hand, from the checkpoint on.
    """

    world_size: Count
    mesh: Mesh
    dp_size: Count
    batch: BatchInfo | None
    layout: Layout | None
    alternatives: Alternatives | None
    recipe: dict[str, Value]
    precision: dict[str, str]
    schedulers: dict[str, str]
    schedule_unit: ScheduleUnit | None
    updates_left_in_epoch: Count | None


class RandomEffect(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What becomes of the global random generators, of which each process has its own.

    Attributes:
        policy: What the checkpoint says of them; empty where it holds none.
        saved: Processes that saved theirs.
        needed: Processes that need some.
        outcome: ``"restored"`` where processes and data-parallel ranks are as many as before; else by the policy
            ``"refused"`` or ``"seeded anew"``; ``"none"`` where none are saved.
    """

    policy: str
    saved: Count
    needed: Count
    outcome: RandomOutcome


class Effects(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a move does to whatever counts. The unit of a batch is that of its side.

    Attributes:
        updates: Updates until now: where a schedule that counts updates stands, before and after.
        samples: Samples until now; where a schedule that counts samples stands.
        tokens: Tokens until now, 0 where not counted; where a schedule that counts tokens stands.
        same_samples_updates: Updates that the samples until now take at the destination's global batch, rounded up.
        samples_left_in_epoch: From the checkpoint on.
        interval_updates: An interval in updates, say between two evaluations.
        interval_saved: Samples, or tokens, that lie in it before.
        interval_now: Those that lie in it after.
        interval_kept: The interval in updates that keeps its samples, or tokens, rounded to the nearest.
        omitted: Samples that are skipped at once, since the destination's tail drops what is left of the epoch.
        random: What becomes of random generators.
    """

    updates: Count | None
    samples: Count | None
    tokens: Count | None
    same_samples_updates: Count | None
    samples_left_in_epoch: Count | None
    interval_updates: Count
    interval_saved: Count | None
    interval_now: Count | None
    interval_kept: Count | None
    omitted: Count
    random: RandomEffect


def side_of(run: RunManifest) -> Side:
    """One end of a move, of the run manifest there."""
    cursor, batch = run.decode_cursor(), run.batch
    layout = alternatives = None
    if batch is not None and batch.unit == "samples":
        plan = BatchPlan(global_batch=batch.global_batch, microbatch=batch.microbatch, num_replicas=batch.dp_size)
        layout, alternatives = lay_out(plan, pad_microbatches=False, loss_scale=None), plan.alternatives()
    is_known = bool(run.world_size and run.mesh.axes)
    return Side(
        world_size=run.world_size,
        mesh=run.mesh,
        dp_size=run.dp_size if is_known else 0,
        batch=batch,
        layout=layout,
        alternatives=alternatives,
        recipe={} if cursor is None else cursor.recipe.fields(),
        precision=run.precision,
        schedulers={name: one.kind for name, one in run.schedulers.items()},
        schedule_unit=run.schedule_unit,
        updates_left_in_epoch=None if cursor is None else _updates_left(cursor),
    )


def find_effects(saved: RunManifest, now: RunManifest, interval_updates: int) -> Effects:
    """What a move does to what counts; an `interval_updates` stands for all that are counted in updates."""
    before, after = saved.decode_cursor(), now.decode_cursor()
    batches = _comparable_batches(before, after)
    in_interval = [interval_updates * batch for batch in batches]
    has_samples = before is not None and after is not None and not after.recipe.batch_unit
    is_split = before is not None and before.recipe.is_packed
    return Effects(
        updates=None if before is None else before.updates,
        samples=None if before is None else before.samples,
        tokens=None if before is None else before.tokens,
        same_samples_updates=-(-before.samples // batches[1]) if before and batches and has_samples else None,
        samples_left_in_epoch=None if before is None or is_split else before.recipe.length - before.offset,
        interval_updates=interval_updates,
        interval_saved=in_interval[0] if batches else None,
        interval_now=in_interval[1] if batches else None,
        interval_kept=max(round(in_interval[0] / batches[1]), 1) if batches else None,
        omitted=num_omitted(before, after),
        random=_random(saved, now),
    )


def num_omitted(before: Cursor | None, after: Cursor | None) -> int:
    """Samples that a change of the recipe skips at once, since its tail has no use for the rest of the epoch."""
    if before is None or after is None or before.recipe == after.recipe or before.recipe.is_packed:
        return 0
    schedule = _schedule(after)
    return 0 if schedule is None else schedule.settle(before.epoch, before.offset).dropped


def _comparable_batches(before: Cursor | None, after: Cursor | None) -> tuple[int, ...]:
    """Both global batches, where they are of one unit."""
    if before is None or after is None or before.recipe.batch_unit != after.recipe.batch_unit:
        return ()
    return before.recipe.global_batch, after.recipe.global_batch


def _schedule(cursor: Cursor, epochs: int | None = None) -> Schedule | None:
    """How updates are cut; None where only ranks, or documents, tell."""
    return None if cursor.recipe.counts_batches or cursor.recipe.is_packed else cursor.schedule(epochs)


def _updates_left(cursor: Cursor) -> int | None:
    schedule = _schedule(cursor, cursor.epoch + 1)
    return None if schedule is None else schedule.updates_left(cursor.epoch, cursor.offset)


def _random(saved: RunManifest, now: RunManifest) -> RandomEffect:
    outcome: RandomOutcome = "restored"
    if "random_states" in saved.unknown:
        outcome = "unknown"
    elif not saved.random_states:
        outcome = "none"
    elif (saved.world_size, saved.dp_size) != (now.world_size, now.dp_size):
        outcome = "seeded anew" if saved.random_states.startswith("reseed") else "refused"
    policy = saved.random_states.partition(";")[0]
    return RandomEffect(policy=policy, saved=saved.world_size, needed=now.world_size, outcome=outcome)
