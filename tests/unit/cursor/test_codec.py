"""The fixed-size form of a cursor."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import msgspec
import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.cursor import (
    STATE_NUM_BYTES,
    CoverageSpan,
    Cursor,
    Migration,
    Recipe,
    RecipeChange,
    decode_cursor,
    encode_cursor,
    require_room,
)
from resumable_data.errors import CorruptStateError, ResumableDataError, StateError, UsageError
from tests.texts import texts

GOLDEN = Path(__file__).parents[2] / "golden"

RECIPE = Recipe(
    order={"kind": "shuffle", "version": 1, "length": 1000, "seed": 2**62 + 1, "name": "täglich"},
    global_batch=16,
    tail="drop",
    normalize="tokens",
    fingerprint="9f3c",
)
CURSOR = Cursor(
    recipe=RECIPE,
    run_id="00f1e2d3c4b5a697",
    attempt=3,
    applied=2**53 + 1,
    skipped=7,
    samples=2**53 * 1000 + 1 - 8,
    tokens=2**62 + 3,
    epoch=2**53,
    offset=1,
    padding=5,
    dropped=8,
    migrations=(Migration(4, 32, (RecipeChange("global_batch", 8, 16), RecipeChange("fingerprint", None, "9f3c"))),),
    coverage=(CoverageSpan(0, 32, (2**64 - 1, 0)), CoverageSpan(48, 64, (1, 2**63))),
)


def test_a_cursor_survives_its_fixed_size_form() -> None:
    """Every field comes back exactly, numbers past 2^53 and 2^62 too, in a size that never changes."""
    data = encode_cursor(CURSOR)
    assert len(data) == STATE_NUM_BYTES == len(encode_cursor(Cursor(recipe=RECIPE)))
    assert decode_cursor(data) == CURSOR
    assert decode_cursor(bytearray(data)) == decode_cursor(memoryview(data)) == CURSOR
    assert encode_cursor(decode_cursor(data)) == data


def test_golden_cursor_is_read_and_written_alike() -> None:
    """The files that version 1 wrote are read to the same numbers, and written byte for byte again."""
    assert Cursor.from_json((GOLDEN / "cursor-v1.json").read_bytes()) == CURSOR
    assert decode_cursor((GOLDEN / "cursor-v1.bin").read_bytes()) == CURSOR
    assert CURSOR.to_json() == (GOLDEN / "cursor-v1.json").read_bytes()
    assert encode_cursor(CURSOR) == (GOLDEN / "cursor-v1.bin").read_bytes()


def test_the_layout_is_as_documented() -> None:
    """Magic, version, length, checksum of the JSON, the JSON, zeros."""
    data, body = encode_cursor(CURSOR), CURSOR.to_json()
    assert struct.unpack_from("<8sIIQ", data) == (b"RDCURSOR", 1, len(body), xxhash.xxh3_64_intdigest(body))
    assert data[24:].rstrip(b"\0") == body


def test_json_is_canonical_and_exact() -> None:
    """The JSON has no spaces, sorted keys in the order's description, and integers that no float passed through."""
    text = CURSOR.to_json().decode()
    loaded = json.loads(text)
    assert text == json.dumps(loaded, separators=(",", ":"), ensure_ascii=False)
    assert list(loaded["recipe"]["order"]) == sorted(loaded["recipe"]["order"])
    assert loaded["tokens"] == 2**62 + 3
    assert loaded["applied"] == 2**53 + 1
    reordered = msgspec.structs.replace(RECIPE, order=dict(reversed(RECIPE.order.items())))
    assert msgspec.structs.replace(CURSOR, recipe=reordered).to_json() == CURSOR.to_json()


def test_every_flipped_bit_is_found() -> None:
    """No single bit of the tensor can change unnoticed, in the header, in the cursor or after it."""
    data = encode_cursor(CURSOR)
    used = 24 + len(CURSOR.to_json())
    for place in [*range(used + 16), STATE_NUM_BYTES - 1]:
        for bit in range(8):
            flipped = bytearray(data)
            flipped[place] ^= 1 << bit
            with pytest.raises(CorruptStateError, match=r"expected .* found .*Nothing was loaded.*earlier checkpoint"):
                decode_cursor(flipped)


@pytest.mark.parametrize("size", [0, 1, 23, 24, 300, STATE_NUM_BYTES - 1, STATE_NUM_BYTES + 1])
def test_another_size_is_refused(size: int) -> None:
    """A cut or lengthened tensor is refused with both sizes."""
    data = (encode_cursor(CURSOR) + b"\0")[:size]
    with pytest.raises(CorruptStateError, match=f"expected {STATE_NUM_BYTES} bytes, found {size} bytes"):
        decode_cursor(data)


def sealed(body: bytes, *, version: int = 1) -> bytes:
    """A tensor whose checksum is right whatever its body says."""
    header = struct.pack("<8sIIQ", b"RDCURSOR", version, len(body), xxhash.xxh3_64_intdigest(body))
    return (header + body).ljust(STATE_NUM_BYTES, b"\0")


def test_a_later_format_is_refused_by_its_number() -> None:
    """A tensor of a later format names both versions."""
    with pytest.raises(CorruptStateError, match="expected format version 1, found version 2"):
        decode_cursor(sealed(CURSOR.to_json(), version=2))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_by_our_errors_only(body: bytes) -> None:
    """Whatever is in the file, reading it raises our error or gives a cursor, nothing else."""
    for data in (body, body.ljust(STATE_NUM_BYTES, b"\0"), sealed(body)):
        with pytest.raises(CorruptStateError):
            decode_cursor(data)
    with pytest.raises(CorruptStateError):
        Cursor.from_json(body)


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | texts(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(st.sampled_from(sorted(json.loads(CURSOR.to_json()))), JSON_VALUES)
def test_a_field_of_any_value_is_refused_or_read(field: str, value: Any) -> None:
    """A cursor with one field replaced by anything is refused by our errors, or reads and writes back the same."""
    fields = {**json.loads(CURSOR.to_json()), field: value}
    try:
        cursor = Cursor.from_json(json.dumps(fields))
    except ResumableDataError:
        return
    assert Cursor.from_json(cursor.to_json()) == cursor
    cursor.schedule()


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("applied", -1, "counters of at least 0"),
        ("offset", 1000, r"an offset in \[0, 1000\)"),
        ("samples", 3, "add up to the position"),
        ("version", 2, "expected a cursor of version 1, found version 2"),
        ("coverage", [[5, 2, [0, 0]]], "ascending spans"),
        ("coverage", [[0, 2**70, [0, 0]]], "ascending spans"),
        ("coverage", [[4, 8, [0, 0]], [0, 4, [0, 0]]], "ascending spans"),
        ("coverage", [[0, 2, [0, 2**64]]], "64-bit"),
        ("tokens", 1.0, "float"),
        ("unknown", 1, "unknown field"),
    ],
)
def test_numbers_that_contradict_each_other_are_refused(field: str, value: Any, says: str) -> None:
    """A cursor that no run can have is refused, and what is wrong with it is said."""
    with pytest.raises(CorruptStateError, match=says):
        Cursor.from_json(json.dumps({**json.loads(CURSOR.to_json()), field: value}))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("tail", "keep", "tail must be one of"),
        ("global_batch", 0, "global_batch must be an integer"),
        ("fingerprint", 5, "fingerprint must be printable text"),
        ("fingerprint", "\ud800", "fingerprint must be printable text"),
        ("fingerprint", "x" * 513, "at most 512 bytes"),
        ("order", {"kind": "own"}, "length of the order"),
    ],
)
def test_a_recipe_that_could_not_be_read_back_is_refused(field: str, value: Any, says: str) -> None:
    """What a checkpoint could not give back is refused where it is declared, not at the next restart."""
    fields: dict[str, Any] = {"order": {"length": 4}, "global_batch": 2, field: value}
    with pytest.raises(UsageError, match=says):
        Recipe(**fields)


def test_a_cursor_that_does_not_fit_says_what_to_do() -> None:
    """A cursor with too many migrations is refused at encoding, with the sizes and the way out."""
    crowded = msgspec.structs.replace(CURSOR, migrations=CURSOR.migrations * 100)
    with pytest.raises(StateError, match=r"holds 4072. It records 100 migrations.*start a new run"):
        encode_cursor(crowded)


def test_every_counter_has_room_to_grow() -> None:
    """A new run is refused if its recipe leaves too little room, by exactly what its cursor may still grow."""
    fields = json.loads(Cursor(recipe=RECIPE).to_json())
    grown = fields | {name: 2**63 - 1 for name, value in fields.items() if value == 0}
    grown |= {"run_id": "f" * 16, "coverage": [[2**63 - 1, 2**63 - 1, [2**64 - 1, 2**64 - 1]]] * 8}
    most = STATE_NUM_BYTES - 24 - len(json.dumps(grown, separators=(",", ":"), ensure_ascii=False).encode())

    def long_named(num_bytes: int) -> Cursor:
        name = f"{RECIPE.order['name']}{'x' * num_bytes}"
        return Cursor(recipe=msgspec.structs.replace(RECIPE, order={**RECIPE.order, "name": name}))

    require_room(long_named(most))
    encode_cursor(long_named(most + 1))  # it fits now
    with pytest.raises(StateError, match=r"may grow to 4073, 0 migrations.*Shorten the order's name"):
        require_room(long_named(most + 1))


def test_the_largest_numbers_fit() -> None:
    """A cursor of long names, large numbers and eight spans fits with room for a dozen migrations."""
    order: dict[str, int | str] = {
        "kind": "shuffle",
        "version": 1,
        "length": 2**62,
        "seed": 2**63 - 1,
        "name": "n" * 255,
    }
    recipe = Recipe(order=order, global_batch=2**40, fingerprint="f" * 512)
    position = 2**62 * 2**60 + 2**61
    cursor = Cursor(
        recipe=recipe,
        run_id="f" * 16,
        applied=2**62,
        samples=position,
        tokens=2**80,
        epoch=2**60,
        offset=2**61,
        migrations=(Migration(2**62, 2**62, (RecipeChange("global_batch", 2**40, 2**40 + 1),)),) * 12,
        coverage=tuple(CoverageSpan(2**70 + i, 2**70 + i + 1, (2**64 - 1, 2**64 - 1)) for i in range(8)),
    )
    assert decode_cursor(encode_cursor(cursor)) == cursor
