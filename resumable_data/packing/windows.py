"""Packing in windows of the document order: the rows of one window, planned without planning any other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from resumable_data.errors import UsageError
from resumable_data.order import Int64Array, Order
from resumable_data.order.arguments import checked_epoch, checked_seed
from resumable_data.order.keys import key_message
from resumable_data.order.permutation import keyed_permutation
from resumable_data.packing.arguments import MAX_WINDOW, checked_int, checked_row_length
from resumable_data.packing.pieces import Placement
from resumable_data.packing.policies import Carry, Concat, PlacingPolicy, Policy
from resumable_data.packing.rows import PackedRows

DEFAULT_WINDOW = 2**16
"""Documents. Best fit fills well above 99.9 % with as many, and plans them in hundredths of a second."""

_VERSION = 1
_FIRST = Carry(0, 0)


@dataclass(frozen=True, eq=False)
class PlannedWindow:
    """The rows of one window of an epoch, in the order in which they are read.

    Args:
        epoch: the epoch.
        window: the window's number in it.
        rows: the rows; ``rows.document`` holds document IDs.
        carry: the first token of the epoch that is in no row of this window or an earlier one: its document's place
            in the epoch's order and its index in the document. ``(N, 0)`` after the last window. Only `Concat` leaves
            anything of the window's own documents.
    """

    epoch: int
    window: int
    rows: PackedRows
    carry: Carry


class WindowPlan:
    """Plans the rows of any window of any epoch, alike in every process: a pure function of what `describe` tells.

    Window ``w`` holds the documents at the places ``[w * window, (w + 1) * window)`` of the epoch's order. Its rows
    are shuffled under a key of seed, epoch and window. No window depends on another, except that with `Concat` it
    begins where the full rows of the one before end, which takes two integers to say: the carry. The last window of
    an epoch ends with a short row; nothing goes on into the next epoch.

    Args:
        order: of the documents; ``len(order)`` of them.
        lengths: maps ``(k,)`` int64 document IDs to their ``(k,)`` integer lengths in tokens, at least 0.
        policy: how a window's documents become rows.
        row_length: tokens of a full row.
        window: documents of a window, from 1 to `MAX_WINDOW`.
        seed: of the shuffle of a window's rows, from 0 to 2**63 - 1.

    Raises:
        UsageError: when an argument is not as described.

    Example:
        >>> import numpy as np
        >>> from resumable_data.order import Shuffle
        >>> from resumable_data.packing import BestFit
        >>> tokens = np.array([5, 3, 8, 2, 6])
        >>> plan = WindowPlan(Shuffle(5), tokens.take, BestFit(), row_length=8, window=3)
        >>> plan.num_windows
        2
        >>> windows = [plan.plan(0, 0), plan.plan(0, 1)]
        >>> sum(planned.rows.num_tokens for planned in windows)
        24
    """

    def __init__(
        self,
        order: Order,
        lengths: Callable[[Int64Array], Any],
        policy: Policy,
        *,
        row_length: int,
        window: int = DEFAULT_WINDOW,
        seed: int = 0,
    ) -> None:
        self._order = order
        self._length_of = lengths
        self._policy = policy
        self._row_length = checked_row_length(row_length)
        self._window = checked_int("window", window, 1, MAX_WINDOW, "Pass a number of documents, like 2**16.")
        self._seed = checked_seed(seed)

    @property
    def num_windows(self) -> int:
        """Windows of an epoch."""
        return -(-len(self._order) // self._window)

    @property
    def num_documents(self) -> int:
        """Documents of an epoch."""
        return len(self._order)

    @property
    def row_length(self) -> int:
        """Tokens of a full row."""
        return self._row_length

    def describe(self) -> dict[str, int | str]:
        """What the rows depend on besides the order and the documents: the policy, with its keys, and the arguments."""
        arguments = {"row_length": self._row_length, "window": self._window, "seed": self._seed}
        return {f"policy_{key}": value for key, value in self._policy.describe().items()} | {
            "version": _VERSION,
            **arguments,
        }

    def plan(self, epoch: int, window: int, carry: Carry | None = None) -> PlannedWindow:
        """The rows of one window.

        Args:
            epoch: at least 0.
            window: from 0 to ``num_windows - 1``.
            carry: with `Concat`, what ``plan(epoch, window - 1)`` or ``carry_into(epoch, window)`` told; not needed
                for window 0, nor with other policies.

        Raises:
            UsageError: when an argument is not as described, or `lengths` or a policy of your own gave something
                that cannot be planned with.
        """
        epoch = checked_epoch(epoch)
        checked_int("window", window, 0, self.num_windows - 1, "Count an epoch's windows from 0.")
        start, stop = self.places(window)
        carry = self._checked_carry(carry, start)
        documents, lengths = self._documents(epoch, carry.document, stop)
        placed, rest = self._place(lengths, carry.offset, start - carry.document, is_last=stop == len(self._order))
        rows = placed.rows(self._row_length, self._shuffle(placed.num_rows, epoch, window)).of_documents(documents)
        return PlannedWindow(epoch, window, rows, Carry(carry.document + rest.document, rest.offset))

    def carry_into(self, epoch: int, window: int) -> Carry:
        """Where a window begins, found without a checkpoint that tells it.

        With `Concat` this reads the lengths of all windows before it; with other policies nothing.

        Args:
            epoch: at least 0.
            window: from 0 to ``num_windows``.
        """
        epoch = checked_epoch(epoch)
        checked_int("window", window, 0, self.num_windows, "Count an epoch's windows from 0.")
        if not isinstance(self._policy, Concat):
            return Carry(min(window * self._window, len(self._order)), 0)
        carry = _FIRST
        for earlier in range(window):
            carry = self.plan(epoch, earlier, carry).carry
        return carry

    def places(self, window: int) -> tuple[int, int]:
        """The window's half-open range of places in the epoch's order."""
        start = window * self._window
        return start, min(start + self._window, len(self._order))

    def _checked_carry(self, carry: Carry | None, start: int) -> Carry:
        """The carry into the window whose places begin at ``start``; whether its tokens exist is seen in `_pack`."""
        if carry is None and (start == 0 or not isinstance(self._policy, Concat)):
            return Carry(start, 0)
        if carry is None:
            raise UsageError(
                "carry must be given for every window of Concat but the first; found None. Where the window before"
                " ended inside a document, tokens would be lost or repeated. Pass plan(epoch, window - 1).carry, the"
                " carry of a cursor, or carry_into(epoch, window)."
            )
        document = checked_int("carry.document", carry[0], 0, start, _CARRY_REMEDY)
        if not isinstance(self._policy, Concat):
            checked_int("carry.document", document, start, start, _CARRY_REMEDY)
            checked_int("carry.offset", carry[1], 0, 0, _CARRY_REMEDY)
        return Carry(document, checked_int("carry.offset", carry[1], 0, 2**62, _CARRY_REMEDY))

    def _documents(self, epoch: int, start: int, stop: int) -> tuple[Int64Array, Int64Array]:
        """IDs and lengths of the documents at these places: two ``(stop - start,)`` int64 arrays."""
        documents = self._order.ids(epoch, np.arange(start, stop, dtype=np.int64))
        lengths = np.asarray(self._length_of(documents))
        if lengths.shape != documents.shape or lengths.dtype.kind not in "iu":
            raise UsageError(
                f"lengths must give an integer array of shape {documents.shape} for as many documents; found"
                f" {lengths.dtype} of shape {lengths.shape}. Rows cannot be planned with it. Return a length in tokens"
                " for each document."
            )
        return documents, lengths.astype(np.int64, copy=False)

    def _place(self, lengths: Int64Array, consumed: int, num_earlier: int, *, is_last: bool) -> tuple[Placement, Carry]:
        """Rows of documents of which ``num_earlier`` belong to windows before, and where the rest begins."""
        whole = Carry(lengths.size, 0)
        if not isinstance(self._policy, PlacingPolicy):
            rows = self._policy.pack(lengths, self._row_length)
            rows.check(lengths)
            return Placement.of_rows(rows), whole
        if not isinstance(self._policy, Concat):
            return self._policy.place(lengths, self._row_length), whole
        if num_earlier or consumed:
            carried = int(lengths[:num_earlier].sum()) - consumed
            remedy = "It belongs to other documents, or to another window. " + _CARRY_REMEDY
            checked_int("the number of tokens carried into a window", carried, 1, self._row_length - 1, remedy)
        if is_last:
            return self._policy.place(lengths, self._row_length, consumed=consumed), whole
        return self._policy.place_full(lengths, self._row_length, consumed=consumed)

    def _shuffle(self, num_rows: int, epoch: int, window: int) -> Int64Array | None:
        """``(num_rows,)`` int64, the place of each row among those of its window; None where there are too few."""
        if num_rows < 2:
            return None
        purpose, name = "packing.rows", f"window {window}"
        message = key_message(
            version=_VERSION, purpose=purpose, seed=self._seed, epoch=epoch, length=num_rows, name=name
        )
        return keyed_permutation(num_rows, message).ids(np.arange(num_rows, dtype=np.int64))


_CARRY_REMEDY = "Pass the carry that plan() told for the window before, or carry_into(epoch, window)."
