"""What has to match for a cursor to mean the same thing, and what changed where it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from resumable_data.errors import UsageError
from resumable_data.plan.batch_plan import require_count
from resumable_data.plan.packed_place import PACKED_KIND
from resumable_data.plan.schedule import RANK_TAILS, TAILS

if TYPE_CHECKING:
    from collections.abc import Collection

RecipeValue = int | str | None

ALLOWED_CHANGES = frozenset({"global_batch", "batch_unit", "tail", "normalize", "fingerprint"})
"""Fields that `load_state_dict` may be told to change; all others give positions another meaning."""

MAX_FINGERPRINT_BYTES = 512

_EFFECTS = {
    "order": "the same positions would name other samples: some would be repeated and others never seen",
    "fingerprint": "the same sample IDs would name other contents",
    "global_batch": "updates would take another number of samples, and the schedules that count updates shift",
    "batch_unit": "updates would be counted in another unit, and take another number of samples",
    "tail": "other samples would be dropped, padded or carried over at the ends of epochs",
    "normalize": "samples would weigh differently in the gradient",
}


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must match for a cursor to mean the same thing.

    World size, microbatch, workers and the number of epochs are not in it: they may always change.

    Attributes:
        order: The order's `describe()`: kind, version, length, seed, name. Or that of a
            `resumable_data.packing.PackedTokens`.
        global_batch: Samples of one update, or tokens.
        batch_unit: ``"tokens"`` where `global_batch` counts tokens of packed rows; `msgspec.UNSET`, and not in the
            JSON, where it counts samples.
        tail: What happens at the end of an epoch, see `Schedule`.
        normalize: What the gradient is a mean over, ``"samples"``, ``"tokens"`` or ``"targets"``.
        fingerprint: What identifies the dataset's contents (a tokenizer, a data version), or None.

    Raises:
        UsageError: A value is none that a checkpoint could give back.
    """

    order: dict[str, int | str]
    global_batch: int
    tail: str = "carry"
    normalize: str = "samples"
    fingerprint: str | None = None
    batch_unit: str | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        require_count("length of the order", self.order.get("length"))
        require_count("global_batch", self.global_batch)
        if self.tail not in (*TAILS, *RANK_TAILS):
            raise UsageError(f"tail must be one of {TAILS}, got {self.tail!r}")
        if self.is_packed and self.tail != "carry":
            raise UsageError(
                f'tail must be "carry" for packed rows, got {self.tail!r}: how many rows an epoch has is not known '
                "before all of it is planned, so there is no last update of an epoch to cut, drop or fill up."
            )
        if self.batch_unit is not msgspec.UNSET and (self.batch_unit != "tokens" or not self.is_packed):
            raise UsageError(f'batch_unit can only be "tokens", and of packed rows, got {self.batch_unit!r}')
        if self.fingerprint is not None:
            _check_fingerprint(self.fingerprint)

    @property
    def length(self) -> int:
        """Samples of one epoch."""
        return int(self.order["length"])

    @property
    def is_packed(self) -> bool:
        """Whether positions are rows of packed tokens, numbered through all epochs."""
        return self.order.get("kind") == PACKED_KIND

    @property
    def counts_batches(self) -> bool:
        """Whether the run is counted, and its ledger numbered, by a DataLoader's batches and not by updates."""
        return self.tail in RANK_TAILS

    def fields(self) -> dict[str, RecipeValue]:
        """All fields by their names in messages and in ``allow=``, the order's as ``order.seed`` and so on."""
        flat: dict[str, RecipeValue] = {f"order.{key}": value for key, value in sorted(self.order.items())}
        flat["global_batch"] = self.global_batch
        if self.batch_unit:
            flat["batch_unit"] = self.batch_unit
        flat["tail"] = self.tail
        flat["normalize"] = self.normalize
        flat["fingerprint"] = self.fingerprint
        return flat


def _check_fingerprint(value: object) -> None:
    is_text = isinstance(value, str) and value.isprintable()
    if not is_text or len(str(value).encode()) > MAX_FINGERPRINT_BYTES:
        raise UsageError(
            f"fingerprint must be printable text of at most {MAX_FINGERPRINT_BYTES} bytes, got {value!r:.80}. The "
            "cursor that holds it has a fixed size; give the hexadecimal hash of what identifies the contents."
        )


class RecipeChange(msgspec.Struct, frozen=True, array_like=True):
    """One field that differs between two recipes."""

    field: str
    saved: RecipeValue
    now: RecipeValue


def compare_recipes(saved: Recipe, now: Recipe) -> tuple[RecipeChange, ...]:
    """The fields in which two recipes differ, with both values."""
    old, new = saved.fields(), now.fields()
    return tuple(
        RecipeChange(field, old.get(field), new.get(field))
        for field in dict.fromkeys([*old, *new])
        if old.get(field) != new.get(field) or (field in old) != (field in new)
    )


def effect_of(field: str) -> str:
    """What a change of a field would do to the data."""
    return _EFFECTS[field.partition(".")[0]]


def describe_changes(changes: Collection[RecipeChange]) -> str:
    """A table of changed fields: name, saved value, value now, and what the change does to the data."""
    rows = [(c.field, repr(c.saved), repr(c.now), effect_of(c.field)) for c in changes]
    widths = [max(len(row[column]) for row in [*rows, _HEADER]) for column in range(3)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(row, [*widths, 0], strict=True)).rstrip()
        for row in [_HEADER, *rows]
    ]
    return "\n".join("  " + line for line in lines)


_HEADER = ("field", "saved", "now", "effect")


def check_allowed(allow: Collection[str]) -> frozenset[str]:
    """The set of allowed changes.

    Raises:
        UsageError: A name in it is not a field that may change.
    """
    unknown = sorted(set(allow) - ALLOWED_CHANGES)
    if unknown:
        raise UsageError(
            f"allow= takes {sorted(ALLOWED_CHANGES)}, got {unknown}. World size, microbatch, workers and epochs may "
            "always change and need no allowance; an order cannot change within a run."
        )
    return frozenset(allow)
