"""Where a run is moved to, as a person says it: what differs from the program that saved."""

from __future__ import annotations

import math
from typing import Any

import msgspec

from resumable_data.checkpoint.migration.changes import PEERS, degrees, knows_mesh
from resumable_data.checkpoint.run_manifest import BatchInfo, RunManifest, SchedulerInfo, ScheduleUnit
from resumable_data.cursor.recipe import Recipe
from resumable_data.errors import UsageError
from resumable_data.ledger.records import Mesh
from resumable_data.plan import BatchPlan

_RECIPE = ("global_batch", "batch_unit", "tail", "normalize", "fingerprint")


class Destination(msgspec.Struct, frozen=True, kw_only=True):
    """What the program that goes on has otherwise; what is not given stays as it was saved.

    Attributes:
        num_replicas: Data-parallel ranks.
        microbatch: The most rows that a rank holds at once.
        axes: All axes of the mesh, the slowest first.
        data_axes: Those that are data-parallel; the saved ones, or the only one there is, where not given.
        recipe: Of ``global_batch``, ``batch_unit``, ``tail``, ``normalize`` and ``fingerprint`` those that change.
        precision: By what it is of: ``"model.parameters"``, ``"model.compute"``, ``"model.reduction"``.
        schedulers: Classes, by the scheduler's name in the state.
        schedule_unit: What the schedule's steps count.
    """

    num_replicas: int | None = None
    microbatch: int | None = None
    axes: tuple[tuple[str, int], ...] = ()
    data_axes: tuple[str, ...] = ()
    recipe: dict[str, int | str | None] = {}
    precision: dict[str, str] = {}
    schedulers: dict[str, str] = {}
    schedule_unit: ScheduleUnit | None = None

    def apply(self, saved: RunManifest) -> RunManifest:
        """The run manifest that a program at the destination has, as far as it can be told before there is one.

        Raises:
            UsageError: Something is named that the checkpoint does not have, or the numbers contradict each other.
        """
        self._check_names(saved)
        mesh, world_size = self._mesh(saved)
        cursor = saved.decode_cursor()
        if self.recipe and cursor is None:
            raise UsageError(f"{', '.join(self.recipe)}: the checkpoint has no cursor, so it has no recipe to change")
        if cursor is not None:
            values: dict[str, Any] = {**self.recipe}
            if "batch_unit" in values:
                values["batch_unit"] = "tokens" if values["batch_unit"] == "tokens" else msgspec.UNSET
            cursor = msgspec.structs.replace(cursor, recipe=msgspec.structs.replace(cursor.recipe, **values))
        return msgspec.structs.replace(
            saved,
            unknown=tuple(name for name in saved.unknown if name != "mesh" or not mesh.axes),
            world_size=world_size,
            mesh=mesh,
            cursor=msgspec.Raw(b"null" if cursor is None else cursor.to_json()),
            batch=self._batch(saved, None if cursor is None else cursor.recipe, mesh),
            precision={**saved.precision, **self.precision},
            schedulers={name: self._scheduler(name, one) for name, one in saved.schedulers.items()},
            schedule_unit=self.schedule_unit or saved.schedule_unit,
        )

    def _mesh(self, saved: RunManifest) -> tuple[Mesh, int]:
        """The mesh, and the number of processes."""
        if not self.axes:
            if self.data_axes:
                raise UsageError("the data-parallel axes are those of a mesh; give the mesh as well")
            if self.num_replicas is None:
                return saved.mesh, saved.world_size
            # an axis that nobody split stays as large as it is
            model_axes = tuple(degrees(saved).items()) if knows_mesh(saved) else ()
            named = [name for name in saved.mesh.data_axes if name not in dict(model_axes)]
            name = named[0] if len(named) == 1 else "dp"
            axes = ((name, self.num_replicas), *model_axes)
            return Mesh(axes, (name,)), math.prod(size for _, size in axes)
        names = [name for name, _ in self.axes]
        data_axes = self.data_axes or tuple(name for name in saved.mesh.data_axes if name in names)
        data_axes = data_axes or (tuple(names) if len(names) == 1 else ())
        if len(set(names)) < len(names) or not data_axes or set(data_axes) - set(names):
            raise UsageError(
                f"expected a mesh of axes {names} of which some are data-parallel, found {list(data_axes)} as these; "
                "name each axis once, and the data-parallel ones among them"
            )
        if min(size for _, size in self.axes) < 1:
            raise UsageError(f"expected axes of at least 1, found {dict(self.axes)}")
        dp_size = math.prod(size for name, size in self.axes if name in data_axes)
        if self.num_replicas not in (None, dp_size):
            raise UsageError(f"{self.num_replicas} data-parallel ranks contradict a mesh with {dp_size} of them")
        return Mesh(self.axes, data_axes), math.prod(size for _, size in self.axes)

    def _batch(self, saved: RunManifest, recipe: Recipe | None, mesh: Mesh) -> BatchInfo | None:
        microbatch = self.microbatch or (saved.batch.microbatch if saved.batch else None)
        if recipe is None or microbatch is None or not mesh.axes:
            return None
        dp_size = math.prod(size for name, size in mesh.axes if name in mesh.data_axes)
        plan = BatchPlan(global_batch=recipe.global_batch, microbatch=microbatch, num_replicas=dp_size)
        return BatchInfo(
            global_batch=recipe.global_batch,
            unit=recipe.batch_unit or "samples",
            microbatch=microbatch,
            dp_size=dp_size,
            accumulation_steps=None if recipe.batch_unit else plan.accumulation_steps,
            invariant=saved.batch.invariant if saved.batch else "samples",
        )

    def _check_names(self, saved: RunManifest) -> None:
        """Refuse names that the checkpoint does not have: a misspelt one would declare nothing."""
        unknown_fields = sorted(set(self.recipe) - set(_RECIPE))
        models = {name.removesuffix(".parameters") for name in saved.precision if name.endswith(".parameters")}
        known = {f"{model}.{what}" for model in models for what in ("parameters", "compute", "reduction")}
        unknown_types = sorted(set(self.precision) - known)
        unknown_schedulers = sorted(set(self.schedulers) - set(saved.schedulers))
        for what, wrong, right in (
            ("fields of the recipe", unknown_fields, _RECIPE),
            ("precision", unknown_types, sorted(known)),
            ("schedulers", unknown_schedulers, sorted(saved.schedulers)),
        ):
            if wrong:
                raise UsageError(f"{what}: expected some of {list(right)}, as in the checkpoint, got {wrong}")

    def _scheduler(self, name: str, saved: SchedulerInfo) -> SchedulerInfo:
        return msgspec.structs.replace(saved, kind=self.schedulers.get(name, saved.kind))


def mesh_flags(now: RunManifest) -> list[str]:
    """How a command is told the mesh of a program."""
    axes = dict(now.mesh.axes)
    if PEERS in degrees(now) and PEERS not in axes:
        axes[PEERS] = degrees(now)[PEERS]
    return [
        *("--mesh", ",".join(f"{name}={size}" for name, size in axes.items())),
        *("--data-axes", ",".join(now.mesh.data_axes)),
    ]
