"""A cursor's decoders, given random and mutated bytes: errors of ours alone, and memory within a bound."""

from __future__ import annotations

import json
import random
import tracemalloc
from typing import TYPE_CHECKING, Any

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from resumable_data.audit import audit_cursor
from resumable_data.cursor import STATE_NUM_BYTES, Cursor, decode_cursor
from resumable_data.errors import ResumableDataError
from resumable_data.order import Shuffle
from tests.examples import examples
from tests.unit.audit.forging import EXTREMES, numbers_under
from tests.unit.ledger.test_fuzz import mutated

if TYPE_CHECKING:
    from collections.abc import Callable

PEAK_BYTES_MAX = 16 << 20
BODY = (
    b'{"recipe":{"order":{"kind":"shuffle","length":23,"name":"","seed":3,"version":1},"global_batch":12,"tail":"carry",'
    b'"normalize":"samples","fingerprint":"9f3c"},"version":1,"run_id":"00000000000000aa","attempt":2,"applied":3,'
    b'"skipped":1,"samples":42,"tokens":0,"epoch":1,"offset":19,"padding":0,"dropped":0,"batches":0,'
    b'"migrations":[[1,6,[["global_batch",6,12]]]],"coverage":[[0,6,[1,2]],[18,42,[18446744073709551615,3]]]}'
)


def framed(body: bytes) -> bytes:
    """The tensor of some JSON, with the right length and checksum."""
    head = b"RDCURSOR" + (1).to_bytes(4, "little") + len(body).to_bytes(4, "little")
    return (head + xxhash.xxh3_64_intdigest(body).to_bytes(8, "little") + body).ljust(STATE_NUM_BYTES, b"\0")


def decode(decoder: Callable[[bytes], Cursor], data: bytes) -> None:
    """What is decoded comes back the same, and the audit takes it; all else is an error of ours."""
    tracemalloc.start()
    try:
        cursor = decoder(data)
        assert Cursor.from_json(cursor.to_json()) == cursor
        assert audit_cursor(cursor).to_text()
    except ResumableDataError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < PEAK_BYTES_MAX


def test_the_cursor_that_is_mutated_is_read() -> None:
    """Without a mutation there is no error."""
    cursor = decode_cursor(framed(BODY))
    assert (cursor.to_json(), cursor.recipe.order) == (BODY, Shuffle(23, seed=3).describe())


@examples(200, quick=60)
@given(seed=st.integers(0, 1 << 32))
def test_mutated_tensors(seed: int) -> None:
    """With the checksum as it was, and with one that is right for what is there."""
    rng = random.Random(seed)
    data = mutated(framed(BODY), rng)
    decode(decode_cursor, data.ljust(STATE_NUM_BYTES, b"\0")[:STATE_NUM_BYTES])
    body = mutated(BODY, rng)
    decode(decode_cursor, framed(body)[:STATE_NUM_BYTES])
    decode(Cursor.from_json, body)


@given(data=st.binary(max_size=300))
def test_random_bytes(data: bytes) -> None:
    """Random bytes alone, as a tensor, and as the JSON in one."""
    for one in (data, data.ljust(STATE_NUM_BYTES, b"\0"), framed(data)):
        decode(decode_cursor, one)
    decode(Cursor.from_json, data)


@examples(300, quick=80)
@given(data=st.data())
def test_numbers_of_any_size(data: st.DataObject) -> None:
    """One or two numbers of a cursor are anything: refused, or audited without computing with what no run reaches."""
    fields: dict[str, Any] = json.loads(BODY)
    for keys in data.draw(st.lists(st.sampled_from(numbers_under(fields)), min_size=1, max_size=2)):
        holder: Any = fields
        for key in keys[:-1]:
            holder = holder[key]
        holder[keys[-1]] = data.draw(st.sampled_from(EXTREMES))
    decode(Cursor.from_json, json.dumps(fields).encode())


@pytest.mark.parametrize(
    "text", ["[" * 5000, '{"recipe":' * 2000, '{"a":' + "9" * 5000 + "}", '"' + "\\ud800" * 100 + '"']
)
def test_odd_json(text: str) -> None:
    """Nesting without an end, numbers of thousands of digits, halves of characters."""
    decode(Cursor.from_json, text.encode())
