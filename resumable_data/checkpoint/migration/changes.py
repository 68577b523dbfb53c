"""What differs between the run manifest of a checkpoint and that of the program which is to go on from it.

What the checkpoint does not tell is never taken for equal: `find_unknown` lists it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from resumable_data.checkpoint.migration.records import Risk, RunChange, Value
from resumable_data.cursor.recipe import compare_recipes, effect_of

if TYPE_CHECKING:
    from resumable_data.checkpoint.migration.effects import Side
    from resumable_data.checkpoint.run_manifest import RunManifest

MESH = "mesh"
PRECISION = "precision"
SCHEDULE = "schedule"
DTYPE = "dtype"
PEERS = "peers"
"""The axis of processes that read the same samples, and that no axis of the mesh tells apart."""

AS_PARAMETERS = "as parameters"
_PRECISIONS = ("parameters", "compute", "reduction")
_PLAIN_RECIPE_FIELDS = ("global_batch", "batch_unit")
_AXES: dict[str, Risk] = {
    **dict.fromkeys(("pp", "pipe", "pipeline", "stage", "stages"), "PP"),
    **dict.fromkeys(("tp", "tensor"), "TP"),
    **dict.fromkeys(("cp", "sp", "context", "sequence", "ulysses", "ring"), "CP"),
    **dict.fromkeys(("ep", "etp", "expert", "experts"), "other axis"),
}
_DATA_WORDS = frozenset({"dp", "ddp", "fsdp", "hsdp", "data", "shard", "replicate"})
_EFFECTS_OF_AXES: dict[Risk, str] = {
    "TP": "layers are split over another number of ranks: sums are rounded otherwise, and dropout draws other numbers",
    "CP": "sequences are split over another number of ranks: sums over tokens are rounded otherwise, and gradients "
    "are reduced over another number of ranks",
    "PP": "stages hold other layers, each with the keys of its own: a process that has not all keys of the checkpoint "
    "is refused still",
    "other axis": "another number of processes reads each sample, and parts of the model lie on others",
}
_EFFECTS = {
    "dp": "each rank reads another share of an update: the samples of each update, and their weights, are the same",
    "microbatch": "gradients are added up in other portions: equal up to rounding",
    "data_axes": "parameters are sharded or replicated otherwise; who reads what depends on their product alone",
    PRECISION: "numbers are held, computed or reduced in another type: what was seen of the run before need not hold",
    SCHEDULE: "another class reads the state of the saved one: what it lacks begins anew, and learning rates differ",
    "schedule_unit": "the schedule's numbers are counts of something else: learning rates come at other samples",
}


def axis_risk(name: str) -> Risk:
    """The class of a change of a mesh axis that is not data-parallel, by the words in its name."""
    return next((_AXES[word] for word in re.split(r"[^a-z]+", name.lower()) if word in _AXES), "other axis")


def is_model_axis(name: str) -> bool:
    """Whether an axis's name says that it splits the model, or samples, and not the data.

    ``"dp_shard_cp"``, over which parameters are sharded where context-parallel ranks take part, is of both, and no.
    """
    words = set(re.split(r"[^a-z]+", name.lower()))
    return bool(words & _AXES.keys()) and not words & _DATA_WORDS


def find_changes(saved: RunManifest, now: RunManifest) -> tuple[RunChange, ...]:
    """What differs, of what both tell.

    Args:
        saved: Of the checkpoint.
        now: Of the program that is to load it.
    """
    return (*_topology(saved, now), *_recipe(saved, now), *_precision(saved, now), *_schedule(saved, now))


def find_unknown(saved: RunManifest, now: RunManifest) -> tuple[str, ...]:
    """What the program tells and the checkpoint does not, so that nobody knows whether it changed."""
    unknown = [MESH] if knows_mesh(now) and not knows_mesh(saved) else []
    unknown += ["microbatch"] if now.batch and not saved.batch else []
    unknown += ["recipe"] if now.decode_cursor() and not saved.decode_cursor() else []
    unknown += [PRECISION] if now.precision and PRECISION in saved.unknown else []
    if "schedulers" in saved.unknown:
        unknown += [f"{SCHEDULE}.{name}.kind" for name in now.schedulers]
    unknown += ["schedule_unit"] if now.schedule_unit and not saved.schedule_unit else []
    return tuple(unknown)


def covering_names(change: RunChange) -> tuple[str, ...]:
    """The names of ``allow=`` that declare a change in code, the closest first; none for what may not change at all."""
    first, _, rest = change.field.partition(".")
    if first == "recipe":
        return () if rest.startswith("order.") else (rest,)
    if first == PRECISION:
        return (DTYPE, PRECISION) if rest.endswith(".parameters") else (PRECISION,)
    if change.field == "schedule_unit":
        return (SCHEDULE,)
    return (first,) if change.needs_migration else ()


def recipe_field(change: RunChange) -> str:
    """The name of the recipe's field that a change is of; empty where it is of something else."""
    first, _, rest = change.field.partition(".")
    return rest if first == "recipe" else change.field if change.field in _PLAIN_RECIPE_FIELDS else ""


def knows_mesh(run: RunManifest) -> bool:
    """Whether a manifest tells the job's processes."""
    return MESH not in run.unknown and bool(run.world_size)


def degrees(run: RunManifest | Side) -> dict[str, int]:
    """Sizes of all axes that are not data-parallel, those of size 1 left out."""
    found = {name: size for name, size in run.mesh.axes if name not in run.mesh.data_axes and size > 1}
    product = 1
    for _, size in run.mesh.axes:
        product *= size
    # ranks that are simulated in one process are more than there are processes
    if run.world_size > product and run.world_size % product == 0:
        found[PEERS] = run.world_size // product
    return found


def _topology(saved: RunManifest, now: RunManifest) -> Iterator[RunChange]:
    if knows_mesh(saved) and knows_mesh(now):
        if saved.dp_size != now.dp_size:
            yield _free("dp", saved.dp_size, now.dp_size)
        axes = _data_axes(saved), _data_axes(now)
        if axes[0] != axes[1] and (saved.dp_size == now.dp_size or any(" x " in text for text in axes)):
            yield _free("data_axes", *axes)
        before, after = degrees(saved), degrees(now)
        for name in sorted(before.keys() | after.keys()):
            sizes = before.get(name, 1), after.get(name, 1)
            if sizes[0] != sizes[1]:
                risk = axis_risk(name)
                yield _declared(f"{MESH}.{name}", *sizes, risk, _EFFECTS_OF_AXES[risk])
    if saved.batch and now.batch and saved.batch.microbatch != now.batch.microbatch:
        yield _free("microbatch", saved.batch.microbatch, now.batch.microbatch)


def _data_axes(run: RunManifest) -> str:
    return " x ".join(f"{name} {size}" for name, size in run.mesh.axes if name in run.mesh.data_axes)


def _recipe(saved: RunManifest, now: RunManifest) -> Iterator[RunChange]:
    before, after = saved.decode_cursor(), now.decode_cursor()
    for change in compare_recipes(before.recipe, after.recipe) if before and after else ():
        field = change.field if change.field in _PLAIN_RECIPE_FIELDS else f"recipe.{change.field}"
        yield _declared(field, change.saved, change.now, "recipe", effect_of(change.field))


def _precision(saved: RunManifest, now: RunManifest) -> Iterator[RunChange]:
    models = [key.removesuffix(".parameters") for key in saved.precision if key.endswith(".parameters")]
    for model in models:
        if f"{model}.parameters" not in now.precision:
            continue  # of a part that the program has not, the comparison of keys tells
        for what in _PRECISIONS:
            key = f"{model}.{what}"
            values = saved.precision.get(key, AS_PARAMETERS), now.precision.get(key, AS_PARAMETERS)
            if values[0] != values[1]:
                yield _declared(f"{PRECISION}.{key}", *values, "precision", _EFFECTS[PRECISION])


def _schedule(saved: RunManifest, now: RunManifest) -> Iterator[RunChange]:
    """Classes and units. Settings are no change: those of the checkpoint are in force once it is loaded."""
    for name in sorted(saved.schedulers.keys() & now.schedulers.keys()):
        kinds = saved.schedulers[name].kind, now.schedulers[name].kind
        if kinds[0] != kinds[1]:
            yield _declared(f"{SCHEDULE}.{name}.kind", *kinds, "schedule", _EFFECTS[SCHEDULE])
    units = saved.schedule_unit, now.schedule_unit
    if units[0] and units[1] and units[0] != units[1]:
        yield _declared("schedule_unit", *units, "schedule", _EFFECTS["schedule_unit"])


def _free(field: str, saved: Value, now: Value) -> RunChange:
    return RunChange(field=field, saved=saved, now=now, risk="dp only", needs_migration=False, effect=_EFFECTS[field])


def _declared(field: str, saved: Value, now: Value, risk: Risk, effect: str) -> RunChange:
    return RunChange(field=field, saved=saved, now=now, risk=risk, needs_migration=True, effect=effect)
