"""The phase: the part of an unfinished update whose gradient is accumulated already."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import xxhash

from resumable_data.cursor.coverage import NO_ROWS, Lanes
from resumable_data.cursor.fixed_form import FixedForm
from resumable_data.errors import OtherRunError, StateError

if TYPE_CHECKING:
    from resumable_data.cursor.cursor import Cursor
    from resumable_data.cursor.recipe import Recipe
    from resumable_data.plan import UpdateSpan

PHASE_VERSION = 1
PHASE_NUM_BYTES = 512

_FORM = FixedForm(
    name="phase",
    magic=b"RDPHASE\0",
    version=PHASE_VERSION,
    num_bytes=PHASE_NUM_BYTES,
    remedy="Nothing was restored; go on at the update's start, without the saved gradients, or load an earlier "
    "checkpoint.",
)
_REACHABLE = 1 << 61


class Phase(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Rows of an update that a job was handed before it was interrupted, and whose gradient it saved.

    Attributes:
        run_id: The run.
        update: Index of the unfinished update, the one at the cursor.
        start: Position at which it starts, the cursor's.
        samples: Its rows [start, start + samples) are accumulated, fewer than it has; 0 where none are.
        attempt: The ledger's attempt that delivered the last of them; 0 without a ledger.
        lanes: What they, padding rows left out, add to the coverage digest, over all ranks.
        targets: With ``normalize="targets"`` the target tokens of the whole update, which the gradient was weighed by.
        num_rows: Rows of the whole update, which the gradient was weighed by; 0 where that is not known.
        recipe: `recipe_hash` of the recipe it was read under; 0 where that is not known.
    """

    run_id: str
    update: int
    start: int
    samples: int
    attempt: int = 0
    lanes: Lanes = NO_ROWS
    targets: int | None = None
    num_rows: int = 0
    recipe: int = 0

    def check(self) -> None:
        """Make sure that the numbers can be those of a phase.

        Raises:
            CorruptStateError: They cannot.
        """
        counters = (self.update, self.start, self.samples, self.attempt, self.targets or 0, self.num_rows)
        if not 0 <= min(counters) <= max(counters) <= _REACHABLE or not all(0 <= lane < 1 << 64 for lane in self.lanes):
            raise _FORM.corrupt("counters from 0 to 2^61 and a digest of two 64-bit numbers", f"{self!r:.500}")

    def check_start(self, cursor: Cursor, span: UpdateSpan | None, *, run_id: str) -> None:
        """Make sure that this is a phase of the update at a cursor.

        Args:
            cursor: Where a job starts.
            span: The update there; None where the run is over.
            run_id: The run as far as it is known besides.

        Raises:
            OtherRunError: It is of another run.
            StateError: Its numbers are none that a phase can have; or it is of another update, of the same one under
                another recipe, or not inside it.
        """
        self.check()
        known = cursor.run_id or run_id
        if known and self.run_id != known:
            raise OtherRunError(
                f"the saved phase belongs to run {self.run_id}, the cursor or the ledger to run {known}. Its gradients "
                f"are of other data. {_NOT_INSIDE}"
            )
        place, here = (self.update, self.start), (cursor.updates, cursor.position)
        if place != here or span is None:
            there = "at the end of the run" if span is None else f"at update {here[0]}, position {here[1]}"
            raise StateError(
                f"expected a phase of the update at the cursor, which is {there}; found one of update {self.update} "
                f"at position {self.start}. Samples would be counted that were not read. {_NOT_INSIDE}"
            )
        if self.recipe not in (0, recipe_hash(cursor.recipe)) or self.num_rows not in (0, span.num_rows):
            raise StateError(
                f"expected a phase of update {self.update} under the recipe it goes on with, {span.num_rows} rows; "
                f"found one of an update of {self.num_rows or 'unknown'} rows, or under another recipe. The saved part "
                f"of the gradient would be weighed otherwise than the rest. {_NOT_INSIDE} A recipe is changed at an "
                "update's border."
            )
        if (self.targets is not None) != (cursor.recipe.normalize == "targets"):
            raise StateError(
                f'expected target tokens in a phase where normalize is "targets", and only there; found {self.targets} '
                f"with normalize={cursor.recipe.normalize!r}. The rest of the gradient would have another denominator. "
                f"{_NOT_INSIDE}"
            )
        if not 0 <= self.samples < span.num_rows:
            raise StateError(
                f"expected a phase inside update {self.update}, from 0 to {span.num_rows - 1} of its {span.num_rows} "
                f"rows; found {self.samples}. {_NOT_INSIDE}"
            )


_NOT_INSIDE = (
    "Nothing was changed: the loader stays at the update's start. Load cursor and phase of one checkpoint; or drop the "
    "saved gradients and read the update again."
)


def recipe_hash(recipe: Recipe) -> int:
    """A 64-bit hash that is equal where recipes are."""
    return xxhash.xxh3_64_intdigest(msgspec.json.encode(recipe, order="deterministic"))


def encode_phase(phase: Phase) -> bytes:
    """The phase as exactly `PHASE_NUM_BYTES` bytes.

    Raises:
        StateError: It does not fit, which takes a run ID that no loader makes.
    """
    body = msgspec.json.encode(phase, order="deterministic")
    if len(body) > _FORM.max_json_bytes:
        raise StateError(
            f"the phase takes {len(body)} bytes as JSON and its tensor holds {_FORM.max_json_bytes}. Nothing was "
            "saved; give the run an ID of 16 hexadecimal digits, as loaders do."
        )
    return _FORM.wrap(body)


def decode_phase(data: bytes | bytearray | memoryview) -> Phase:
    """The phase from its fixed-size form.

    Raises:
        CorruptStateError: The bytes are damaged, or of another format.
    """
    body = _FORM.unwrap(data)
    try:
        phase = _DECODER.decode(body)
    except (msgspec.DecodeError, UnicodeError) as error:
        raise _FORM.corrupt("a phase as JSON", f"something else ({error})") from None
    phase.check()
    return phase


_DECODER = msgspec.json.Decoder(Phase)
