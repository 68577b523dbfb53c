"""The fixed-size form of a cursor that goes into a checkpoint as one uint8 tensor, see `FixedForm`.

Its magic is ``b"RDCURSOR"``, and it takes 4096 bytes.
"""

from __future__ import annotations

import msgspec

from resumable_data.cursor.coverage import MAX_SPANS, CoverageSpan
from resumable_data.cursor.cursor import Cursor
from resumable_data.cursor.fixed_form import FixedForm
from resumable_data.errors import StateError
from resumable_data.plan.packed_place import PackedPlace

STATE_NUM_BYTES = 4096
STATE_KEY = "resumable_data.cursor"

_FORM = FixedForm(
    name="cursor",
    magic=b"RDCURSOR",
    version=1,
    num_bytes=STATE_NUM_BYTES,
    remedy="Nothing was loaded, the loader is where it was; load an earlier checkpoint.",
)
_MAX_JSON_BYTES = _FORM.max_json_bytes
_COUNTERS = tuple(field.name for field in msgspec.structs.fields(Cursor) if field.type is int and field.default == 0)
_MAX_COUNT = 2**63 - 1
_MAX_LANE = 2**64 - 1


def encode_cursor(cursor: Cursor) -> bytes:
    """The cursor as exactly `STATE_NUM_BYTES` bytes.

    Raises:
        StateError: It does not fit, which takes dozens of migrations or very long names.
    """
    body = cursor.to_json()
    if len(body) > _MAX_JSON_BYTES:
        raise StateError(
            f"the cursor takes {len(body)} bytes as JSON and its tensor holds {_MAX_JSON_BYTES}. "
            f"It records {len(cursor.migrations)} migrations; nothing was changed. Shorten the order's name or the "
            "fingerprint, or start a new run instead of migrating this one again."
        )
    return _FORM.wrap(body)


def require_room(cursor: Cursor) -> None:
    """Make sure that a cursor fits, and goes on to fit however far its run comes with this recipe.

    Call it where the recipe is declared or changed: a job must not find out at its tenth save.

    Raises:
        StateError: It might not fit one day.
    """
    num_bytes = len(_widest(cursor).to_json())
    if num_bytes <= _MAX_JSON_BYTES:
        return
    if cursor.migrations:
        remedy = (
            "Go on with the saved recipe; or, to have the new one, begin a new run where this one stands: give "
            "Cursor.from_consumed_samples(), which has no migrations yet, to a loader with a new ledger"
        )
    else:
        remedy = "Shorten the order's name or the fingerprint"
    raise StateError(
        f"expected a cursor that takes at most {_MAX_JSON_BYTES} bytes as JSON, with room for the run to go on; found "
        f"one that may grow to {num_bytes}, {len(cursor.migrations)} migrations in it: a later checkpoint could not be "
        f"saved. Nothing was loaded. {remedy}."
    )


def _widest(cursor: Cursor) -> Cursor:
    """The longest that `cursor` can become while its recipe stays."""
    most = max(_MAX_COUNT, cursor.position, *(getattr(cursor, name) for name in _COUNTERS))
    spans = (CoverageSpan(most, most, (_MAX_LANE, _MAX_LANE)),) * MAX_SPANS
    packed = PackedPlace(**dict.fromkeys(PackedPlace.__struct_fields__, most)) if cursor.packed else msgspec.UNSET
    counters = dict.fromkeys(_COUNTERS, most)
    return msgspec.structs.replace(cursor, run_id="f" * 16, coverage=spans, packed=packed, **counters)


def decode_cursor(data: bytes | bytearray | memoryview) -> Cursor:
    """The cursor from its fixed-size form.

    Raises:
        CorruptStateError: The bytes are damaged, or of another format.
    """
    return Cursor.from_json(_FORM.unwrap(data))
