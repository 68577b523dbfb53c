"""A phase in its fixed-size form, and the places that it belongs to."""

from __future__ import annotations

import random
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.cursor import (
    PHASE_NUM_BYTES,
    Cursor,
    Phase,
    Recipe,
    decode_phase,
    encode_cursor,
    encode_phase,
    recipe_hash,
)
from resumable_data.errors import CorruptStateError, OtherRunError, ResumableDataError, StateError
from resumable_data.plan import UpdateSpan
from tests.unit.ledger.test_fuzz import mutated

GOLDEN = Path(__file__).parents[2] / "golden"
RECIPE = Recipe(
    order={"kind": "shuffle", "version": 1, "length": 100, "seed": 1, "name": ""},
    global_batch=12,
    tail="carry",
    normalize="samples",
    fingerprint=None,
)
CURSOR = Cursor(recipe=RECIPE, run_id="00f1e2d3c4b5a697", applied=2, samples=24, offset=24)
SPAN = UpdateSpan(24, 12, 0)
PHASE = Phase(run_id=CURSOR.run_id, update=2, start=24, samples=7, attempt=3, lanes=(2**64 - 1, 5), num_rows=12)
WIDEST = Phase(
    run_id="f" * 16,
    update=1 << 61,
    start=1 << 61,
    samples=1 << 61,
    attempt=1 << 61,
    lanes=(2**64 - 1, 2**64 - 1),
    targets=1 << 61,
    num_rows=1 << 61,
    recipe=2**64 - 1,
)


@pytest.mark.parametrize("phase", [PHASE, WIDEST, Phase(run_id="", update=0, start=0, samples=0)], ids=str)
def test_a_phase_survives_its_fixed_size_form(phase: Phase) -> None:
    """Every field comes back exactly, in a size that never changes; the layout is that of a cursor."""
    data = encode_phase(phase)
    body = msgspec.json.encode(phase, order="deterministic")
    assert len(data) == PHASE_NUM_BYTES
    assert struct.unpack_from("<8sIIQ", data) == (b"RDPHASE\0", 1, len(body), xxhash.xxh3_64_intdigest(body))
    assert data[24:].rstrip(b"\0") == body
    assert decode_phase(data) == decode_phase(memoryview(data)) == phase


def test_the_golden_phase_is_read_and_written_alike() -> None:
    """The file that version 1 wrote is read to the same numbers, and written byte for byte again."""
    golden = (GOLDEN / "phase-v1.bin").read_bytes()
    assert (decode_phase(golden), encode_phase(WIDEST)) == (WIDEST, golden)


def framed(body: bytes) -> bytes:
    head = struct.pack("<8sIIQ", b"RDPHASE\0", 1, len(body), xxhash.xxh3_64_intdigest(body))
    return (head + body).ljust(PHASE_NUM_BYTES, b"\0")


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (encode_phase(PHASE)[:-1], "expected 512 bytes, found 511"),
        (encode_cursor(CURSOR)[:PHASE_NUM_BYTES], "a phase, which starts with"),
        (b"RDPHASE\0" + b"\2" + encode_phase(PHASE)[9:], "format version 1, found version 2"),
        (encode_phase(PHASE)[:-1] + b"x", "zeros after the phase"),
        (encode_phase(PHASE).replace(b'"samples":7', b'"samples":8'), "the bytes were changed after saving"),
        (framed(b"{}"), "a phase as JSON"),
        (framed(b'{"run_id":"a","update":-1,"start":0,"samples":0}'), "counters from 0"),
        (framed(b'{"run_id":"a","update":1,"start":0,"samples":1,"lanes":[-1,0]}'), "two 64-bit numbers"),
    ],
)
def test_damage_is_named(data: bytes, message: str) -> None:
    """What is wrong is said, and that nothing was restored."""
    with pytest.raises(CorruptStateError, match=message) as caught:
        decode_phase(data)
    assert "Nothing was restored" in str(caught.value)


@given(seed=st.integers(0, 1 << 32), is_framed=st.booleans())
def test_mutated_phases(seed: int, is_framed: bool) -> None:
    """Whatever befalls the bytes, with right checksums or not: a phase, or an error of ours."""
    rng = random.Random(seed)
    body = msgspec.json.encode(PHASE)
    data = framed(mutated(body, rng)[:480]) if is_framed else mutated(encode_phase(PHASE), rng)
    with suppress(ResumableDataError):
        assert encode_phase(decode_phase(data))


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"run_id": "f" * 16}, OtherRunError, "of other data"),
        ({"update": 3}, StateError, "at update 2, position 24; found one of update 3"),
        ({"start": 23}, StateError, "found one of update 2 at position 23"),
        ({"samples": 12}, StateError, "from 0 to 11 of its 12 rows; found 12"),
        ({"num_rows": 8}, StateError, "an update of 8 rows, or under another recipe"),
        ({"recipe": 1}, StateError, "under another recipe"),
        ({"targets": 5}, StateError, "expected target tokens in a phase where normalize"),
        ({"attempt": -1}, CorruptStateError, "counters from 0"),
    ],
)
def test_a_phase_belongs_to_one_place(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    """Another run, update, place, size or recipe is refused, and it is said where the loader stays."""
    PHASE.check_start(CURSOR, SPAN, run_id="")
    with pytest.raises(error, match=message):
        msgspec.structs.replace(PHASE, **changes).check_start(CURSOR, SPAN, run_id="")
    with pytest.raises(StateError, match="at the end of the run"):
        PHASE.check_start(CURSOR, None, run_id="")


def test_a_hash_tells_recipes_apart() -> None:
    """Any field of the recipe changes it, and nothing else does."""
    assert recipe_hash(RECIPE) == recipe_hash(msgspec.structs.replace(RECIPE))
    for name, value in (("global_batch", 8), ("tail", "pad"), ("normalize", "tokens"), ("fingerprint", "x")):
        assert recipe_hash(RECIPE) != recipe_hash(msgspec.structs.replace(RECIPE, **{name: value}))
