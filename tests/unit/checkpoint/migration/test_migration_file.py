"""The migration manifest: what it says of a move, what it refuses to declare, and that it is of one move only."""

from __future__ import annotations

import json
import re
import shlex
import tempfile
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from resumable_data.checkpoint.migration.changes import find_changes
from resumable_data.checkpoint.migration.coverage import (
    find_covered,
    for_cursor,
    granted_names,
    plan_command,
    require_covered,
)
from resumable_data.checkpoint.migration.declaration import Continuity, Declaration
from resumable_data.checkpoint.migration.destination import Destination
from resumable_data.checkpoint.migration.effects import Effects, RandomEffect, Side
from resumable_data.checkpoint.migration.migration_file import (
    MAX_MIGRATION_BYTES,
    DeclaredChange,
    MigrationManifest,
    plan_migration,
    read_migration,
)
from resumable_data.checkpoint.migration.source import read_source
from resumable_data.checkpoint.run_manifest import RunManifest
from resumable_data.cli import main
from resumable_data.errors import CheckpointError, MigrationError, UsageError
from resumable_data.order import Shuffle
from resumable_data.plan import PACKED_KIND, PACKED_LENGTH
from tests.runs import make_run, write_checkpoint

SCHEDULE = Declaration(invariant="schedule")
PACKED = {"kind": PACKED_KIND, "length": PACKED_LENGTH, "row_length": 64}


def move(
    tmp_path: Path, saved: RunManifest, now: RunManifest, declaration: Declaration = SCHEDULE
) -> MigrationManifest:
    return plan_migration(write_checkpoint(tmp_path / "a", saved), now, declaration=declaration, why="fewer nodes")


@settings(max_examples=40, deadline=None)
@given(
    batches=st.tuples(st.integers(1, 200), st.integers(1, 200)),
    ranks=st.tuples(st.integers(1, 12), st.integers(1, 12)),
    microbatch=st.integers(1, 9),
    updates=st.integers(0, 4),
    interval=st.integers(1, 50),
)
def test_numbers(
    batches: tuple[int, int], ranks: tuple[int, int], microbatch: int, updates: int, interval: int
) -> None:
    """Shares, even layouts, what is left of the epoch and what becomes of intervals, counted one by one."""
    saved, now = (
        make_run(axes=(("dp", size),), global_batch=batch, microbatch=microbatch, updates=updates)
        for size, batch in zip(ranks, batches, strict=True)
    )
    cursor = saved.decode_cursor()
    assert cursor is not None
    now = msgspec.structs.replace(
        now,
        cursor=msgspec.Raw(
            msgspec.structs.replace(
                cursor, recipe=msgspec.structs.replace(cursor.recipe, global_batch=batches[1])
            ).to_json()
        ),
    )
    with tempfile.TemporaryDirectory() as directory:
        path = write_checkpoint(Path(directory) / "a", saved)
        migration = plan_migration(path, now, declaration=SCHEDULE, interval_updates=interval)
    for side, batch, size in zip((migration.source, migration.destination), batches, ranks, strict=True):
        shares = [len(range(rank, batch, size)) for rank in range(size)]
        layout, even = side.layout, side.alternatives
        assert layout is not None
        assert even is not None
        assert (layout.max_rows, layout.min_rows) == (max(shares), min(shares))
        assert layout.accumulation_steps == -(-max(shares) // microbatch)
        assert sum(one.count * one.size for one in layout.stretches) == batch
        assert all(one % (size * microbatch) == 0 for one in even.global_batches)
        assert all(batch % one == 0 for one in even.num_replicas_equal)
        left, count = 1000 - updates * batches[0], 0
        while left > 0:
            left, count = left - batch, count + 1
        assert side.updates_left_in_epoch == count
    at = migration.effects
    samples = updates * batches[0]
    assert (at.updates, at.samples, at.samples_left_in_epoch) == (updates, samples, 1000 - samples)
    assert at.same_samples_updates == len(range(0, samples, batches[1]))
    assert (at.interval_saved, at.interval_now) == (interval * batches[0], interval * batches[1])
    assert at.interval_kept is not None
    assert abs(at.interval_kept * batches[1] - interval * batches[0]) <= max(batches[1] / 2, batches[1] - interval)
    assert MigrationManifest.to_text(migration)


def test_both_sides_and_all_changes(tmp_path: Path) -> None:
    """A move of everything at once: each change with its reason, all classes, and both ends."""
    saved = make_run(axes=(("dp", 4), ("tp", 2)))
    now = make_run(
        axes=(("dp", 10),),
        global_batch=48,
        microbatch=2,
        precision={"model.parameters": "bfloat16"},
        schedule_unit="tokens",
    )
    migration = move(tmp_path, saved, now)
    free = {"dp", "microbatch"}
    assert {one.field for one in migration.changes} == free | {
        *("mesh.tp", "global_batch", "precision.model.parameters", "schedule_unit")
    }
    assert all(one.why == ("needs no declaration" if one.field in free else "fewer nodes") for one in migration.changes)
    assert (migration.risk, migration.risks) == ("TP", ("dp only", "schedule", "recipe", "precision", "TP"))
    assert (migration.source.dp_size, migration.source.world_size, migration.destination.dp_size) == (4, 8, 10)
    assert migration.source.recipe["global_batch"] == 32
    assert migration.effects.random.outcome == "seeded anew"
    text = migration.to_text()
    assert all(one.field in text for one in migration.changes)
    assert read_migration_back(migration, tmp_path) == migration
    with pytest.raises(UsageError, match="is there already"):
        migration.write(tmp_path / "m.json")


def read_migration_back(migration: MigrationManifest, tmp_path: Path) -> MigrationManifest:
    migration.write(tmp_path / "m.json")
    return read_migration(tmp_path / "m.json")


CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], Declaration, str]] = [
    ({}, {"global_batch": 64}, Declaration(), "found 32 samples and 64 samples"),
    ({}, {"global_batch": 64}, Declaration(invariant="tokens"), "how many tokens a sample has is not known"),
    ({}, {"global_batch": 64}, SCHEDULE, ""),
    ({}, {}, Declaration(invariant="tokens"), ""),
    (
        {"order": PACKED},
        {"order": PACKED, "batch_unit": "tokens", "global_batch": 2048},
        Declaration(invariant="tokens"),
        "",
    ),
    (
        {"order": PACKED},
        {"order": PACKED, "batch_unit": "tokens", "global_batch": 2048},
        Declaration(),
        "found 32 samples and 2048 tokens",
    ),
    (
        {"order": PACKED},
        {"order": PACKED, "batch_unit": "tokens", "global_batch": 999},
        Declaration(invariant="tokens"),
        "found 32 samples and 999 tokens",
    ),
    ({}, {"order": Shuffle(1000, seed=4).describe()}, SCHEDULE, "recipe.order.seed cannot change within a run"),
    (
        {"updates": 31},
        {"updates": 31, "tail": "drop"},
        Declaration(),
        "at most 0 samples omitted, as was declared; found 8",
    ),
    (
        {"updates": 31},
        {"updates": 31, "tail": "drop"},
        Declaration(continuity=Continuity(kind="bounded", omitted=7)),
        "found 8",
    ),
    ({"updates": 31}, {"updates": 31, "tail": "drop"}, Declaration(continuity=Continuity(kind="none")), ""),
    (
        {"updates": 31},
        {"updates": 31, "tail": "drop"},
        Declaration(continuity=Continuity(kind="bounded", omitted=8)),
        "",
    ),
    ({"updates": 30}, {"updates": 30, "tail": "drop"}, Declaration(), ""),
]


@pytest.mark.parametrize(("before", "after", "declaration", "text"), CONTRADICTIONS)
def test_what_contradicts_itself(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], declaration: Declaration, text: str
) -> None:
    """A move that does not keep what must survive is refused when it is declared, and when it is made."""
    saved, now = make_run(**packed(before)), make_run(**packed(after))
    path = write_checkpoint(tmp_path / "a", saved)
    if not text:
        plan_migration(path, now, declaration=declaration)
        return
    with pytest.raises(MigrationError, match=text):
        plan_migration(path, now, declaration=declaration)
    forged = msgspec.structs.replace(plan_migration(path, saved), declaration=declaration)
    changes = find_changes(saved, now)
    declared = tuple(DeclaredChange(**msgspec.structs.asdict(one)) for one in changes)
    forged = msgspec.structs.replace(forged, changes=declared)
    with pytest.raises(MigrationError, match=text):
        find_covered(forged, path, read_source(path), changes, now)


def packed(fields: dict[str, Any]) -> dict[str, Any]:
    """A run over packed rows is at its beginning, and counted as such."""
    return {**fields, "updates": 0} if fields.get("order") is PACKED else fields


def test_it_declares_one_move_of_one_checkpoint(tmp_path: Path) -> None:
    """Another save, run or update, other values, or a program that stayed as it was: refused, with what differs."""
    saved, now = make_run(axes=(("dp", 2), ("tp", 2))), make_run(axes=(("dp", 4),))
    path = write_checkpoint(tmp_path / "a", saved)
    migration, source, changes = plan_migration(path, now), read_source(path), find_changes(saved, now)
    covered = find_covered(migration, path, source, changes, now)
    assert [one.field for one in covered] == ["mesh.tp"]
    require_covered(path, changes, now, covered=covered)
    for field, value, text in (
        ("nonce", "f" * 16, "save 'ffffffffffffffff' in place of '0123456789abcdef'"),
        ("run_id", "b", "run 'b' in place of '00000000000000aa'"),
        ("update", 4, "update 4 in place of 5"),
    ):
        other = msgspec.structs.replace(migration, **{field: value})
        with pytest.raises(MigrationError, match=text):
            find_covered(other, path, source, changes, now)
    wider = make_run(axes=(("dp", 1), ("tp", 4)))
    with pytest.raises(MigrationError, match=r"mesh.tp 2 to 1, and the program has 4"):
        find_covered(migration, path, source, find_changes(saved, wider), wider)
    with pytest.raises(MigrationError, match=r"mesh.tp 2 to 1, and the program has 2"):
        find_covered(migration, path, source, (), saved)
    fewer = make_run(axes=(("dp", 3),))
    assert find_covered(migration, path, source, find_changes(saved, fewer), fewer)  # dp ranks may be any number
    more = make_run(axes=(("dp", 4),), tail="pad")
    changes = find_changes(saved, more)
    covered = find_covered(migration, path, source, changes, more)
    with pytest.raises(MigrationError, match=r"recipe\.tail: 'carry' in the checkpoint, 'pad'") as error:
        require_covered(path, changes, more, covered=covered)
    assert "mesh.tp" not in str(error.value)
    require_covered(path, changes, more, covered=covered, names={"tail"})


def test_what_a_migration_stands_for() -> None:
    """It allows the recipe's fields and casts that it declares; the cursor records the rest beside the recipe's."""
    saved = make_run(axes=(("dp", 2), ("tp", 2)))
    now = make_run(axes=(("dp", 4),), tail="pad", precision={"model.parameters": "bfloat16"})
    changes = find_changes(saved, now)
    assert granted_names(changes) == {"tail", "dtype"}
    recorded = [(one.field, one.saved, one.now) for one in for_cursor(changes)]
    assert recorded == [("mesh.tp", 2, 1), ("precision.model.parameters", "float32", "bfloat16")]


MOVES: list[dict[str, Any]] = [
    {"axes": (("dp", 3), ("cp", 2)), "data_axes": ("dp",)},
    {"axes": (("dp_replicate", 2), ("dp_shard", 3), ("tp", 4)), "data_axes": ("dp_replicate", "dp_shard")},
    {"world_size": 12},
    {"global_batch": 48, "microbatch": 3, "tail": "short", "normalize": "tokens", "fingerprint": "it's a b"},
    {"precision": {"model.parameters": "bfloat16", "model.reduction": "float32"}, "schedule_unit": "samples"},
    {"schedulers": {"scheduler": msgspec.structs.replace(make_run().schedulers["scheduler"], kind="mine.Warmup")}},
]


@pytest.mark.parametrize("after", MOVES)
def test_the_refusal_names_the_command_that_goes_on(
    tmp_path: Path, after: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What the error prints is a command that declares all that was refused."""
    saved, now = make_run(fingerprint="a"), make_run(**{"fingerprint": "a", **after})
    path = write_checkpoint(tmp_path / "a", saved)
    changes = find_changes(saved, now)
    with pytest.raises(MigrationError, match="declare them in code, allow=") as error:
        require_covered(path, changes, now)
    command = str(error.value).splitlines()[-1].strip()
    assert command == plan_command(path, [one for one in changes if one.needs_migration], changes, now)
    program, *arguments = shlex.split(command)
    arguments[-1] = str(tmp_path / arguments[-1])
    assert (program, main(arguments)) == ("resumable-data", 0), capsys.readouterr().err
    migration = read_migration(tmp_path / "migration.json")
    covered = find_covered(migration, path, read_source(path), changes, now)
    require_covered(path, changes, now, covered=covered)
    assert {one.values for one in migration.changes} == {one.values for one in changes}


@pytest.mark.parametrize("data", [b"", b"{}", b'{"version": 9}', b'{"version": 1, "what": 2}', b"[" * 9999, b"\xff"])
def test_a_damaged_one_is_our_error(tmp_path: Path, data: bytes) -> None:
    """Whatever is in the file, and where there is none, or too much of it."""
    file = tmp_path / "m.json"
    with pytest.raises(CheckpointError, match="no such file"):
        read_migration(file)
    file.write_bytes(data)
    with pytest.raises(CheckpointError, match="expected a migration of version 1"):
        read_migration(file)
    file.write_bytes(b" " * (MAX_MIGRATION_BYTES + 1))
    with pytest.raises(CheckpointError, match="at most"):
        read_migration(file)


def test_bounds_that_contradict_their_kind(tmp_path: Path) -> None:
    """A file in which a person wrote bounds beside "exact" is refused, not taken for one of them."""
    migration = move(tmp_path, make_run(), make_run(axes=(("dp", 3),)))
    content = json.loads(migration.to_json())
    content["declaration"]["continuity"]["omitted"] = 5
    (tmp_path / "m.json").write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match="bounds of replayed and omitted"):
        read_migration(tmp_path / "m.json")


WRONG = [
    (Destination(data_axes=("dp",)), "give the mesh as well"),
    (Destination(axes=(("dp", 2), ("dp", 2))), "name each axis once"),
    (Destination(axes=(("a", 2), ("b", 2))), "name each axis once"),
    (Destination(axes=(("dp", 2),), data_axes=("x",)), "name each axis once"),
    (Destination(axes=(("dp", 2), ("tp", 2)), num_replicas=4), "contradict a mesh with 2"),
    (Destination(precision={"modle.parameters": "bfloat16"}), r"precision: expected some of \['model.compute'"),
    (Destination(schedulers={"x": "y"}), r"schedulers: expected some of \['scheduler'\]"),
    (Destination(recipe={"order": "x"}), "fields of the recipe"),
]


@pytest.mark.parametrize(("destination", "text"), WRONG)
def test_a_destination_that_cannot_be(destination: Destination, text: str) -> None:
    """A name that the checkpoint does not have would declare nothing."""
    with pytest.raises(UsageError, match=text):
        destination.apply(make_run())


def test_only_ranks_are_given() -> None:
    """Axes that nobody named stay as they are, those without a name too; the data axes become one."""
    hybrid = make_run(
        axes=(("dp_replicate", 2), ("dp_shard", 2), ("tp", 2)), data_axes=("dp_replicate", "dp_shard"), world_size=16
    )
    now = Destination(num_replicas=3).apply(hybrid)
    assert (now.dp_size, now.world_size) == (3, 12)
    assert {one.field for one in find_changes(hybrid, now)} == {"dp", "data_axes"}
    assert Destination().apply(hybrid) == hybrid
    without = Destination(recipe={"tail": "pad"})
    with pytest.raises(UsageError, match="has no cursor"):
        without.apply(RunManifest())


def test_documentation_lists_all_fields() -> None:
    """The tables in docs/migration.md have every field of the file, in its order, and no other."""
    page = (Path(__file__).parents[4] / "docs" / "migration.md").read_text()
    for heading, struct in (
        ("| field | meaning |", MigrationManifest),
        ("| field of `source` and `destination` | meaning |", Side),
        ("| field of `effects` | meaning |", Effects),
    ):
        table = page.partition(heading)[2].partition("\n\n")[0]
        rows = re.findall(r"^\| (`.*?) \|", table, re.MULTILINE)
        names = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
        assert names == list(struct.__struct_fields__)
    for name in (*DeclaredChange.__struct_fields__, *Continuity.__struct_fields__, *RandomEffect.__struct_fields__):
        assert f"`{name}`" in page
