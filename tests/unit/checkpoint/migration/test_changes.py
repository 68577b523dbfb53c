"""What differs between two programs: what may change freely, what must be declared, and what nobody knows."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.checkpoint.differences import ALLOWANCES
from resumable_data.checkpoint.migration.changes import (
    axis_risk,
    covering_names,
    find_changes,
    find_unknown,
    is_model_axis,
)
from resumable_data.checkpoint.migration.records import RISKS, RunChange, worst_risk
from resumable_data.cursor.recipe import ALLOWED_CHANGES
from resumable_data.ledger.records import Mesh
from resumable_data.order import Shuffle
from tests.runs import COSINE, make_run

NAMES = ("dp", "dp_replicate", "dp_shard", "tp", "cp", "pp", "ep")


@st.composite
def meshes(draw: st.DrawFn) -> tuple[tuple[tuple[str, int], ...], tuple[str, ...]]:
    names = draw(st.lists(st.sampled_from(NAMES), min_size=1, max_size=4, unique=True))
    data_axes = draw(st.sets(st.sampled_from(names), min_size=1))
    return tuple((name, draw(st.integers(1, 4))) for name in names), tuple(sorted(data_axes))


@given(meshes(), meshes())
def test_degrees_of_axes(before: Any, after: Any) -> None:
    """An axis that is not there has degree 1, and so has one that is data-parallel: any other difference counts."""
    saved, now = (make_run(axes=axes, data_axes=data_axes) for axes, data_axes in (before, after))
    expected = {}
    for name in NAMES:
        first, second = (dict(axes).get(name, 1) if name not in data else 1 for axes, data in (before, after))
        if first != second:
            expected[f"mesh.{name}"] = (first, second)
    changes = find_changes(saved, now)
    assert {one.field: (one.saved, one.now) for one in changes if one.needs_migration} == expected
    sizes = [prod(size for name, size in axes if name in data_axes) for axes, data_axes in (before, after)]
    free = {one.field: (one.saved, one.now) for one in changes if not one.needs_migration}
    assert free.get("dp") == (tuple(sizes) if sizes[0] != sizes[1] else None)
    assert free.keys() <= {"dp", "data_axes"}
    assert all((one.risk == "dp only") != one.needs_migration for one in changes)
    assert find_changes(saved, saved) == ()


ONE_CHANGE: list[tuple[dict[str, Any], dict[str, Any], tuple[str, Any, Any], str]] = [
    ({}, {"axes": (("dp", 3),)}, ("dp", 4, 3), "dp only"),
    ({}, {"microbatch": 2}, ("microbatch", 4, 2), "dp only"),
    (
        {"axes": (("dp", 4),)},
        {"axes": (("dp_replicate", 2), ("dp_shard", 2)), "data_axes": ("dp_replicate", "dp_shard")},
        ("data_axes", "dp 4", "dp_replicate 2 x dp_shard 2"),
        "dp only",
    ),
    ({}, {"axes": (("dp", 4), ("tp", 2))}, ("mesh.tp", 1, 2), "TP"),
    ({"axes": (("dp", 4), ("context", 2))}, {}, ("mesh.context", 2, 1), "CP"),
    ({}, {"axes": (("pipeline_stage", 2), ("dp", 4))}, ("mesh.pipeline_stage", 1, 2), "PP"),
    ({}, {"axes": (("dp", 4), ("ep", 2))}, ("mesh.ep", 1, 2), "other axis"),
    ({}, {"world_size": 8}, ("mesh.peers", 1, 2), "other axis"),
    ({}, {"global_batch": 48}, ("global_batch", 32, 48), "recipe"),
    ({}, {"tail": "drop"}, ("recipe.tail", "carry", "drop"), "recipe"),
    ({}, {"fingerprint": "b"}, ("recipe.fingerprint", None, "b"), "recipe"),
    ({}, {"order": Shuffle(1000, seed=4).describe()}, ("recipe.order.seed", 3, 4), "recipe"),
    (
        {},
        {"precision": {"model.parameters": "bfloat16"}},
        ("precision.model.parameters", "float32", "bfloat16"),
        "precision",
    ),
    (
        {},
        {"precision": {"model.parameters": "float32", "model.compute": "bfloat16"}},
        ("precision.model.compute", "as parameters", "bfloat16"),
        "precision",
    ),
    ({}, {"schedulers": {}}, ("", None, None), ""),
    ({}, {"schedule_unit": "tokens"}, ("schedule_unit", "updates", "tokens"), "schedule"),
]


@pytest.mark.parametrize(("before", "after", "values", "risk"), ONE_CHANGE, ids=lambda value: str(value)[:40])
def test_each_change_by_itself(
    before: dict[str, Any], after: dict[str, Any], values: tuple[str, Any, Any], risk: str
) -> None:
    """A change is found with both values and its class, in both directions, and nothing else is."""
    changes = find_changes(make_run(**before), make_run(**after))
    assert [one.values for one in changes] == ([values] if risk else [])
    assert [one.risk for one in changes] == ([risk] if risk else [])
    back = find_changes(make_run(**after), make_run(**before))
    assert [one.values for one in back] == ([(values[0], values[2], values[1])] if risk else [])
    for one in changes:
        assert one.effect
        names = set(covering_names(one))
        assert names <= ALLOWANCES | ALLOWED_CHANGES
        assert bool(names) == (one.needs_migration and not one.field.startswith("recipe.order."))


def test_a_scheduler_of_another_class() -> None:
    """Its class counts; its settings are the checkpoint's once it is loaded, so they are no change."""
    saved = make_run()
    (scheduler,) = saved.schedulers.values()
    other = type(scheduler)(kind="mine.Warmup", position=5, learning_rates=(0.1,), settings={"T_max": 9})
    (change,) = find_changes(saved, make_run(schedulers={"scheduler": other}))
    assert change.values == ("schedule.scheduler.kind", COSINE, "mine.Warmup")
    same = type(scheduler)(kind=COSINE, position=5, learning_rates=(0.2,), settings={"T_max": 9})
    assert find_changes(saved, make_run(schedulers={"scheduler": same})) == ()


def test_what_a_checkpoint_does_not_tell() -> None:
    """It is neither equal nor changed: it is listed, where the program tells it."""
    adopted = make_run(
        unknown=("schedulers", "precision", "mesh", "batch"),
        precision={},
        schedulers={},
        mesh=Mesh(),
        world_size=0,
        batch=None,
        schedule_unit=None,
    )
    program = make_run(axes=(("dp", 2), ("tp", 2)), precision={"model.parameters": "bfloat16"})
    assert find_changes(adopted, program) == ()
    unknown = ("mesh", "microbatch", "precision", "schedule.scheduler.kind", "schedule_unit")
    assert find_unknown(adopted, program) == unknown
    assert find_unknown(program, program) == find_unknown(program, adopted) == ()
    without = type(program)()
    assert find_unknown(without, program) == ("mesh", "microbatch", "recipe", "schedule_unit")


@pytest.mark.parametrize(
    ("name", "risk"),
    [
        *[("tp", "TP"), ("tensor_parallel", "TP"), ("cp", "CP"), ("context", "CP"), ("pp", "PP"), ("PP_stage", "PP")],
        *[("replicas", "other axis"), ("ep", "other axis"), ("tape", "other axis")],
    ],
)
def test_risk_by_name(name: str, risk: str) -> None:
    """Words in an axis's name tell what it splits; a word within another does not."""
    assert axis_risk(name) == risk


@pytest.mark.parametrize(
    ("name", "is_of_model"),
    [("tp", True), ("pipeline_stage", True), ("dp", False), ("replicate", False), ("dp_shard_cp", False), ("x", False)],
)
def test_axes_of_a_model(name: str, is_of_model: bool) -> None:
    """Of axes that only the models tell of, those count whose name says that they are not data-parallel."""
    assert is_model_axis(name) == is_of_model


@given(st.lists(st.sampled_from(RISKS), max_size=5))
def test_the_worst_risk(risks: list[Any]) -> None:
    """Of several changes the class that may do most."""
    changes = tuple(RunChange(field="x", saved=1, now=2, risk=risk, needs_migration=True, effect="") for risk in risks)
    worst = worst_risk(changes)
    assert (worst is None) == (not risks)
    assert all(RISKS.index(risk) <= RISKS.index(worst) for risk in risks if worst)
