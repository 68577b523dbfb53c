"""What every reader of logs gives: IDs in order, with where they came from."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from resumable_data.errors import UsageError
from resumable_data.logs.files import bad_log

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from resumable_data.order import Int64Array

ROLES = ("id", "rank", "step", "epoch")
DEFAULT_ID_NAMES = ("id", "ids", "sample_id", "sample_ids")
IGNORED = "_"

NUM_RANKS_MAX = 1 << 24
NUM_IDS_MAX = 1 << 62
_LIMITS = {"rank": NUM_RANKS_MAX, "step": NUM_IDS_MAX, "epoch": NUM_IDS_MAX}
_LARGEST = np.iinfo(np.int64).max


class Rows(NamedTuple):
    """Some consecutive rows of a log, one per ID.

    Attributes:
        id: (n,) int64.
        rank: (n,) int64, None where the log does not say.
        step: (n,) int64, or None.
        epoch: (n,) int64, or None.
        locate: Where in the file row k is, for people: ``"line 12"``.
    """

    id: Int64Array
    rank: Int64Array | None
    step: Int64Array | None
    epoch: Int64Array | None
    locate: Callable[[int], str]


class Fields(msgspec.Struct, frozen=True, kw_only=True):
    """Which parts of a log mean what.

    Attributes:
        columns: What the integers of a line are, for logs without names: ``"id"``, or ``"ids"`` as the last one for all
            that are left, ``"rank"``, ``"step"``, ``"epoch"``, and ``"_"`` for what is ignored. None where all
            integers are IDs.
        id: Name of the column or field with the IDs; None for one of `DEFAULT_ID_NAMES`.
        rank: Name of the one with ranks; None for ``"rank"``, where there is one.
        step: Likewise, steps.
        epoch: Likewise, epochs.
    """

    columns: tuple[str, ...] | None = None
    id: str | None = None
    rank: str | None = None
    step: str | None = None
    epoch: str | None = None

    def __post_init__(self) -> None:
        columns = self.columns
        if columns is None:
            return
        known = [name for name in columns if name != IGNORED]
        ids = [name for name in known if name in ("id", "ids")]
        is_known = set(known) <= {*ROLES, "ids"} and len(set(known)) == len(known)
        if not is_known or len(ids) != 1 or "ids" in columns[:-1]:
            raise UsageError(
                f"columns must name one id, or ids as the last one, and at most one each of rank, step and epoch, with "
                f"{IGNORED} for what is ignored; got {','.join(columns)!r}. Other numbers would be counted as IDs."
            )

    def resolve(self, names: Sequence[str], path: Path) -> dict[str, str]:
        """Which of the names in a log has which role.

        Raises:
            LogError: There is none for the IDs, or none of the name that was asked for.
        """
        where = "its names"
        if self.columns is not None:
            raise bad_log(path, where, "no names, as columns= was given", ", ".join(map(repr, names)))
        found: dict[str, str] = {}
        for role in ROLES:
            asked = getattr(self, role)
            wanted = (asked,) if asked is not None else DEFAULT_ID_NAMES if role == "id" else (role,)
            matches = [name for name in names if name in wanted]
            if len(matches) > 1 or (not matches and (asked is not None or role == "id")):
                expected = f"one of {', '.join(map(repr, wanted))} for the {role}; name it with --{role} if it differs"
                raise bad_log(path, where, expected, ", ".join(map(repr, names)) or "none")
            if matches:
                found[role] = matches[0]
        if len(set(found.values())) != len(found):
            raise UsageError("id, rank, step and epoch must be different columns of the log")
        return found


def make_rows(
    columns: Mapping[str, Int64Array], locate: Callable[[int], str], counts: Int64Array | None = None
) -> Rows:
    """Rows of columns by role.

    Args:
        columns: The IDs, and what else is known per line.
        locate: Where line k of the columns is.
        counts: (lines,) IDs of each line; None where each has one.
    """
    rank, step, epoch = (columns.get(role) for role in ROLES[1:])
    if counts is None or (counts.size == columns["id"].size and bool((counts == 1).all())):
        return Rows(columns["id"], rank, step, epoch, locate)
    ends = np.cumsum(counts)
    rank, step, epoch = (None if values is None else np.repeat(values, counts) for values in (rank, step, epoch))
    return Rows(columns["id"], rank, step, epoch, lambda row: locate(int(np.searchsorted(ends, row, "right"))))


def as_int64(values: NDArray[Any]) -> Int64Array:
    """Integers of any kind as int64; what is larger becomes the largest, which no log may hold."""
    if values.dtype == np.uint64:
        values = np.minimum(values, np.uint64(_LARGEST))
    signed: Int64Array = values.astype(np.int64, copy=False)
    return signed


def check_rows(rows: Rows, path: Path, num_samples: int | None) -> None:
    """Refuse what no ID, rank, step or epoch can be.

    Raises:
        LogError: Says the line.
    """
    for role in ROLES:
        values: Int64Array | None = getattr(rows, role)
        limit = _LIMITS.get(role, NUM_IDS_MAX if num_samples is None else num_samples)
        # Seen as unsigned, a negative value is larger than any limit: one comparison finds both ends.
        if values is None or not values.size or int(values.view(np.uint64).max()) < limit:
            continue
        row = int(np.flatnonzero((values < 0) | (values >= limit))[0])
        value = int(values[row])
        found = f"{value} or more" if value == _LARGEST else str(value)
        raise bad_log(
            path, rows.locate(row), f"{'an' if role in ('id', 'epoch') else 'a'} {role} in [0, {limit})", found
        )
