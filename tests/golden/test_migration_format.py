"""A migration written by an earlier version: every later version reads it, and writes the same again.

`migration-v1.json` was written by version 0.1.0: a run of 4 x 2 ranks moved to 10, with another global batch, precision
and schedule unit, and tolerances. Never change it; add a file for each later format.
"""

from __future__ import annotations

from pathlib import Path

from resumable_data.checkpoint.migration.migration_file import read_migration

GOLDEN = Path(__file__).parent / "migration-v1.json"


def test_it_is_read_and_written_as_it_was() -> None:
    """Byte for byte, so that its checksum in later run manifests finds it."""
    migration = read_migration(GOLDEN)
    assert migration.to_json() == GOLDEN.read_bytes()
    assert migration.xxh3 == "0ab78ec3b481b539"


def test_what_it_says() -> None:
    """Fields of each kind, as they lie in the file."""
    migration = read_migration(GOLDEN)
    assert migration.identity == ("0123456789abcdef", "00000000000000aa", 5)
    assert (migration.risk, migration.declaration.invariant) == ("TP", "schedule")
    assert migration.declaration.continuity.holds(2, 1)
    assert not migration.declaration.continuity.holds(3, 1)
    assert migration.declaration.tolerances == {"loss": 1e-4}
    assert [one.values for one in migration.needed] == [
        ("mesh.tp", 2, 1),
        ("global_batch", 32, 48),
        ("precision.model.parameters", "float32", "bfloat16"),
        ("schedule_unit", "updates", "tokens"),
    ]
    assert migration.source.mesh.axes == (("dp", 4), ("tp", 2))
    assert migration.destination.layout is not None
    assert [(one.count, one.size) for one in migration.destination.layout.stretches] == [(2, 20), (1, 8)]
