"""Runs over packed rows: what an audit has to know of these, and how it is held against the run's recipe.

What rows a run reads depends on the lengths of its documents, so the documents have to be at hand; the layers that
know how to pack them come after this one, and give what is needed here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from resumable_data.audit.findings import finding
from resumable_data.errors import UsageError

if TYPE_CHECKING:
    from resumable_data.cursor import Cursor, Recipe
    from resumable_data.findings import Finding
    from resumable_data.order import Int64Array
    from resumable_data.plan import PackedPlace

_ENDS_MAX = 64
_EPOCHS_MAX = 1 << 20
_SLACK = 16


class PackedRows(Protocol):
    """All rows of a run by their position, planned as far as they are asked for; an `Order` besides.

    Attributes:
        gaps: Windows whose rows do not hold every token of their documents once, a line each.
        limit: The position beyond which nothing is planned, but an error raised; None for any.
        has_own_truncation: Whether planned rows left tokens out by a rule that is the packing policy's own.
    """

    gaps: list[str]
    limit: int | None
    has_own_truncation: bool

    @property
    def num_documents(self) -> int:
        """Documents of an epoch."""
        ...

    @property
    def row_length(self) -> int:
        """Tokens of a full row."""
        ...

    def kept_lengths(self, documents: Int64Array) -> Int64Array:
        """How many of its tokens, from the first on, an epoch holds of each document."""
        ...

    def documents(self, epoch: int, places: Int64Array) -> Int64Array:
        """The documents at places in the order of an epoch."""
        ...

    def window_stop(self, window: int) -> int:
        """The place in an epoch's order after the last document that rows of a window may hold."""
        ...

    @property
    def epoch_tokens(self) -> int:
        """Tokens of all documents."""
        ...

    def __len__(self) -> int:
        """See `resumable_data.plan.PACKED_LENGTH`."""
        ...

    def ids(self, epoch: int, offsets: Int64Array) -> Int64Array:
        """IDs of the rows at positions."""
        ...

    def offsets(self, epoch: int, ids: Int64Array) -> Int64Array:
        """Refused."""
        ...

    def describe(self) -> dict[str, int | str]:
        """What the rows depend on."""
        ...

    def place(self, position: int) -> PackedPlace:
        """The place at a position."""
        ...

    def pieces(self, position: int) -> list[tuple[int, int, int]]:
        """``(document, start, stop)`` of the pieces of the row at a position."""
        ...

    def rows_of(self, document: int, stop: int) -> list[int]:
        """Positions before `stop` of the rows that hold something of a document."""
        ...

    def end_of(self, epochs: int, *, at_most: int) -> int | None:
        """The position at the end of so many epochs; None where it is beyond `at_most`."""
        ...

    def ends_up_to(self, position: int) -> Int64Array:
        """The positions at ends of epochs, up to a position."""
        ...

    def update_starts(self, first: int, tokens: int, count: int, *, epochs: int | None = None) -> Int64Array:
        """Where updates by tokens start, the last one's end included."""
        ...


class Packed(Protocol):
    """How documents were packed: `resumable_data.packing.PackedTokens`."""

    def describe(self) -> dict[str, int | str]:
        """What the rows depend on."""
        ...

    def describe_change(self, fingerprint: str) -> str:
        """What became of the documents since their fingerprint was taken; empty for nothing."""
        ...

    def history(self) -> PackedRows:
        """The rows."""
        ...


def find_rows(recipe: Recipe, packed: Packed | None) -> PackedRows | None:
    """The rows of a run; None where it read samples.

    Raises:
        UsageError: The run read packed rows, and they are not given, or others; or it did not.
    """
    if not recipe.is_packed:
        if packed is not None:
            raise UsageError("packed= was given, and this run read samples, not packed rows. Leave it out.")
        return None
    if packed is None:
        raise not_given()
    described = packed.describe()
    differ = [
        f"{key} {recipe.order.get(key)!r} in the run, {described.get(key)!r} given"
        for key in dict.fromkeys((*recipe.order, *described))
        if recipe.order.get(key) != described.get(key)
    ]
    change = packed.describe_change(recipe.fingerprint or "")
    if differ:
        raise UsageError(
            f"expected rows packed as the run packed them; found {', '.join(differ)}"
            f"{f'; the documents are others too, {change}' if change else ''}. Nothing was audited."
        )
    if change:
        raise UsageError(
            f"expected the documents that the run read, found others: {change}. Nothing was audited; give the tokens "
            "as they were."
        )
    return packed.history()


def not_given() -> UsageError:
    """The error for a run over packed rows whose documents are needed, and not given."""
    return UsageError(
        "this run read packed rows, and which these are depends on the lengths of its documents. Nothing was "
        "audited; give packed=PackedTokens(...) as the run had it, or on the command line --tokens SOURCE."
    )


def is_near(rows: PackedRows | None, cursor: Cursor) -> bool:
    """Whether a cursor's numbers agree so far that planning all rows before it comes to an end; true of other runs.

    Numbers that are a little wrong are for the audit to find. These here take documents a number of epochs, about as
    many tokens as that many epochs have, rows with a token each and updates with a row each.
    """
    if rows is None or not cursor.packed:
        return True
    place, of_epoch = cursor.packed, rows.epoch_tokens
    tokens = place.tokens + place.truncated_tokens
    return (
        place.epoch <= _EPOCHS_MAX
        and place.epoch * of_epoch <= _SLACK * tokens + of_epoch
        and tokens <= _SLACK * (place.epoch + 1) * of_epoch
        and cursor.position <= _SLACK * place.tokens
        and cursor.updates <= cursor.position + 1
    )


def count_between(rows: PackedRows, recipe: Recipe, start: int, stop: int, *, at_most: int) -> tuple[int, bool]:
    """Whole updates from one position to another, at most so many, and whether they end there."""
    batch = recipe.global_batch
    if not recipe.batch_unit:
        return (stop - start) // batch, (stop - start) % batch == 0
    low, high = 0, at_most
    while low < high:  # the largest number of updates that do not go beyond
        middle = (low + high + 1) // 2
        low, high = (middle, high) if rows.update_starts(start, batch, middle)[-1] <= stop else (low, middle - 1)
    return low, int(rows.update_starts(start, batch, low)[-1]) == stop


def may_have_led_to(rows: PackedRows, recipe: Recipe, start: int, position: int, num_updates: int) -> bool:
    """Whether so many updates may have led from one position to another in a run that ended and was then extended.

    Up to the end of an epoch there were whole updates and perhaps a short one; of earlier ends each may have cut one
    more update short. From the last of these ends on, whole updates lead to the position.
    """
    ends = [end for end in rows.ends_up_to(position)[-_ENDS_MAX:].tolist() if end > start]
    for number, end in reversed(list(enumerate(ends))):
        after, is_whole = count_between(rows, recipe, end, position, at_most=num_updates)
        before, ends_there = count_between(rows, recipe, start, end, at_most=num_updates)
        fewest = before + (not ends_there)
        if is_whole and fewest <= num_updates - after <= fewest + number:
            return True
    return False


def check_place(rows: PackedRows | None, cursor: Cursor, where: str) -> list[Finding]:
    """Hold a cursor's place among packed rows against its position."""
    if rows is None or not cursor.packed:
        return []
    expected = rows.place(cursor.position)
    names = expected.__struct_fields__
    wrong = [name for name in names if getattr(expected, name) != getattr(cursor.packed, name)]
    if not wrong:
        return []
    shown = ", ".join(f"{name} {getattr(cursor.packed, name)} in place of {getattr(expected, name)}" for name in wrong)
    text = f"the place among packed rows that position {cursor.position} is"
    return [finding("RD404", where, expected=text, found=shown)]


def check_rows(rows: PackedRows | None) -> list[Finding]:
    """Whether every token of the documents was in the planned rows once."""
    if rows is None or not rows.gaps:
        return []
    more = f", and {len(rows.gaps) - 1} windows more" if len(rows.gaps) > 1 else ""
    return [finding("RD211", "packed rows", expected="every token of a window once", found=rows.gaps[0] + more)]
